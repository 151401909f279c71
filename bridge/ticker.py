"""The ticker: one timer of the event loop, set to the earliest deadline of all duties.

A duty is a function and a `next_deadline_ms()` that says when to call it. After every turn of the loop in which
something happened, `arm` calls `next_deadline_ms` of the duties; so a duty need not announce that its deadline became
earlier. A busy loop has dozens of turns in a millisecond, which is the unit of all deadlines: `arm` reads the deadlines
after the first READS_IN_MS of these turns, and again when the next millisecond has begun. Duties of upkeep may run
UPKEEP_MS late, so their deadlines are read once in that time.

If a duty raises an exception, the other duties run, and the timer is set again:

    StoreError          retried after RETRY_MS: a temporary condition, such as a full disk
    anything else       a fault: reported, and retried after RETRY_MS; the delay doubles with each further fault
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duolog.bridge.clock import Clock
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.store.errors import StoreError

log = logging.getLogger("bridge")

# The longest sleep while a duty waits for a wall time, because the wall clock may be set forward during the sleep.
WALL_SLEEP_MS_MAX = 100
NEVER_MS = sys.maxsize
# Deadlines are read after so many turns of a millisecond, at some 4 us each. A further turn sets a timer to the next
# millisecond, which costs a loop of few turns a turn of its own.
READS_IN_MS = 3
UPKEEP_MS = 100  # The deadlines of upkeep are read once in this time.
RETRY_MS = 1000
RETRY_MS_MAX = 32_000
SLEEP_MS_MAX = 3_600_000  # An upper bound for `call_later`: uvloop counts the milliseconds in 64 bits.


@dataclass(slots=True)
class _Duty:
    name: str
    next_deadline_ms: Callable[[], int | None]
    run: Callable[[int, int], object]
    is_wall: bool
    not_before_mono_ms: int = 0
    kind: str = ""  # The kind under which faults and long runs of the duty are reported.
    retry_ms: int = RETRY_MS  # The delay after the next fault.


class Ticker:
    """Runs each duty that is due, then calls `touch`, so that the turn ends with `arm`.

    Duties run in the order of `add`; those of upkeep run after the others.

    `observe(now_ms, mono_ms)` compares the two clocks before any duty runs (`bridge/state/wall_time.py`); `watchdog`
    measures each run; `faults` takes the exceptions of duties.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        touch: Callable[[], None],
        faults: Faults,
        watchdog: Watchdog,
        observe: Callable[[int, int], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._touch = touch
        self._faults, self._watchdog = faults, watchdog
        self._observe = observe
        self._duties: list[_Duty] = []
        self._upkeep: list[_Duty] = []
        self._upkeep_earliest_ms = NEVER_MS  # The earliest deadline of upkeep when it was last read.
        self._upkeep_read_again_mono_ms = 0  # From this time on, the deadlines of upkeep are read again.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_mono_ms = NEVER_MS  # The monotonic time at which `_timer` fires.
        self._armed_mono_ms = -1  # The monotonic time at which the deadlines were last read.
        self._reads = 0  # How often they were read at that time.
        self._is_stopped = False

    def add(
        self,
        name: str,
        next_deadline_ms: Callable[[], int | None],
        run: Callable[[int, int], object],
        *,
        is_wall: bool = False,
        is_upkeep: bool = False,
    ) -> None:
        """Add a duty: `run(now_ms, mono_ms)` is called at each deadline.

        With `is_wall` the deadlines are wall times, otherwise monotonic times. With `is_upkeep` a deadline that became
        earlier may be noticed UPKEEP_MS late.
        """
        duties = self._upkeep if is_upkeep else self._duties
        duties.append(_Duty(name, next_deadline_ms, run, is_wall, kind=f"ticker {name}"))

    def arm(self, mono_ms: int) -> None:
        """Set the timer to the earliest deadline, or to the next millisecond if this one has had READS_IN_MS turns.

        If the earliest deadline became later, the timer fires early, finds no duty due, and is set again.
        """
        if mono_ms != self._armed_mono_ms:
            self._armed_mono_ms, self._reads = mono_ms, 0
        elif self._reads >= READS_IN_MS and self._timer is not None:
            if self._timer_mono_ms > mono_ms + 1:
                self._set_timer(mono_ms + 1)
            return
        self._reads += 1
        earliest_ms, _ = self._next_deadline(self._clock.now_ms(), mono_ms)
        if earliest_ms < self._timer_mono_ms and not self._is_stopped:
            self._set_timer(earliest_ms)

    def stop(self) -> None:
        """Cancel the timer, so that no duty runs any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at_mono_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_mono_ms = at_mono_ms
        delay_ms = min(max(0, at_mono_ms - self._clock.mono_ms()), SLEEP_MS_MAX)
        self._timer = self._loop.call_later(delay_ms / 1000, self._fire)

    def _without_deadline(self, duty: _Duty, error: Exception) -> int:
        """Report that a duty's `next_deadline_ms` raised; return a deadline at which it is called again."""
        mono_ms = self._clock.mono_ms()
        if mono_ms >= duty.not_before_mono_ms:
            self._postpone(duty, error, mono_ms)
        return self._clock.now_ms() if duty.is_wall else mono_ms

    def _fire(self) -> None:
        """Run what is due; if nothing is due, set the timer again, which needs no end of a turn."""
        self._timer, self._timer_mono_ms = None, NEVER_MS
        now_ms, mono_ms = self._clock.now_ms(), self._clock.mono_ms()
        earliest_ms, first_due = self._next_deadline(now_ms, mono_ms)
        if earliest_ms > mono_ms:
            self._armed_mono_ms, self._reads = mono_ms, 1
            self._set_timer(earliest_ms)
            return
        try:
            self._observe(now_ms, mono_ms)
            for duty in self._duties[first_due:]:
                self._run_if_due(duty, now_ms, mono_ms)
            if self._upkeep_earliest_ms <= mono_ms:
                self._upkeep_read_again_mono_ms = mono_ms  # Their next deadlines are not known yet.
                for duty in self._upkeep:
                    self._run_if_due(duty, now_ms, mono_ms)
        finally:
            self._touch()

    def _next_deadline(self, now_ms: int, mono_ms: int) -> tuple[int, int]:
        """Return the monotonic time of the earliest deadline, or that at which those of upkeep are read again.

        The second result is how many duties, upkeep apart, come before the first one that is due.
        """
        if mono_ms >= self._upkeep_read_again_mono_ms:
            upkeep_ms, _ = self._earliest_deadline(self._upkeep, now_ms, mono_ms)
            self._upkeep_earliest_ms, self._upkeep_read_again_mono_ms = upkeep_ms, mono_ms + UPKEEP_MS
        else:  # Since the last reading, a turn of the loop may have made a deadline earlier.
            upkeep_ms = min(self._upkeep_earliest_ms, self._upkeep_read_again_mono_ms)
        earliest_ms, first_due = self._earliest_deadline(self._duties, now_ms, mono_ms)
        return min(upkeep_ms, earliest_ms), first_due

    def _earliest_deadline(self, duties: Sequence[_Duty], now_ms: int, mono_ms: int) -> tuple[int, int]:
        """Return the monotonic time of the earliest deadline, and how many duties come before the first that is due.

        The deadlines after that of a duty that is due are not read.
        """
        earliest_ms, wall_to_mono_ms, check_ms = NEVER_MS, mono_ms - now_ms, mono_ms + WALL_SLEEP_MS_MAX
        for number, duty in enumerate(duties):
            try:
                deadline_ms = duty.next_deadline_ms()
            except Exception as error:  # noqa: BLE001 - contained
                deadline_ms = self._without_deadline(duty, error)
            if deadline_ms is None:
                continue
            if duty.is_wall:  # The wall clock is compared with the deadline again after WALL_SLEEP_MS_MAX.
                deadline_ms += wall_to_mono_ms
                if deadline_ms > check_ms:
                    deadline_ms = check_ms
            if deadline_ms < earliest_ms:
                earliest_ms = min(earliest_ms, max(deadline_ms, duty.not_before_mono_ms))
                if earliest_ms <= mono_ms:
                    return earliest_ms, number
        return earliest_ms, len(duties)

    def _run_if_due(self, duty: _Duty, now_ms: int, mono_ms: int) -> None:
        if mono_ms < duty.not_before_mono_ms:
            return
        try:
            deadline_ms = duty.next_deadline_ms()
            if deadline_ms is None or deadline_ms > (now_ms if duty.is_wall else mono_ms):
                return
            begun_s = self._watchdog.seconds()
            try:
                duty.run(now_ms, mono_ms)
                duty.retry_ms = RETRY_MS
            finally:
                self._watchdog.turned(duty.kind, begun_s)
        except StoreError as error:
            # A temporary condition, such as a full disk: the duty stays due.
            duty.not_before_mono_ms = mono_ms + RETRY_MS
            log.warning("duty refused by the store duty=%s retry_ms=%d reason=%r", duty.name, RETRY_MS, str(error))
        except Exception as error:  # noqa: BLE001 - contained
            self._postpone(duty, error, mono_ms)

    def _postpone(self, duty: _Duty, error: Exception, mono_ms: int) -> None:
        """Report a fault of a duty, and retry the duty later; the delay doubles with each fault."""
        duty.not_before_mono_ms = mono_ms + duty.retry_ms
        duty.retry_ms = min(2 * duty.retry_ms, RETRY_MS_MAX)
        self._faults.contain(error, duty.kind)
