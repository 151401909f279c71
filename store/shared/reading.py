"""Reads a shared log from the object store in a process that is not a broker, such as a Spark job.

    ranges = asyncio.run(find_ranges(objects, url, stream, wanted, wait_ms))    # which objects contain these positions
    with SharedLogReader(objects, url) as reader:
        for unit in reader.units(ranges[0]): ...

Compacted units are read from segment objects by range requests. All others are read from WAL objects, each as a whole.
If a WAL object is compacted between the two steps, its range is read from the segment object that has replaced it. A
reader lease on the broker's segments keeps the segment objects from removal.
"""

import asyncio
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from duolog.store.errors import StoreError
from duolog.store.log.log_reader import LogRange, LogReader
from duolog.store.log.unit_walk import Unit
from duolog.store.objects.interface import ObjectStore
from duolog.store.objects.transfers import persist
from duolog.store.shared.requests import CommandRequests
from duolog.store.shared.segments.manifest import SegmentManifests
from duolog.store.shared.wal.log_cursor import LogCursor
from duolog.store.shared.wal.stream import KEY, decode_stream
from duolog.store.shared.wal.wal_object import (
    HEADER_SIZE,
    OBJECT_BYTES_MAX,
    WalKind,
    decode,
    decode_header,
    key_of,
    sequence_of,
)

AHEAD_MAX: Final = 16  # The number of concurrent requests for headers of WAL objects.
POLL_MS: Final = 100  # The pause between two searches for units that the owner has not uploaded yet.


class Positions(NamedTuple):
    """A range of positions from `start` up to `end`. Both are ends of units."""

    start: int
    end: int


# -- Finding


async def find_ranges(
    objects: ObjectStore, url: str, stream: bytes, wanted: Sequence[Positions], wait_ms: int
) -> list[LogRange]:
    """Return the ranges of objects that contain the wanted positions, which must be in order.

    Waits up to `wait_ms` for units that the owner has not uploaded yet. Raises StoreError, also if the prefix has
    another stream, and ObjectStoreError and DamagedObject.
    """
    requests = CommandRequests(objects)
    found = await requests.get(KEY)
    if found is None:
        raise StoreError(f"{url} has no object '{KEY}', so it has no stream: correct the URL")
    if decode_stream(found) != stream:
        raise StoreError(
            f"{url} has stream {decode_stream(found).hex()}, and the broker's is {stream.hex()}: give the URL of the "
            "broker's --shared"
        )
    manifests = SegmentManifests(requests)
    await manifests.refresh()
    end = max((each.end for each in wanted), default=0)
    while (slots := await _slots(requests, manifests, stream, end, wait_ms)) is None:
        pass
    all_ranges = [LogRange(each.key, each.start, each.start, each.end) for each in manifests.segments] + slots
    ranges = [range_ for each in wanted for range_ in _within(all_ranges, each)]
    lacking = sum(each.end - each.start for each in wanted) - sum(each.end - each.start for each in ranges)
    if lacking:
        raise StoreError(f"{url} lacks {lacking} bytes of the log that the broker has: read the files of the broker")
    return ranges


async def _slots(
    requests: CommandRequests, manifests: SegmentManifests, stream: bytes, end: int, wait_ms: int
) -> list[LogRange] | None:
    """Return the ranges of the WAL objects above the floor, up to position `end`; None if the floor has moved."""
    floor = manifests.floor
    cursor = LogCursor.at_start(stream) if floor is None else LogCursor(floor.owner, floor.tail)
    found: list[LogRange] = []
    ahead, waited_ms = 1, 0
    while cursor.position < end:
        keys = [key_of(cursor.sequence + number) for number in range(ahead)]
        for data in await asyncio.gather(*(requests.get_range(key, 0, HEADER_SIZE) for key in keys)):
            if data is None:
                ahead = 1
                break
            header, _, _ = decode_header(data, cursor.sequence)
            if cursor.pass_over(header) and header.kind == WalKind.UNITS and header.first < header.end:
                found.append(LogRange(key_of(header.sequence), header.first, header.first, header.end))
        else:
            ahead = min(2 * ahead, AHEAD_MAX)
            continue
        number = manifests.number
        await manifests.refresh()
        if manifests.number != number:
            return None
        if waited_ms >= wait_ms and cursor.position < end:
            raise StoreError(
                f"the object store has the log up to position {cursor.position}, and the broker has it up to {end}: "
                "the broker cannot upload fast enough, or not at all; see its log"
            )
        if cursor.position < end:
            await requests.pause(POLL_MS)
            waited_ms += POLL_MS
    return found


def _within(ranges: Sequence[LogRange], wanted: Positions) -> Iterator[LogRange]:
    for path, first, start, end in ranges:
        if start < wanted.end and wanted.start < end:
            yield LogRange(path, first, max(start, wanted.start), min(end, wanted.end))


# -- Reading


class SharedLogReader:
    """Reads ranges of a shared log in a thread without an event loop. A context manager."""

    def __init__(self, objects: ObjectStore, url: str) -> None:
        self._objects = objects
        self._runner = asyncio.Runner()
        self._files = ObjectFiles(objects, self._runner)
        self._reader = LogReader(url, self._files)
        self._compacted: list[LogRange] = []  # The ranges of all segment objects, read when a WAL object is missing.

    def units(self, range_: LogRange) -> Iterator[Unit]:
        """Yield the units of a range. Raises StoreError, ObjectStoreError and Corruption."""
        for each in self._existing(range_):
            yield from self._reader.units(each)

    def _existing(self, range_: LogRange) -> Sequence[LogRange]:
        """Return the range, or the ranges of segment objects that replace it if its WAL object no longer exists."""
        if self._files.has(range_.path):
            return [range_]
        wanted = Positions(range_.start, range_.end)
        found = [*_within(self._compacted, wanted)]
        if not found:
            self._compacted = self._runner.run(self._read_manifests())
            found = [*_within(self._compacted, wanted)]
        if sum(each.end - each.start for each in found) != range_.end - range_.start:
            raise StoreError(f"{range_.path} does not exist, and no segment object has replaced it")
        return found

    async def _read_manifests(self) -> list[LogRange]:
        manifests = SegmentManifests(CommandRequests(self._objects))
        await manifests.refresh()
        return [LogRange(each.key, each.start, each.start, each.end) for each in manifests.segments]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._reader.close()
        self._runner.close()


class ObjectFiles:
    """ReadableFiles of segment objects and WAL objects. The content of a WAL object is its units."""

    def __init__(self, objects: ObjectStore, runner: asyncio.Runner) -> None:
        self._objects, self._runner = objects, runner
        self._opened: dict[int, str] = {}
        self._units: tuple[str, bytes] = ("", b"")  # The key and the units of the WAL object that was read last.

    def has(self, path: str) -> bool:
        """Read a WAL object, and return whether it exists; True for other objects. Raises ObjectStoreError."""
        sequence = sequence_of(path)
        if sequence is None or self._units[0] == path:
            return True
        data = self._runner.run(persist(lambda: self._objects.get(path, OBJECT_BYTES_MAX)))
        if data is not None:
            self._units = path, bytes(decode(data, sequence).payload)
        return data is not None

    def open(self, path: str) -> int:
        file = max(self._opened, default=0) + 1
        self._opened[file] = path
        return file

    def close(self, file: int) -> None:
        del self._opened[file]

    def read(self, file: int, size: int, at: int) -> bytes:
        path = self._opened[file]
        if self._units[0] == path:
            return self._units[1][at : at + size]
        size = min(size, self.size(file) - at)
        data = self._runner.run(persist(lambda: self._objects.get_range(path, at, size))) if size > 0 else b""
        if data is None or len(data) < size:
            raise StoreError(f"{path} does not exist or is too short; retention removes it if no lease holds the log")
        return data

    def size(self, file: int) -> int:
        path = self._opened[file]
        if self._units[0] == path:
            return len(self._units[1])
        start, _, end = path.rpartition("/")[2].partition("-")
        return int(end) - int(start)

    def list(self, path: str) -> list[str]:
        return []
