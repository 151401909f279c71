"""An index of an array's rows by topic and time, made by the first list or count that reads the array.

A window of the memtable has the rows of all topics in the order of their addresses, so that a timer is found by its
key. A list or a count reads one topic, or a part of the window's time. So the first one adds the numbers of the rows to
a tree, which has a level for each digit of the topic and of the due time:

    topic, low byte    07                          1f
    topic, the rest    0 -> [3 9 14]               0          20 -> [2 5]
    due, by 4 bits                          1 -> [0 4 8]  f
                                                          3 -> [1 6 7]

A leaf is split when it has more than `LEAF_ROWS` rows. An index for all topics has only the digits of the due time. New
rows are indexed by the next list or count, and deleted rows are removed from the index at once. So each row is indexed
once in each window through which it moves. A count reads the leaves at both ends of its time, and the counts of the
nodes between them. An index takes about 15 bytes for each row.

An index is dropped when the array's rows are replaced. The alternative, an array for each topic, was turned down: the
id of a timer does not name its topic, so each cancel would search all arrays, and many topics with few rows would take
ten times the memory.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, Protocol

from duolog.delay.rows import (
    ROW,
    ROW_SIZE,
    TOPIC_SHIFT,
    Timer,
)
from duolog.store.entry import new_tuple

LEAF_ROWS: Final = 32  # Small, because a list reads at least one leaf in each of some hundred windows.
DIGIT_BITS: Final = 4  # The size of a digit of the due time. With larger digits many leaves would have one row.

_INDEXED: Final = Struct(">Q8xQ8x")  # The due time and the queue key of a row.
_TOPIC_LOW_BITS: Final = 8
_TOPIC_DIGITS: Final = 2

Digits = tuple[tuple[int, int], ...]  # (Shift, mask) of each digit, the highest digit first.


class RowSource(Protocol):
    """The members of a `RowArray` that `RowIndex` uses."""

    rows: bytearray
    head: int

    @property
    def is_sorted(self) -> bool: ...


class _Node:
    __slots__ = ("children", "count", "numbers")

    def __init__(self) -> None:
        self.count = 0  # The number of rows below this node.
        self.numbers = array("I")  # The numbers of a leaf's rows, ascending.
        self.children: dict[int, _Node] | None = None  # By digit; None: this node is a leaf.


class RowIndex:
    """The index of an array whose rows are due within 2**bits ms from `start_ms`."""

    def __init__(self, rows: RowSource, start_ms: int, bits: int, *, by_topic: bool) -> None:
        self._array, self._bits = rows, -(-bits // DIGIT_BITS) * DIGIT_BITS
        self._time_mask = (1 << self._bits) - 1
        self._start_ms = start_ms & ~self._time_mask
        of_time = tuple((shift, (1 << DIGIT_BITS) - 1) for shift in range(self._bits - DIGIT_BITS, -1, -DIGIT_BITS))
        of_topic = ((self._bits, (1 << _TOPIC_LOW_BITS) - 1), (self._bits + _TOPIC_LOW_BITS, -1))
        self.by_topic = by_topic
        self._digits: Digits = of_topic + of_time if by_topic else of_time
        self._root = _Node()
        self._until = rows.head // ROW_SIZE  # The number of the first row that is not indexed.

    # -- Following the array

    def add_new(self, rows_max: int) -> int:
        """Index up to `rows_max` rows that are not indexed; return the number of rows that were examined."""
        first, rows = self._until, self._array.rows
        self._until = min(len(rows) // ROW_SIZE, first + rows_max)
        chunk = bytes(memoryview(rows)[first * ROW_SIZE : self._until * ROW_SIZE])
        for number, (due_ms, key) in enumerate(_INDEXED.iter_unpack(chunk), first):
            if key:
                self._insert(self._key(due_ms, key), number)
        return self._until - first

    def remove(self, at: int) -> None:
        """Remove the row that begins at byte `at`. The array calls this before it deletes the row."""
        number = at // ROW_SIZE
        due_ms, key = _INDEXED.unpack_from(self._array.rows, at)
        if number >= self._until or not key:
            return
        wanted = self._key(due_ms, key)
        node = self._root
        node.count -= 1
        for shift, mask in self._digits:
            if node.children is None:
                break
            digit = wanted >> shift & mask
            child = node.children[digit]
            child.count -= 1
            if not child.count:
                del node.children[digit]
                return
            node = child
        del node.numbers[bisect_left(node.numbers, number)]

    def cut(self, at: int) -> None:
        """Remove the rows from byte `at` on. The array calls this before it removes or moves them."""
        for number in range(self._until - 1, at // ROW_SIZE - 1, -1):
            self.remove(number * ROW_SIZE)
        self._until = min(self._until, at // ROW_SIZE)

    def _key(self, due_ms: int, key: int) -> int:
        return key >> TOPIC_SHIFT << self._bits | due_ms & self._time_mask

    def _insert(self, key: int, number: int) -> None:
        node, depth = self._root, 0
        node.count += 1
        while node.children is not None:
            shift, mask = self._digits[depth]
            node = _child(node.children, key >> shift & mask)
            node.count += 1
            depth += 1
        node.numbers.append(number)
        while len(node.numbers) > LEAF_ROWS and depth < len(self._digits):
            node = self._split(node, *self._digits[depth])
            depth += 1

    def _split(self, node: _Node, shift: int, mask: int) -> _Node:
        """Move the rows of a leaf to new children of it; return the largest child, which may have all rows."""
        children = node.children = {}
        for number in node.numbers:
            due_ms, key = _INDEXED.unpack_from(self._array.rows, number * ROW_SIZE)
            child = _child(children, self._key(due_ms, key) >> shift & mask)
            child.numbers.append(number)
            child.count += 1
        node.numbers = array("I")
        return max(children.values(), key=_count_of)

    # -- Reading

    def timers(self, topic: int | None, start: tuple[int, int], until_ms: int) -> Iterator[Timer]:
        """Yield the timers of a topic, or of all, in due order from the key `start` on. All rows must be indexed."""
        found = self._of_topic(topic)
        if found is not None:
            yield from self._walk(*found, self._start_ms, topic, start, until_ms)

    def count(self, topic: int | None, edges_ms: Sequence[int], counts: list[int]) -> None:
        """Add to `counts` the number of timers that are due between each two neighbours of these times.

        All rows must be indexed.
        """
        found = self._of_topic(topic)
        if found is None:
            return
        node, depth = found
        end_ms, after = self._start_ms + (1 << self._bits), bisect_right(edges_ms, self._start_ms)
        is_of_topic = topic is None or depth == _TOPIC_DIGITS
        if is_of_topic and after and after < len(edges_ms) and end_ms <= edges_ms[after]:
            counts[after - 1] += node.count
        else:
            self._count(node, depth, self._start_ms, topic, edges_ms, counts)

    def _of_topic(self, topic: int | None) -> tuple[_Node, int] | None:
        """Return the node with all rows of a topic, and its depth. A leaf may also have rows of other topics."""
        node = self._root
        if topic is None:
            return node, 0
        for depth in range(_TOPIC_DIGITS):
            if node.children is None:
                return node, depth
            shift, mask = self._digits[depth]
            below = node.children.get((topic << self._bits) >> shift & mask)
            if below is None:
                return None
            node = below
        return node, _TOPIC_DIGITS

    def _walk(
        self, node: _Node, depth: int, first_ms: int, topic: int | None, start: tuple[int, int], until_ms: int
    ) -> Iterator[Timer]:
        if node.children is None:
            yield from self._leaf(node, topic, start, until_ms)
            return
        shift, _ = self._digits[depth]
        for digit in sorted(node.children):
            below_ms = first_ms + (digit << shift)
            if below_ms >= until_ms:
                return
            if below_ms + (1 << shift) > start[0]:
                yield from self._walk(node.children[digit], depth + 1, below_ms, topic, start, until_ms)

    def _leaf(self, leaf: _Node, topic: int | None, start: tuple[int, int], until_ms: int) -> Iterator[Timer]:
        numbers = leaf.numbers
        if len(numbers) > LEAF_ROWS and self._array.is_sorted:
            # All rows of this leaf are due in one millisecond, and are sorted by address. They may be a million.
            for index in range(bisect_left(numbers, start, key=self._key_at), len(numbers)):
                yield self._timer_at(numbers[index])
            return
        timers = map(self._timer_at, numbers)
        yield from sorted(
            timer for timer in timers
            if timer[:2] >= start and timer.due_ms < until_ms and topic in (None, timer.topic)
        )  # fmt: skip

    def _count(
        self, node: _Node, depth: int, first_ms: int, topic: int | None, edges_ms: Sequence[int], counts: list[int]
    ) -> None:
        if node.children is None:
            self._count_leaf(node, topic, edges_ms, counts)
            return
        shift, _ = self._digits[depth]
        for digit, child in node.children.items():
            below_ms = first_ms + (digit << shift)
            after = bisect_right(edges_ms, below_ms)
            if after and after < len(edges_ms) and below_ms + (1 << shift) <= edges_ms[after]:
                counts[after - 1] += child.count
            elif after < len(edges_ms) and below_ms + (1 << shift) > edges_ms[0]:
                self._count(child, depth + 1, below_ms, topic, edges_ms, counts)

    def _count_leaf(self, leaf: _Node, topic: int | None, edges_ms: Sequence[int], counts: list[int]) -> None:
        for number in leaf.numbers:
            due_ms, key = _INDEXED.unpack_from(self._array.rows, number * ROW_SIZE)
            if edges_ms[0] <= due_ms < edges_ms[-1] and topic in (None, key >> TOPIC_SHIFT):
                counts[bisect_right(edges_ms, due_ms) - 1] += 1

    def _timer_at(self, number: int) -> Timer:
        return new_tuple(Timer, ROW.unpack_from(self._array.rows, number * ROW_SIZE))

    def _key_at(self, number: int) -> tuple[int, int]:
        timer = self._timer_at(number)
        return timer.due_ms, timer.address


def _child(children: dict[int, _Node], digit: int) -> _Node:
    child = children.get(digit)
    if child is None:
        child = children[digit] = _Node()
    return child


def _count_of(node: _Node) -> int:
    return node.count
