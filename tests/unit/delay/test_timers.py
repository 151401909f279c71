"""Proves that timers are delivered in due order, each once and never early, whatever happens to clock and process.

A random history of adds, cancels, moves, pauses, steps of the clock in both directions and restarts runs against a
sorted list. At every step what is taken is what the list says, topic by topic; restarts go through a snapshot. Looks at
a topic and a time find what the list has, for about as much work as there is to be found.
"""

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from random import Random

import pytest

from duolog.delay.cancellations import Cancelled
from duolog.delay.memtable.counts import LOG_PART_BITS
from duolog.delay.memtable.memtable import Memtable
from duolog.delay.memtable.sorted_rows import BEGINNING, BLOCK_ROWS, END, SortedRows
from duolog.delay.memtable.sweep import Sweep
from duolog.delay.pending import PendingTimers
from duolog.delay.rows import (
    KEY,
    ROW,
    ROW_SIZE,
    Timer,
    pack_row,
    rows_of,
)
from duolog.delay.wheel import NEVER_MS
from duolog.store.errors import StoreError
from tests.kit.rows import first_in_unit

TOPICS = 4
SPANS = (1, 20, 300, 70_000, 20_000_000, 10**11)  # of delays


def packed(ids: list[tuple[int, int]]) -> bytes:
    return b"".join([KEY.pack(*timer_id) for timer_id in ids])


class Model:
    """What should happen: plain lists and dicts."""

    def __init__(self) -> None:
        self.pending: dict[tuple[int, int], Timer] = {}  # by id
        self.paused: set[int] = set()

    def due(self, topic: int, now_ms: int) -> list[tuple[int, Timer]]:
        found = [
            (given, timer)
            for (given, _), timer in self.pending.items()
            if timer.topic == topic and timer.due_ms <= now_ms
        ]
        return sorted(found, key=lambda pair: (pair[1].due_ms, pair[1].address))


class Timers(PendingTimers):
    """What is in memory, with shorter ways to what the memtable has."""

    def __init__(self, now_ms: int = 0) -> None:
        super().__init__()
        self.begin(now_ms)

    def __len__(self) -> int:
        return len(self.memtable)

    def all(self) -> list[Timer]:
        return [*self.due(None, (0, 0), 1 << 63)]

    def begin_snapshot(self) -> Iterator[bytes]:
        return self.memtable.snapshot()

    def due(self, topic: int | None, start: tuple[int, int], until_ms: int) -> Iterator[Timer]:
        return self.memtable.view(topic).timers(topic, start, until_ms)

    def histogram(self, topic: int | None, edges_ms: list[int]) -> list[int]:
        return self.memtable.view(topic).histogram(topic, edges_ms)


class History:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now_ms = 1_700_000_000_000
        self.model = Model()
        self.timers = Timers(self.now_ms)
        self.address = 0
        self.delivered: dict[int, list[Timer]] = defaultdict(list)
        self.snapshots = 0  # that were taken to their ends
        self.begin_snapshot()

    def add(self) -> None:
        for _ in range(self.rng.choice((1, 1, 5, 200))):
            self.address += self.rng.choice((40, 40, 1 << 20))
            topic = self.rng.randrange(1, TOPICS + 1)
            due_ms = max(0, self.now_ms + self.rng.randrange(-5, self.rng.choice(SPANS)))
            timer = Timer(due_ms, self.address, topic << 16 | self.rng.randrange(3), self.rng.randrange(500), 0, 3)
            self.timers.memtable.add(timer)
            self.model.pending[due_ms, self.address] = timer

    def some_id(self) -> tuple[int, int]:
        return self.rng.choice([*self.model.pending, (self.now_ms, 7)])

    def cancel(self) -> None:
        given_ms, address = self.some_id()
        expected = self.model.pending.pop((given_ms, address), None)
        assert self.timers.find((given_ms, address)) == expected
        assert self.timers.remove((given_ms, address)) == expected
        assert self.timers.find((given_ms, address)) is None

    def move(self) -> None:
        given_ms, address = self.some_id()
        due_ms = self.now_ms + self.rng.randrange(-5, self.rng.choice(SPANS))
        timer = self.model.pending.get((given_ms, address))
        assert self.timers.move((given_ms, address), due_ms) == (timer is not None)
        if timer is not None:
            self.model.pending[given_ms, address] = timer._replace(due_ms=due_ms)

    def pass_time(self) -> None:
        self.now_ms += self.rng.randrange(self.rng.choice(SPANS[:5]))

    def step_clock(self) -> None:
        self.now_ms += self.rng.choice((-100_000, -3_000, 86_400_000))
        if self.rng.random() < 0.5:
            self.timers.memtable.set_back(self.now_ms)

    def clock_glitch(self) -> None:
        """The clock is far ahead for a while: what is due by it is delivered, and the rest as if nothing had been."""
        now_ms = self.now_ms
        self.now_ms += self.rng.choice((3_600_000, 8 * 86_400_000, 10 * 365 * 86_400_000))
        for step in self.rng.sample((self.move_a_little, self.take_once, self.add, self.take_all), 2):
            step()
        self.now_ms = now_ms
        self.timers.memtable.set_back(now_ms)

    def pause_or_resume(self) -> None:
        topic = self.rng.randrange(1, TOPICS + 1)
        if topic in self.model.paused:
            self.model.paused.discard(topic)
            self.timers.turns.resume(topic)
        else:
            self.model.paused.add(topic)
            self.timers.turns.pause(topic)

    def restart(self) -> None:
        parts, moved = list(self.timers.begin_snapshot()), self.timers.ids.moved()
        self.timers = Timers(self.now_ms)
        for rows in parts:
            self.timers.memtable.restore(rows)
        for row in moved:
            self.timers.ids.set(*row)
        for topic in self.model.paused:
            self.timers.turns.pause(topic)
        self.begin_snapshot()

    def begin_snapshot(self) -> None:
        self.snapshot_rows = sorted(map(pack_row, self.timers.all()))
        self.taken: list[bytes] = []
        self.parts = self.timers.begin_snapshot()

    def take_part_of_snapshot(self) -> None:
        """A snapshot has the rows of the moment at which it began, whatever happens until the last part is taken."""
        for part in islice(self.parts, self.rng.choice((1, 5, 50))):
            self.taken += rows_of(part)
            if len(self.taken) == len(self.snapshot_rows):
                assert sorted(self.taken) == self.snapshot_rows
                self.snapshots += 1

    def move_a_little(self) -> None:
        self.timers.advance(self.now_ms, self.rng.randrange(1, 50))

    def freeze_in_vain(self) -> None:
        """What is far is frozen for a flush that fails; it may be cancelled and is seen meanwhile."""
        for _ in range(self.rng.randrange(4)):
            self.timers.memtable.freeze_far(self.now_ms + 1_000, self.rng.choice((10, 1_000)), ())
            self.look()
        for step in (self.cancel, self.look, self.add, self.cancel, self.look):
            step()
        while self.timers.memtable.unfreeze_some(self.rng.choice((10, 1_000))):
            self.look()

    def look(self) -> None:
        topic = self.rng.choice((None, *range(1, TOPICS + 1)))
        some = self.rng.choice([*self.model.pending.values(), Timer(self.now_ms, 0, 1 << 16, 0, 0, 3)])
        start = (some.due_ms - self.rng.randrange(self.rng.choice(SPANS)), self.rng.choice((0, some.address)))
        until_ms = start[0] + self.rng.randrange(1, 2 * self.rng.choice(SPANS))
        of_topic = sorted(timer for timer in self.model.pending.values() if topic in (None, timer.topic))
        expected = [timer for timer in of_topic if timer[:2] >= start and timer.due_ms < until_ms]
        count_max = self.rng.choice((1, 20, 10_000))
        assert list(islice(self.timers.due(topic, start, until_ms), count_max)) == expected[:count_max]
        inner = [self.rng.randrange(start[0], until_ms) for _ in range(self.rng.choice((0, 1, 9)))]
        edges_ms = sorted([start[0], *inner, until_ms])
        counts = [0] * (len(edges_ms) - 1)
        for timer in of_topic:
            if start[0] <= timer.due_ms < until_ms:
                counts[bisect_right(edges_ms, timer.due_ms) - 1] += 1
        assert self.timers.histogram(topic, edges_ms) == counts

    def take_once(self) -> bool:
        """Take one turn and compare it with the model; false when there is none."""
        turn = self.timers.turns.take(self.now_ms, self.rng.choice((1, 7, 100)), self.rng.choice((0, 1000, 1 << 20)))
        if turn is None:
            return False
        topic, timers = turn
        assert topic not in self.model.paused
        expected = self.model.due(topic, self.now_ms)[: len(timers)]
        assert timers == [timer for _, timer in expected], "out of order, early, or lost"
        ids = [self.timers.ids.id_at(timer[:2]) for timer in timers]
        assert ids == [(given, timer.address) for given, timer in expected]
        self.timers.delivered(topic, packed(ids))
        for timer_id in ids:
            del self.model.pending[timer_id]
        self.timers.turns.give_back(topic)
        return True

    def take_all(self) -> None:
        self.timers.advance(self.now_ms, 1 << 30)
        while self.take_once():
            pass
        for topic in range(1, TOPICS + 1):
            assert topic in self.model.paused or not self.model.due(topic, self.now_ms), "due and not taken"
        deadline_ms = self.timers.next_ms()
        waiting = [t.due_ms for t in self.model.pending.values() if t.topic not in self.model.paused]
        if waiting:
            assert self.now_ms < deadline_ms <= min(waiting)

    def check(self) -> None:
        assert len(self.timers) == len(self.model.pending)
        assert sorted(self.timers.all()) == sorted(self.model.pending.values())
        for topic in range(1, TOPICS + 1):
            assert self.timers.memtable.counts.by_topic.get(topic, 0) == sum(
                t.topic == topic for t in self.model.pending.values()
            )
        pinned = self.timers.memtable.counts.pinned_from()
        assert (pinned is None) == (not self.model.pending)
        if pinned is not None:
            assert pinned <= min(address for _, address in self.model.pending) < pinned + (1 << LOG_PART_BITS)

    def run(self, steps: int) -> None:
        choices = [
            (self.begin_snapshot, 1), (self.take_part_of_snapshot, 12),
            (self.add, 10), (self.cancel, 6), (self.move, 4), (self.pass_time, 10), (self.step_clock, 1),
            (self.pause_or_resume, 2), (self.restart, 1), (self.move_a_little, 10), (self.take_all, 3), (self.look, 6),
            (self.freeze_in_vain, 1), (self.clock_glitch, 1),
        ]  # fmt: skip
        for _ in range(steps):
            self.rng.choices([step for step, _ in choices], [weight for _, weight in choices])[0]()
            if self.rng.random() < 0.1:
                self.check()
        for topic in list(self.model.paused):
            self.model.paused.discard(topic)
            self.timers.turns.resume(topic)
        self.now_ms += 10**12
        self.take_all()
        assert not self.model.pending
        assert len(self.timers) == 0
        assert self.timers.next_ms() == NEVER_MS


@pytest.mark.parametrize("seed", first_in_unit(range(8), 3))
def test_every_history_delivers_what_a_sorted_list_would(seed: int) -> None:
    History(seed).run(120)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_many_histories_deliver_what_a_sorted_list_would(seed: int) -> None:
    History(seed).run(2_000)


def work_of(do: Callable[[], object]) -> int:
    """Count the calls of functions; each row that is read takes one."""
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("moment", ["65 seconds", "one millisecond", "overdue"])
def test_look_costs_what_it_finds_however_much_else_there_is(moment: str) -> None:
    """A page of a topic, and a count, beside many others and many of its own."""
    rng, per_topic, timers = Random(7), 4_000, Timers(0)
    start_ms = 1 << 20
    for address in range(1, 5 * per_topic + 1):
        due_ms = start_ms + (rng.randrange(1 << 16) if moment == "65 seconds" else 0)
        timers.memtable.add(Timer(due_ms, address, (1 + address % 5) << 16, 10, 0, 3))
    timers.memtable.add(Timer(start_ms + 500, address + 1, 9 << 16, 10, 0, 3))
    if moment == "overdue":
        timers.advance(start_ms, 1 << 30)
    until_ms = start_ms + (1 << 16)

    def page(topic: int, start: tuple[int, int] = (start_ms, 0)) -> list[Timer]:
        return list(islice(timers.due(topic, start, until_ms), 100))

    *_, last = page(2)
    for topic, start in ((2, (start_ms, 0)), (2, last[:2]), (9, (start_ms, 0))):
        assert len(page(topic, start)) == (1 if topic == 9 else 100)
        assert work_of(lambda: page(topic, start)) < 1_500  # noqa: B023
    assert work_of(lambda: timers.histogram(2, [start_ms, start_ms + 40_000, until_ms])) < 4_000
    assert timers.histogram(2, [start_ms, until_ms]) == [per_topic]
    timers.memtable.add(Timer(until_ms - 1, address + 2, 2 << 16, 10, 0, 3))
    assert timers.histogram(2, [start_ms, until_ms]) == [per_topic + 1]


def test_turns_go_round_the_topics_however_much_one_has() -> None:
    timers = Timers(0)
    for address in range(1, 1001):
        timers.memtable.add(Timer(10, address, 1 << 16, 10, 0, 3))
    timers.memtable.add(Timer(10, 1001, 2 << 16, 10, 0, 3))
    timers.advance(10, 1 << 30)
    first, second = timers.turns.take(10, 50, 1 << 20), timers.turns.take(10, 50, 1 << 20)
    assert first is not None
    assert second is not None
    assert [(turn.topic, len(turn.timers)) for turn in (first, second)] == [(1, 50), (2, 1)]
    assert timers.turns.take(10, 50, 1 << 20) is None, "both topics are away"


def test_timer_taken_may_be_cancelled_until_it_is_delivered() -> None:
    timers = Timers(0)
    for address in (1, 2, 3):
        timers.memtable.add(Timer(10, address, 1 << 16, 10, 0, 3))
    timers.advance(10, 1 << 30)
    assert timers.turns.take(10, 50, 1 << 20) is not None
    assert timers.remove((10, 1)) is not None
    timers.delivered(1, packed([(10, 2)]))
    timers.turns.give_back(1)
    turn = timers.turns.take(10, 50, 1 << 20)
    assert turn is not None
    assert [timer.address for timer in turn.timers] == [3]


def test_after_a_clock_that_was_far_ahead_late_timers_are_flushed_again() -> None:
    now_ms, day_ms = 1_700_000_000_000, 86_400_000
    timers = Timers(now_ms)
    timers.advance(now_ms + 3650 * day_ms, 1 << 30)
    timers.memtable.add(Timer(now_ms + 30 * day_ms, 40, 1 << 16, 0, 0, 3))
    assert not timers.memtable.flushable_count(now_ms + day_ms, ())
    timers.memtable.set_back(now_ms)
    assert timers.memtable.flushable_count(now_ms + day_ms, ()) == 1
    assert timers.memtable.freeze_far(now_ms + day_ms, 10, ())


@pytest.mark.slow
def test_clock_that_is_set_back_moves_no_row() -> None:
    """With some rows that are due and wait, and with rows that are ready."""
    rng, timers, count = Random(3), Timers(0), 20_000
    for address in range(1, count + 1):
        timers.memtable.add(Timer(rng.randrange(1, 10_000_000), address, 1 << 16, 10, 0, 3))
    timers.advance(1_000_000, 1 << 30)
    timers.advance(9_000_000, 1_000)
    assert work_of(lambda: timers.memtable.set_back(500)) < count // 10
    assert len(timers.all()) == count
    timers.advance(10_000_000, 1 << 30)
    turn = timers.turns.take(10_000_000, count, 1 << 30)
    assert turn is not None
    assert turn.timers == sorted(turn.timers)
    assert len(turn.timers) == count


def test_rows_move_a_bounded_number_at_a_time() -> None:
    timers = Timers(0)
    for address in range(1, 5001):
        timers.memtable.add(Timer(100_000, address, 1 << 16, 10, 0, 3))
    rounds = 0
    while not (turn := timers.turns.take(100_000, 1 << 20, 1 << 30)) or len(turn.timers) < 5000:
        if turn:
            timers.turns.give_back(1)
        timers.advance(100_000, 90)
        rounds += 1
    assert rounds > 50


@pytest.mark.parametrize("has_gone", [False, True])
def test_what_moves_back_to_a_key_that_a_table_has_deleted_is_not_frozen(has_gone: bool) -> None:
    """It would be taken for deleted there, or be in the table twice."""
    timers = Timers(0)
    timers.memtable.add(Timer(100_000, 1, 1 << 16, 10, 0, 3))
    assert timers.memtable.freeze_far(1_000, 100, ())
    timers.move((100_000, 1), 500)
    (dead,) = timers.memtable.frozen.deleted
    if has_gone:
        timers.memtable.clear_frozen()
    timers.move((100_000, 1), 100_000)
    assert timers.memtable.freeze_far(1_000, 100, {dead} if has_gone else ()) == b""
    timers.advance(100_000, 100)
    turn = timers.turns.take(100_000, 1, 1 << 20)
    assert turn is not None
    assert [timer.address for timer in turn.timers] == [1]


def test_what_is_frozen_is_found_until_it_is_gone() -> None:
    """Of it some stays after all, and some is removed meanwhile."""
    rng = Random(7)
    timers = Timers(0)
    places = {(rng.randrange(300_000, 5_000_000), number * 1000) for number in range(1, 601)}
    for due_ms, address in places:
        timers.memtable.add(Timer(due_ms, address, 1 << 16, 10, 0, 3))
    arrays = [*iter(lambda: timers.memtable.freeze_far(1_000, 16, ()), b"")]
    removed = set(rng.sample(sorted(places), 60))
    for place in removed:
        assert timers.remove(place) is not None

    def check(pending: set[tuple[int, int]]) -> None:
        assert {place for place in places if timers.find(place) is not None} == pending
        assert not any(timers.find((due_ms + 1, address)) for due_ms, address in places)
        assert not any(timers.find((due_ms, address + 1)) for due_ms, address in places)

    check(places - removed)
    left = places - removed
    assert sum(map(len, arrays)) == len(places) * ROW_SIZE
    assert timers.memtable.unfreeze_some(16)
    stayed = {timer[:2] for timer in timers.memtable.waiting.timers()}
    assert len(stayed) == 16
    check(left)
    place = stayed.pop()
    assert timers.remove(place) is not None
    check(left - {place})
    timers.memtable.clear_frozen()
    check(stayed)
    assert timers.memtable.freeze_far(1_000, 16, ())
    check(stayed)


def test_cancelled_timers_are_forgotten_by_number_and_by_age() -> None:
    """The limits are `delay.cancelled_max` and `delay.cancelled_hours`."""
    cancelled = Cancelled(count_max=3, keep_ms=100)
    for number in range(5):
        cancelled.add((number, number), number)
    assert [timer_id in cancelled for timer_id in ((1, 1), (2, 2), (4, 4))] == [False, True, True]
    cancelled.add((9, 9), 104)
    assert [timer_id in cancelled for timer_id in ((3, 3), (4, 4), (9, 9))] == [False, False, True]


def test_sweep_finds_all_of_a_topic_however_little_it_looks_at_and_whatever_is_removed_meanwhile() -> None:
    rng = Random(5)
    timers = Timers(0)
    for address in range(1, 3001):
        timers.memtable.add(Timer(1 + rng.randrange(rng.choice(SPANS)), address, rng.choice((1, 2)) << 16, 10, 0, 3))
    timers.advance(1, 1 << 30)
    wanted = {timer.address for timer in timers.all() if timer.topic == 2 and timer.due_ms > 1}
    sweep, found = Sweep((1).__eq__), set[int]()
    sweep.begin()

    def drop(some: list[Timer]) -> None:
        assert len(some) <= 100
        if rng.random() < 0.2:
            raise StoreError("the disk is full")
        for timer in some:
            assert timers.remove((timer.due_ms, timer.address)) == timer
            found.add(timer.address)

    while sweep.is_running:
        with suppress(StoreError):
            sweep.step(timers.memtable, 100, drop)
    assert found == wanted


@pytest.mark.slow
@pytest.mark.parametrize("searches_each", [1, 100])
def test_rows_out_of_order_take_a_few_steps_each_however_often_somebody_searches(searches_each: int) -> None:
    rng = Random(7)
    array, count = SortedRows(), 1 << 13
    addresses = rng.sample(range(1, 1 << 40), count)
    gone: set[int] = set()

    def key_of(address: int) -> bytes:
        return KEY.pack(address % 1000, address)

    def fill() -> None:
        for number, address in enumerate(addresses):
            array.add(pack_row(Timer(address % 1000, address, 1 << 16, 10, 0, 3)))
            if number % searches_each == 0:
                wanted = rng.choice(addresses[: number + 1])
                row = array.get(key_of(wanted))
                assert (row is None) == (wanted in gone)
                if row is not None and rng.random() < 0.3:
                    assert array.pop(key_of(wanted)) == row
                    gone.add(wanted)

    assert work_of(fill) < 100 * count
    assert all((array.get(key_of(address)) is None) == (address in gone) for address in addresses)
    assert len(array) == count - len(gone)
    assert [*array.timers()] == sorted(array.timers())


@pytest.mark.slow
@pytest.mark.parametrize("steps", first_in_unit([600, 3_000], 1))
def test_sorted_rows_are_a_sorted_list(steps: int) -> None:
    """Whatever is added, removed or taken, one at a time or many, in any order of the keys."""
    rng, rows, expected = Random(11), SortedRows(), list[bytes]()
    for _ in range(steps):
        start, until = sorted(KEY.pack(rng.randrange(5_000), 0) for _ in range(2))
        due_ms = rng.choice((0, rng.randrange(5_000)))
        count = rng.choice((1, 1, 3, 700))
        added = sorted(
            ROW.pack(due_ms + rng.randrange(50), rng.getrandbits(60), 1 << 16, 0, 0, 0) for _ in range(count)
        )
        match rng.randrange(5):
            case 0 | 1:
                rows.add(b"".join(added))
                expected = sorted(expected + added)
            case 2 if expected:
                row = rng.choice(expected)
                assert rows.get(row[:16]) == row == rows.pop(row[:16])
                assert rows.get(row[:16]) is None
                expected.remove(row)
            case 3:
                first, end = rng.choice(((start, until), (BEGINNING, until), (start, END), (BEGINNING, END)))
                taken = [row for row in expected if first <= row[:16] < end][: rng.choice((1, 100, 2_000))]
                assert rows_of(rows.take(first, end, len(taken))) == taken
                gone = set(taken)
                expected = [row for row in expected if row not in gone]
            case 4:
                assert [*map(pack_row, rows.timers(start))] == [row for row in expected if row[:16] >= start]
                assert rows.count_from(start) == sum(row[:16] >= start for row in expected)
        assert len(rows) == len(expected)
        assert rows.first_key() == (KEY.unpack_from(expected[0]) if expected else None)


@pytest.mark.slow
def test_what_a_snapshot_copies_is_what_changes_and_not_the_pack() -> None:
    """A snapshot and the memtable share all blocks that do not change after the snapshot was begun."""
    count, memtable = 100_000, Memtable()
    memtable.restore(b"".join(ROW.pack(number, number, 1 << 16, 0, 0, 0) for number in range(1, count + 1)))
    expected = [*memtable.waiting.blocks()]
    parts = memtable.snapshot()
    for number in (5, 1000, 70_000, 99_999):
        assert memtable.remove((number, number)) is not None
    memtable.advance(60_000, 1 << 30)
    assert memtable.freeze_far(99_000, 10, ())
    shared = {*map(id, memtable.waiting.blocks())} & {*map(id, expected)}
    assert len(shared) >= 40_000 // BLOCK_ROWS - 6, "the blocks that have changed"
    assert b"".join(parts) == b"".join(expected)


@pytest.mark.parametrize("hand_ms", [0, 3_000])
def test_what_a_table_has_is_forgotten_wherever_it_is(hand_ms: int) -> None:
    """A manifest is replayed: some rows are ready, and rows of the table lie between others. Some stay."""
    rng, memtable = Random(13), Memtable(hand_ms)
    rows = sorted(ROW.pack(rng.randrange(1, 10_000), address, 1 << 16, 0, 0, 0) for address in range(1, 3_001))
    memtable.restore(b"".join(rows))
    flushed = sorted(rng.sample(rows, 1_000))
    stay = [KEY.unpack_from(row) for row in rng.sample(flushed, 10)]
    memtable.forget_flushed(b"".join([row[:16] for row in flushed]), stay)
    memtable.forget_flushed(b"", [])
    left = [row for row in rows if row not in flushed or KEY.unpack_from(row) in stay]
    assert sorted(each for part in memtable.snapshot() for each in rows_of(part)) == left
    assert memtable.counts.by_topic == {1: len(left)}


def test_snapshot_of_an_earlier_version_is_in_the_order_of_addresses() -> None:
    rng, memtable = Random(13), Memtable()
    rows = [ROW.pack(rng.randrange(1, 10_000), address, 1 << 16, 0, 0, 0) for address in range(1, 3_001)]
    for first in range(0, len(rows), 1_000):
        memtable.restore(b"".join(rows[first : first + 1_000]))
    assert b"".join(memtable.snapshot()) == b"".join(sorted(rows))
    assert memtable.counts.by_topic == {1: len(rows)}
