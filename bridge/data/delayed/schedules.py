"""Recurring messages: the coordinator around `delay/recurring.py`.

    register ------> ScheduleRegistered: the message as it will be delivered, the plan, the first run
    ticker -- run -> one unit: the message in its queue, ScheduleStepped with the next run

A schedule is its name: who registers the same again, be it ten programs at once, changes nothing; who registers
something else under the name replaces it. One that has ended is remembered, so that a program which registers it at
every start does not begin it anew; the oldest of these go when there are too many.

The message lies in the schedule itself, in memory and in the log's snapshots, so its size and their number are limited.
Runs are paced as delayed messages are, and wait while their topic is paused; what then happens to those that passed
meanwhile is for the schedule's rule of missed runs.
"""

import logging
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import starmap
from typing import Final, NamedTuple, Protocol

from duolog.bridge.config import DelayOptions
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import Poison
from duolog.bridge.records.codec import Record
from duolog.bridge.records.schedules import BurstOfRuns, ScheduleRegistered, ScheduleStepped
from duolog.bridge.records.timers import DelayPaused
from duolog.bridge.records.topics import TopicDeleted
from duolog.bridge.state.topic_table import QUEUE_ID_BITS, Topic
from duolog.bridge.state.topics import Topics
from duolog.delay.recurring import (
    PERIOD_MIN_MS,
    BadSchedule,
    Burst,
    Cron,
    Every,
    Missed,
    Run,
    Schedule,
)
from duolog.delay.wheel import Wheel, WheelTimer
from duolog.store.entry import Buffer, Promise, Slot
from duolog.store.errors import StoreError
from duolog.store.state_log import StateLog
from duolog.store.unit import FrameRun

RUNS_IN_SLICE: Final = 64
NAME_CHARS_MAX: Final = 255
SCHEDULE_NAME: Final = "SCHEDULE_NAME"  # header or property of what a message's own schedule delivers

log = logging.getLogger("bridge")


class TooManySchedules(StoreError):
    """`delay.schedules_max` or `delay.schedules_bytes` is reached."""


class Outcome(Enum):
    """What registering or removing a schedule has done."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    REPLACED = "replaced"
    REMOVED = "removed"
    NOT_FOUND = "not_found"


class Registered(NamedTuple):
    outcome: Outcome
    promise: Promise


class RecurringMessage(NamedTuple):
    """What each run delivers: a parked frame (`bridge/data/delayed/pending_frames.py`) and where to."""

    key: int  # of the queue
    form: int
    frame: bytes


class Door(Protocol):
    def deliveries(
        self, topic: Topic, queue_id: int, form: int, frames: Sequence[Buffer], dues_ms: Sequence[int], now_ms: int
    ) -> FrameRun: ...


@dataclass(slots=True)
class Standing:
    """One schedule as it stands. `run` is the next one; None: it has ended."""

    name: str
    schedule: Schedule
    message: RecurringMessage
    run: Run | None
    is_kept: bool  # when it has ended
    timer: WheelTimer[str] | None = None

    @property
    def topic(self) -> int:
        return self.message.key >> QUEUE_ID_BITS


class Schedules:
    """The schedules of one broker."""

    def __init__(
        self, state_log: StateLog, topics: Topics, options: DelayOptions, metrics: Metrics, poison: Poison
    ) -> None:
        self._state_log, self._topics, self._metrics, self._poison = state_log, topics, metrics, poison
        self._count_max, self._bytes_max = options.schedules_max, options.schedules_bytes
        self._door: Door | None = None
        self._all: dict[str, Standing] = {}
        self._of_topic: dict[int, dict[str, None]] = {}  # Invariant: the names in `_all`, by topic.
        self._ended: dict[str, None] = {}  # the longest ended first
        self._bytes = 0
        self._wheel: Wheel[str] = Wheel()
        self._due: deque[str] = deque()
        self._paused: set[int] = set()
        state_log.own(ScheduleRegistered, self._replay_registered)
        state_log.own(ScheduleStepped, self._replay_stepped)
        state_log.own(DelayPaused, self._replay_paused)
        state_log.own(TopicDeleted, self._replay_topic_deleted)
        state_log.on_sliced_snapshot(self._snapshot)

    def attach(self, door: Door) -> None:
        self._door = door

    def __len__(self) -> int:
        return len(self._all) - len(self._ended)

    # -- Verbs

    def register(
        self, name: str, schedule: Schedule, message: RecurringMessage, now_ms: int, records: Sequence[Record] = ()
    ) -> Registered:
        """Let a message recur under a name, in one unit with `records`.

        Raises BadSchedule, TooManySchedules and other StoreError.
        """
        if not name or len(name) > NAME_CHARS_MAX:
            raise BadSchedule(f"a schedule's name has 1 to {NAME_CHARS_MAX} characters, not {len(name)}")
        before = self._all.get(name)
        if before is not None and (before.schedule, before.message) == (schedule, message):
            return Registered(Outcome.UNCHANGED, self._state_log.barrier())
        run = schedule.first(now_ms)
        if run is None:
            raise BadSchedule(
                f"the schedule would end before its first run: until_ms {schedule.until_ms}, now {now_ms}"
            )
        promise = self.commit([*records, self.record(name, schedule, message, run)], now_ms)
        return Registered(Outcome.CREATED if before is None else Outcome.REPLACED, promise)

    def record(
        self, name: str, schedule: Schedule, message: RecurringMessage, run: Run, *, is_kept: bool = True
    ) -> ScheduleRegistered:
        """Give the record that registers a schedule; raises TooManySchedules."""
        record = _record(Standing(name, schedule, message, run, is_kept), run)
        self.check_room([record])
        return record

    def check_room(self, records: Iterable[Record]) -> None:
        """Raise TooManySchedules unless all that these records register, together, have room."""
        coming = [record for record in records if isinstance(record, ScheduleRegistered)]
        replaced = [standing for record in coming if (standing := self._all.get(record.name)) is not None]
        running = len(self) - sum(standing.run is not None for standing in replaced)
        if coming and running + len(coming) > self._count_max:
            raise TooManySchedules(
                f"{running} schedules, and {len(coming)} more; delay.schedules_max is {self._count_max}"
            )
        held = self._bytes - sum(len(standing.message.frame) for standing in replaced)
        more = sum(len(record.frame) for record in coming)
        if held + more > self._bytes_max:
            raise TooManySchedules(
                f"schedules hold {held} bytes, and {more} more; delay.schedules_bytes is {self._bytes_max}"
            )

    def new_name(self) -> str:
        """Name the schedule of a message that asks for one by itself."""
        return f"amq-{uuid.uuid4().hex}"

    def commit(self, records: list[Record], now_ms: int) -> Promise:
        return self._state_log.commit(records, now_ms).promise

    def remove(self, name: str, now_ms: int) -> Registered:
        """Let a schedule run no more, and forget it."""
        if name not in self._all:
            return Registered(Outcome.NOT_FOUND, self._state_log.barrier())
        return Registered(Outcome.REMOVED, self.commit([ScheduleStepped(name, None, is_removed=True)], now_ms))

    def get(self, name: str) -> Standing | None:
        return self._all.get(name)

    def all(self) -> Iterable[Standing]:
        return self._all.values()

    # -- Running

    def next_deadline_ms(self) -> int | None:
        return 0 if self._due else self._wheel.next_deadline_ms()

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Do some of the runs that are due. Raises StoreError, and those are still due.

        A schedule whose run fails otherwise is set aside: its timer has gone off, and is not set again.
        """
        self._due.extend(self._wheel.advance(now_ms))
        for _ in range(min(RUNS_IN_SLICE, len(self._due))):
            name = self._due[0]
            try:
                self._step(name, now_ms)
            except Exception as error:  # noqa: BLE001 - set aside, or raised again
                self._poison.set_aside("schedule", name, error)
            self._due.popleft()

    def clock_was_set_back(self, now_ms: int) -> None:
        """The clock was ahead, and is right again: the next runs are those after now. Raises StoreError."""
        records: list[Record] = []
        for name, standing in self._all.items():
            if standing.run is not None:
                due_ms = standing.schedule.plan.earlier_ms(standing.run.due_ms, now_ms)
                if due_ms < standing.run.due_ms:
                    records.append(ScheduleStepped(name, standing.run.number, due_ms))
        if records:
            self.commit(records, now_ms)

    def _step(self, name: str, now_ms: int) -> None:
        standing = self._all.get(name)
        if standing is None or standing.run is None or standing.timer is None or standing.timer.is_pending:
            return  # It was removed or replaced since it was due.
        if standing.run.due_ms > now_ms:  # The clock was set back.
            standing.timer = self._wheel.add(standing.run.due_ms, name)
            return
        if standing.topic in self._paused:
            return  # `_replay_paused` goes on with it.
        topic = self._topics.by_number(standing.topic)
        assert topic is not None, f"schedule {name} of a topic that is gone"
        step = standing.schedule.step(standing.run, now_ms)
        next_run = step.next
        records: list[Record] = [ScheduleStepped(name, *(next_run or (None, None)))]
        frames = []
        if step.run is not None and standing.schedule.burst is not None:
            records += self._burst(standing, standing.schedule.burst, step.run, now_ms)
        elif step.run is not None:
            run = self._frame(topic, standing.message, step.run.due_ms, now_ms)
            frames = [run] if run.frames else []
        self._state_log.commit(records, now_ms, frames)
        self._metrics.timers["recurred"] += len(frames)

    def _frame(self, topic: Topic, message: RecurringMessage, due_ms: int, now_ms: int) -> FrameRun:
        assert self._door is not None, "the door is not open"
        queue_id = message.key & (1 << QUEUE_ID_BITS) - 1
        return self._door.deliveries(topic, queue_id, message.form, [memoryview(message.frame)], [due_ms], now_ms)

    def _burst(self, standing: Standing, burst: Burst, run: Run, now_ms: int) -> list[Record]:
        """Give what starts the series that one run of a cron entry stands for."""
        start_ms = run.due_ms + burst.delay_ms
        series = Schedule(Every(max(burst.period_ms, PERIOD_MIN_MS), start_ms), count=burst.count, missed=Missed.ALL)
        name = f"{standing.name}/{run.due_ms}"
        try:
            return [self.record(name, series, standing.message, Run(1, start_ms), is_kept=False)]
        except TooManySchedules as error:
            log.warning("series not started schedule=%s reason=%r", standing.name, str(error))
            return []

    # -- Replay

    def _replay_registered(self, record: ScheduleRegistered, slot: Slot) -> None:
        self._forget(record.name)
        run = None if record.due_ms is None else Run(record.number, record.due_ms)
        message = RecurringMessage(record.key, record.form, record.frame)
        standing = Standing(record.name, _schedule(record), message, None, record.is_kept)
        self._all[record.name] = standing
        self._of_topic.setdefault(standing.topic, {})[record.name] = None
        self._bytes += len(record.frame)
        self._set_next(standing, run)

    def _replay_stepped(self, record: ScheduleStepped, slot: Slot) -> None:
        standing = self._all.get(record.name)
        if standing is None:
            return
        if record.is_removed:
            self._forget(record.name)
        else:
            assert record.number is not None or record.due_ms is None, f"a run without a number: {record}"
            self._set_next(standing, None if record.due_ms is None else Run(record.number or 0, record.due_ms))

    def _replay_paused(self, record: DelayPaused, slot: Slot) -> None:
        if record.is_paused:
            self._paused.add(record.topic)
        else:
            self._paused.discard(record.topic)
            self._due.extend(
                name
                for name in self._of_topic.get(record.topic, ())
                if (timer := self._all[name].timer) is not None and not timer.is_pending
            )

    def _replay_topic_deleted(self, record: TopicDeleted, slot: Slot) -> None:
        self._paused.discard(record.number)
        for name in [*self._of_topic.get(record.number, ())]:
            self._forget(name)

    def _set_next(self, standing: Standing, run: Run | None) -> None:
        standing.run = run
        if standing.timer is not None:
            self._wheel.cancel(standing.timer)
        if run is not None:
            standing.timer = self._wheel.add(run.due_ms, standing.name)
            return
        standing.timer = None
        if not standing.is_kept:
            self._forget(standing.name)
            return
        self._ended[standing.name] = None
        while len(self._ended) > self._count_max:
            self._forget(next(iter(self._ended)))

    def _forget(self, name: str) -> None:
        standing = self._all.pop(name, None)
        if standing is None:
            return
        self._ended.pop(name, None)
        names = self._of_topic[standing.topic]
        del names[name]
        if not names:
            del self._of_topic[standing.topic]
        self._bytes -= len(standing.message.frame)
        if standing.timer is not None:
            self._wheel.cancel(standing.timer)

    def _snapshot(self) -> Iterable[Record]:
        # Of a schedule that stands nothing changes but its next run.
        return starmap(_record, [(standing, standing.run) for standing in self._all.values()])


# -- Records


def _record(standing: Standing, run: Run | None) -> ScheduleRegistered:
    schedule, message = standing.schedule, standing.message
    plan, burst = schedule.plan, schedule.burst
    every, cron = (plan, None) if isinstance(plan, Every) else (None, plan)
    return ScheduleRegistered(
        name=standing.name,
        key=message.key,
        form=message.form,
        frame=message.frame,
        number=0 if run is None else run.number,
        due_ms=None if run is None else run.due_ms,
        missed=schedule.missed.value,
        period_ms=None if every is None else every.period_ms,
        start_ms=None if every is None else every.start_ms,
        expression=None if cron is None else cron.expression,
        zone=None if cron is None else cron.zone,
        until_ms=schedule.until_ms,
        count=schedule.count,
        burst=None if burst is None else BurstOfRuns(burst.delay_ms, burst.period_ms, burst.count),
        is_kept=standing.is_kept,
    )


def _schedule(record: ScheduleRegistered) -> Schedule:
    plan: Every | Cron
    if record.period_ms is not None:
        plan = Every(record.period_ms, record.start_ms)
    else:
        plan = Cron(record.expression or "", record.zone or "")
    burst = None if record.burst is None else Burst(*record.burst)
    return Schedule(plan, record.until_ms, record.count, Missed(record.missed), burst)
