"""The key index: hashes of record keys for blocks of index rows, built by the first search that needs them.

    keys/<topic number>/<queue id>/<number of the first row, 20 digits>      ROWS_IN_BLOCK rows of the queue's index

    one block, big-endian but for the columns:
    magic u32 | crc u32 | base_offset u64 | position u64 | count u32 | hash u32 ... | row u16 ...

The CRC-32 covers all behind it; base offset and position are those of the first row, by which a block of another index
is told. `row` counts from the first row of the block. Hashes lie in the order of their records; one is found by a
search for its four bytes. ANY instead of a hash: the entry must be looked into, for it could not be opened, or holds
too much.

Appends do not pay for it: the first search that reaches a block reads its frames. It writes the block if it is full and
the log is durable beyond its last row, because such rows never change. Other blocks at the end of a queue are built
again by each search. The index is derived: a block that is torn or missing is built again.

Everything here runs in the one search thread, which pauses after each slice so that the loop can run. The caller says
what the keys of an entry are and which of its records match, because the store knows no wire format.
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
KEYS_IN_BLOCK_MAX: Final = 1 << 20  # At six bytes each; the entries beyond get ANY.
ROWS_IN_SLICE: Final = 256
BYTES_IN_SLICE: Final = 1 << 20
OPENED_ROWS_MAX: Final = 200_000  # Rows of blocks that one search builds; the next search continues behind them.
KEYS_DIRECTORY: Final = "keys"
ANY: Final = 0xFFFFFFFF

_MAGIC: Final = 0x4B455931
_HEAD: Final = Struct(">IIQQI")
_COVERED_AT: Final = 8  # by the CRC

T = TypeVar("T")

log = logging.getLogger("store")


@dataclass(slots=True)
class Search(Generic[T]):
    """A search and its result: the records found, queue by queue, the newest of each queue first."""

    key: bytes
    begin_ms: int  # store time
    end_ms: int  # inclusive
    max_count: int
    keys_of: Callable[[Stored], Iterable[bytes] | None]  # All keys of an entry; None if it cannot be decoded.
    matches: Callable[[Queue, Stored], list[T]]  # The records of an entry that have the key.
    found: list[T] = field(default_factory=list)
    unopened: int = OPENED_ROWS_MAX  # Rows that may still be read to build blocks.
    is_complete: bool = True  # Whether every block in range was searched.


class _Visible(NamedTuple):
    """The visible part of a queue when the search began."""

    queue: Queue
    end_offset: int
    durable: int


class KeyIndex:
    """The blocks of all queues. `pause` lets other threads go on after each slice; true when the search is to end."""

    def __init__(self, files: Files, frames: Frames) -> None:
        self.pause: Callable[[], bool] = _go_on
        self.rows_in_block = ROWS_IN_BLOCK
        self._files, self._frames = files, frames

    def search(self, where: Iterable[tuple[Queue, int]], durable: int, search: Search[T]) -> Search[T]:
        """Search these queues, each up to an offset; `durable` is how far the log is. Raises OSError, StoreError."""
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
        """Remove the blocks of a deleted topic."""
        directory = f"{KEYS_DIRECTORY}/{topic}"
        for queue_id in self._files.list(directory):
            self._remove_below(f"{directory}/{queue_id}", sys.maxsize)
            self._files.remove_directory(f"{directory}/{queue_id}")
        if self._files.list(KEYS_DIRECTORY).count(str(topic)):
            self._files.remove_directory(directory)

    def forget_others(self, topics: set[int]) -> None:
        """Remove the blocks of all but these topics."""
        for name in self._files.list(KEYS_DIRECTORY):
            if name.isdecimal() and int(name) not in topics:
                self.forget(int(name))

    # -- Finding rows

    def _rows_with(self, visible: _Visible, search: Search[T]) -> Iterator[Row]:
        """Yield the rows that may have the key, the newest first."""
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
        """Give the rows of the block, counted from its first, that may have the key; None if they are not known."""
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
                return []  # Retention has removed the entry meanwhile.
            raise
        return search.matches(queue, entry)

    # -- Making blocks

    def _make(self, visible: _Visible, start: int, search: Search[T]) -> "_Block | None":
        """Make a block of what may be read of its rows, and keep it if it is for good; None: not now."""
        queue = visible.queue
        rows = queue.index.rows(start, self.rows_in_block, block=True) or []
        if search.unopened < len(rows):
            return None
        search.unopened -= len(rows)
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
        """Read what may be read of these rows: (how many of the first are gone, the entries of the others)."""
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
                # Retention has removed the entry meanwhile.

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
            log.warning("a block of keys is not kept: %s path=%s", error, path)

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
    """Hashes, and the row of each."""

    hashes: "array[int]"
    rows: "array[int]"

    def add(self, row: int, keys: Iterable[bytes] | None) -> None:
        hashes = [ANY] if keys is None else [_hash(key) for key in keys]
        if len(self.hashes) + len(hashes) > KEYS_IN_BLOCK_MAX:
            hashes = [ANY]
        self.hashes.extend(hashes)
        self.rows.extend([row] * len(hashes))

    def numbers(self, hashes: Iterable[int]) -> set[int]:
        """Give the rows that have one of the hashes."""
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
        """Read a block; None for one that is torn, or of other rows."""
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
    """Cut rows into slices that are read at once, each with the number of its first."""
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
