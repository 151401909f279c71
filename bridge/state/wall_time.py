"""Trust in the wall clock: a wall clock that jumps must not make the broker delete anything.

At the end of the first turn of the loop in each millisecond, and before the ticker runs duties, the wall clock is
compared with the monotonic clock. If they differ by more than STEP_MS, the wall clock *jumped*: the log reports it
once, and the *trusted time* continues from the time before the jump by the monotonic clock.

    wall clock       10:00  10:01  |  11:01+8d  11:02+8d ...  |  10:04        correct again: trusted at once
    trusted time     10:00  10:01  |  10:02     10:03    ...  |  10:04

    the wall clock is                               it is trusted
    within STEP_MS of the trusted time              at once
    ahead, after a jump while the broker runs       after `retention.clock_confirm_ms` without a further jump
    ahead of the last unit of the log at a start    after `retention.start_confirm_ms`: the broker was off, or the clock
                                                    is wrong
    behind                                          after `retention.start_confirm_ms`

The *careful time* is the earlier of both. It decides what a wrong clock would delete too early: retention, unused
groups and transactional ids, expired messages, old half messages. The wall clock decides what a wrong clock would
delay: timers, schedules, store times. Store times that were set ahead by a wrong clock continue from the correct time
when the clock is set back (`store/index/store_times.py`). `on_set_back` then corrects all other times in the far
future.

A state record says that the clock is not trusted, so that it is not trusted after a restart either.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from duolog.bridge.config import RetentionOptions
from duolog.bridge.records.broker import ClockDoubted
from duolog.store.entry import EntrySlot
from duolog.store.errors import StoreError
from duolog.store.state_log import StateLog

# NTP corrects a clock by less, or slews it. The clock of a laptop after a sleep differs by more.
STEP_MS: Final = 60_000
DRIFT_MS_MIN: Final = 100  # The shortest time between two corrections of the trusted time towards the wall clock.
# A correction is at most a hundredth of the time since the last one. Quartz clocks drift less than that.
DRIFT_SHARE: Final = 100

log = logging.getLogger("state")


class TimedStore(Protocol):
    """The members of the store that WallTime uses."""

    recovered_ms: int

    @property
    def stored_ms(self) -> int: ...

    def set_time_back(self, now_ms: int) -> None: ...

    def undo_time_back(self, now_ms: int) -> None: ...


class WallTime:
    """Compares the wall clock with the monotonic clock. Call `begin` after the recovery, then `observe` regularly."""

    def __init__(self, state_log: StateLog, options: RetentionOptions) -> None:
        # The time by which the wall clock is ahead of the trusted time; 0 if it is trusted or behind.
        self.ahead_ms = 0
        self.jumps = 0  # The number of jumps since the start.
        self.on_step: Callable[[int], None] = _ignore  # Called with the difference in ms after the wall clock jumped.
        # Called with `now_ms` after a wall clock that was ahead was set back.
        self.on_set_back: Callable[[int], None] = _ignore
        self._state_log = state_log
        self._confirm_jump_ms, self._confirm_start_ms = options.clock_confirm_ms, options.start_confirm_ms
        self._store: TimedStore | None = None
        self._recorded_ms = 0  # The value of `ahead_ms` in the log.
        self._offset_ms = 0  # Trusted time minus monotonic time.
        self._seen_ms = 0  # Wall time minus monotonic time at the last call of `observe`.
        self._steady_mono_ms = 0  # The monotonic time of the last jump, or of the first call.
        # The last store time that a standby has copied, and the monotonic time of the copy.
        self._copied: tuple[int, int] | None = None
        self._confirm_ms = 0
        self._drift_mono_ms = 0
        state_log.own(ClockDoubted, self._replay)
        state_log.on_snapshot(lambda: [ClockDoubted(self._recorded_ms)] if self._recorded_ms else [])

    def copied(self, stored_ms: int, mono_ms: int) -> None:
        """Note the store time of the last unit that a standby has copied, which shows the clock of the owner."""
        if stored_ms and (self._copied is None or stored_ms != self._copied[0]):
            self._copied = stored_ms, mono_ms

    def begin(self, store: TimedStore, now_ms: int, mono_ms: int) -> None:
        """Compare the wall clock with the last unit of the log.

        A standby has already compared its two clocks. Its trusted time continues from the time at which it copied the
        last unit.
        """
        self._store = store
        was_doubted = self._recorded_ms > STEP_MS
        trusted_ms = store.recovered_ms - self._recorded_ms if store.recovered_ms else now_ms
        if self._copied is not None:
            trusted_ms += mono_ms - self._copied[1]
        self._follow_steps(now_ms, mono_ms)
        self._offset_ms, self._drift_mono_ms = trusted_ms - mono_ms, mono_ms
        self._confirm_ms = self._confirm_jump_ms if was_doubted else self._confirm_start_ms
        by_ms = now_ms - trusted_ms
        if abs(by_ms) > STEP_MS:
            why = "it jumped before the restart" if was_doubted else "the broker was off, or the clock is wrong"
            log.warning(
                "the clock differs from the log: last_stored=%s now=%s by_ms=%d: %s; trusted in_ms=%d",
                _text(trusted_ms), _text(now_ms), by_ms, why, self._confirm_ms,
            )  # fmt: skip

    def observe(self, now_ms: int, mono_ms: int) -> None:
        """Detect a jump. Must be called before any decision that depends on the wall clock."""
        store = self._store
        if store is None:
            self._follow_steps(now_ms, mono_ms)
            return
        seen_ms = now_ms - mono_ms
        by_ms, self._seen_ms = seen_ms - self._seen_ms, seen_ms
        ahead_ms = seen_ms - self._offset_ms
        if by_ms > STEP_MS or by_ms < -STEP_MS:
            self._jumped(by_ms, now_ms, mono_ms)
        if -STEP_MS <= ahead_ms <= STEP_MS:
            self._follow(ahead_ms, mono_ms)
        elif mono_ms - self._steady_mono_ms >= self._confirm_ms:
            log.warning("the clock is trusted from now on: now=%s by_ms=%d", _text(now_ms), ahead_ms)
            self._offset_ms, ahead_ms = seen_ms, 0
        self.ahead_ms = ahead_ms if ahead_ms > STEP_MS else 0
        if self.ahead_ms != self._recorded_ms and not 0 < abs(self.ahead_ms - self._recorded_ms) <= STEP_MS:
            self._record(now_ms)
        if store.stored_ms - now_ms > STEP_MS and ahead_ms >= -STEP_MS:
            self._set_back(store, now_ms)

    def careful_ms(self, now_ms: int, mono_ms: int) -> int:
        """Return the earlier of wall clock and trusted time, which decides about deletions."""
        trusted_ms = mono_ms + self._offset_ms
        return now_ms if self._store is None or now_ms <= trusted_ms + STEP_MS else trusted_ms

    # -- Internal

    def _follow_steps(self, now_ms: int, mono_ms: int) -> None:
        """Note since when the wall clock has not jumped, while there is no log to compare it with."""
        seen_ms = now_ms - mono_ms
        if not self._steady_mono_ms or abs(seen_ms - self._seen_ms) > STEP_MS:
            self._steady_mono_ms = mono_ms
        self._seen_ms = seen_ms

    def _jumped(self, by_ms: int, now_ms: int, mono_ms: int) -> None:
        self.jumps += 1
        self._steady_mono_ms = mono_ms
        is_ahead = now_ms - mono_ms - self._offset_ms > STEP_MS
        self._confirm_ms = self._confirm_jump_ms if is_ahead else self._confirm_start_ms
        log.warning(
            "the clock jumped: expected=%s found=%s by_ms=%d; nothing is deleted by it, it is trusted in_ms=%d",
            _text(now_ms - by_ms), _text(now_ms), by_ms,
            self._confirm_ms if abs(now_ms - mono_ms - self._offset_ms) > STEP_MS else 0,
        )  # fmt: skip
        self.on_step(by_ms)
        if by_ms > 0 and self._store is not None:
            try:
                self._store.undo_time_back(now_ms)
            except StoreError as error:
                log.warning(
                    "store times not corrected, those before this time count as older: now=%s reason=%r",
                    _text(now_ms),
                    str(error),
                )

    def _follow(self, ahead_ms: int, mono_ms: int) -> None:
        """Move the trusted time towards the wall clock, which NTP keeps correct, by a limited step."""
        passed_ms = mono_ms - self._drift_mono_ms
        if passed_ms >= DRIFT_MS_MIN:
            self._drift_mono_ms = mono_ms
            most_ms = passed_ms // DRIFT_SHARE
            self._offset_ms += max(-most_ms, min(most_ms, ahead_ms))

    def _record(self, now_ms: int) -> None:
        """Record in the log whether the clock is trusted. If the store refuses, the next turn tries again."""
        try:
            self._state_log.commit([ClockDoubted(self.ahead_ms)], now_ms)
        except StoreError:
            pass

    def _set_back(self, store: TimedStore, now_ms: int) -> None:
        try:
            before_ms = store.stored_ms
            store.set_time_back(now_ms)
        except StoreError:
            return  # The store refuses appends; the correction is repeated after the next start.
        log.warning("store times continue, from the corrected clock: before=%s now=%s", _text(before_ms), _text(now_ms))
        try:
            self.on_set_back(now_ms)
        except StoreError as error:
            log.warning("schedules still wait, for times of the wrong clock: reason=%r", str(error))

    def _replay(self, record: ClockDoubted, slot: EntrySlot) -> None:
        self._recorded_ms = record.ahead_ms


def _text(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return f"{ms} ms"


def _ignore(_: int) -> None:
    pass
