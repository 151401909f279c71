"""The class DeliverySchedules: schedules with their messages and next runs, and the decision about a due run.

    event                                             next state of a schedule
    registered                                        waiting for its first run
    registered again, with another message or rule    replaced: waiting for the first run of the new one
    a run is due                                      due; while its topic is paused it stays due
    stepped: a run was done or skipped                waiting for the next run, or ended
    removed, or its topic was deleted                 removed

A schedule is identified by its name. A schedule that has ended is kept, so that a program which registers it at every
start does not begin it again. With more than `count_max` ended schedules, the oldest are removed. Messages are in
memory, so their bytes are limited, too. `due`, `decide` and `earlier_runs` do not change which schedules exist, or
their runs. The methods under "Following the log" do, live and at recovery.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from duolog.delay.recurring import PERIOD_MIN_MS, BadSchedule, Every, Missed, Run, Schedule
from duolog.delay.rows import TOPIC_SHIFT
from duolog.delay.wheel import Wheel, WheelTimer
from duolog.store.errors import StoreError

NAME_CHARS_MAX: Final = 255


class TooManySchedules(StoreError):
    """`delay.schedules_max` or `delay.schedules_bytes` is reached."""


class RecurringMessage(NamedTuple):
    """The message that each run delivers: a frame in its pending form, and its destination."""

    key: int  # The key of its queue.
    form: int
    frame: bytes


@dataclass(slots=True)
class DeliverySchedule:
    """A schedule with its message and its next run. A schedule without a run has ended."""

    name: str
    schedule: Schedule
    message: RecurringMessage
    run: Run | None
    is_kept: bool  # Whether it is kept after its end.
    runs: int = 0  # The number of runs that took place, without those that were skipped.
    timer: WheelTimer[str] | None = None

    @property
    def topic(self) -> int:
        return self.message.key >> TOPIC_SHIFT


class DueRun(NamedTuple):
    """The decision about a run that is due."""

    schedule: DeliverySchedule
    run: Run | None  # The run to deliver; None: the run was missed and is skipped.
    next: Run | None  # None: the schedule has ended.

    @property
    def runs(self) -> int:
        """The number of runs of the schedule that have taken place after this one."""
        return self.schedule.runs + (self.run is not None)

    @property
    def series(self) -> DeliverySchedule | None:
        """The schedule that the run starts, if its schedule has a `Burst`; otherwise None."""
        burst = self.schedule.schedule.burst
        if burst is None or self.run is None:
            return None
        start_ms = self.run.due_ms + burst.delay_ms
        series = Schedule(Every(max(burst.period_ms, PERIOD_MIN_MS), start_ms), count=burst.count, missed=Missed.ALL)
        name = f"{self.schedule.name}/{self.run.due_ms}"
        return DeliverySchedule(name, series, self.schedule.message, Run(1, start_ms), is_kept=False)


class DeliverySchedules:
    """The schedules of a broker: at most `count_max` that run, whose messages have at most `bytes_max`."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._all: dict[str, DeliverySchedule] = {}
        self._of_topic: dict[int, dict[str, None]] = {}  # Invariant: the names in `_all`, by topic.
        self._ended: dict[str, None] = {}  # The names of ended schedules, the oldest first.
        self._bytes = 0
        self._wheel: Wheel[str] = Wheel()
        self._due: deque[str] = deque()
        self._paused: set[int] = set()

    def __len__(self) -> int:
        """Return the number of schedules that have not ended."""
        return len(self._all) - len(self._ended)

    def get(self, name: str) -> DeliverySchedule | None:
        return self._all.get(name)

    def all(self) -> Iterable[DeliverySchedule]:
        return self._all.values()

    # -- Decisions

    def first_run(self, name: str, schedule: Schedule, message: RecurringMessage, now_ms: int) -> Run | None:
        """Return the first run of a new schedule; None if an equal schedule is registered under this name.

        Raises BadSchedule.
        """
        if not name or len(name) > NAME_CHARS_MAX:
            raise BadSchedule(f"a schedule's name has 1 to {NAME_CHARS_MAX} characters, not {len(name)}")
        before = self._all.get(name)
        if before is not None and (before.schedule, before.message) == (schedule, message):
            return None
        run = schedule.first(now_ms)
        if run is None:
            raise BadSchedule(
                f"the schedule would end before its first run: until_ms {schedule.until_ms}, now {now_ms}"
            )
        return run

    def check_room(self, frame_sizes: Iterable[tuple[str, int]]) -> None:
        """Raise TooManySchedules if schedules with these (name, frame size) together exceed a limit."""
        coming = [*frame_sizes]
        replaced = [schedule for name, _ in coming if (schedule := self._all.get(name)) is not None]
        running = len(self) - sum(schedule.run is not None for schedule in replaced)
        if coming and running + len(coming) > self._count_max:
            raise TooManySchedules(
                f"{running} schedules, and {len(coming)} more; delay.schedules_max is {self._count_max}"
            )
        held = self._bytes - sum(len(schedule.message.frame) for schedule in replaced)
        more = sum(size for _, size in coming)
        if held + more > self._bytes_max:
            raise TooManySchedules(
                f"schedules hold {held} bytes, and {more} more; delay.schedules_bytes is {self._bytes_max}"
            )

    def next_deadline_ms(self) -> int | None:
        return 0 if self._due else self._wheel.next_deadline_ms()

    def due(self, now_ms: int) -> deque[str]:
        """Return the names of schedules with a due run. The caller removes each name whose run it has handled."""
        self._due.extend(self._wheel.advance(now_ms))
        return self._due

    def decide(self, name: str, now_ms: int) -> DueRun | None:
        """Decide about the due run of a schedule that `due` has returned; None if there is nothing to do now."""
        found = self._all.get(name)
        if found is None or found.run is None or found.timer is None or found.timer.is_pending:
            return None  # The schedule was removed or replaced since its run was due.
        if found.run.due_ms > now_ms:  # The clock was set back.
            found.timer = self._wheel.add(found.run.due_ms, name)
            return None
        if found.topic in self._paused:
            return None  # `resumed` makes the run due again.
        return DueRun(found, *found.schedule.step(found.run, now_ms))

    def earlier_runs(self, now_ms: int) -> list[tuple[str, Run]]:
        """Return (name, run) of each schedule whose first run after `now_ms` is earlier than its next run.

        The clock was set back, so the next runs are too late.
        """
        found = []
        for name, schedule in self._all.items():
            if schedule.run is not None:
                due_ms = schedule.schedule.plan.earlier_ms(schedule.run.due_ms, now_ms)
                if due_ms < schedule.run.due_ms:
                    found.append((name, schedule.run._replace(due_ms=due_ms)))
        return found

    # -- Following the log

    def registered(self, schedule: DeliverySchedule) -> None:
        """Add a schedule; it replaces the one with its name."""
        self.removed(schedule.name)
        self._all[schedule.name] = schedule
        self._of_topic.setdefault(schedule.topic, {})[schedule.name] = None
        self._bytes += len(schedule.message.frame)
        self._set_next(schedule, schedule.run)

    def stepped(self, name: str, runs: int, run: Run | None) -> None:
        """Set the number of runs that took place, and the next run of a schedule; None: it has ended."""
        found = self._all.get(name)
        if found is not None:
            found.runs = runs
            self._set_next(found, run)

    def removed(self, name: str) -> None:
        found = self._all.pop(name, None)
        if found is None:
            return
        self._ended.pop(name, None)
        names = self._of_topic[found.topic]
        del names[name]
        if not names:
            del self._of_topic[found.topic]
        self._bytes -= len(found.message.frame)
        if found.timer is not None:
            self._wheel.cancel(found.timer)

    def paused(self, topic: int) -> None:
        self._paused.add(topic)

    def resumed(self, topic: int) -> None:
        """Make the runs due again that became due while the topic was paused."""
        self._paused.discard(topic)
        for name in self._of_topic.get(topic, ()):
            timer = self._all[name].timer
            if timer is not None and not timer.is_pending:
                self._due.append(name)

    def topic_deleted(self, topic: int) -> None:
        self._paused.discard(topic)
        for name in [*self._of_topic.get(topic, ())]:
            self.removed(name)

    def _set_next(self, schedule: DeliverySchedule, run: Run | None) -> None:
        schedule.run = run
        if schedule.timer is not None:
            self._wheel.cancel(schedule.timer)
        if run is not None:
            schedule.timer = self._wheel.add(run.due_ms, schedule.name)
            return
        schedule.timer = None
        if not schedule.is_kept:
            self.removed(schedule.name)
            return
        self._ended[schedule.name] = None
        while len(self._ended) > self._count_max:
            self.removed(next(iter(self._ended)))
