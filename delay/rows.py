"""Pending timers as rows of bytes, sorted and searched without an object for each.

    due u64 | address u64 | queue key u64 | frame size u32 | name size u16 | form u8 | home u8    32 bytes, big-endian

`address` is where the parked message lies, or lay, in the log: unique, and rising with the order of arrival; (due,
address) is its *place* in the order of delivery. `home` says where the message is read: in the log, or in a bucket.
As the fields are big-endian, rows sort as bytes. A queue key of 0 marks a row that is gone.
"""

from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from duolog.store.entry import new_tuple

if TYPE_CHECKING:
    from duolog.delay.filing import Filing

ROW: Final = Struct(">QQQIHBB")
ROW_SIZE: Final = ROW.size
TOPIC_SHIFT: Final = 16  # of a queue key: topic number << 16 | queue id
RUNS_MAX: Final = 256  # that nobody has merged, for nobody has searched
SWEPT_FROM: Final = 64  # rows that are gone, from which on a pack may be swept
IN_LOG: Final = 0  # homes
IN_BUCKET: Final = 1
_HOME_AT: Final = ROW_SIZE - 1
_KEY_AT: Final = 16
_PLACE_SIZE: Final = 16
_NO_KEY: Final = bytes(8)
_STRETCH_SHIFT: Final = 16  # of the bytes of a pack: 2,048 rows
_U64: Final = Struct(">Q")
_PLACE: Final = Struct(">QQ")


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

    Rows mostly come in order; where one does not, a new *run* begins. Who searches merges the last runs, until each is
    twice as long as the one behind it: so a search looks into a few, and a row is merged a few times, whatever comes
    between. Who needs all in order merges all.
    """

    __slots__ = ("_last", "_starts", "filings", "gone", "head", "reading", "rows")

    _from = 0  # of a row, the bytes that it is sorted by
    _until = 16

    def __init__(self) -> None:
        self.rows = bytearray()
        self.head = 0  # rows before this byte were taken out
        self.gone = 0  # marked rows behind it
        self._starts: list[int] = []  # the bytes at which runs begin, but for the first
        self.filings: tuple[Filing, ...] = ()  # of its rows where they lie; none before somebody looks
        self._last = b""
        self.reading: RowsOfMoment | None = None  # what reads the rows for a snapshot

    def __len__(self) -> int:
        return (len(self.rows) - self.head) // ROW_SIZE - self.gone

    @property
    def is_sorted(self) -> bool:
        return not self._starts

    def extend(self, rows: bytes) -> None:
        """Add rows that are in this pack's order among themselves."""
        start, until = self._from, self._until
        if rows[start:until] <= self._last:
            if len(self._starts) == RUNS_MAX:
                self._merge()
            self._starts.append(len(self.rows))
        last = len(rows) - ROW_SIZE
        self._last = rows[last + start : last + until]
        self.rows += rows

    def find(self, due_ms: int, address: int) -> int:
        """Return the byte at which the row of this timer begins, -1 if it is not here or gone."""
        place = _PLACE.pack(due_ms, address)
        wanted, rows = place[self._from :], self.rows
        self._merge()
        high = len(rows) // ROW_SIZE
        for start in (*reversed(self._starts), self.head):
            low = start // ROW_SIZE
            at = self._bisect(wanted, low, high) * ROW_SIZE
            if rows[at : at + _PLACE_SIZE] == place and rows[at + _KEY_AT : at + 24] != _NO_KEY:
                return at
            high = low
        return -1

    def _first_at(self, wanted: bytes) -> int:
        """Return the number of the first row that is sorted by `wanted` or more."""
        self.sort()
        return self._bisect(wanted, self.head // ROW_SIZE, len(self.rows) // ROW_SIZE)

    def _bisect(self, wanted: bytes, low: int, high: int) -> int:
        """The same in one run, between the numbers of its first row and of the one behind its last."""
        rows, start, until = self.rows, self._from, self._until
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
        if self.reading is not None:
            self.reading.keep_row(at)
        for filing in self.filings:
            filing.unfile(at)
        self.rows[at + _KEY_AT : at + 24] = _NO_KEY
        self.rows[at + _HOME_AT] = IN_LOG
        self.gone += 1
        if self.gone > SWEPT_FROM and self.gone * ROW_SIZE > (len(self.rows) - self.head) // 2:
            self._sweep()

    def _sweep(self) -> None:
        self._lay_out(self.live())

    def _lay_out(self, rows: list[bytes]) -> None:
        """Have these rows instead, none of which is gone; they come as they lay here."""
        if self.reading is not None:
            self.reading.keep_all()
        if self._starts:
            rows = sorted(rows, key=self._order)
            self._starts = []
        self.rows = bytearray(b"".join(rows))
        self._last = bytes(self.rows[-ROW_SIZE:][self._from : self._until])
        self.head = self.gone = 0
        self.filings = ()

    def _order(self, row: bytes) -> bytes:
        return row[self._from : self._until]

    def _merge(self) -> None:
        """Merge the last runs, until each is twice as long as the one behind it."""
        starts, end, count = self._starts, len(self.rows), len(self._starts)
        while starts and 2 * (end - starts[-1]) > starts[-1] - (starts[-2] if len(starts) > 1 else self.head):
            starts.pop()
        if len(starts) == count:
            return
        at = starts[-1] if starts else self.head
        if self.reading is not None:
            self.reading.keep_from(at)
        for filing in self.filings:
            filing.cut(at)
        rows = sorted(self._live_from(at), key=self._order)
        self.gone -= (end - at) // ROW_SIZE - len(rows)
        self.rows[at:] = b"".join(rows)
        if starts and not rows:
            starts.pop()
        self._last = self._order(bytes(self.rows[-ROW_SIZE:]))

    def take_out(self, places: Container[bytes]) -> list[bytes]:
        """Take out the rows whose first 16 bytes are among these, and return them."""
        found: list[bytes] = []
        kept: list[bytes] = []
        for row in self.live():
            (found if row[:_PLACE_SIZE] in places else kept).append(row)
        if found:
            self._lay_out(kept)
        return found

    def sort(self) -> None:
        """Have all rows in order."""
        if self._starts:
            self._lay_out(self.live())

    def live(self) -> list[bytes]:
        """Return the rows that are not gone."""
        return self._live_from(self.head)

    def _live_from(self, at: int) -> list[bytes]:
        rows = rows_of(bytes(memoryview(self.rows)[at:]))
        return [row for row in rows if row[_KEY_AT : _KEY_AT + 8] != _NO_KEY] if self.gone else rows

    def bytes_from_head(self) -> bytes:
        """Return the live rows as they lie there."""
        return b"".join(self.live()) if self.gone else bytes(memoryview(self.rows)[self.head :])

    def drop_head(self, until: int) -> None:
        """Take out the rows before this byte; those that were gone among them must be counted off by the caller."""
        self.head = until
        self.filings = ()
        if self.head > len(self.rows) // 2 and self.reading is None:  # Else a later call does it.
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
        if self.reading is not None:
            self.reading.keep_from(at)
        taken = bytes(memoryview(self.rows)[at:])
        for filing in self.filings:
            filing.cut(at)
        del self.rows[at:]
        while self._starts and self._starts[-1] >= at:
            self._starts.pop()
        self._last = self._order(bytes(self.rows[-ROW_SIZE:])) if at > self.head else b""
        if self.gone:
            self.gone -= sum(1 for row in ROW.iter_unpack(taken) if not row[2])
        return taken


class RowsOfMoment:
    """The rows that a pack has at one moment, read some at a time while the pack goes on changing.

    What is read is what lies in the pack from `_at` to `_end`, but for rows that were marked since; then what was
    behind `_end` and was copied before it changed. So a change costs a copy of what it changes, and at most that of
    what it moves itself.
    """

    def __init__(self, pack: Pack) -> None:
        self._pack: Pack | None = pack  # None: it has other rows by now, and those of the moment are left to this
        self._rows = pack.rows
        self._at, self._end = pack.head, len(pack.rows)
        self._marked: dict[int, dict[int, bytes]] = {}  # by stretch, and by their bytes: rows as they were
        self._behind: list[bytes] = []  # the last first
        self._has_gone = pack.gone > 0
        pack.reading = self

    def keep_row(self, at: int) -> None:
        """The pack is about to change the row that begins at this byte."""
        if self._at <= at < self._end:
            marked = self._marked.setdefault(at >> _STRETCH_SHIFT, {})
            marked.setdefault(at, bytes(self._rows[at : at + ROW_SIZE]))

    def keep_from(self, at: int) -> None:
        """The pack is about to change or move what lies from this byte on."""
        start = max(at, self._at)
        if start < self._end:
            self._behind.append(self._as_it_was(start, self._end))
            self._end = start

    def keep_all(self) -> None:
        """The pack is about to take other rows, and will not touch these any more."""
        self.close()

    def close(self) -> None:
        if self._pack is not None:
            self._pack.reading = None
            self._pack = None

    def parts(self, rows_max: int) -> Iterator[bytes]:
        """Yield the rows that are not gone and whose messages lie in the log, so many at a time or fewer."""
        size = rows_max * ROW_SIZE
        while self._at < self._end:
            start, self._at = self._at, min(self._end, self._at + size)
            yield from self._part(self._as_it_was(start, self._at))
        self.close()
        self._rows, self._marked = bytearray(), {}
        while self._behind:
            kept = self._behind.pop()
            for at in range(0, len(kept), size):
                yield from self._part(kept[at : at + size])

    def _as_it_was(self, start: int, end: int) -> bytes:
        rows = bytes(memoryview(self._rows)[start:end])
        if not self._marked:
            return rows
        changed = bytearray(rows)
        for stretch in range(start >> _STRETCH_SHIFT, (end - 1 >> _STRETCH_SHIFT) + 1):
            for at, row in self._marked.get(stretch, {}).items():
                if start <= at < end:
                    changed[at - start : at - start + ROW_SIZE] = row
        return bytes(changed)

    def _part(self, rows: bytes) -> Iterator[bytes]:
        if self._has_gone:
            rows = b"".join([row for row in rows_of(rows) if row[_KEY_AT : _KEY_AT + 8] != _NO_KEY])
        if found := logged(rows):
            yield found


def rows_of(rows: bytes) -> list[bytes]:
    """Part rows that come joined."""
    return [rows[at : at + ROW_SIZE] for at in range(0, len(rows), ROW_SIZE)]


def logged(rows: bytes) -> bytes:
    """Leave out the rows whose messages lie in buckets."""
    if not any(rows[_HOME_AT::ROW_SIZE]):
        return rows
    return b"".join([row for row in rows_of(rows) if not row[_HOME_AT]])


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

    def insert(self, rows: bytes) -> None:
        """Add rows that are in order among themselves, between those before the first of them and the others."""
        at = self._first_at(rows[:_PLACE_SIZE]) * ROW_SIZE
        if at == len(self.rows):
            self.extend(rows)
            return
        if self.reading is not None:
            self.reading.keep_from(at)
        if rows[-ROW_SIZE:][:_PLACE_SIZE] > self.rows[at : at + _PLACE_SIZE]:
            self._starts = [at + len(rows)]
        self.rows[at:at] = rows

    def take_later(self, due_ms: int) -> bytes:
        """Take out the rows that are due after this time, and return them in order."""
        at = self._first_at(_U64.pack(due_ms + 1))
        return self.drop_tail(len(self.rows) // ROW_SIZE - at)

    def logged_from(self, place: tuple[int, int], until_ms: int) -> Iterator[Timer]:
        """Yield those due from this place on until then, whose messages are in the log."""
        for at in range(self._first_at(_PLACE.pack(*place)) * ROW_SIZE, len(self.rows), ROW_SIZE):
            timer = self.at(at)
            if timer.due_ms >= until_ms:
                return
            if timer.key and not timer.home:
                yield timer

    def count_logged(self, topic: int, edges_ms: Sequence[int], counts: list[int]) -> None:
        """Add to `counts` how many of these are due between each two neighbours of these times.

        All rows are of this topic.
        """
        self.sort()
        rows, at = self.rows, self._first_at(_U64.pack(edges_ms[0])) * ROW_SIZE
        # A byte of the key in which no live row has 0; and no row that is gone has a home in a bucket.
        byte_at = _KEY_AT + next(number for number, byte in enumerate(topic.to_bytes(6, "big")) if byte)
        while at < len(rows):
            bin = bisect_right(edges_ms, int.from_bytes(rows[at : at + 8], "big")) - 1
            if bin == len(counts):
                return
            end = self._first_at(_U64.pack(edges_ms[bin + 1])) * ROW_SIZE
            gone = rows[at + byte_at : end : ROW_SIZE].count(0)
            counts[bin] += (end - at) // ROW_SIZE - gone - rows[at + _HOME_AT : end : ROW_SIZE].count(IN_BUCKET)
            at = end
