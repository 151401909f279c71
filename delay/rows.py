"""Pending timers as rows of bytes, sorted and searched without an object for each.

    due u64 | address u64 | queue key u64 | frame size u32 | name size u16 | form u8 | home u8    32 bytes, big-endian

`address` is where the parked message lies, or lay, in the log: unique, and rising with the order of arrival; (due,
address) is its *place* in the order of delivery. `home` says where the message is read: in the log, or in a bucket.
As the fields are big-endian, rows sort as bytes. A queue key of 0 marks a row that is gone.
"""

from collections.abc import Container
from struct import Struct
from typing import Final, NamedTuple

from store.entry import new_tuple

ROW: Final = Struct(">QQQIHBB")
ROW_SIZE: Final = ROW.size
TOPIC_SHIFT: Final = 16  # of a queue key: topic number << 16 | queue id
SWEPT_FROM: Final = 64  # rows that are gone, from which on a pack may be swept
IN_LOG: Final = 0  # homes
IN_BUCKET: Final = 1
_HOME_AT: Final = ROW_SIZE - 1
_KEY_AT: Final = 16
_PLACE_SIZE: Final = 16
_NO_KEY: Final = bytes(8)
_U64: Final = Struct(">Q")


class Timer(NamedTuple):
    """One parked message."""

    due_ms: int
    address: int  # of the entry that holds it
    key: int  # of the queue it goes to
    size: int  # of its frame
    name_size: int  # of the hash of the sender's own key; 0: it gave none
    form: int  # of its frame
    home: int = IN_LOG

    @property
    def topic(self) -> int:
        return self.key >> TOPIC_SHIFT


def pack_row(timer: Timer) -> bytes:
    return ROW.pack(*timer)


class Pack:
    """Rows in one order: by address (`AddressPack`) or by due time and address (`DuePack`).

    Rows mostly come in order; where one does not, the pack is sorted when somebody searches it.
    """

    __slots__ = ("_is_sorted", "_last", "gone", "head", "rows")

    _from = 0  # of a row, the bytes that it is sorted by
    _until = 16

    def __init__(self) -> None:
        self.rows = bytearray()
        self.head = 0  # rows before this byte were taken out
        self.gone = 0  # marked rows behind it
        self._last = b""
        self._is_sorted = True

    def __len__(self) -> int:
        return (len(self.rows) - self.head) // ROW_SIZE - self.gone

    def extend(self, rows: bytes) -> None:
        """Add rows that are in this pack's order among themselves."""
        start, until = self._from, self._until
        if rows[start:until] <= self._last:
            self._is_sorted = False
        last = len(rows) - ROW_SIZE
        self._last = rows[last + start : last + until]
        self.rows += rows

    def find(self, due_ms: int, address: int) -> int:
        """Return the byte at which the row of this timer begins, -1 if it is not here or gone."""
        due, place = _U64.pack(due_ms), _U64.pack(address)
        at = self._first_at(place if self._from else due + place) * ROW_SIZE
        rows = self.rows
        is_here = rows[at : at + 8] == due and rows[at + 8 : at + 16] == place
        return at if is_here and rows[at + _KEY_AT : at + 24] != _NO_KEY else -1

    def _first_at(self, wanted: bytes) -> int:
        """Return the number of the first row that is sorted by `wanted` or more."""
        self.sort()
        rows, start, until = self.rows, self._from, self._until
        low, high = self.head // ROW_SIZE, len(rows) // ROW_SIZE
        while low < high:
            middle = (low + high) // 2
            at = middle * ROW_SIZE
            if rows[at + start : at + until] < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def at(self, at: int) -> Timer:
        return new_tuple(Timer, ROW.unpack_from(self.rows, at))

    def mark(self, at: int) -> None:
        """Let the row that begins at this byte be gone."""
        self.rows[at + _KEY_AT : at + 24] = _NO_KEY
        self.gone += 1
        if self.gone > SWEPT_FROM and self.gone * ROW_SIZE > (len(self.rows) - self.head) // 2:
            self._sweep()

    def _sweep(self) -> None:
        self.rows = bytearray(b"".join(self.live()))
        self.head = self.gone = 0

    def take_out(self, places: Container[bytes]) -> list[bytes]:
        """Take out the rows whose first 16 bytes are among these, and return them."""
        found: list[bytes] = []
        kept: list[bytes] = []
        for row in self.live():
            (found if row[:_PLACE_SIZE] in places else kept).append(row)
        if found:
            self.rows = bytearray(b"".join(kept))
            self.head = self.gone = 0
        return found

    def sort(self) -> None:
        if not self._is_sorted:
            start, until = self._from, self._until
            rows = sorted(self.live(), key=lambda row: row[start:until])
            self.rows = bytearray(b"".join(rows))
            self.head = self.gone = 0
            self._last = bytes(self.rows[-ROW_SIZE:][start:until])
            self._is_sorted = True

    def live(self) -> list[bytes]:
        """Return the rows that are not gone."""
        rows = rows_of(bytes(memoryview(self.rows)[self.head :]))
        return [row for row in rows if row[_KEY_AT : _KEY_AT + 8] != _NO_KEY] if self.gone else rows

    def bytes_from_head(self) -> bytes:
        """Return the live rows as they lie there."""
        return b"".join(self.live()) if self.gone else bytes(memoryview(self.rows)[self.head :])

    def drop_head(self, until: int) -> None:
        """Take out the rows before this byte; those that were gone among them must be counted off by the caller."""
        self.head = until
        if self.head > len(self.rows) // 2:
            del self.rows[: self.head]
            self.head = 0

    def drop_first(self, places: bytes) -> bytes:
        """Take out the first rows if their places are these; returns a byte for each: its home. Else it returns none.

        No row may be gone.
        """
        self.sort()
        end = self.head + len(places) // _PLACE_SIZE * ROW_SIZE
        rows = bytes(memoryview(self.rows)[self.head : end])
        # Words of 8 bytes: a row has four, a place two.
        found, wanted = memoryview(rows).cast("Q"), memoryview(places).cast("Q")
        if found[::4] != wanted[::2] or found[1::4] != wanted[1::2]:
            return b""
        self.drop_head(end)
        return rows[_HOME_AT::ROW_SIZE]

    def drop_tail(self, rows_max: int) -> bytes:
        """Take out up to so many rows from the end, in whatever order; those that are gone are counted off."""
        at = max(self.head, len(self.rows) - rows_max * ROW_SIZE)
        taken = bytes(memoryview(self.rows)[at:])
        del self.rows[at:]
        self._last = bytes(self.rows[-ROW_SIZE:][self._from : self._until]) if at > self.head else b""
        if self.gone:
            self.gone -= sum(1 for row in ROW.iter_unpack(taken) if not row[2])
        return taken


def rows_of(rows: bytes) -> list[bytes]:
    """Part rows that come joined."""
    return [rows[at : at + ROW_SIZE] for at in range(0, len(rows), ROW_SIZE)]


def logged(rows: bytes) -> bytes:
    """Leave out the rows whose messages lie in buckets."""
    if not any(rows[_HOME_AT::ROW_SIZE]):
        return rows
    return b"".join([row for row in rows_of(rows) if not row[_HOME_AT]])


def select(rows: bytes, start_ms: int, until_ms: int, topic: int | None) -> list[Timer]:
    """Return the timers among rows that are due in this time, go to this topic, and have their messages in the log."""
    return [
        new_tuple(Timer, row)
        for row in ROW.iter_unpack(rows)
        if start_ms <= row[0] < until_ms and row[2] and not row[6] and (topic is None or row[2] >> TOPIC_SHIFT == topic)
    ]


class AddressPack(Pack):
    __slots__ = ()
    _from = 8

    def some_from(self, address: int, count_max: int) -> list[Timer]:
        """Return up to so many rows from an address on; the key of one that is gone is 0."""
        low = self._first_at(_U64.pack(address)) * ROW_SIZE
        rows = memoryview(self.rows)[low : low + count_max * ROW_SIZE]
        return [new_tuple(Timer, row) for row in ROW.iter_unpack(rows)]


class DuePack(Pack):
    __slots__ = ()
