"""Moves the log of a data directory to an empty prefix of an object store, as a new stream.

    1. Create `seg/...` with the units of the log, in objects of at most PIECE_BYTES; the files that the log names; and,
       if segments were removed, the newest snapshot. No broker reads them yet.
    2. Read all these objects again, and compare their checksums.
    3. Create `stream` with the id of the stream.
    4. Create `wal/0`, a fence at the end of the log.
    5. Create `manifest/0`, which names the segment objects, and slot 0 as the floor.
    6. Write the file `shared` of the data directory, which is now a copy of the stream.

A broker that is started with the same prefix meanwhile may find `stream`, but begins to write only if its own fence has
slot 0. Then step 4 fails, and no object of this move is ever read. A move that was interrupted before step 3 may be
repeated; it keeps objects with the right content.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.store.errors import StoreError
from duolog.store.files import Files, read_whole
from duolog.store.log.format import unit_size
from duolog.store.log.segment import LOG_DIRECTORY, Segment, is_complete, read_chain
from duolog.store.log.unit_walk import units_of_file
from duolog.store.objects.interface import Creation, ObjectStore
from duolog.store.objects.self_test import FOLDER as SELF_TEST_FOLDER
from duolog.store.objects.self_test import check_creates
from duolog.store.objects.transfers import list_all, persist, read_ranges
from duolog.store.recovery.checkpoint import read_snapshot, snapshot_path
from duolog.store.shared.copy_state import CopyState, write_copy_state
from duolog.store.shared.files.named_files import FilePiece, pieces_of, read_piece
from duolog.store.shared.own_log import PATH
from duolog.store.shared.segments.manifest import (
    Floor,
    SegmentManifest,
    SegmentObject,
    encode_manifest,
    manifest_key,
    snapshot_key,
)
from duolog.store.shared.wal.slots import Tail
from duolog.store.shared.wal.stream import KEY as STREAM_KEY
from duolog.store.shared.wal.stream import encode_stream
from duolog.store.shared.wal.wal_object import Identity, WalHeader, WalKind, encode, key_of

PIECE_BYTES: Final = 64 << 20  # The size of a piece, which is in memory during its upload.
SMALL_BYTES_MAX: Final = 1 << 20  # The size of `stream`, `wal/0` and `manifest/0`, which are compared as a whole.
_LEFT_OVER: Final = ("seg/", "snapshot/", "timers/")  # The folders of an interrupted move.
_IGNORED: Final = ("nodes/", SELF_TEST_FOLDER)  # The folders that a broker creates before its start is refused.

NoteBytes = Callable[[int], None]


class MoveFailed(StoreError):
    """A move is impossible. The message says why, and what to do."""


class LocalLog(NamedTuple):
    """The verified log of a data directory, whose lock the caller holds."""

    files: Files
    end: int  # The end of the last whole unit.
    epoch: int  # The epoch of the last unit.
    named: Sequence[tuple[str, int]] = ()  # The paths and sizes of the files that the log names.

    @property
    def total_bytes(self) -> int:
        return self.end + sum(size for _, size in self.named)


class StoredPiece(NamedTuple):
    """A stored piece of a file."""

    key: str
    size: int
    crc: int


def check_is_no_copy(files: Files) -> None:
    """Raise MoveFailed if the data directory is a copy of a stream already."""
    if PATH in files.list("."):
        raise MoveFailed(
            f"the data directory is a copy of a stream, because it has the file '{PATH}': start the broker with "
            "--shared and the URL of that stream"
        )


class MoveToStore:
    """One move of a log to a prefix of an object store."""

    def __init__(self, objects: ObjectStore, url: str, local: LocalLog, note_bytes: NoteBytes) -> None:
        """`note_bytes` gets the size of each stored or compared block, in all twice `local.total_bytes`."""
        self._objects, self._url, self._local, self._note_bytes = objects, url, local, note_bytes

    async def run(self, identity: Identity, test_name: str) -> None:
        """Move the log. `identity` has a new stream and a new writer, and the epoch of the local log.

        `test_name` is a name for the self-test of the store that was never used. Blocks while it reads files. Raises
        MoveFailed, ObjectStoreError, Corruption and OSError.
        """
        local = self._local
        left_over = await self._left_over()
        await check_creates(self._objects, test_name)
        segments = [await self._store_piece(*piece, left_over) for piece in pieces(local.files, local.end)]
        snapshot = await self._store_snapshot(left_over)
        stored = [StoredPiece(each.key, each.end - each.start, each.crc) for each in segments]
        for path, size in local.named:
            stored += [await self._store_part(path, piece, left_over) for piece in pieces_of(path, size)]
        others = sorted(left_over.keys() - {*(each.key for each in stored), snapshot_key(snapshot)})
        if others:
            await persist(lambda: self._objects.delete(others))
        for each in stored:
            await self._verify(each)
        await self._begin_stream(identity, segments, snapshot)

    async def _left_over(self) -> dict[str, int]:
        """Return the sizes of the objects of an interrupted move by key. Raises MoveFailed for any others."""
        listed = await list_all(self._objects)
        found = {each.key: each.size for each in listed if not each.key.startswith(_IGNORED)}
        for key in found:
            if not key.startswith(_LEFT_OVER):
                what = "has a stream already" if key == STREAM_KEY else f"is not empty: it has {key!r}"
                raise MoveFailed(f"{self._url} {what}: use an empty prefix, or delete the objects below this one")
        return found

    # -- Segments, and files that the log names

    async def _store_piece(self, start: int, content: bytes, left_over: Mapping[str, int]) -> SegmentObject:
        made = SegmentObject(start, start + len(content), crc32c(content))
        await self._store(made.key, content, left_over)
        self._note_bytes(len(content))
        return made

    async def _store_part(self, path: str, piece: FilePiece, left_over: Mapping[str, int]) -> StoredPiece:
        content = read_piece(self._local.files, path, piece)
        await self._store(piece.key, content, left_over)
        self._note_bytes(len(content))
        return StoredPiece(piece.key, len(content), crc32c(content))

    async def _store_snapshot(self, left_over: Mapping[str, int]) -> int:
        """Store the newest snapshot if the log lacks segments, and return its position; else return -1."""
        files = self._local.files
        chain, _ = read_chain(files.list(LOG_DIRECTORY))
        if is_complete(chain):
            return -1
        found = read_snapshot(files)
        if found is None or found.position > self._local.end:
            raise MoveFailed(
                "segments of the log were removed, and it has no snapshot of their state: see `log verify`"
            )
        await self._store(snapshot_key(found.position), read_whole(files, snapshot_path(found.position)), left_over)
        return found.position

    async def _store(self, key: str, content: bytes, left_over: Mapping[str, int]) -> None:
        """Store an object, replacing one of an interrupted move that has another content."""
        if key in left_over and not await self._has(key, len(content), crc32c(content)):
            await persist(lambda: self._objects.delete([key]))
        await persist(lambda: self._objects.create(key, content))

    async def _verify(self, stored: StoredPiece) -> None:
        if not await self._has(*stored):
            raise MoveFailed(
                f"{self._url}/{stored.key} has another content than was written: delete it, check the store, and run "
                "the command again"
            )
        self._note_bytes(stored.size)

    async def _has(self, key: str, size: int, crc: int) -> bool:
        found_size = found_crc = 0
        async for block in read_ranges(self._objects, key, 0, size + 1):
            found_size, found_crc = found_size + len(block), crc32c(block, found_crc)
        return (found_size, found_crc) == (size, crc)

    # -- The stream

    async def _begin_stream(self, identity: Identity, segments: list[SegmentObject], snapshot: int) -> None:
        """Create the objects from which a start finds the log, and write the file `shared`."""
        local, (stream, writer, epoch) = self._local, identity
        header = WalHeader(WalKind.FENCE, 0, epoch, 0, local.end, local.end, 0, stream, writer)
        fence, header = encode(header, [])
        tail = Tail(0, local.end, header.crc)
        manifest = SegmentManifest(Floor(identity, tail), tuple(segments), (), snapshot)
        await self._create_once(STREAM_KEY, encode_stream(stream))
        await self._create_once(key_of(0), fence)
        await self._create_once(manifest_key(0), encode_manifest(manifest))
        write_copy_state(local.files, CopyState(identity, tail, 0, writer))

    async def _create_once(self, key: str, content: bytes) -> None:
        """Raises MoveFailed if another process has created the object."""
        if await persist(lambda: self._objects.create(key, content)) is Creation.CREATED:
            return
        if await persist(lambda: self._objects.get(key, SMALL_BYTES_MAX + len(content))) != content:
            raise MoveFailed(
                f"{self._url}/{key} was created by another process: a broker uses this prefix; use another one"
            )


def pieces(files: Files, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the positions and the bytes of whole units of a verified log up to `end`. Blocks; raises OSError."""
    chain, _ = read_chain(files.list(LOG_DIRECTORY))
    for segment in chain:
        if not segment.is_gap and segment.start < end:
            yield from _pieces_of(files, segment, min(end, segment.known_end))


def _pieces_of(files: Files, segment: Segment, end: int) -> Iterator[tuple[int, bytes]]:
    handle = files.open(segment.path)
    try:
        start, content = segment.start, bytearray()
        for block, at, position in units_of_file(files, handle, segment.start, segment.start, end):
            size = unit_size(block, at)
            if content and len(content) + size > PIECE_BYTES:
                yield start, bytes(content)
                start, content = position, bytearray()
            content += block[at : at + size]
        if content:
            yield start, bytes(content)
    finally:
        files.close(handle)
