"""Segment manifests: which ranges of the log are in segment objects, and from which slot on the WAL objects count.

    seg/<start in 20 digits>-<end>     the units from position `start` up to `end`, as they are in a segment
    snapshot/<position>                the state at this position, as in `log/<position>.snapshot` of a data directory
    manifest/<number in 20 digits>     the CRC-32C of the JSON, and the JSON: the changes since the previous manifest

        {"format": 1, "stream": "...", "floor": {"sequence", "position", "crc", "epoch", "writer"},
         "segments": [{"start", "end", "crc"}, ...], "removed": [start, ...], "snapshot": position or -1}

The *floor* is a slot. The segment objects contain all units up to it, and the WAL objects up to it are deleted, except
fences. A manifest is created once, after its segment objects, and is never deleted. So a broker that reads the number
after its last known manifest reliably finds out whether objects were deleted meanwhile.

Segment objects without a live entry are removed, as local segments are: a manifest lists them as removed and names a
snapshot whose position is above them and not above the floor; after that they are deleted.

Only an owner creates manifests, about slots that count. A manifest remains valid when that owner is deposed, so it
needs no fence. If two brokers create the same number, the second one reads the manifest of the first and starts again.
"""

import asyncio
import json
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.store.shared.requests import Requests
from duolog.store.shared.wal.slots import Tail
from duolog.store.shared.wal.wal_object import DamagedObject, Identity, damaged

FORMAT: Final = 1
SEGMENT_FOLDER: Final = "seg/"
SNAPSHOT_FOLDER: Final = "snapshot/"
AT_ONCE: Final = 16  # The number of concurrent requests for manifests while all of them exist.


class SegmentObject(NamedTuple):
    """One object with the units from `start` up to `end`."""

    start: int
    end: int
    crc: int  # The CRC-32C of the whole object.

    @property
    def key(self) -> str:
        return f"{SEGMENT_FOLDER}{self.start:020}-{self.end:020}"


class Floor(NamedTuple):
    """The last slot that segment objects replace, and its owner."""

    owner: Identity
    tail: Tail


class SegmentManifest(NamedTuple):
    floor: Floor
    segments: tuple[SegmentObject, ...]  # The new segment objects.
    removed: tuple[int, ...] = ()  # The starts of the removed segment objects.
    snapshot: int = -1  # The position of the snapshot that replaces the removed ones; -1 if none is needed.


def manifest_key(number: int) -> str:
    return f"manifest/{number:020}"


def snapshot_key(position: int) -> str:
    return f"{SNAPSHOT_FOLDER}{position:020}"


def segment_start(key: str) -> int | None:
    """Return the position at which a segment object begins; None if the key is that of no segment object."""
    start, _, end = key.removeprefix(SEGMENT_FOLDER).partition("-")
    return int(start) if start.isdecimal() and end.isdecimal() else None


def snapshot_position(key: str) -> int | None:
    """Return the position of a snapshot; None if the key is that of no snapshot."""
    position = key.removeprefix(SNAPSHOT_FOLDER)
    return int(position) if position.isdecimal() else None


def encode_manifest(manifest: SegmentManifest) -> bytes:
    (stream, writer, epoch), (sequence, position, crc) = manifest.floor
    floor = {"sequence": sequence, "position": position, "crc": crc, "epoch": epoch, "writer": writer.hex()}
    segments = [each._asdict() for each in manifest.segments]
    content = {"format": FORMAT, "stream": stream.hex(), "floor": floor, "segments": segments}
    text = json.dumps(content | {"removed": manifest.removed, "snapshot": manifest.snapshot}).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def decode_manifest(data: bytes, number: int) -> SegmentManifest:
    """Raises DamagedObject."""
    key = manifest_key(number)
    if data[:9] != b"%08x " % crc32c(data[9:-1]):
        raise damaged(key, "its CRC is wrong")
    try:
        found = json.loads(data[9:])
        if found["format"] != FORMAT:
            raise DamagedObject(
                f"{key} has format {found['format']}, and this version of Duolog reads format {FORMAT}: start a newer "
                "version on this machine, too"
            )
        floor = found["floor"]
        identity = Identity(bytes.fromhex(found["stream"]), bytes.fromhex(floor["writer"]), floor["epoch"])
        tail = Tail(floor["sequence"], floor["position"], floor["crc"])
        segments = tuple(SegmentObject(each["start"], each["end"], each["crc"]) for each in found["segments"])
        removed, snapshot = tuple(map(int, found["removed"])), int(found["snapshot"])
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(key, f"it is no manifest: {error!r}") from None
    return SegmentManifest(Floor(identity, tail), segments, removed, snapshot)


class SegmentManifests:
    """The content of the manifests of a stream that were read."""

    def __init__(self, requests: Requests) -> None:
        self.floor: Floor | None = None  # None before the first compaction.
        self.segments: list[SegmentObject] = []  # In the order of their positions, without the removed ones.
        self.snapshot = -1  # The position of the newest snapshot; -1 if no segment was removed.
        self.number = 0  # The number of the next manifest.
        self._requests = requests

    def copy(self, requests: Requests) -> "SegmentManifests":
        """Return a copy for another reader, which then reads new manifests itself."""
        copied = SegmentManifests(requests)
        copied.floor, copied.snapshot, copied.number = self.floor, self.snapshot, self.number
        copied.segments = [*self.segments]
        return copied

    @property
    def floor_sequence(self) -> int:
        """The last slot that may have been deleted; -1 for none."""
        return -1 if self.floor is None else self.floor.tail.sequence

    @property
    def first_whole(self) -> int:
        """The position from which on no segment object was removed."""
        position = self.floor.tail.position if self.floor else 0
        for each in reversed(self.segments):
            if each.end != position:
                break
            position = each.start
        return position

    async def refresh(self) -> None:
        """Read the manifests that were created meanwhile. Raises DamagedObject, RequestsStopped."""
        ahead = 1
        while True:
            asked = [self._requests.get(manifest_key(self.number + each)) for each in range(ahead)]
            for data in await asyncio.gather(*asked):
                if data is None:
                    return
                self._take(decode_manifest(data, self.number))
            ahead = AT_ONCE

    async def add(self, manifest: SegmentManifest) -> bool:
        """Create the next manifest; return False if another one has its number, which was then read."""
        data = encode_manifest(manifest)
        while not await self._requests.create(manifest_key(self.number), data):
            found = await self._requests.get(manifest_key(self.number))
            if found is None:
                continue
            if found == data:
                break
            await self.refresh()
            return False
        self._take(manifest)
        return True

    def _take(self, manifest: SegmentManifest) -> None:
        key, position = manifest_key(self.number), self.floor.tail.position if self.floor else 0
        end = manifest.floor.tail.position
        for each in manifest.segments:
            if not position <= each.start < each.end <= end:
                raise damaged(key, f"its segment {each.key} is not between position {position} and its floor at {end}")
            position = each.end
        if end < position or manifest.floor.tail.sequence < self.floor_sequence:
            raise damaged(key, f"its floor is {manifest.floor.tail}, below that of the manifest before it")
        removed = set(manifest.removed)
        if not manifest.snapshot <= end or (removed and manifest.snapshot < 0):
            raise damaged(key, f"its snapshot is of position {manifest.snapshot}, which is missing, or above its floor")
        self.floor = manifest.floor
        self.segments = [each for each in (*self.segments, *manifest.segments) if each.start not in removed]
        self.snapshot = max(self.snapshot, manifest.snapshot)
        self.number += 1
