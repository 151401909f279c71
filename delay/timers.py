"""All pending timers of one broker: a pure machine, which never asks the time and never touches the log.

    add -> windows -------------- the hand gets there -------------> ready, by topic --- take ---> delivered
                                                                                                   (remove)
           [ 18h ][ 4.6h ]..[ 65s ][ 65s ]..[ 256ms ]..[1ms][1ms]    orders   [row row row]
           rows, by address                                          billing  [row]

A *window* holds the rows of all timers due within it. There is one for each slot of a hierarchical timing wheel, and
the rule is that of `delay/wheel.py`: a timer lies at the level of the highest byte in which its time differs from
the hand. One such wheel, with windows for items, says which window begins next. When the hand gets to a window of more
than a millisecond, its rows move down; those of one millisecond go to their topics, which are *ready*:

    hand 0x0000     rows due 0x0102, 0x0103 in the window 0x0100..0x01ff
    hand 0x0100     the window opens: its rows now lie in the windows 0x0102 and 0x0103, one millisecond each
    hand 0x0102     the first opens: its row is ready

So there are never more than 256 windows for each of eight levels, whatever the number of timers: 32 bytes for each, no
object. Adding and cancelling do not depend on how many there are, but for the bisection of one window. Rows move
a bounded number at a time; while a window is half moved the hand stands just before it, so that a timer added for it
goes to its end, behind its equals.

Ready topics take turns. Their rows stay until they are delivered: up to that moment each may be cancelled.
If the clock is set back, ready rows wait in their order until it says again that they are due. If it was far ahead and
is right again, `set_back` moves the hand back as well.

A look at some topic or time goes by index: what waits in windows is filed for it (`delay/filing.py`), what is ready
lies by topic and in order. `file` does so a slice at a time, and the look that follows in the same turn of the loop
sees one moment.

Rows that are due late leave for a bucket (`delay/buckets.py`): `detach` takes them out of their windows, a slice at a
time, `detach_paused` those that are due but whose topic is paused. Until they are there they are found, cancelled and
moved as before; then `let_go` forgets them. Rows that came back from a bucket (`home`) are not counted here, nor in
snapshots: their bucket has them.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from heapq import merge as in_order
from itertools import chain, takewhile
from struct import Struct
from typing import Final, NamedTuple

from duolog.delay.filing import Filing
from duolog.delay.rows import (
    ROW,
    ROW_SIZE,
    TOPIC_SHIFT,
    AddressPack,
    DuePack,
    RowsOfMoment,
    Timer,
    logged,
    pack_row,
    rows_of,
)
from duolog.delay.wheel import DIGIT_BITS, NEVER_MS, Wheel
from duolog.store.entry import new_tuple

ROWS_IN_PART: Final = 1 << 13  # of a snapshot: 256 KiB
PIN_BITS: Final = 16  # what is pinned of the log is known to 64 KiB

ID: Final = Struct(">QQ")  # a timer's id: the due time and the address that it was given; its place: those it has now
TimerId = tuple[int, int]

_PLACED: Final = Struct(">QQQ8x")  # of a row: due, address, key

# A window's name: the time at which it begins, without the digits that are 0, and in the lowest bits its level.
LEVEL_BITS: Final = 4
LEVEL_MASK: Final = (1 << LEVEL_BITS) - 1


class Turn(NamedTuple):
    """What a topic may deliver now, in order."""

    topic: int
    timers: list[Timer]


class Cursor(NamedTuple):
    """Where a sweep goes on: in the window that begins then, from an address on."""

    start_ms: int
    address: int


FROM_THE_LATEST: Final = Cursor(NEVER_MS, 0)


class _Window(AddressPack):
    """The rows due within 2**bits ms from `start_ms`."""

    __slots__ = ("bits", "name", "start_ms")

    def __init__(self, level: int, name: int, start_ms: int) -> None:
        super().__init__()
        self.bits = level * DIGIT_BITS
        self.name = name
        self.start_ms = start_ms


class _Leaving(DuePack):
    """Rows on their way to a bucket, in due order, with what they count."""

    __slots__ = ("bits", "counts", "last_ms", "pins", "start_ms")

    def __init__(self, rows: list[bytes]) -> None:
        super().__init__()
        self.extend(b"".join(rows))
        self.counts = _topics_of(rows)
        self.pins = _pins_of(rows)
        self.start_ms, self.last_ms = (int.from_bytes(row[:8], "big") for row in (rows[0], rows[-1]))
        self.bits = (self.start_ms ^ self.last_ms).bit_length()


class Timers:
    """The pending timers. `start_ms` is the wall time now: what is due before goes straight to its topic."""

    def __init__(self, start_ms: int = 0) -> None:
        self._hand_ms = start_ms  # Invariant: all windows begin later, but for the one that is half moved.
        self._windows: dict[int, _Window] = {}  # by name
        self._calendar: Wheel[_Window] = Wheel(start_ms)
        self._moving: _Window | None = None
        self._ready: dict[int, DuePack] = {}  # by topic
        self._turns: dict[int, None] = {}  # ready topics in the order of their turns
        self._ready_ms = NEVER_MS  # no topic in turn has anything due before
        self._away: set[int] = set()  # topics that had their turn and are not back
        self._paused: set[int] = set()
        self._held_back: dict[int, TimerId] = {}  # topics -> the place from which on they wait for what is before it
        self._counts: dict[int, int] = {}  # by topic
        self._pins: dict[int, int] = {}  # how many timers lie in each part of the log
        self._ids: dict[int, TimerId] = {}  # by address, of those that are not at the place that their id says
        self._places: dict[TimerId, TimerId] = {}  # of the same, by id; also of those that are in buckets
        self._leaving: list[_Leaving] = []
        # The same by the parts of the log that they pin: there are hundreds, and most that is looked for is in none.
        self._leaving_at: defaultdict[int, list[_Leaving]] = defaultdict(list)
        self._leaving_bytes = 0  # of their messages
        self._have_left: set[bytes] = set()  # places, packed, of rows that are in buckets; during recovery
        self._lost: dict[TimerId, None] = {}  # places of those that were removed while they were leaving
        self._count = 0
        self._reading: list[RowsOfMoment] = []  # for a snapshot

    def __len__(self) -> int:
        return self._count

    # -- Adding and removing

    def add(self, timer: Timer) -> None:
        due_ms, address, key, _, _, _, home = timer
        self._put(pack_row(timer), due_ms, key, self._hand_ms)
        if home:
            return
        topic = key >> TOPIC_SHIFT
        self._counts[topic] = self._counts.get(topic, 0) + 1
        pin = address >> PIN_BITS
        self._pins[pin] = self._pins.get(pin, 0) + 1
        self._count += 1

    def add_loaded(self, timers: Sequence[Timer]) -> None:
        """Add timers of one topic that come back from a bucket, in due order, before those that wait for them."""
        ready = list(takewhile(lambda timer: timer.due_ms <= self._hand_ms, timers))
        if ready:
            topic = ready[0].topic
            self._ready.setdefault(topic, DuePack()).insert(b"".join(map(pack_row, ready)))
            self._line_up(topic)
        for timer in timers[len(ready) :]:
            self.add(timer)

    def find(self, given_ms: int, address: int) -> Timer | None:
        """Return the timer whose id has this due time and address, with the time at which it is due now."""
        found = self._place(given_ms, address)
        return found[0].at(found[1]) if found else None

    def remove(self, given_ms: int, address: int) -> Timer | None:
        """Let a timer be pending no more: it is cancelled, or delivered."""
        found = self._place(given_ms, address)
        if found is None:
            return None
        self.forget_place((given_ms, address))
        return self._take_out(*found)

    def is_at(self, place: TimerId, topic: int | None = None) -> bool:
        """Whether a timer is at this place; quicker if its topic is known."""
        return self._at(place, topic) is not None

    def remove_at(self, place: TimerId) -> Timer | None:
        """Take out what is at this place, if anything is; it may come back."""
        found = self._at(place)
        return None if found is None else self._take_out(*found)

    def have_left(self, places: bytes, stay: Iterable[TimerId]) -> None:
        """Let what is at these places, but for some, be found no more, and taken out by `clear_away`; for recovery."""
        left = {places[at : at + ID.size] for at in range(0, len(places), ID.size)}
        left.difference_update([ID.pack(*place) for place in stay])
        self._have_left |= left

    def clear_away(self) -> None:
        """Take out all that has left."""
        if self._have_left:
            taken = [row for pack in self._packs() for row in pack.take_out(self._have_left)]
            self._have_left = set()
            self._count_off(_topics_of(taken), _pins_of(taken))

    def _count_off(self, topics: Counter[int], pins: Counter[int]) -> None:
        for topic, count in topics.items():
            _lower(self._counts, topic, count)
        for pin, count in pins.items():
            _lower(self._pins, pin, count)
        self._count -= topics.total()

    def delivered(self, topic: int, ids: bytes) -> list[TimerId]:
        """Remove what was delivered: mostly the first rows of a ready topic, which go fast.

        Returns the places of those whose messages are not in the log; of what is not here, where its bucket has it.
        """
        pack = self._ready.get(topic)
        elsewhere: list[TimerId] = []
        if pack is not None and not pack.gone and not self._have_left and (homes := pack.drop_first(ids)):
            self._count_off_many(topic, ids, homes, elsewhere)
            ids = b""
        for timer_id in ID.iter_unpack(ids):
            place = self.place_of(timer_id)
            timer = self.remove(*timer_id)
            if timer is None or timer.home:
                elsewhere.append(place)
                self.forget_place(timer_id)
        if pack is not None and not len(pack):
            self._forget_ready(topic)
        return elsewhere

    def move(self, given_ms: int, address: int, due_ms: int) -> bool:
        """Let a timer be due at another time, whose message is in the log; its id stays. False if it is not pending."""
        timer = self.remove(given_ms, address)
        if timer is None:
            return False
        self.restore_moved((given_ms, address), (due_ms, timer.address))
        self.add(timer._replace(due_ms=due_ms))
        return True

    def _take_out(self, pack: AddressPack | DuePack, at: int) -> Timer:
        timer = pack.at(at)
        pack.mark(at)
        if timer.home:
            return timer
        pin = timer.address >> PIN_BITS
        self._count -= 1
        _lower(self._counts, timer.topic, 1)
        _lower(self._pins, pin, 1)
        if type(pack) is _Leaving:
            _lower(pack.counts, timer.topic, 1)
            _lower(pack.pins, pin, 1)
            self._lost[timer.due_ms, timer.address] = None
        return timer

    def _count_off_many(self, topic: int, ids: bytes, homes: bytes, elsewhere: list[TimerId]) -> None:
        """Count off timers of a topic that are at the places that their ids say."""
        if any(homes):
            places = list(ID.iter_unpack(ids))
            elsewhere += [place for place, home in zip(places, homes, strict=True) if home]
            ids = b"".join([ID.pack(*place) for place, home in zip(places, homes, strict=True) if not home])
        if not ids:
            return
        count = len(ids) // ID.size
        self._count -= count
        _lower(self._counts, topic, count)
        pin, run = -1, 0
        for _, address in ID.iter_unpack(ids):
            if address >> PIN_BITS != pin:
                if run:
                    _lower(self._pins, pin, run)
                pin, run = address >> PIN_BITS, 0
            run += 1
        _lower(self._pins, pin, run)

    # -- Ids and places

    def id_of(self, timer: Timer) -> TimerId:
        """Return the id under which a timer is known."""
        return self._ids.get(timer.address, (timer.due_ms, timer.address))

    def ids_of(self, timers: Iterable[Timer]) -> bytes:
        """Return the ids of timers, one after the other."""
        pack = ID.pack
        if self._ids:
            return b"".join([pack(*self.id_of(timer)) for timer in timers])
        return b"".join([pack(due_ms, address) for due_ms, address, _, _, _, _, _ in timers])

    def id_at(self, place: TimerId) -> TimerId:
        """Return the id of the timer that is at this place, here or in a bucket."""
        return self._ids.get(place[1], place)

    def place_of(self, timer_id: TimerId) -> TimerId:
        """Return where a timer is, if it is: due when, and with which address."""
        return self._places.get(timer_id, timer_id)

    def restore_moved(self, timer_id: TimerId, place: TimerId) -> None:
        """Let a timer be at another place than its id says."""
        self.forget_place(timer_id)
        if place != timer_id:
            self._ids[place[1]] = timer_id
            self._places[timer_id] = place

    def forget_place(self, timer_id: TimerId) -> None:
        place = self._places.pop(timer_id, None)
        if place is not None:
            self._ids.pop(place[1], None)

    def moved(self) -> list[tuple[TimerId, TimerId]]:
        """The timers that were moved: id, place."""
        return list(self._places.items())

    # -- Packs

    def _put(self, row: bytes, due_ms: int, key: int, hand_ms: int) -> None:
        """Put a row where it belongs while the hand is there."""
        if due_ms <= hand_ms:
            self._put_ready(row, due_ms, key >> TOPIC_SHIFT)
        else:
            self._put_in_window(row, _name_of(due_ms, hand_ms))

    def _put_many(self, rows: bytes, hand_ms: int) -> int:
        """Put rows where they belong while the hand is there, but for those that are gone; returns how many these are.

        Neighbours that go to the same place go there at once: a burst for one topic is one run.
        """
        gone = 0
        place = begin = at = 0  # The place is a window's name, or below 0 a topic; 0 is none.
        first_due_ms = last_due_ms = last_address = 0
        start_ms = end_ms = 0  # of the window
        for due_ms, address, key in _PLACED.iter_unpack(rows):
            if not key:
                gone += 1
                to = 0
            elif start_ms <= due_ms < end_ms:
                to = place
            elif due_ms <= hand_ms:
                to = -(key >> TOPIC_SHIFT)
            else:
                to = _name_of(due_ms, hand_ms)
            # A run is in the order of the pack that it goes to: by address, or by due time and address.
            if to != place or (address <= last_address if to > 0 or due_ms == last_due_ms else due_ms < last_due_ms):
                self._put_run(rows[begin:at], place, first_due_ms)
                place, begin, first_due_ms = to, at, due_ms
                start_ms, end_ms = _span_of(to) if to > 0 else (0, 0)
            last_due_ms, last_address = due_ms, address
            at += ROW_SIZE
        self._put_run(rows[begin:], place, first_due_ms)
        return gone

    def _put_run(self, rows: bytes, place: int, due_ms: int) -> None:
        """Put rows that go to the same place, in its order: `due_ms` is the first one's."""
        if place > 0:
            self._put_in_window(rows, place)
        elif place < 0:
            self._put_ready(rows, due_ms, -place)

    def _put_in_window(self, rows: bytes, name: int) -> None:
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = _Window(name & LEVEL_MASK, name, _span_of(name)[0])
            self._calendar.add(window.start_ms, window)
        window.extend(rows)

    def _put_ready(self, rows: bytes, due_ms: int, topic: int) -> None:
        pack = self._ready.get(topic)
        if pack is None:
            pack = self._ready[topic] = DuePack()
        pack.extend(rows)
        if topic not in self._paused and topic not in self._away:
            self._turns.setdefault(topic)
            if due_ms < self._ready_ms:
                self._ready_ms = due_ms

    def _place(self, given_ms: int, address: int) -> tuple[AddressPack | DuePack, int] | None:
        """Find the pack and the row of the timer that has this id."""
        timer_id = (given_ms, address)
        place = self._places.get(timer_id, timer_id)
        if self._ids.get(place[1], timer_id) != timer_id:
            return None  # It names a place, and is no id.
        return self._at(place)

    def _at(self, place: TimerId, topic: int | None = None) -> tuple[AddressPack | DuePack, int] | None:
        """Find the pack and the row of what is at this place."""
        if self._have_left and ID.pack(*place) in self._have_left:
            return None
        due_ms, address = place
        found = self._look(due_ms, address, self._hand_ms, topic)
        if found is None and self._moving is not None:
            found = self._look(due_ms, address, self._moving.start_ms, topic)
        if found is None and self._leaving:
            for pack in self._leaving_at.get(address >> PIN_BITS, ()):
                if pack.start_ms <= due_ms <= pack.last_ms and (at := pack.find(due_ms, address)) >= 0:
                    return pack, at
        return found

    def _look(
        self, due_ms: int, address: int, hand_ms: int, topic: int | None
    ) -> tuple[AddressPack | DuePack, int] | None:
        packs: Iterable[AddressPack | DuePack]
        if due_ms <= hand_ms:
            packs = self._ready.values() if topic is None else filter(None, [self._ready.get(topic)])
        else:
            window = self._windows.get(_name_of(due_ms, hand_ms))
            packs = () if window is None else (window,)
        for pack in packs:
            at = pack.find(due_ms, address)
            if at >= 0:
                return pack, at
        return None

    # -- The hand

    def next_deadline_ms(self) -> int | None:
        """Return a time before which there is nothing to do; None while nothing is pending or all waits for others."""
        if self._moving is not None:
            return self._moving.start_ms
        opens_ms = self._calendar.next_deadline_ms()
        if not self._turns:
            return opens_ms
        return self._ready_ms if opens_ms is None else min(opens_ms, self._ready_ms)

    def advance(self, now_ms: int, moves_max: int) -> None:
        """Move the hand towards `now_ms`, until about so many rows have moved or there are no more to be moved."""
        while moves_max > 0:
            if self._moving is None and not self._open_next(now_ms):
                return
            moves_max -= self._move_some(moves_max)

    def _open_next(self, now_ms: int) -> bool:
        """Let the hand get to the next window; false if none begins by `now_ms`."""
        calendar = self._calendar
        while (opens_ms := calendar.next_deadline_ms()) is not None and opens_ms <= now_ms:
            for window in calendar.advance(opens_ms):
                assert self._moving is None, f"two windows begin at {opens_ms}"
                self._moving = window
                self._hand_ms = window.start_ms - 1
            if self._moving is not None:
                return True
        if now_ms > self._hand_ms:
            self._hand_ms = now_ms
            calendar.advance(now_ms)
        return False

    def _move_some(self, moves_max: int) -> int:
        """Move rows of the open window down to where they belong when it begins; returns how many it looked at."""
        window = self._moving
        assert window is not None, "no window is open"
        window.filings = ()
        window.sort()
        start_ms, rows = window.start_ms, window.rows
        end = min(len(rows), window.head + moves_max * ROW_SIZE)
        chunk = bytes(memoryview(rows)[window.head : end])
        window.gone -= self._put_many(chunk, start_ms)
        if end < len(rows):
            window.drop_head(end)
        else:
            del self._windows[window.name]
            self._hand_ms, self._moving = start_ms, None
        return len(chunk) // ROW_SIZE + 1

    def set_back(self, now_ms: int) -> None:
        """Move the hand back to `now_ms`: the clock was ahead, and is right again.

        Without this the timers that are due between the two times would stay ready, where none leaves for a bucket.
        Windows move as a whole: as the hand comes from below, all of a window differs from it in the same byte.
        """
        while self._moving is not None:
            self._move_some(len(self._moving.rows))
        if now_ms >= self._hand_ms:
            return
        windows, self._windows = self._windows, {}
        self._hand_ms, self._calendar = now_ms, Wheel(now_ms)
        for window in windows.values():
            if len(window):
                window.sort()
                self._put_in_window(window.bytes_from_head(), _name_of(window.start_ms, now_ms))
        for pack in list(self._ready.values()):
            rows = pack.take_later(now_ms)
            if rows:
                self._put_many(rows, now_ms)
        self._ready_ms = 0

    # -- Leaving for a bucket

    def beyond(self, from_ms: int) -> int:
        """Count the rows that `detach` and `detach_paused` may take."""
        late = sum(len(window) for window in self._windows.values() if window.start_ms >= from_ms)
        return late + sum(map(len, self._of_paused()))

    def detach(self, from_ms: int, rows_max: int, dead: Container[TimerId]) -> bytes:
        """Take up to so many rows out of a window that begins then or later: from now on they are leaving.

        Returns them in due order; none when no such window has any. What has moved back to a place that is among the
        `dead` ones stays.
        """
        for window in self._windows.values():
            if window.start_ms < from_ms or window is self._moving or not len(window.rows) - window.head:
                continue
            found = self._leave(window.drop_tail(rows_max), dead)
            if found:
                return found
        return b""

    def detach_paused(self, rows_max: int, dead: Container[TimerId]) -> tuple[bytes, list[Timer]] | None:
        """Do the same with what is ready of a paused topic; None: there is no such row.

        Also returns those that are not here any more: of one topic, in no order. Some have come from buckets, and that
        is where they are now; the others are leaving, as the rows.
        """
        for pack in self._of_paused():
            taken = pack.drop_tail(rows_max)
            rows = self._leave(logged(taken), dead)
            loaded = [timer for timer in map(Timer._make, ROW.iter_unpack(taken)) if timer.key and timer.home]
            if rows or loaded:
                return rows, [*loaded, *map(Timer._make, ROW.iter_unpack(rows))]
        return None

    def _of_paused(self) -> list[DuePack]:
        return [pack for topic in self._paused if (pack := self._ready.get(topic)) is not None and len(pack)]

    def _leave(self, taken: bytes, dead: Container[TimerId]) -> bytes:
        """Let rows be leaving, but for those that are gone or stay; returns them in due order."""
        rows, stay = [], []
        for row in rows_of(taken):
            due_ms, address, key, size, _, _, home = ROW.unpack(row)
            place = (due_ms, address)
            if home or place in dead or place in self._lost:
                stay.append(row)
            elif key:
                rows.append(row)
                self._leaving_bytes += size
        if stay:
            self._put_many(b"".join(stay), self._hand_ms)
        if rows:
            rows.sort()
            pack = _Leaving(rows)
            self._leaving.append(pack)
            for pin in pack.pins:
                self._leaving_at[pin].append(pack)
        return b"".join(rows)

    def let_go(self) -> Mapping[int, int]:
        """What was leaving is in a bucket: forget it. Returns its numbers by topic."""
        topics: Counter[int] = Counter()
        pins: Counter[int] = Counter()
        for pack in self._leaving:
            topics.update(pack.counts)
            pins.update(pack.pins)
        self._count_off(topics, pins)
        self._leaving, self._leaving_bytes = [], 0
        self._leaving_at.clear()
        self._lost.clear()
        return topics

    @property
    def leaving_bytes(self) -> int:
        """The size of the messages of what is leaving, about."""
        return self._leaving_bytes

    @property
    def lost(self) -> list[TimerId]:
        """The places of those that were removed while they were leaving."""
        return list(self._lost)

    def stay(self) -> bool:
        """The bucket came to nothing: put some rows back; false when none is leaving any more."""
        self._lost.clear()
        self._leaving_bytes = 0
        if self._leaving:
            pack = self._leaving.pop()
            for pin in pack.pins:  # A part that is not among them any more has no row of it.
                self._leaving_at[pin].remove(pack)
            self._put_many(pack.bytes_from_head(), self._hand_ms)
        return bool(self._leaving)

    # -- Delivering

    def take(self, now_ms: int, count_max: int, bytes_max: int) -> Turn | None:
        """Return what the next topic may deliver: at most so many, and so many bytes unless the first has more.

        They stay pending until `delivered` or `remove`; the topic has no other turn until `give_back`.
        """
        if now_ms < self._ready_ms:
            return None
        earliest_ms = NEVER_MS
        turn: Turn | None = None
        emptied: list[int] = []
        held: list[int] = []
        for topic in self._turns:
            pack = self._ready[topic]
            timers = _first_of(pack, now_ms, count_max, bytes_max)
            if timers and topic in self._held_back:
                timers = [timer for timer in timers if timer[:2] < self._held_back[topic]]
                if not timers:
                    held.append(topic)
                    continue
            if timers:
                turn = Turn(topic, timers)
                break
            if not len(pack):
                emptied.append(topic)
            else:
                earliest_ms = min(earliest_ms, next(_timers_of(pack)).due_ms)
        for topic in emptied:
            self._forget_ready(topic)
        for topic in held:
            del self._turns[topic]
        if turn is None:
            self._ready_ms = earliest_ms
        else:
            del self._turns[turn.topic]
            self._away.add(turn.topic)
        return turn

    @property
    def topics_in_turn(self) -> int:
        """How many topics may have something to deliver."""
        return len(self._turns)

    def give_back(self, topic: int) -> None:
        """Let a topic that had its turn wait for the next one."""
        self._away.discard(topic)
        self._line_up(topic)

    def pause(self, topic: int) -> None:
        """Let nothing of a topic be taken."""
        self._paused.add(topic)
        self._turns.pop(topic, None)

    def resume(self, topic: int) -> None:
        self._paused.discard(topic)
        self._line_up(topic)

    @property
    def paused(self) -> frozenset[int]:
        return frozenset(self._paused)

    def is_paused(self, topic: int) -> bool:
        return topic in self._paused

    def hold_back(self, topic: int, place: TimerId | None) -> None:
        """Let a topic's timers from this place on wait: some that are before them are not here. None: no more."""
        if place is None:
            self._held_back.pop(topic, None)
        else:
            self._held_back[topic] = place
        self._line_up(topic)

    def _line_up(self, topic: int) -> None:
        if topic in self._ready and topic not in self._paused and topic not in self._away:
            self._turns.setdefault(topic)
            self._ready_ms = 0

    def _forget_ready(self, topic: int) -> None:
        self._ready.pop(topic, None)
        self._turns.pop(topic, None)

    # -- Looking

    def count(self, topic: int) -> int:
        return self._counts.get(topic, 0)

    def counts(self) -> dict[int, int]:
        """How many are pending, by topic number."""
        return dict(self._counts)

    def pinned_from(self) -> int | None:
        """Return a position of the log from which on it is needed; None if none of it is."""
        return min(self._pins) << PIN_BITS if self._pins else None

    def file(self, by_topic: bool, start_ms: int, until_ms: int, rows_max: int) -> bool:
        """Make ready for `due` or `histogram` in this time, by looking at about so many rows.

        False: it is ready, and stays so until the loop turns. True: there is more to be filed.
        """
        while self._moving is not None and rows_max > 0:
            rows_max -= self._move_some(rows_max)  # What is half moved would have to be filed again and again.
        for pack in self._meeting(start_ms, until_ms):
            if rows_max <= 0:
                return True
            rows_max -= _filing_of(pack, by_topic).file(rows_max)
        return rows_max <= 0

    def due(self, topic: int | None, start: TimerId, until_ms: int) -> Iterator[Timer]:
        """Yield the timers of a topic, or of all, in due order from this place on, as far as the log has them.

        All must be filed, and nothing may change until the last one was taken.
        """
        packs = self._ready.values() if topic is None else filter(None, [self._ready.get(topic)])
        by_topic = topic is not None
        found = [pack.logged_from(start, until_ms) for pack in packs]
        found += [_filing_of(pack, by_topic).timers(topic, start, until_ms) for pack in self._leaving]
        windows = sorted(self._meeting(start[0], until_ms, leaving=False), key=_start_of)
        in_windows = (_filing_of(window, by_topic).timers(topic, start, until_ms) for window in windows)
        return in_order(chain.from_iterable(in_windows), *found)

    def histogram(self, topic: int | None, edges_ms: Sequence[int]) -> list[int]:
        """Count the same between each two neighbours of these times. All must be filed."""
        counts = [0] * (len(edges_ms) - 1)
        for number in self._ready if topic is None else self._ready.keys() & {topic}:
            self._ready[number].count_logged(number, edges_ms, counts)
        for pack in self._meeting(edges_ms[0], edges_ms[-1]):
            _filing_of(pack, topic is not None).count(topic, edges_ms, counts)
        return counts

    def _meeting(self, start_ms: int, until_ms: int, *, leaving: bool = True) -> "list[_Window | _Leaving]":
        """Return the packs in which timers that are due in this time may be, but for ready ones."""
        packs: Iterable[_Window | _Leaving] = self._windows.values()
        if leaving:
            packs = chain(packs, self._leaving)
        return [pack for pack in packs if pack.start_ms < until_ms and pack.start_ms + (1 << pack.bits) > start_ms]

    def all(self) -> Iterator[Timer]:
        """Yield every pending timer, in no order; nothing may change meanwhile."""
        for part in self._packs():
            yield from _timers_of(part)

    # -- Topics that are gone

    def topics(self) -> list[int]:
        """The topics that have pending timers."""
        return list(self._counts)

    def sweep(self, topics: Container[int], cursor: Cursor, rows_max: int) -> tuple[list[Timer], Cursor | None]:
        """Look for timers of these topics among so many rows, from the latest window down to the earliest.

        Returns them, and where the next sweep goes on; None: all was looked at. What is ready is not, nor what becomes
        so meanwhile: that is about to be taken. Topic 0 is none.
        """
        found: list[Timer] = []
        for window in sorted(self._windows.values(), key=_start_of, reverse=True):
            if window.start_ms > cursor.start_ms:
                continue
            if rows_max <= 0:
                return found, Cursor(window.start_ms, 0)
            address = cursor.address if window.start_ms == cursor.start_ms else 0
            timers = window.some_from(address, rows_max)
            found += [timer for timer in timers if timer.topic in topics]
            rows_max -= len(timers)
            if rows_max <= 0:
                return found, Cursor(window.start_ms, timers[-1].address + 1)
        return found, None

    # -- Snapshots

    def snapshot(self) -> Iterator[bytes]:
        """Return all rows of this moment in parts, for `restore`; they may be taken while timers come and go."""
        self.end_snapshot()
        self._reading = [RowsOfMoment(pack) for pack in self._packs()]
        return chain.from_iterable(rows.parts(ROWS_IN_PART) for rows in self._reading)

    def end_snapshot(self) -> None:
        """No more parts are wanted."""
        for rows in self._reading:
            rows.close()
        self._reading = []

    def restore(self, rows: bytes) -> None:
        self._put_many(rows, self._hand_ms)
        parted = rows_of(rows)
        for counts, more in ((self._counts, _topics_of(parted)), (self._pins, _pins_of(parted))):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
        self._count += len(parted)

    def _packs(self) -> Iterator[AddressPack | DuePack]:
        yield from self._windows.values()
        yield from self._ready.values()
        yield from self._leaving


def _start_of(pack: _Window | _Leaving) -> int:
    return pack.start_ms


def _filing_of(pack: _Window | _Leaving, by_topic: bool) -> Filing:
    for filing in pack.filings:
        if filing.by_topic == by_topic:
            return filing
    filing = Filing(pack, pack.start_ms, pack.bits, by_topic=by_topic)
    pack.filings += (filing,)
    return filing


def _name_of(due_ms: int, hand_ms: int) -> int:
    """Name the window of a time that is after the hand. Never 0: such a window begins after the hand's time."""
    level = ((due_ms ^ hand_ms).bit_length() - 1) // DIGIT_BITS
    return (due_ms >> level * DIGIT_BITS) << LEVEL_BITS | level


def _span_of(name: int) -> tuple[int, int]:
    """Return when a window begins and when it ends."""
    shift = (name & LEVEL_MASK) * DIGIT_BITS
    start_ms = name >> LEVEL_BITS << shift
    return start_ms, start_ms + (1 << shift)


def _topics_of(rows: Sequence[bytes]) -> Counter[int]:
    """Count rows by topic: what lies above the queue id in the key's bytes."""
    found = Counter([row[16:22] for row in rows])
    return Counter({int.from_bytes(topic, "big"): count for topic, count in found.items()})


def _pins_of(rows: Sequence[bytes]) -> Counter[int]:
    """Count rows by the part of the log in which their messages lie."""
    found = Counter([row[8:14] for row in rows])
    return Counter({int.from_bytes(pin, "big"): count for pin, count in found.items()})


def _lower(counts: dict[int, int], name: int, by: int) -> None:
    left = counts[name] - by
    if left:
        counts[name] = left
    else:
        del counts[name]


def _timers_of(pack: AddressPack | DuePack) -> Iterator[Timer]:
    pack.sort()
    for row in ROW.iter_unpack(memoryview(pack.rows)[pack.head :]):
        if row[2]:
            yield new_tuple(Timer, row)


def _first_of(pack: DuePack, now_ms: int, count_max: int, bytes_max: int) -> list[Timer]:
    """Return the first timers that are due, within these limits."""
    found: list[Timer] = []
    for timer in _timers_of(pack):
        if timer.due_ms > now_ms or len(found) >= count_max or (found and timer.size > bytes_max):
            break
        found.append(timer)
        bytes_max -= timer.size
    return found
