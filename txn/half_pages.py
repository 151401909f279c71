"""Pages of open half messages: columns in the order of offsets, in which a decided one leaves a hole."""

import sys
from array import array
from itertools import compress
from typing import Final, NamedTuple, TypeAlias

HOLE: Final = -1  # In the place of a due time: decided.
NEVER_MS: Final = 1 << 62
COLUMN_CODES: Final = "QqqBI"
Column: TypeAlias = "array[int]"


class OpenPage(NamedTuple):
    """Open half messages by offset, as a snapshot has them: columns, little-endian."""

    offsets: bytes  # u64
    stored_ms: bytes  # i64
    dues_ms: bytes  # i64
    checks: bytes
    askers: bytes  # u32
    asker_names: dict[int, str]  # by the numbers above


class HalfPage:
    """Up to PAGE_MAX half messages with neighbouring offsets."""

    __slots__ = ("askers", "checks", "dues_ms", "heap_ms", "number", "offsets", "open_count", "stored_ms")

    def __init__(self, number: int) -> None:
        self.number = number
        self.offsets: Column = array("Q")
        self.stored_ms: Column = array("q")
        self.dues_ms: Column = array("q")  # HOLE: decided
        self.checks: Column = array("B")
        self.askers: Column = array("I")
        self.open_count = 0
        self.heap_ms = NEVER_MS  # Its valid place in the heap. Invariant: nothing in it is due before.

    def first_open(self) -> int:
        return next(offset for offset, due_ms in zip(self.offsets, self.dues_ms, strict=True) if due_ms != HOLE)

    def earliest_ms(self) -> int:
        return min((due_ms for due_ms in self.dues_ms if due_ms != HOLE), default=NEVER_MS)

    def open_columns(self) -> list[Column]:
        """Give the columns without the holes."""
        columns = [self.offsets, self.stored_ms, self.dues_ms, self.checks, self.askers]
        if self.open_count == len(self.offsets):
            return columns
        is_open = [due_ms != HOLE for due_ms in self.dues_ms]
        return [array(column.typecode, compress(column, is_open)) for column in columns]

    def drop_holes(self) -> None:
        self.offsets, self.stored_ms, self.dues_ms, self.checks, self.askers = self.open_columns()

    def join(self, after: "HalfPage") -> None:
        self.offsets += after.offsets
        self.stored_ms += after.stored_ms
        self.dues_ms += after.dues_ms
        self.checks += after.checks
        self.askers += after.askers
        self.open_count += after.open_count


def to_bytes(column: Column) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def from_bytes(code: str, raw: bytes) -> Column:
    column: Column = array(code)
    column.frombytes(raw)
    if sys.byteorder == "big":
        column.byteswap()
    return column


class Askers:
    """Numbers for names, each for as long as somebody uses it."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._uses: list[int] = []
        self._free: list[int] = []

    def name(self, number: int) -> str:
        return self._names[number]

    def take(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._free.pop() if self._free else len(self._names)
            if number == len(self._names):
                self._names.append(name)
                self._uses.append(0)
            self._names[number] = name
        self._uses[number] += 1
        return number

    def release(self, number: int) -> None:
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._numbers[self._names[number]]
            self._names[number] = ""
            self._free.append(number)

    def counts(self) -> dict[str, int]:
        return {name: self._uses[number] for name, number in self._numbers.items()}
