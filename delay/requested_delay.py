"""The delivery time that a message asks for, checked against the limits of the broker."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from duolog.delay.recurring import Schedule

DAY_MS: Final = 86_400_000


class DelayRefused(Exception):
    """The requested delivery time cannot be read or is too far away; the text names the property and the limit."""


class RequestedDelay(NamedTuple):
    """The delivery that a message asks for."""

    due_ms: int
    level: int = 0  # RocketMQ's delay level; 0 if the sender chose a time of its own.
    schedule: Schedule | None = None  # Set if the message recurs; then `due_ms` is its first run.


class DelayLimits:
    """The delay levels, in milliseconds, and the longest delay, in days (`delay.max_days`)."""

    def __init__(self, levels_ms: Sequence[int], max_days: int) -> None:
        self._levels_ms, self._max_days = levels_ms, max_days

    def of_level(self, level: int, now_ms: int) -> RequestedDelay:
        """Delay a message by a level from 1 on; a greater level than there are means the greatest one."""
        level = min(level, len(self._levels_ms))
        return RequestedDelay(now_ms + self._levels_ms[level - 1], level)

    def check_due_time(
        self, due_ms: int, now_ms: int, name: str = "the time asked for", value: int | None = None
    ) -> RequestedDelay | None:
        """Return the delay until a due time; None if the time has passed.

        Raises DelayRefused if the time is too far away. Its text has `name`, the property that asks for the time, and
        `value`, unless that is None.
        """
        if due_ms <= now_ms:
            return None
        if due_ms - now_ms > self._max_days * DAY_MS:
            raise too_far(name if value is None else f"{name}={value}", due_ms - now_ms, self._max_days)
        return RequestedDelay(due_ms)


def too_far(what: str, away_ms: int, max_days: int) -> DelayRefused:
    """Make the error for a time beyond `delay.max_days`."""
    days = -(-away_ms // DAY_MS)  # Rounded up: the limit itself is allowed.
    return DelayRefused(f"{what} is {days} days from now; delay.max_days is {max_days}")
