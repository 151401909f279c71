"""Recurring messages: when a schedule runs next, as pure functions of times that are given.

    plan          Every(period, start)            start, start + period, ...; without a start: registered + period, ...
                  Cron(expression, zone)          5 fields as in crontab(5), or 6 with the seconds in front; or @hourly,
                                                  @daily, @midnight, @weekly, @monthly, @yearly, @annually
    bounds        until_ms, count                 of runs that were done
    missed        skip | once | all               what is done about runs that were not done in time

                                      down from here to here
    runs               a   b   c   d   e   f   g   h   i
    all                a   b   c |           defg  h   i         each of them, late
    once               a   b   c |              g  h   i         the latest of them
    skip               a   b   c |                 h   i         g only if it is late by less than MISSED_AFTER_MS

A run is (number, due): its number among the runs that are done, and its time. `delay/schedules.py` stores the next run
of each schedule; when that run is due, `step` returns the run to do, if any, and the run after it.

Daylight saving is handled as in Debian's cron. A time of day (neither the minute nor the hour begins with `*`) has one
run a day. If the clock jumps over this time, the run is due right after the jump; if the time occurs twice, the run is
due at the first one. All other expressions follow the clock: an hour that the clock skips has no runs, and an hour that
occurs twice has its runs twice. CronSim matches wall times only. This module applies the time zone, because CronSim's
results are wrong where clocks change by half an hour (Lord Howe Island).

`activemq` reads a schedule from ActiveMQ's properties. Source of their names and rules: ScheduledMessage.java and
JobSchedulerImpl.java of ActiveMQ Classic.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

PERIOD_MIN_MS: Final = 10  # Each run is a unit of the log.
MISSED_AFTER_MS: Final = 60_000  # The default of Quartz's misfireThreshold.
EXPRESSION_CHARS_MAX: Final = 256
COUNT_MAX: Final = (1 << 31) - 1
TIME_MAX_MS: Final = 250_000_000_000_000  # In the year 9892. Python's calendar ends with the year 9999.

AMQ_DELAY: Final = "AMQ_SCHEDULED_DELAY"
AMQ_PERIOD: Final = "AMQ_SCHEDULED_PERIOD"
AMQ_REPEAT: Final = "AMQ_SCHEDULED_REPEAT"
AMQ_CRON: Final = "AMQ_SCHEDULED_CRON"
AMQ_NAMES: Final = (AMQ_DELAY, AMQ_PERIOD, AMQ_REPEAT, AMQ_CRON)

_NUMBER: Final = re.compile(r"-?[0-9]{1,20}")
# As in crontab(5); @reboot means nothing here.
_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")  # Names in errors of CronSim.
_SECOND: Final = timedelta(seconds=1)
_FOREVER: Final = -1


class BadSchedule(ValueError):
    """The requested schedule is invalid; the message names the value and the allowed values."""


class Missed(Enum):
    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Run(NamedTuple):
    number: int  # The number of runs that were done, including this one.
    due_ms: int


class Step(NamedTuple):
    """The decision about a due run: `run` is done, or None is skipped; `next` is None if the schedule has ended."""

    run: Run | None
    next: Run | None


@dataclass(frozen=True)
class Every:
    period_ms: int
    start_ms: int | None = None

    def __post_init__(self) -> None:
        _check("period", self.period_ms, PERIOD_MIN_MS, TIME_MAX_MS, " ms")
        if self.start_ms is not None:
            _check("start", self.start_ms, 0, TIME_MAX_MS, " ms since 1970")

    def first_ms(self, now_ms: int) -> int:
        """Return the first run that is not before now."""
        if self.start_ms is None:
            return now_ms + self.period_ms
        if self.start_ms >= now_ms:
            return self.start_ms
        return self.next_ms(self.latest_ms(self.start_ms, now_ms - 1))

    def next_ms(self, run_ms: int) -> int:
        return run_ms + self.period_ms

    def latest_ms(self, run_ms: int, now_ms: int) -> int:
        """Return the latest run up to now; `run_ms` is one of them."""
        return now_ms - (now_ms - run_ms) % self.period_ms

    def earlier_ms(self, run_ms: int, now_ms: int) -> int:
        """Return the first run after now; `run_ms` is one of them, and it may be the first."""
        first_ms = run_ms - max(0, run_ms - now_ms - 1) // self.period_ms * self.period_ms
        return first_ms if self.start_ms is None else max(first_ms, min(run_ms, self.start_ms))


@dataclass(frozen=True)
class Cron:
    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if len(self.expression) > EXPRESSION_CHARS_MAX:
            raise BadSchedule(f"cron expression of {len(self.expression)} characters; {EXPRESSION_CHARS_MAX} allowed")
        self.next_ms(0)

    def first_ms(self, now_ms: int) -> int:
        return self.next_ms(now_ms - 1)

    def next_ms(self, after_ms: int) -> int:
        """Return the first run after a moment."""
        after = datetime.fromtimestamp(after_ms // 1000, UTC)
        zone = zone_of(self.zone)
        try:
            return _ms(self._next_of_day(after, zone) if self._is_time_of_day else self._next_by_clock(after, zone))
        except CronSimError as error:
            raise BadSchedule(f"cron expression {self.expression!r}: {self._problem(str(error))}") from error
        except (StopIteration, OverflowError, ValueError) as error:  # No run in fifty years, or beyond the calendar.
            raise BadSchedule(f"cron expression {self.expression!r} never comes true") from error

    def _next_of_day(self, after: datetime, zone: tzinfo) -> datetime:
        wall_time = after.astimezone(zone).replace(tzinfo=None, fold=0)
        while True:
            wall_time = self._match(wall_time)
            found = _real(wall_time, zone)
            if found > after:  # It may be earlier, where the clock of the zone was changed.
                return found

    def _next_by_clock(self, after: datetime, zone: tzinfo) -> datetime:
        """Match with a constant offset of the zone, and again from the next change of the offset on."""
        while True:
            offset = _offset(after + _SECOND, zone)
            found = self._match(after.replace(tzinfo=None) + offset).replace(tzinfo=UTC) - offset
            change = clock_change(after + _SECOND, found, zone)
            if change is None:
                return found
            after = change - _SECOND

    def _match(self, wall_time: datetime) -> datetime:
        """Return the first wall time after this one that matches the expression, without changes of the clock."""
        return next(CronSim(self._with_seconds, wall_time))

    def latest_ms(self, run_ms: int, now_ms: int) -> int:
        """Return the latest run up to now; `run_ms` is one of them.

        It is found by bisection, because after a long pause there may be millions of runs between the two.
        """
        latest_ms, none_after_ms = run_ms, now_ms  # No run is between `none_after_ms` and now.
        back_ms = 60_000  # The search begins near now, because the latest run is usually not long ago.
        while none_after_ms - latest_ms >= 1000:  # Runs are at whole seconds.
            after_ms = max(now_ms - back_ms, (latest_ms + none_after_ms) // 2)
            found_ms = self.next_ms(after_ms)
            if found_ms <= now_ms:
                latest_ms = found_ms
            else:
                none_after_ms = after_ms
            back_ms *= 2
        return latest_ms

    def earlier_ms(self, run_ms: int, now_ms: int) -> int:
        """Return the first run after now; `run_ms` is one of them, and it may be the first."""
        return min(run_ms, self.next_ms(now_ms))

    def _problem(self, problem: str) -> str:
        """Return the error of CronSim, such as "Bad day-of-week", with the value of the field or the known names."""
        if self.expression.lstrip().startswith("@"):
            return f"{problem}; names are {', '.join(_NAMED)}"
        field = problem.removeprefix("Bad ")
        return f"{problem} {self._with_seconds.split()[_FIELDS.index(field)]!r}" if field in _FIELDS else problem

    @property
    def _with_seconds(self) -> str:
        fields = _NAMED.get(self.expression.strip().lower(), self.expression)
        return f"0 {fields}" if len(fields.split()) == 5 else fields

    @property
    def _is_time_of_day(self) -> bool:
        _, minute, hour, *_ = [*self._with_seconds.split(), "", "", ""]
        return not minute.startswith("*") and not hour.startswith("*")


Plan = Every | Cron


@dataclass(frozen=True)
class Burst:
    """The series of deliveries that each run of a cron expression starts, by ActiveMQ's DELAY, PERIOD and REPEAT."""

    delay_ms: int
    period_ms: int
    count: int | None


@dataclass(frozen=True)
class Schedule:
    """The rule of a schedule. A program that registers an equal rule again does not begin the schedule anew."""

    plan: Plan
    until_ms: int | None = None  # No run is due after this time.
    count: int | None = None
    missed: Missed = Missed.ONCE
    burst: Burst | None = None  # If set, a run delivers nothing itself, and starts this series.

    def __post_init__(self) -> None:
        if self.until_ms is not None:
            _check("end", self.until_ms, 0, TIME_MAX_MS, " ms since 1970")
        if self.count is not None:
            _check("count", self.count, 1, COUNT_MAX)

    def first(self, now_ms: int) -> Run | None:
        """Return the first run of a schedule that is registered now; None if it ends before its first run.

        Raises BadSchedule if the first series of a burst would begin beyond TIME_MAX_MS.
        """
        run = self._within(1, self.plan.first_ms(now_ms))
        if run is not None and self.burst is not None and self.burst.delay_ms > TIME_MAX_MS - run.due_ms:
            longest_ms = TIME_MAX_MS - run.due_ms
            raise BadSchedule(f"delay {self.burst.delay_ms} ms after each run; at most {longest_ms} ms are possible")
        return run

    def step(self, run: Run, now_ms: int) -> Step:
        """Decide about a run, at or after its due time."""
        latest_ms = run.due_ms
        if self.missed is not Missed.ALL and self.plan.next_ms(run.due_ms) <= now_ms:
            latest_ms = self.plan.latest_ms(run.due_ms, min(now_ms, self._end_ms))
        if self.missed is Missed.SKIP and now_ms - latest_ms >= MISSED_AFTER_MS:
            return Step(None, self._within(run.number, self.plan.next_ms(latest_ms)))
        return Step(run._replace(due_ms=latest_ms), self._within(run.number + 1, self.plan.next_ms(latest_ms)))

    @property
    def _end_ms(self) -> int:
        return TIME_MAX_MS if self.until_ms is None else self.until_ms

    def _within(self, number: int, due_ms: int) -> Run | None:
        if due_ms > self._end_ms or (self.count is not None and number > self.count):
            return None
        return Run(number, due_ms)


# -- ActiveMQ


def activemq(properties: Mapping[str, str], zone: str, now_ms: int) -> "Schedule | int | None":
    """Read a message's AMQ_SCHEDULED_ properties; return a schedule, a delay in ms, or None. Raises BadSchedule.

    REPEAT is the number of deliveries after the first one, at intervals of PERIOD; -1 means for ever. The first
    delivery is after DELAY, or after one PERIOD if there is no DELAY. With CRON each of its times starts such a series,
    or delivers the message once if the other properties are missing.
    """
    if not any(name in properties for name in AMQ_NAMES):
        return None
    delay_ms = _number(properties, AMQ_DELAY, 0, TIME_MAX_MS)
    period_ms = _number(properties, AMQ_PERIOD, 0, TIME_MAX_MS)
    repeat = _number(properties, AMQ_REPEAT, _FOREVER, COUNT_MAX - 1)
    if repeat and not period_ms:
        raise BadSchedule(f"{AMQ_REPEAT} {repeat} without {AMQ_PERIOD}")
    count = None if repeat == _FOREVER else repeat + 1
    first_ms = delay_ms or period_ms
    if expression := properties.get(AMQ_CRON, "").strip():
        if repeat == _FOREVER:
            raise BadSchedule(f"{AMQ_REPEAT} {repeat} with {AMQ_CRON}: each time would start what never ends")
        burst = Burst(first_ms, period_ms, count) if repeat or first_ms else None
        return Schedule(Cron(expression, zone), burst=burst)
    if not repeat:
        return first_ms
    return Schedule(Every(period_ms, now_ms + first_ms), count=count, missed=Missed.ALL)


def _number(properties: Mapping[str, str], name: str, lowest: int, highest: int) -> int:
    text = properties.get(name, "").strip()
    if not text:
        return 0
    if not _NUMBER.fullmatch(text):
        raise BadSchedule(f"{name}: expected a whole number, got {text[:40]!r}")
    _check(name, int(text), lowest, highest)
    return int(text)


def _check(name: str, value: int, lowest: int, highest: int, unit: str = "") -> None:
    if not lowest <= value <= highest:
        raise BadSchedule(f"{name} {value}{unit} is outside {lowest} to {highest}")


# -- Zones


@lru_cache(maxsize=1024)
def zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadSchedule(f"no time zone {name[:64]!r}; expected a name like Europe/Berlin, or UTC") from error


def _real(wall_time: datetime, zone: tzinfo) -> datetime:
    """Return the moment of a wall time: the first if it occurs twice, the end of the gap if it does not occur."""
    while not _exists(found := wall_time.replace(tzinfo=zone)):
        wall_time = wall_time.replace(second=0) + timedelta(minutes=1)  # Gaps end at whole minutes, within a day.
    return found.astimezone(UTC)


def _exists(local: datetime) -> bool:
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None, fold=0) == local.replace(tzinfo=None)


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def clock_change(start: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """Return the first second in (start, until] with another offset of the zone than `start`; None if there is none."""
    offset = _offset(start, zone)
    while start < until:
        day_later = min(start + timedelta(days=1), until)
        if _offset(day_later, zone) != offset:
            seconds = range(int((day_later - start).total_seconds()))
            return (
                start + bisect_left(seconds, True, key=lambda s: _offset(start + s * _SECOND, zone) != offset) * _SECOND
            )
        start = day_later
    return None


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000
