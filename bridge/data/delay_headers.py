"""What a message asks for about its time: read from RocketMQ's properties, or from a Kafka record's headers.

    DELAY               level 1..n of `delay.levels`; above the greatest: the greatest; wins over all below
    TIMER_DELAY_SEC     seconds from now                 of these three the first that is there counts
    TIMER_DELAY_MS      milliseconds from now
    TIMER_DELIVER_MS    wall time in milliseconds
    AMQ_SCHEDULED_*     ActiveMQ's names, all of them text: a delay, or a schedule (`delay/recurring.py`)

A RocketMQ property is text. A Kafka header's value is text if all of it is ASCII digits, else a big-endian integer of
eight bytes; of a name that occurs twice the last counts. A time that has passed asks for nothing: the message is
delivered at once. What cannot be read, or lies beyond `delay.max_days`, is refused. Source: HookUtils.java.

A delayed message with TIMER_REPLACE = true takes the place of those that wait for the same topic with the same key
(Kafka's record key, RocketMQ's KEYS): they are cancelled in its own unit.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from duolog.bridge.config import (
    DAY_MS,
    SECOND_MS,
    DelayOptions,
    level_delays_ms,
)
from duolog.delay.recurring import (
    AMQ_DELAY,
    AMQ_NAMES,
    BadSchedule,
    Schedule,
    activemq,
)
from duolog.protocol.kafka.record_batch import Header
from duolog.protocol.rocketmq.messages import properties

# In the order in which they count, with what turns them into milliseconds.
_SCALES: Final = {
    properties.TIMER_DELAY_SEC: SECOND_MS,
    properties.TIMER_DELAY_MS: 1,
    properties.TIMER_DELIVER_MS: 1,
}
TIMER_NAMES: Final = tuple(_SCALES)
_ABSOLUTE: Final = properties.TIMER_DELIVER_MS

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_BYTES_OF_INTEGER: Final = 8
_DIGITS_MAX: Final = 19


TIMER_REPLACE: Final = "TIMER_REPLACE"
_YES: Final = "true"


class DelayRefused(Exception):
    """The time that a message asks for cannot be read, or is too far away; the text names property and limit."""


class Wish(NamedTuple):
    """When to deliver, and by which level RocketMQ's tools show it; 0: a time of the sender's own choice."""

    due_ms: int
    level: int = 0
    schedule: Schedule | None = None  # the message recurs; `due_ms` is its first run


class Wishes:
    """Reads what messages ask for."""

    def __init__(self, options: DelayOptions) -> None:
        self._levels_ms = level_delays_ms(options.levels)
        self._max_days = options.max_days
        self._zone = options.time_zone

    def of_properties(self, found: Mapping[str, str], now_ms: int) -> Wish | None:
        """Read RocketMQ's properties; None: deliver now. Raises DelayRefused."""
        level = integer(properties.DELAY, found[properties.DELAY].strip()) if properties.DELAY in found else 0
        if level > 0:
            level = min(level, len(self._levels_ms))
            return Wish(now_ms + self._levels_ms[level - 1], level)
        for name in TIMER_NAMES:
            if name in found:
                return self._wish(name, integer(name, found[name]), now_ms)
        return self._recurring(found, now_ms)

    def of_headers(self, headers: Sequence[Header], now_ms: int) -> Wish | None:
        """Read the headers of a Kafka record; None: deliver now. Raises DelayRefused."""
        found = {name: value for name, value in headers if name in _SCALES}
        for name in TIMER_NAMES:
            if name in found:
                return self._wish(name, integer_of_header(name, found[name]), now_ms)
        if any(name in AMQ_NAMES for name, _ in headers):
            return self._recurring({name: _text(value) for name, value in headers if name in AMQ_NAMES}, now_ms)
        return None

    def _recurring(self, found: Mapping[str, str], now_ms: int) -> Wish | None:
        """Read ActiveMQ's names, which may ask for a delay or a schedule."""
        try:
            asked = activemq(found, self._zone, now_ms)
            run = asked.first(now_ms) if isinstance(asked, Schedule) else None
        except BadSchedule as error:
            raise DelayRefused(str(error)) from error
        if isinstance(asked, Schedule):
            assert run is not None, "a schedule without an end"
            self._wish("the first run", run.due_ms, now_ms, is_absolute=True)
            return Wish(run.due_ms, schedule=asked)
        return self._wish(AMQ_DELAY, now_ms + asked, now_ms, is_absolute=True) if asked else None

    def at(self, due_ms: int, now_ms: int) -> Wish | None:
        """Check a time that was asked for otherwise."""
        return self._wish("the time asked for", due_ms, now_ms, is_absolute=True)

    def _wish(self, name: str, value: int, now_ms: int, *, is_absolute: bool = False) -> Wish | None:
        due_ms = value if is_absolute or name == _ABSOLUTE else now_ms + value * _SCALES[name]
        if due_ms <= now_ms:
            return None
        if due_ms - now_ms > self._max_days * DAY_MS:
            raise too_far(name if is_absolute else f"{name}={value}", due_ms - now_ms, self._max_days)
        return Wish(due_ms)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def replaces(found: Mapping[str, str]) -> bool:
    """Whether properties ask that the message replaces those with its key."""
    return found.get(TIMER_REPLACE, "").strip().lower() == _YES


def replaces_header(headers: Sequence[Header]) -> bool:
    """Whether the headers of a Kafka record ask for that."""
    for name, value in headers:  # noqa: SIM110  # `any` of a generator takes three times as long.
        if name == TIMER_REPLACE and (value or b"").strip().lower() == _YES.encode():
            return True
    return False


def too_far(what: str, away_ms: int, max_days: int) -> DelayRefused:
    days = -(-away_ms // DAY_MS)  # Rounded up: the limit itself is allowed.
    return DelayRefused(f"{what} is {days} days from now; delay.max_days is {max_days}")


def integer(name: str, text: str) -> int:
    """Read a number of RocketMQ's properties; raises DelayRefused."""
    if not _INTEGER.fullmatch(text):
        raise DelayRefused(f"{name} is no integer: {text[:40]!r}")
    return int(text)


def integer_of_header(name: str, value: bytes | None) -> int:
    """Read a number of a Kafka header; raises DelayRefused."""
    if value and value.isdigit():
        if len(value) > _DIGITS_MAX:
            raise DelayRefused(f"header {name} has {len(value)} digits; the largest time has {_DIGITS_MAX}")
        return int(value)
    if value is not None and len(value) == _BYTES_OF_INTEGER:
        return int.from_bytes(value, "big", signed=True)
    raise DelayRefused(f"header {name} has neither digits nor an integer of eight bytes: {(value or b'')[:40]!r}")
