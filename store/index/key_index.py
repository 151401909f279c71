"""The class KeyIndex: finds records by key, with hashes of keys that the first search computes.

    keys/<topic number>/<queue id>/<number of the first row, 20 digits>      ROWS_IN_BLOCK rows of the queue's index

    one block, one file:
    magic u32 | crc u32 | base_offset u64 | position u64 | count u32                     big-endian
    | hash u32 ... (count times) | row u16 ... (count times)                             in the machine's byte order

The CRC-32 covers all bytes after it. `base_offset` and `position` are those of the first row: a block with other values
belongs to an earlier index and is ignored. The first `hash` belongs to the first `row`, and so on; `row` counts from
the first row of the block. A search looks for the four bytes of the hash. The hash ANY means that the entry must be
read, because its keys could not be decoded or the block has too many hashes.

Appends do not write to the key index: the first search that reaches a block reads its frames. It writes the block to a
file if the block is full and its rows are durable, because such rows never change. The other blocks, at the end of a
queue, are built again by each search. All blocks are derived: a missing or damaged block is built again.

All methods run in the search thread, which pauses after each slice so that the loop can run. The functions of the
Search return the keys of an entry and the matching records, because the store does not interpret frames.
"""

import logging
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, Generic, NamedTuple, TypeVar

from duolog.store.entry import Stored
from duolog.store.errors import StoreError
from duolog.store.files import Files
from duolog.store.index.queue import Queue
from duolog.store.index.rows import Row
from duolog.store.log.frames import Frames

ROWS_IN_BLOCK: Final = 4096  # A divisor of the rows in an index file.
KEYS_IN_BLOCK_MAX: Final = 1 << 20  # Hashes in one block, with six bytes each; further entries have the hash ANY.
ROWS_IN_SLICE: Final = 256  # Rows that a search reads before it pauses.
BYTES_IN_SLICE: Final = 1 << 20  # Frame bytes that a search reads before it pauses.
BUILT_ROWS_MAX: Final = 200_000  # Rows for which one search builds blocks; the next search continues after them.
KEYS_DIRECTORY: Final = "keys"
ANY: Final = 0xFFFFFFFF

_MAGIC: Final = 0x4B455931
_HEAD: Final = Struct(">IIQQI")
_COVERED_AT: Final = 8  # The first byte that the CRC covers.

T = TypeVar("T")

log = logging.getLogger("store")


@dataclass(slots=True)
class Search(Generic[T]):
    """A search and its result: the records found, queue by queue, the newest of each queue first."""

    key: bytes
    begin_ms: int  # The lowest store time to search.
    end_ms: int  # The highest store time to search.
    max_count: int  # The number of records to find in each queue; somewhat more may be found.
    keys_of: Callable[[Stored], Iterable[bytes] | None]  # All keys of an entry; None if it cannot be decoded.
    matches: Callable[[Queue, Stored], list[T]]  # The records of an entry that have the key.
    found: list[T] = field(default_factory=list)
    rows_to_build: int = BUILT_ROWS_MAX  # The number of rows for which blocks may still be built.
    is_complete: bool = True  # Whether every block in the range of store times was searched.


class _Visible(NamedTuple):
    """The visible part of a queue at the beginning of the search."""

    queue: Queue
    end_offset: int  # The visible end of the queue.
    durable: int  # The position up to which the log was durable.


class KeyIndex:
    """The blocks of all queues. `pause` is called after each slice; it returns true if the search must end."""

    def __init__(self, files: Files, frames: Frames) -> None:
        self.pause: Callable[[], bool] = _go_on
        self.rows_in_block = ROWS_IN_BLOCK
        self._files, self._frames = files, frames

    def search(self, where: Iterable[tuple[Queue, int]], durable: int, search: Search[T]) -> Search[T]:
        """Search these queues, each up to an offset, and return the search with its result. Blocks.

        `durable` is the position up to which the log is durable. Raises OSError or StoreError.
        """
        for queue, end_offset in where:
            count = search.max_count
            for row in self._rows_with(_Visible(queue, end_offset, durable), search):
                records = self._look_into(queue, row, search)
                search.found += records
                count -= len(records)
                if count <= 0:
                    break
        return search

    def forget(self, topic: int) -> None:
        """Remove the blocks of a topic that was deleted. Blocks; raises OSError."""
        directory = f"{KEYS_DIRECTORY}/{topic}"
        for queue_id in self._files.list(directory):
            self._remove_below(f"{directory}/{queue_id}", sys.maxsize)
            self._files.remove_directory(f"{directory}/{queue_id}")
        if self._files.list(KEYS_DIRECTORY).count(str(topic)):
            self._files.remove_directory(directory)

    def forget_others(self, topics: set[int]) -> None:
        """Remove the blocks of all topics except these. Blocks; raises OSError."""
        for name in self._files.list(KEYS_DIRECTORY):
            if name.isdecimal() and int(name) not in topics:
                self.forget(int(name))

    # -- Finding rows

    def _rows_with(self, visible: _Visible, search: Search[T]) -> Iterator[Row]:
        """Yield the rows of entries that may contain the key, the newest first."""
        queue, index = visible.queue, visible.queue.index
        first = index.find_stored(search.begin_ms, block=True) or 0
        first = max(first, index.find_offset(queue.start_offset, block=True) or 0)
        end = index.find_stored(search.end_ms + 1, block=True) or 0
        self._remove_below(_directory(queue), index.first_row)
        step = self.rows_in_block
        for start in range((end - 1) // step * step, first - step, -step):
            numbers = self._numbers_in(visible, start, search)
            if numbers is None:
                search.is_complete = False
                return
            for number in sorted(numbers, reverse=True):
                if first <= start + number < end:
                    yield from index.rows(start + number, block=True) or []

    def _numbers_in(self, visible: _Visible, start: int, search: Search[T]) -> set[int] | None:
        """Return the rows of a block that may contain the key, counted from `start`, the first row of the block.

        Returns None if the block does not exist and this search may not build it.
        """
        hashes = (_hash(search.key), ANY)
        block = self._load(visible.queue, start)
        if block is None:
            block = self._make(visible, start, search)
        return None if block is None else block.numbers(hashes)

    def _look_into(self, queue: Queue, row: Row, search: Search[T]) -> list[T]:
        try:
            (entry,) = self._frames.from_disk([row])
        except (StoreError, OSError):
            if row[0] + row[3] <= queue.start_offset:
                return []  # Retention has removed the entry during the search.
            raise
        return search.matches(queue, entry)

    # -- Making blocks

    def _make(self, visible: _Visible, start: int, search: Search[T]) -> "_Block | None":
        """Build the block of the readable rows from `start` on, and write it to a file if its rows never change.

        Returns None if the search has no more rows to build, or must end.
        """
        queue = visible.queue
        rows = queue.index.rows(start, self.rows_in_block, block=True) or []
        if search.rows_to_build < len(rows):
            return None
        search.rows_to_build -= len(rows)
        block = _Block(array("I"), array("H"))
        for first, part in _slices(rows):
            if self.pause():
                return None
            skipped, entries = self._read_live(visible, part)
            for number, entry in enumerate(entries, first + skipped):
                block.add(number, search.keys_of(entry))
        if len(rows) == self.rows_in_block:
            end_offset, end = rows[-1][0] + rows[-1][3], rows[-1][1] + rows[-1][2]
            if end_offset <= visible.end_offset and end < visible.durable:
                self._keep(queue, start, rows[0], block)
        return block

    def _read_live(self, visible: _Visible, rows: list[Row]) -> tuple[int, list[Stored]]:
        """Return (number of the first rows that are below the log start, the visible entries of the other rows)."""
        queue = visible.queue
        while True:
            start_offset = queue.start_offset
            skipped = sum(row[0] + row[3] <= start_offset for row in rows)
            live = [row for row in rows[skipped:] if row[0] + row[3] <= visible.end_offset]
            try:
                return skipped, self._frames.from_disk(live)
            except (StoreError, OSError):
                if queue.start_offset == start_offset:
                    raise
                # Retention has raised the log start during the read, so read again.

    def _keep(self, queue: Queue, start: int, first: Row, block: "_Block") -> None:
        directory = _directory(queue)
        path = f"{directory}/{start:020d}"
        try:
            self._files.make_directory(directory)
            if f"{start:020d}" in self._files.list(directory):
                self._files.remove(path)
            handle = self._files.open(path, create=True)
            try:
                self._files.write(handle, [block.encode(first)], 0)
            finally:
                self._files.close(handle)
        except OSError as error:
            log.warning("key index block not written, a later search builds it again: %s", error)

    def _load(self, queue: Queue, start: int) -> "_Block | None":
        path = f"{_directory(queue)}/{start:020d}"
        try:
            handle = self._files.open(path)
        except FileNotFoundError:
            return None
        try:
            data = self._files.read(handle, self._files.size(handle), 0)
        finally:
            self._files.close(handle)
        first = queue.index.rows(start, block=True)
        return _Block.decode(data, first[0]) if first else None

    def _remove_below(self, directory: str, row: int) -> None:
        for name in self._files.list(directory):
            if name.isdecimal() and int(name) < row:
                self._files.remove(f"{directory}/{name}")


# -- Blocks


class _Block(NamedTuple):
    """The hashes of one block, and the row of each, counted from the first row of the block."""

    hashes: "array[int]"
    rows: "array[int]"

    def add(self, row: int, keys: Iterable[bytes] | None) -> None:
        hashes = [ANY] if keys is None else [_hash(key) for key in keys]
        if len(self.hashes) + len(hashes) > KEYS_IN_BLOCK_MAX:
            hashes = [ANY]
        self.hashes.extend(hashes)
        self.rows.extend([row] * len(hashes))

    def numbers(self, hashes: Iterable[int]) -> set[int]:
        """Return the rows that have one of the hashes."""
        found, data = set(), self.hashes.tobytes()
        for wanted in hashes:
            bytes_wanted = wanted.to_bytes(4, sys.byteorder)
            at = data.find(bytes_wanted)
            while at >= 0:
                if at % 4 == 0:
                    found.add(self.rows[at // 4])
                at = data.find(bytes_wanted, at + 1)
        return found

    def encode(self, first: Row) -> bytes:
        columns = self.hashes.tobytes() + self.rows.tobytes()
        head = _HEAD.pack(_MAGIC, 0, first[0], first[1], len(self.hashes))
        crc = zlib.crc32(columns, zlib.crc32(head[_COVERED_AT:]))
        return _HEAD.pack(_MAGIC, crc, first[0], first[1], len(self.hashes)) + columns

    @classmethod
    def decode(cls, data: bytes, first: Row) -> "_Block | None":
        """Decode a block whose first row must be `first`. Return None if it is damaged or belongs to another row."""
        if len(data) < _HEAD.size:
            return None
        magic, crc, base_offset, position, count = _HEAD.unpack_from(data)
        is_whole = magic == _MAGIC and len(data) == _HEAD.size + 6 * count and crc == zlib.crc32(data[_COVERED_AT:])
        if not is_whole or (base_offset, position) != first[:2]:
            return None
        block = cls(array("I"), array("H"))
        block.hashes.frombytes(data[_HEAD.size : _HEAD.size + 4 * count])
        block.rows.frombytes(data[_HEAD.size + 4 * count :])
        return block


def _hash(key: bytes) -> int:
    found = zlib.crc32(key)
    return found if found != ANY else 0


def _directory(queue: Queue) -> str:
    topic, queue_id = Queue.split(queue.key)
    return f"{KEYS_DIRECTORY}/{topic}/{queue_id}"


def _slices(rows: list[Row]) -> Iterator[tuple[int, list[Row]]]:
    """Yield (index of the first row, rows) of the slices into which the rows are divided."""
    first = size = 0
    for number, row in enumerate(rows):
        if number > first and (number - first == ROWS_IN_SLICE or size + row[2] > BYTES_IN_SLICE):
            yield first, rows[first:number]
            first, size = number, 0
        size += row[2]
    if rows:
        yield first, rows[first:]


def _go_on() -> bool:
    return False
