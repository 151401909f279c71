"""The class HalfPage: open half messages in columns, in the order of their offsets (`txn/half.py`)."""

import sys
from array import array
from itertools import compress
from typing import Final, NamedTuple, TypeAlias

HOLE: Final = -1  # The due time of a decided half message.
NEVER_MS: Final = 1 << 62  # The due time of a page without open half messages.
COLUMN_CODES: Final = "QqqBI"  # The array types of the columns, in the order of `OpenPage`.
Column: TypeAlias = "array[int]"


class OpenPage(NamedTuple):
    """One page of open half messages in a snapshot: columns of little-endian integers, in the order of offsets."""

    offsets: bytes  # u64
    stored_ms: bytes  # i64
    dues_ms: bytes  # i64
    checks: bytes  # u8
    targets: bytes  # u32: keys of `target_names`
    target_names: dict[int, str]


class HalfPage:
    """Up to PAGE_MAX half messages with neighbouring offsets, in columns."""

    __slots__ = ("checks", "dues_ms", "heap_ms", "number", "offsets", "open_count", "stored_ms", "targets")

    def __init__(self, number: int) -> None:
        self.number = number
        self.offsets: Column = array("Q")
        self.stored_ms: Column = array("q")
        self.dues_ms: Column = array("q")  # HOLE for a decided half message.
        self.checks: Column = array("B")
        self.targets: Column = array("I")  # Numbers that CheckBackTargets has assigned.
        self.open_count = 0
        self.heap_ms = NEVER_MS  # Due time of the valid item in the heap. Invariant: no due time of the page is lower.

    def first_open(self) -> int:
        """Return the offset of the first open half message. The page must have one."""
        return next(offset for offset, due_ms in zip(self.offsets, self.dues_ms, strict=True) if due_ms != HOLE)

    def earliest_ms(self) -> int:
        """Return the earliest due time; NEVER_MS if no half message is open."""
        return min((due_ms for due_ms in self.dues_ms if due_ms != HOLE), default=NEVER_MS)

    def open_columns(self) -> list[Column]:
        """Return the columns without holes."""
        columns = [self.offsets, self.stored_ms, self.dues_ms, self.checks, self.targets]
        if self.open_count == len(self.offsets):
            return columns
        is_open = [due_ms != HOLE for due_ms in self.dues_ms]
        return [array(column.typecode, compress(column, is_open)) for column in columns]

    def drop_holes(self) -> None:
        """Remove the decided half messages from the columns."""
        self.offsets, self.stored_ms, self.dues_ms, self.checks, self.targets = self.open_columns()

    def join(self, after: "HalfPage") -> None:
        """Append the half messages of the next page, all of which must be open."""
        self.offsets += after.offsets
        self.stored_ms += after.stored_ms
        self.dues_ms += after.dues_ms
        self.checks += after.checks
        self.targets += after.targets
        self.open_count += after.open_count


def to_bytes(column: Column) -> bytes:
    """Encode a column as little-endian integers."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def from_bytes(code: str, raw: bytes) -> Column:
    """Decode a column of little-endian integers into an array of this type."""
    column: Column = array(code)
    column.frombytes(raw)
    if sys.byteorder == "big":
        column.byteswap()
    return column


class CheckBackTargets:
    """The values of `Half.target` and their numbers. A number that no half message uses is assigned again."""

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
