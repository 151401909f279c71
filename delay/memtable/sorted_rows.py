"""The class SortedRows: an ordered map of rows by their keys, in blocks of immutable bytes.

    _firsts    [key   ][key   ][key   ]...       the first key of each block
    _blocks    [rows  ][rows  ][rows  ]...       sorted, at most BLOCK_ROWS in each

A search bisects the first keys, and then one block. A change replaces a block by another one, which takes less time
than the search. A full block is cut into halves, as in a B-tree. Because no block ever changes, a copy of the lists is
a snapshot, which another thread may read while rows are added and removed.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from duolog.delay.rows import KEY, KEY_SIZE, ROW, ROW_SIZE, TOPIC_AT, TOPIC_END, Timer, TimerKey, lower, rows_of
from duolog.store.entry import new_tuple

BLOCK_ROWS: Final = 128
BEGINNING: Final = b""  # Less than every packed key.
END: Final = b"\xff" * (KEY_SIZE + 1)  # Greater than every packed key.

_BLOCK_BYTES: Final = BLOCK_ROWS * ROW_SIZE
_SORT_BYTES: Final = 8 * ROW_SIZE  # So many rows take less time to be sorted in together than one by one.
_TOPIC_SIZE: Final = TOPIC_END - TOPIC_AT


class SortedRows:
    """Rows in the order of their keys. Keys are packed (`delay/rows.py`)."""

    __slots__ = ("_blocks", "_firsts")

    def __init__(self, copied: "SortedRows | None" = None) -> None:
        """Make an empty map, or a copy, which shares the blocks."""
        self._blocks: list[bytes] = [] if copied is None else [*copied._blocks]  # No block is empty.
        self._firsts: list[bytes] = [] if copied is None else [*copied._firsts]

    def __len__(self) -> int:
        return sum(map(len, self._blocks)) // ROW_SIZE

    # -- Reading

    def get(self, key: bytes) -> bytes | None:
        """Return the row with this key."""
        number, at = self._find(key)
        return None if at < 0 else self._blocks[number][at : at + ROW_SIZE]

    def _find(self, key: bytes) -> tuple[int, int]:
        """Return the number of the block with this key, and the byte at which its row begins, or -1."""
        number = self._number_of(key)
        block = self._blocks[number] if self._blocks else b""
        at = lower(block, key)
        return number, at if block.startswith(key, at) else -1

    def first_key(self) -> TimerKey | None:
        """Return the key of the first row; None if there are no rows."""
        return KEY.unpack(self._firsts[0]) if self._firsts else None

    def first(self) -> Timer | None:
        """Return the first timer; None if there are no rows."""
        return new_tuple(Timer, ROW.unpack_from(self._blocks[0])) if self._blocks else None

    def blocks(self, start: bytes = BEGINNING) -> Iterator[bytes]:
        """Yield the rows from the key `start` on, block by block."""
        if self._blocks:
            first = self._number_of(start)
            yield self._blocks[first][lower(self._blocks[first], start) :]
            for number in range(first + 1, len(self._blocks)):
                yield self._blocks[number]

    def timers(self, start: bytes = BEGINNING, topic: int | None = None) -> Iterator[Timer]:
        """Yield the timers from the key `start` on, in due order: those of a topic, or all."""
        wanted = None if topic is None else _packed(topic)
        for block in self.blocks(start):
            if wanted is None:
                yield from [new_tuple(Timer, row) for row in ROW.iter_unpack(block)]
            elif wanted in block:
                rows = [row for row in rows_of(block) if row[TOPIC_AT:TOPIC_END] == wanted]
                yield from [new_tuple(Timer, ROW.unpack(row)) for row in rows]

    def count_from(self, key: bytes) -> int:
        """Return the number of rows from this key on."""
        if not self._blocks:
            return 0
        number = self._number_of(key)
        before = lower(self._blocks[number], key)
        return (sum(map(len, self._blocks[number:])) - before) // ROW_SIZE

    def add_counts(self, topic: int | None, edges_ms: Sequence[int], counts: list[int]) -> None:
        """Add to `counts` the number of rows that are due between each two neighbours of these ascending times."""
        wanted = None if topic is None else _packed(topic)
        bounds = [KEY.pack(edge_ms, 0) for edge_ms in edges_ms]
        for block in self.blocks(bounds[0]):
            at, size = 0, len(block)
            while at < size:
                bin = bisect_right(bounds, block[at : at + KEY_SIZE])
                if bin == len(bounds):
                    return
                end = lower(block, bounds[bin])
                if wanted is None:
                    counts[bin - 1] += (end - at) // ROW_SIZE
                elif wanted in block:
                    topics = [block[byte : byte + _TOPIC_SIZE] for byte in range(at + TOPIC_AT, end, ROW_SIZE)]
                    counts[bin - 1] += topics.count(wanted)
                at = end

    # -- Changes

    def add(self, rows: bytes) -> None:
        """Add rows, which must be sorted. No row may have the key of another."""
        blocks = self._blocks
        if not blocks:
            self._replace(0, 0, rows)
            return
        if _ends_before(blocks[-1], rows) and len(blocks[-1]) + len(rows) <= _BLOCK_BYTES:
            blocks[-1] += rows  # Most rows are added after all others.
            return
        for at in range(0, len(rows), _BLOCK_BYTES):
            self._merge(rows[at : at + _BLOCK_BYTES])

    def _merge(self, rows: bytes) -> None:
        """Merge some sorted rows with the blocks to which they belong; there are blocks."""
        blocks, firsts = self._blocks, self._firsts
        while rows:
            number = self._number_of(rows[:KEY_SIZE])
            block, end = blocks[number], len(rows)
            if number + 1 < len(firsts) and end > ROW_SIZE:
                end = lower(rows, firsts[number + 1])
            at = lower(block, rows[:KEY_SIZE])
            if at == len(block):
                block += rows[:end]
            elif end >= _SORT_BYTES:
                block = b"".join(sorted(rows_of(block) + rows_of(rows[:end])))
            else:
                end = ROW_SIZE
                block = b"".join((block[:at], rows[:ROW_SIZE], block[at:]))
            self._replace(number, number + 1, block)
            rows = rows[end:]

    def pop(self, key: bytes) -> bytes | None:
        """Remove and return the row with this key."""
        number, at = self._find(key)
        if at < 0:
            return None
        block = self._blocks[number]
        self._replace(number, number + 1, block[:at] + block[at + ROW_SIZE :])
        return block[at : at + ROW_SIZE]

    def take(self, start: bytes, until: bytes, rows_max: int) -> bytes:
        """Remove and return the first rows with keys from `start` on and below `until`, at most `rows_max`."""
        if not self._blocks or self._firsts[0] >= until:
            return b""
        first = last = self._number_of(start)
        at = begin = lower(self._blocks[first], start)
        left, taken = rows_max * ROW_SIZE, []
        while True:
            block = self._blocks[last]
            end = max(begin, min(lower(block, until), begin + left))
            taken.append(block[begin:end])
            left -= end - begin
            if end < len(block) or not left or last + 1 == len(self._blocks):
                break
            last, begin = last + 1, 0
        self._replace(first, last + 1, self._blocks[first][:at] + block[end:])
        return b"".join(taken)

    def _number_of(self, key: bytes) -> int:
        """Return the number of the block in which a row with this key is, or would be added."""
        return max(0, bisect_right(self._firsts, key) - 1)

    def _replace(self, first: int, end: int, rows: bytes) -> None:
        """Replace the blocks [first, end) by blocks that have these rows."""
        if not rows:
            del self._blocks[first:end], self._firsts[first:end]
            return
        if first + 1 == end and len(rows) <= _BLOCK_BYTES:
            self._blocks[first], self._firsts[first] = rows, rows[:KEY_SIZE]
            return
        # The blocks at the end are filled, because most rows are added there.
        size = _BLOCK_BYTES if end >= len(self._blocks) else _BLOCK_BYTES // 2
        blocks = [rows[at : at + size] for at in range(0, len(rows), size)]
        self._blocks[first:end] = blocks
        self._firsts[first:end] = [block[:KEY_SIZE] for block in blocks]


def _packed(topic: int) -> bytes:
    """Return the bytes of a topic number in a row."""
    return topic.to_bytes(_TOPIC_SIZE, "big")


def _ends_before(block: bytes, rows: bytes) -> bool:
    """Return whether the keys of a block are less than those of sorted rows."""
    return block[-ROW_SIZE : KEY_SIZE - ROW_SIZE] < rows[:KEY_SIZE]
