"""The rows of a pack by topic and time: made when somebody looks, so that the next look costs what it finds.

A pack has its rows in the order in which they came, whatever their topic: so a timer is found by its key alone, and
a row costs 32 bytes. A look asks for one topic, or for some milliseconds of a minute. So the first one *files* the rows
of each pack that it meets: their numbers go into a tree, a digit of the topic or the time for each level.

    topic, low byte    07                          1f
    topic, the rest    0 -> [3 9 14]               0          20 -> [2 5]
    due, by 4 bits                          1 -> [0 4 8]  f
                                                          3 -> [1 6 7]

Only what has too many rows for a leaf is split. Without a topic to look for, the tree has the digits of time alone.
Rows that came since the last look are filed by the next one, rows that go are taken out at once: so each row is filed
once for each window that it comes to, and a look then reads leaves of `LEAF_ROWS` rows at its edges, and the counts
of all between them. Some 15 bytes for each row, in packs that are looked at.

A tree is derived, and dropped when its pack is laid out anew. Turned down: a pack for each topic. A timer's id says
nothing of its topic, so each cancel would have to search all of them, and many topics with few rows would cost ten
times the memory.
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

LEAF_ROWS: Final = 32  # A look without a result reads one leaf in each of the windows, some hundreds.
DIGIT_BITS: Final = 4  # of time; wider ones would make many leaves of one row

_FILED: Final = Struct(">Q8xQ8x")  # Of a row: due, queue key.
_TOPIC_LOW_BITS: Final = 8
_TOPIC_DIGITS: Final = 2

Digits = tuple[tuple[int, int], ...]  # shift and mask of each, the first one first


class Rows(Protocol):
    """What this asks of a pack."""

    rows: bytearray
    head: int

    @property
    def is_sorted(self) -> bool: ...


class _Node:
    __slots__ = ("children", "count", "numbers")

    def __init__(self) -> None:
        self.count = 0  # of the rows below it
        self.numbers = array("I")  # of a leaf, rising
        self.children: dict[int, _Node] | None = None  # by digit; None: it is a leaf


class Filing:
    """One tree for a pack whose rows are due within 2**bits ms from `start_ms`."""

    def __init__(self, pack: Rows, start_ms: int, bits: int, *, by_topic: bool) -> None:
        self._pack, self._bits = pack, -(-bits // DIGIT_BITS) * DIGIT_BITS
        self._time_mask = (1 << self._bits) - 1
        self._start_ms = start_ms & ~self._time_mask
        of_time = tuple((shift, (1 << DIGIT_BITS) - 1) for shift in range(self._bits - DIGIT_BITS, -1, -DIGIT_BITS))
        of_topic = ((self._bits, (1 << _TOPIC_LOW_BITS) - 1), (self._bits + _TOPIC_LOW_BITS, -1))
        self.by_topic = by_topic
        self._digits: Digits = of_topic + of_time if by_topic else of_time
        self._root = _Node()
        self._until = pack.head // ROW_SIZE  # number of the first row that is not filed

    # -- Filing

    def file(self, rows_max: int) -> int:
        """File up to so many rows that are not yet; returns how many it has looked at."""
        first, pack_rows = self._until, self._pack.rows
        self._until = min(len(pack_rows) // ROW_SIZE, first + rows_max)
        chunk = bytes(memoryview(pack_rows)[first * ROW_SIZE : self._until * ROW_SIZE])
        for number, (due_ms, key) in enumerate(_FILED.iter_unpack(chunk), first):
            if key:
                self._file(self._key(due_ms, key), number)
        return self._until - first

    def unfile(self, at: int) -> None:
        """The row that begins at this byte is about to be gone."""
        number = at // ROW_SIZE
        due_ms, key = _FILED.unpack_from(self._pack.rows, at)
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
        """The rows from this byte on are about to be gone, and others may take their places."""
        for number in range(self._until - 1, at // ROW_SIZE - 1, -1):
            self.unfile(number * ROW_SIZE)
        self._until = min(self._until, at // ROW_SIZE)

    def _key(self, due_ms: int, key: int) -> int:
        return key >> TOPIC_SHIFT << self._bits | due_ms & self._time_mask

    def _file(self, key: int, number: int) -> None:
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
        """Make a leaf's rows leaves of their own; returns the largest, which may have all of them."""
        children = node.children = {}
        for number in node.numbers:
            due_ms, key = _FILED.unpack_from(self._pack.rows, number * ROW_SIZE)
            child = _child(children, self._key(due_ms, key) >> shift & mask)
            child.numbers.append(number)
            child.count += 1
        node.numbers = array("I")
        return max(children.values(), key=_count_of)

    # -- Looking

    def timers(self, topic: int | None, start: tuple[int, int], until_ms: int) -> Iterator[Timer]:
        """Yield the timers of a topic, or of all, in due order from this key on. All must be filed."""
        found = self._of_topic(topic)
        if found is not None:
            yield from self._walk(*found, self._start_ms, topic, start, until_ms)

    def count(self, topic: int | None, edges_ms: Sequence[int], counts: list[int]) -> None:
        """Add to `counts` how many timers are due between each two neighbours of these times. All must be filed."""
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
        """Return the node with all rows of a topic, and perhaps others if it is a leaf; and its depth."""
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
        if len(numbers) > LEAF_ROWS and self._pack.is_sorted:
            # All are due in one millisecond, perhaps a million; and they lie in the order of their addresses.
            for index in range(bisect_left(numbers, start, key=self._place_at), len(numbers)):
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
            due_ms, key = _FILED.unpack_from(self._pack.rows, number * ROW_SIZE)
            if edges_ms[0] <= due_ms < edges_ms[-1] and topic in (None, key >> TOPIC_SHIFT):
                counts[bisect_right(edges_ms, due_ms) - 1] += 1

    def _timer_at(self, number: int) -> Timer:
        return new_tuple(Timer, ROW.unpack_from(self._pack.rows, number * ROW_SIZE))

    def _place_at(self, number: int) -> tuple[int, int]:
        timer = self._timer_at(number)
        return timer.due_ms, timer.address


def _child(children: dict[int, _Node], digit: int) -> _Node:
    child = children.get(digit)
    if child is None:
        child = children[digit] = _Node()
    return child


def _count_of(node: _Node) -> int:
    return node.count
