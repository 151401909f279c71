"""What a message asks about its delivery time: read from RocketMQ's properties or from a Kafka record's headers.

    DELAY               A level from 1 to n of `delay.levels`. A greater number means the greatest level. It overrides
                        all names below.
    TIMER_DELAY_SEC     Seconds from now. The first of these three names that is present counts.
    TIMER_DELAY_MS      Milliseconds from now.
    TIMER_DELIVER_MS    Wall time in milliseconds.
    AMQ_SCHEDULED_*     ActiveMQ's names, whose values are text: a delay or a schedule (`delay/recurring.py`).

A RocketMQ property is text. The value of a Kafka header is text if it consists of ASCII digits, otherwise a big-endian
integer of eight bytes. If a header name occurs twice, the last one counts. A time that has passed means no delay. A
value that cannot be read, or that lies beyond `delay.max_days`, is refused. Source: HookUtils.java.

A delayed message with TIMER_REPLACE = true replaces the pending messages of the same topic and key (Kafka's record key,
RocketMQ's KEYS). The unit that stores the new message cancels the old ones.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from duolog.bridge.config import (
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
from duolog.delay.requested_delay import DelayLimits, DelayRefused, RequestedDelay
from duolog.protocol.kafka.record_batch import Header
from duolog.protocol.rocketmq.messages import properties

# In order of precedence, with the factor that converts each value to milliseconds.
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
REPLACING_MAX: Final = 1_024  # Messages of a batch. Each is looked up in all sorted tables, at 10 us for each table.
_YES: Final = "true"


class DelayParser:
    """Reads delays and schedules from properties and headers."""

    def __init__(self, options: DelayOptions) -> None:
        self.limits = DelayLimits(level_delays_ms(options.levels), options.max_days)
        self._zone = options.time_zone

    def parse_properties(self, found: Mapping[str, str], now_ms: int) -> RequestedDelay | None:
        """Read RocketMQ's properties; return None if the message is not delayed. Raises DelayRefused."""
        level = integer(properties.DELAY, found[properties.DELAY].strip()) if properties.DELAY in found else 0
        if level > 0:
            return self.limits.of_level(level, now_ms)
        for name in TIMER_NAMES:
            if name in found:
                return self._delay(name, integer(name, found[name]), now_ms)
        return self._activemq(found, now_ms)

    def parse_headers(self, headers: Sequence[Header], now_ms: int) -> RequestedDelay | None:
        """Read the headers of a Kafka record; return None if it is not delayed. Raises DelayRefused."""
        found = {name: value for name, value in headers if name in _SCALES}
        for name in TIMER_NAMES:
            if name in found:
                return self._delay(name, integer_of_header(name, found[name]), now_ms)
        if any(name in AMQ_NAMES for name, _ in headers):
            return self._activemq({name: _text(value) for name, value in headers if name in AMQ_NAMES}, now_ms)
        return None

    def _activemq(self, found: Mapping[str, str], now_ms: int) -> RequestedDelay | None:
        """Read ActiveMQ's names, which ask for a delay or a schedule."""
        try:
            asked = activemq(found, self._zone, now_ms)
            run = asked.first(now_ms) if isinstance(asked, Schedule) else None
        except BadSchedule as error:
            raise DelayRefused(str(error)) from error
        if isinstance(asked, Schedule):
            assert run is not None, "a schedule without an end"
            self.limits.check_due_time(run.due_ms, now_ms, "the first run")
            return RequestedDelay(run.due_ms, schedule=asked)
        return self.limits.check_due_time(now_ms + asked, now_ms, AMQ_DELAY) if asked else None

    def _delay(self, name: str, value: int, now_ms: int) -> RequestedDelay | None:
        due_ms = value if name == _ABSOLUTE else now_ms + value * _SCALES[name]
        return self.limits.check_due_time(due_ms, now_ms, name, value)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def replaces(found: Mapping[str, str]) -> bool:
    """Return whether the properties ask to replace the pending messages with the same key."""
    return found.get(TIMER_REPLACE, "").strip().lower() == _YES


def replaces_header(headers: Sequence[Header]) -> bool:
    """Return whether the headers of a Kafka record ask to replace the pending messages with the same key."""
    for name, value in headers:  # noqa: SIM110  # `any` of a generator takes three times as long.
        if name == TIMER_REPLACE and (value or b"").strip().lower() == _YES.encode():
            return True
    return False


def integer(name: str, text: str) -> int:
    """Read an integer from the text of a RocketMQ property. Raises DelayRefused."""
    if not _INTEGER.fullmatch(text):
        raise DelayRefused(f"{name} is no integer: {text[:40]!r}")
    return int(text)


def integer_of_header(name: str, value: bytes | None) -> int:
    """Read an integer from the value of a Kafka header. Raises DelayRefused."""
    if value and value.isdigit():
        if len(value) > _DIGITS_MAX:
            raise DelayRefused(f"header {name} has {len(value)} digits; the largest time has {_DIGITS_MAX}")
        return int(value)
    if value is not None and len(value) == _BYTES_OF_INTEGER:
        return int.from_bytes(value, "big", signed=True)
    raise DelayRefused(f"header {name} has neither digits nor an integer of eight bytes: {(value or b'')[:40]!r}")
