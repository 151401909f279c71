"""One sleeper until the earliest deadline of all that waits for time.

Whoever waits offers `next_deadline_ms()` and a function to run then. Deadlines are asked for again at the end of every
turn of the loop in which something happened (`arm`), so nobody has to announce an earlier one. A busy loop has dozens
of turns in a millisecond, which is the unit of all deadlines: they are asked for at the end of the first of these
turns, and again when the next millisecond has begun.

Whatever a duty raises, the others run, and the timer is set again:

    StoreError          put off by RETRY_MS: a state of affairs, such as a full disk; it ends by itself
    anything else       a fault: reported, and put off by RETRY_MS, twice as long each time it fails again
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

from duolog.bridge.clock import Clock
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.store.errors import StoreError

log = logging.getLogger("bridge")

# A wall clock may be set forward while we sleep; so while somebody waits for a date, no sleep is longer than this.
WALL_SLEEP_MS_MAX = 100
NEVER_MS = sys.maxsize
RETRY_MS = 1000
RETRY_MS_MAX = 32_000
SLEEP_MS_MAX = 3_600_000  # uvloop takes no delay that an unsigned 64-bit count of milliseconds does not hold.


@dataclass(slots=True)
class _Sleeper:
    name: str
    next_deadline_ms: Callable[[], int | None]
    run: Callable[[int, int], object]
    is_wall: bool
    not_before_mono_ms: int = 0
    kind: str = ""  # As faults and long turns are reported.
    retry_ms: int = RETRY_MS  # How long its next fault puts it off.


class Ticker:
    """Runs what is due, in the order it was added, then has the turn end (`touch`), which arms it again."""

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
        self._observe = observe  # Looks at both clocks before anything runs by them (`bridge/state/wall_time.py`).
        self._sleepers: list[_Sleeper] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_mono_ms = NEVER_MS  # When `_timer` fires.
        self._armed_mono_ms = -1  # When the deadlines were asked for last.
        self._is_stopped = False

    def add(
        self,
        name: str,
        next_deadline_ms: Callable[[], int | None],
        run: Callable[[int, int], object],
        *,
        is_wall: bool = False,
    ) -> None:
        """Call `run(now_ms, mono_ms)` at each deadline; `is_wall` says of which clock the deadlines are."""
        self._sleepers.append(_Sleeper(name, next_deadline_ms, run, is_wall, kind=f"ticker {name}"))

    def arm(self, mono_ms: int) -> None:
        """Sleep until the earliest deadline, or only into the next millisecond if this one was looked at already.

        A later deadline is noticed when the timer fires; only an earlier one makes us set it anew.
        """
        if mono_ms == self._armed_mono_ms and self._timer is not None:
            if self._timer_mono_ms > mono_ms + 1:
                self._set_timer(mono_ms + 1)
            return
        self._armed_mono_ms = mono_ms
        earliest_ms = self._timer_mono_ms
        for sleeper in self._sleepers:
            try:
                deadline_ms = sleeper.next_deadline_ms()
            except Exception as error:  # noqa: BLE001 - contained
                deadline_ms = self._without_deadline(sleeper, error)
            if deadline_ms is None:
                continue
            if sleeper.is_wall:
                deadline_ms = self._mono_of(deadline_ms)
            if deadline_ms < earliest_ms:
                earliest_ms = min(earliest_ms, max(deadline_ms, sleeper.not_before_mono_ms))
        if earliest_ms < self._timer_mono_ms and not self._is_stopped:
            self._set_timer(earliest_ms)

    def stop(self) -> None:
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

    def _mono_of(self, deadline_ms: int) -> int:
        """Give the monotonic time at which to look again whether a date has come."""
        return self._clock.mono_ms() + min(deadline_ms - self._clock.now_ms(), WALL_SLEEP_MS_MAX)

    def _without_deadline(self, sleeper: _Sleeper, error: Exception) -> int:
        """Report that a duty could not say when it is due; it is asked again when it may run again."""
        mono_ms = self._clock.mono_ms()
        if mono_ms >= sleeper.not_before_mono_ms:
            self._put_off(sleeper, error, mono_ms)
        return self._clock.now_ms() if sleeper.is_wall else mono_ms

    def _fire(self) -> None:
        self._timer, self._timer_mono_ms = None, NEVER_MS
        try:
            now_ms, mono_ms = self._clock.now_ms(), self._clock.mono_ms()
            self._observe(now_ms, mono_ms)
            for sleeper in self._sleepers:
                if sleeper.not_before_mono_ms <= mono_ms:
                    self._run_if_due(sleeper, now_ms, mono_ms)
        finally:
            self._touch()

    def _run_if_due(self, sleeper: _Sleeper, now_ms: int, mono_ms: int) -> None:
        try:
            deadline_ms = sleeper.next_deadline_ms()
            if deadline_ms is None or deadline_ms > (now_ms if sleeper.is_wall else mono_ms):
                return
            begun_s = self._watchdog.seconds()
            try:
                sleeper.run(now_ms, mono_ms)
                sleeper.retry_ms = RETRY_MS
            finally:
                self._watchdog.turned(sleeper.kind, begun_s)
        except StoreError as error:
            # A state of affairs: the disk is full, say. What was due stays due.
            sleeper.not_before_mono_ms = mono_ms + RETRY_MS
            log.warning("put off what=%s retry_ms=%d reason=%r", sleeper.name, RETRY_MS, str(error))
        except Exception as error:  # noqa: BLE001 - contained
            self._put_off(sleeper, error, mono_ms)

    def _put_off(self, sleeper: _Sleeper, error: Exception, mono_ms: int) -> None:
        """Report a fault of a duty; it has another chance later, the later the more often it failed."""
        sleeper.not_before_mono_ms = mono_ms + sleeper.retry_ms
        sleeper.retry_ms = min(2 * sleeper.retry_ms, RETRY_MS_MAX)
        self._faults.contain(error, sleeper.kind)
