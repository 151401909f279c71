"""Background duties and the ticker that runs them: when they are due, their slices, and refusals of the store.

The store records its calls, the test sets the clock, and the loop has virtual time.
"""

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duolog.bridge.maintenance import (
    CHECK_INTERVAL_MS,
    EXPIRE_INTERVAL_MS,
    QUEUES_IN_SLICE,
    Maintenance,
    Slices,
)
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.ticker import READS_IN_MS, RETRY_MS, UPKEEP_MS, WALL_SLEEP_MS_MAX, Ticker
from duolog.protocol.rocketmq.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duolog.store.errors import DiskFull
from duolog.store.index.queue import Queue
from tests.kit.clock import ManualClock
from tests.kit.loop import run

RETENTION_INTERVAL_MS = 5_000


class NotedStore:
    """Every queue may be trimmed to its number; notes calls."""

    def __init__(self) -> None:
        self.trimmed: list[Any] = []
        self.removals = self.disk_checks = self.checkpoints = 0
        self.is_checkpoint_due = self.is_full = False
        self.refusal = ""
        self.keeps_ms = 1000

    def check_disk(self) -> None:
        self.disk_checks += 1

    def checkpoint_due(self, mono_ms: int) -> bool:
        return self.is_checkpoint_due

    def checkpoint(self, mono_ms: int) -> None:
        self.checkpoints += 1
        self.is_checkpoint_due = False

    def expire(self, queue: Queue, *, keep_ms: int, keep_bytes: int, keep_records: int, now_ms: int) -> int | None:
        assert (keep_ms, keep_bytes, keep_records) == (self.keeps_ms, -1, 7)
        return cast(Any, queue).number or None

    def trim(self, queue: Queue, start_offset: int, now_ms: int) -> None:
        if self.is_full:
            raise DiskFull("full")
        self.trimmed.append(start_offset)

    def remove_dead_segments(self) -> Generator[None, None, int]:
        self.removals += 1
        yield from ()
        return 2


def topics(*queue_counts: int, delete: bool = True, name: str = "orders") -> list[Topic]:
    settings = SimpleNamespace(delete=delete, retention_ms=1000, retention_bytes=-1, retention_records=7)
    return [
        cast(
            Topic,
            SimpleNamespace(
                rocketmq_name=name,
                settings=settings,
                queues=[SimpleNamespace(number=n, start_offset=0) for n in range(count)],
            ),
        )
        for count in queue_counts
    ]


class Bench:
    def __init__(self, *queue_counts: int, delete: bool = True, name: str = "orders") -> None:
        self.store = NotedStore()
        self.expired_at: list[int] = []
        self.mono_ms = 0
        self.first_kept: dict[int, int] = {}  # by the queue's number
        found = topics(*queue_counts, delete=delete, name=name)
        self.maintenance = Maintenance(
            self.store, self.store, lambda: found, self._first_kept, self._expire, RETENTION_INTERVAL_MS, 0, print
        )

    def _expire(self, now_ms: int) -> Slices:
        self.expired_at.append(now_ms)
        yield

    def _first_kept(self, queue: Queue) -> int | None:
        return self.first_kept.get(cast(Any, queue).number)

    def run_until(self, mono_ms: int) -> int:
        """Run all that is due by then; returns the number of runs."""
        runs = 0
        while (due_ms := self.maintenance.next_deadline_ms()) <= mono_ms:
            self.mono_ms = max(self.mono_ms, due_ms)
            self.maintenance.run(1_000_000 + self.mono_ms, self.mono_ms)
            runs += 1
        return runs


def test_retention_looks_at_every_queue_and_then_at_the_segments() -> None:
    bench = Bench(3, 2)
    bench.run_until(RETENTION_INTERVAL_MS)
    assert bench.store.trimmed == [1, 2, 1]
    assert (bench.store.removals, bench.maintenance.trimmed_queues) == (1, 3)


def test_what_somebody_still_needs_is_kept() -> None:
    bench = Bench(5)
    bench.first_kept = {2: 1, 3: 0, 4: 9}
    bench.run_until(RETENTION_INTERVAL_MS)
    assert bench.store.trimmed == [1, 1, 4]


def test_many_queues_are_checked_in_slices() -> None:
    bench = Bench(2 * QUEUES_IN_SLICE)
    bench.run_until(RETENTION_INTERVAL_MS - 1)
    bench.maintenance.run(0, RETENTION_INTERVAL_MS)
    assert len(bench.store.trimmed) == QUEUES_IN_SLICE - 1  # queue 0 has nothing to give
    assert bench.maintenance.next_deadline_ms() == RETENTION_INTERVAL_MS
    bench.run_until(RETENTION_INTERVAL_MS)
    assert len(bench.store.trimmed) == 2 * QUEUES_IN_SLICE - 1


def test_compacted_topic_keeps_everything() -> None:
    bench = Bench(3, delete=False)
    bench.run_until(RETENTION_INTERVAL_MS)
    assert bench.store.trimmed == []


def test_checkpoint_begins_when_due_and_the_disk_is_checked_every_second() -> None:
    bench = Bench()
    bench.run_until(3 * CHECK_INTERVAL_MS)
    assert (bench.store.disk_checks, bench.store.checkpoints) == (4, 0), "the first look is at once"
    bench.store.is_checkpoint_due = True
    bench.run_until(5 * CHECK_INTERVAL_MS)
    assert bench.store.checkpoints == 1


def test_positions_expire_on_the_wall_clock() -> None:
    bench = Bench()
    bench.run_until(EXPIRE_INTERVAL_MS)
    assert bench.expired_at == [1_000_000 + EXPIRE_INTERVAL_MS]


def test_duty_that_the_store_refused_is_taken_up_at_its_next_time() -> None:
    bench = Bench(3)
    bench.store.is_full = True
    try:
        bench.run_until(RETENTION_INTERVAL_MS)
    except DiskFull:
        bench.store.is_full = False
    assert bench.store.trimmed == []
    bench.run_until(2 * RETENTION_INTERVAL_MS)
    assert bench.store.trimmed == [1, 2]


# -- The ticker


class Alarm:
    """Due at `at_ms` (None: never); notes when it ran, and is due `every_ms` later."""

    def __init__(self, at_ms: int | None, every_ms: int | None = None) -> None:
        self.at_ms, self.every_ms = at_ms, every_ms
        self.ran: list[tuple[int, int]] = []
        self.refusals, self.error = 0, DiskFull("full")

    def next_deadline_ms(self) -> int | None:
        return self.at_ms

    def run(self, now_ms: int, mono_ms: int) -> None:
        if self.refusals:
            self.refusals -= 1
            raise self.error
        self.ran.append((now_ms, mono_ms))
        self.at_ms = None if self.every_ms is None or self.at_ms is None else self.at_ms + self.every_ms


def new_ticker(clock: ManualClock) -> Ticker:
    """Return a ticker of the running loop, which is armed after each of its turns."""
    loop = asyncio.get_running_loop()

    def touch() -> None:
        loop.call_soon(lambda: ticker.arm(clock.mono_ms()))

    ticker = Ticker(loop, clock, touch, Faults(clock.mono_ms, print), Watchdog(), lambda *_: None)
    return ticker


def tick(clock: ManualClock, for_ms: int, *alarms: Alarm, is_wall: bool = False, step_at_ms: int = 0) -> None:
    """Let a ticker run the alarms for so long; at `step_at_ms` the wall clock is set ten seconds forward."""

    async def main() -> None:
        ticker = new_ticker(clock)
        for number, alarm in enumerate(alarms):
            ticker.add(str(number), alarm.next_deadline_ms, alarm.run, is_wall=is_wall)
        ticker.arm(clock.mono_ms())
        if step_at_ms:
            asyncio.get_running_loop().call_later(step_at_ms / 1000, lambda: clock.set_now_ms(clock.now_ms() + 10_000))
        await asyncio.sleep(for_ms / 1000)
        ticker.stop()

    run(main(), clock)


def test_each_deadline_is_met_to_the_millisecond() -> None:
    clock = ManualClock()
    start_ms = clock.mono_ms()
    once, often, never = Alarm(start_ms + 70), Alarm(start_ms + 10, every_ms=25), Alarm(None)
    tick(clock, 100, once, often, never)
    assert [mono_ms - start_ms for _, mono_ms in once.ran] == [70]
    assert [mono_ms - start_ms for _, mono_ms in often.ran] == [10, 35, 60, 85]
    assert never.ran == []


def test_turns_of_one_millisecond_ask_for_deadlines_a_few_times_and_none_of_them_is_missed() -> None:
    clock = ManualClock()
    start_ms = clock.mono_ms()
    asked: list[int] = []
    alarm = Alarm(None)

    def ask() -> int:
        asked.append(clock.mono_ms())
        return start_ms + 1_000_000

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ticker = Ticker(loop, clock, lambda: None, Faults(clock.mono_ms, print), Watchdog(), lambda *_: None)
        ticker.add("asked", ask, lambda *_: None)
        ticker.add("alarm", alarm.next_deadline_ms, alarm.run)
        for turn in range(10):
            if turn == 5:
                alarm.at_ms = start_ms  # In a millisecond that the ticker has processed already.
            ticker.arm(clock.mono_ms())
        assert len(asked) == READS_IN_MS < 5
        await asyncio.sleep(0.1)
        ticker.stop()

    run(main(), clock)
    assert [mono_ms - start_ms for _, mono_ms in alarm.ran] == [1]


def test_deadlines_of_upkeep_are_read_now_and_then_and_none_of_them_is_missed() -> None:
    clock = ManualClock()
    start_ms = clock.mono_ms()
    read: list[int] = []
    sweep = Alarm(None, every_ms=0)  # Its deadline stays in the past, as that of a sweep that is done in slices.

    def read_deadline() -> int | None:
        read.append(clock.mono_ms() - start_ms)
        return sweep.next_deadline_ms()

    def run_slice(now_ms: int, mono_ms: int) -> None:
        sweep.run(now_ms, mono_ms)
        if len(sweep.ran) == 3:
            sweep.at_ms = None

    async def main() -> None:
        ticker = new_ticker(clock)
        ticker.add("sweep", read_deadline, run_slice, is_upkeep=True)
        for _ in range(UPKEEP_MS // 2):
            ticker.arm(clock.mono_ms())
            await asyncio.sleep(0.001)
        assert read == [0]
        sweep.at_ms = start_ms
        ticker.arm(clock.mono_ms())  # The last turn for long.
        await asyncio.sleep(10)
        ticker.stop()

    run(main(), clock)
    assert [mono_ms - start_ms for _, mono_ms in sweep.ran] == [UPKEEP_MS] * 3
    assert max(read) <= 2 * UPKEEP_MS, "an idle broker does not wake up to read deadlines"


def test_a_timer_that_finds_no_duty_due_is_set_again_without_the_end_of_a_turn() -> None:
    clock = ManualClock()
    later, touches = Alarm(clock.mono_ms() + 50), list[int]()

    async def main() -> None:
        def touch() -> None:
            touches.append(clock.mono_ms())

        ticker = Ticker(
            asyncio.get_running_loop(), clock, touch, Faults(clock.mono_ms, print), Watchdog(), lambda *_: None
        )
        ticker.add("later", later.next_deadline_ms, later.run)
        for _ in range(READS_IN_MS + 1):  # The last one of these turns sets the timer to the next millisecond.
            ticker.arm(clock.mono_ms())
        await asyncio.sleep(0.1)
        ticker.stop()

    run(main(), clock)
    assert [mono_ms for _, mono_ms in later.ran] == touches
    assert len(touches) == 1


def test_step_of_the_wall_clock_is_noticed_within_one_short_sleep() -> None:
    clock = ManualClock()
    alarm = Alarm(clock.now_ms() + 10_000)
    start_ms = clock.mono_ms()
    tick(clock, 1_000, alarm, is_wall=True, step_at_ms=450)
    assert 450 <= alarm.ran[0][1] - start_ms <= 450 + WALL_SLEEP_MS_MAX


def test_refused_duty_is_retried_later_and_the_others_run() -> None:
    clock = ManualClock()
    start_ms = clock.mono_ms()
    refused, other = Alarm(start_ms + 10), Alarm(start_ms + 10, every_ms=300)
    refused.refusals = 1
    tick(clock, 2_000, refused, other)
    assert [mono_ms - start_ms for _, mono_ms in refused.ran] == [10 + RETRY_MS]
    assert len(other.ran) == 7


@pytest.mark.parametrize("error", [OSError("EIO"), ZeroDivisionError(), RecursionError()])
@pytest.mark.parametrize("step", ["run", "next_deadline_ms"])
def test_faulty_duty_is_retried_after_growing_delays_and_the_others_run(step: str, error: Exception) -> None:
    clock = ManualClock()
    start_ms = clock.mono_ms()
    tried: list[int] = []

    def fail(*_: int) -> None:
        if not tried or clock.mono_ms() != tried[-1]:
            tried.append(clock.mono_ms())
        raise error

    faulty, other = Alarm(start_ms + 10), Alarm(start_ms + 10, every_ms=300)
    setattr(faulty, step, fail)
    tick(clock, 20_000, faulty, other)
    first_ms = tried[0]
    retried = {tried_ms - first_ms for tried_ms in tried}
    assert {0, 1000, 3000, 7000, 15_000} <= retried
    assert len(other.ran) == 67


@pytest.mark.parametrize(
    ("name", "refusal", "keeps_ms"),
    [("orders", "full", 1000), (TIMER_TOPIC, "", 1000), (TIMER_TOPIC, "full", 0), (SCHEDULE_TOPIC, "full", 0)],
)
def test_delay_topics_keep_only_what_is_pending_while_the_disk_is_full(name: str, refusal: str, keeps_ms: int) -> None:
    bench = Bench(3, name=name)
    bench.first_kept = {2: 1}
    bench.store.refusal, bench.store.keeps_ms = refusal, keeps_ms
    bench.run_until(RETENTION_INTERVAL_MS)
    assert bench.store.trimmed == [1, 1], "what is pending stays"
