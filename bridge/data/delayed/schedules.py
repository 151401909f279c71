"""Delivery schedules on the log: `delay/schedules.py` decides, this module appends what was decided and replays it.

    register ------> ScheduleRegistered: the message in its pending form, the rule, the first run
    ticker -- run -> one unit: the message in its queue, ScheduleStepped with the next run

A program may register the same schedule again and again, also several programs at once: that changes nothing. A
schedule with another message or rule replaces the one with its name. Runs wait while their topic is paused; what then
happens to the missed ones is decided by the schedule's rule of missed runs.
"""

import logging
import uuid
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import starmap
from typing import Final, NamedTuple

from duolog.bridge.config import DelayOptions
from duolog.bridge.data.delayed.delivery_frames import DeliveryFrames
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.records.codec import Record
from duolog.bridge.records.schedules import BurstOfRuns, ScheduleRegistered, ScheduleStepped
from duolog.bridge.records.timers import DelayPaused
from duolog.bridge.records.topics import TopicDeleted
from duolog.bridge.state.topics import Topics
from duolog.delay.recurring import Burst, Cron, Every, Missed, Run, Schedule
from duolog.delay.schedules import (
    DeliverySchedule,
    DeliverySchedules,
    DueRun,
    RecurringMessage,
    TooManySchedules,
)
from duolog.store.entry import EntrySlot, Promise
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog
from duolog.store.unit import FrameRun

RUNS_IN_SLICE: Final = 64
SCHEDULE_NAME: Final = "SCHEDULE_NAME"  # The header or property with the name of a schedule that a message asked for.

log = logging.getLogger("data")


class ScheduleOutcome(Enum):
    """What registering or removing a schedule has done."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    REPLACED = "replaced"
    REMOVED = "removed"
    NOT_FOUND = "not_found"


class ScheduleChange(NamedTuple):
    outcome: ScheduleOutcome
    promise: Promise


class Schedules:
    """Registers and removes schedules, runs them, and replays their records into `state`."""

    _frames: DeliveryFrames

    def __init__(
        self,
        state_log: StateLog,
        topics: Topics,
        options: DelayOptions,
        metrics: Metrics,
        poison_records: PoisonRecords,
    ) -> None:
        self._state_log, self._topics, self._metrics, self._poison_records = state_log, topics, metrics, poison_records
        self.state = DeliverySchedules(options.schedules_max, options.schedules_bytes)
        state_log.own(ScheduleRegistered, self._replay_registered)
        state_log.own(ScheduleStepped, self._replay_stepped)
        state_log.own(DelayPaused, self._replay_paused)
        state_log.own(TopicDeleted, self._replay_topic_deleted)
        state_log.on_sliced_snapshot(self._snapshot)

    def attach(self, frames: DeliveryFrames) -> None:
        self._frames = frames

    # -- Commands

    def register(
        self, name: str, schedule: Schedule, message: RecurringMessage, now_ms: int, records: Sequence[Record] = ()
    ) -> ScheduleChange:
        """Let a message recur under a name, in one unit with `records`.

        Raises BadSchedule, TooManySchedules and other StoreError.
        """
        run = self.state.first_run(name, schedule, message, now_ms)
        if run is None:
            return ScheduleChange(ScheduleOutcome.UNCHANGED, self._state_log.barrier())
        outcome = ScheduleOutcome.CREATED if self.state.get(name) is None else ScheduleOutcome.REPLACED
        records = [*records, self.record(DeliverySchedule(name, schedule, message, run, is_kept=True))]
        return ScheduleChange(outcome, self._state_log.commit(records, now_ms).promise)

    def remove(self, name: str, now_ms: int) -> ScheduleChange:
        """Remove a schedule, which has no further runs."""
        if self.state.get(name) is None:
            return ScheduleChange(ScheduleOutcome.NOT_FOUND, self._state_log.barrier())
        records = [ScheduleStepped(name, is_removed=True)]
        return ScheduleChange(ScheduleOutcome.REMOVED, self._state_log.commit(records, now_ms).promise)

    def new_name(self) -> str:
        """Return a name for the schedule that a message asks for by its own headers."""
        return f"amq-{uuid.uuid4().hex}"

    def record(self, schedule: DeliverySchedule) -> ScheduleRegistered:
        """Make the record that registers a schedule. Raises TooManySchedules."""
        record = _record(schedule, schedule.run, schedule.runs)
        self.check_room([record])
        return record

    def check_room(self, records: Iterable[Record]) -> None:
        """Raise TooManySchedules unless all schedules that these records register have room together."""
        coming = (record for record in records if isinstance(record, ScheduleRegistered))
        self.state.check_room((record.name, len(record.frame)) for record in coming)

    # -- Running

    def next_deadline_ms(self) -> int | None:
        return self.state.next_deadline_ms()

    def run(self, now_ms: int, mono_ms: int) -> None:
        """Do some of the runs that are due. Raises StoreError, and those are still due.

        A schedule whose run raises another exception is set aside: its timer is not set again.
        """
        due = self.state.due(now_ms)
        for _ in range(min(RUNS_IN_SLICE, len(due))):
            try:
                found = self.state.decide(due[0], now_ms)
                if found is not None:
                    self._append(found, now_ms)
            except Exception as error:  # noqa: BLE001 - set aside, or raised again
                self._poison_records.set_aside("schedule", due[0], error)
            due.popleft()

    def clock_was_set_back(self, now_ms: int) -> None:
        """Let the next runs be those after now, because the clock was ahead. Raises StoreError."""
        records = [ScheduleStepped(name, run.number, run.due_ms) for name, run in self.state.earlier_runs(now_ms)]
        if records:
            self._state_log.commit(records, now_ms)

    def _append(self, due: DueRun, now_ms: int) -> None:
        """Append the message of a run, or the schedule that the run starts, with the next run."""
        records: list[Record] = [
            ScheduleStepped(due.schedule.name, due.runs + 1, None if due.next is None else due.next.due_ms)
        ]
        frames: list[FrameRun] = []
        if (series := due.series) is not None:
            try:
                records.append(self.record(series))
            except TooManySchedules as error:
                log.warning("series of a schedule not started schedule=%s reason=%r", due.schedule.name, str(error))
        elif due.run is not None:
            frames = [run for run in [self._frames_of(due.schedule, due.run.due_ms, now_ms)] if run.frames]
        # The publisher checks no limits here, because the schedule was accepted with all its runs.
        self._state_log.commit(records, now_ms, frames)
        self._metrics.timers["recurred"] += len(frames)

    def _frames_of(self, schedule: DeliverySchedule, due_ms: int, now_ms: int) -> FrameRun:
        key, form, frame = schedule.message
        topic = self._topics.by_number(schedule.topic)
        assert topic is not None, f"schedule {schedule.name} of a deleted topic"
        _, queue_id = Queue.split(key)
        return self._frames.deliveries(topic, queue_id, form, [memoryview(frame)], [due_ms], now_ms)

    # -- Replay

    def _replay_registered(self, record: ScheduleRegistered, slot: EntrySlot) -> None:
        run = None if record.due_ms is None else Run(record.number, record.due_ms)
        runs = record.number - 1
        message = RecurringMessage(record.key, record.form, record.frame)
        self.state.registered(DeliverySchedule(record.name, _schedule(record), message, run, record.is_kept, runs))

    def _replay_stepped(self, record: ScheduleStepped, slot: EntrySlot) -> None:
        if record.is_removed:
            self.state.removed(record.name)
        else:
            run = None if record.due_ms is None else Run(record.number, record.due_ms)
            self.state.stepped(record.name, record.number - 1, run)

    def _replay_paused(self, record: DelayPaused, slot: EntrySlot) -> None:
        if record.is_paused:
            self.state.paused(record.topic)
        else:
            self.state.resumed(record.topic)

    def _replay_topic_deleted(self, record: TopicDeleted, slot: EntrySlot) -> None:
        self.state.topic_deleted(record.number)

    def _snapshot(self) -> Iterable[Record]:
        # Only these two fields of a registered schedule change, so only they are copied.
        return starmap(_record, [(schedule, schedule.run, schedule.runs) for schedule in self.state.all()])


# -- Records


def _record(found: DeliverySchedule, run: Run | None, runs: int) -> ScheduleRegistered:
    schedule, message = found.schedule, found.message
    plan, burst = schedule.plan, schedule.burst
    every, cron = (plan, None) if isinstance(plan, Every) else (None, plan)
    return ScheduleRegistered(
        name=found.name,
        key=message.key,
        form=message.form,
        frame=message.frame,
        number=runs + 1,
        due_ms=None if run is None else run.due_ms,
        missed=schedule.missed.value,
        period_ms=None if every is None else every.period_ms,
        start_ms=None if every is None else every.start_ms,
        expression=None if cron is None else cron.expression,
        zone=None if cron is None else cron.zone,
        until_ms=schedule.until_ms,
        count=schedule.count,
        burst=None if burst is None else BurstOfRuns(burst.delay_ms, burst.period_ms, burst.count),
        is_kept=found.is_kept,
    )


def _schedule(record: ScheduleRegistered) -> Schedule:
    plan: Every | Cron
    if record.period_ms is not None:
        plan = Every(record.period_ms, record.start_ms)
    else:
        plan = Cron(record.expression or "", record.zone or "")
    burst = None if record.burst is None else Burst(*record.burst)
    return Schedule(plan, record.until_ms, record.count, Missed(record.missed), burst)
