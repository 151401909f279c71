"""Headers and properties whose names look like delay headers and are unknown, such as TIMER_DELAY_SECS.

    TIMER_, AMQ_SCHEDULED_, EXPIRE_, TRAN_MSG_    The prefixes of the names that have a meaning. Any other name with
                                                  such a prefix is probably misspelled, and its message would be
                                                  delivered at once.
    delay.unknown.headers of the topic            warn: the log has one line for each producer, topic and name.
                                                  refuse: the message is refused. ignore: the name has no meaning.

Only messages with such a prefix in their headers are checked, because the search for known names finds the prefixes as
well. Messages that the broker itself writes (retries, dead letters) are not checked.
"""

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from duolog.bridge.data import expiry, half_frames
from duolog.bridge.data.delayed.delay_headers import TIMER_NAMES, TIMER_REPLACE
from duolog.bridge.state.topic_table import Topic
from duolog.delay.recurring import AMQ_NAMES
from duolog.delay.requested_delay import DelayRefused
from duolog.protocol.rocketmq.messages import properties

WARN, REFUSE, IGNORE = CHOICES = ("warn", "refuse", "ignore")

TIMER_PREFIX: Final = "TIMER_"
AMQ_PREFIX: Final = "AMQ_SCHEDULED_"
EXPIRE_PREFIX: Final = expiry.PREFIX
HALF_PREFIX: Final = "TRAN_MSG_"
PREFIXES: Final = (TIMER_PREFIX, AMQ_PREFIX, EXPIRE_PREFIX, HALF_PREFIX)

# Duolog and Apache RocketMQ set these properties of delayed messages, and programs may forward them. Source:
# MessageConst.java.
_WRITTEN: Final = (
    properties.TIMER_OUT_MS,
    properties.TIMER_ENQUEUE_MS,
    properties.TIMER_DEQUEUE_MS,
    properties.TIMER_DEL_UNIQKEY,
    "TIMER_ROLL_TIMES",
    "TIMER_ROLL_LABEL",
)
MEANINGFUL: Final = (*TIMER_NAMES, TIMER_REPLACE, *AMQ_NAMES, *expiry.NAMES, half_frames.ID, half_frames.CHECK_URL)
KNOWN: Final = frozenset((*MEANINGFUL, *_WRITTEN))

# The number of (producer, topic, name) for which the log has a line. At the limit all are forgotten, and may be logged
# again.
WARNED_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 100  # The length of a header name in a log line.

log = logging.getLogger("data")


class Sender(Protocol):
    """The connection of a producer."""

    @property
    def wire(self) -> str: ...

    @property
    def peer(self) -> tuple[str, int]: ...


class UnknownHeaders:
    """Refuses unknown names or warns of them, and remembers which producers it warned."""

    def __init__(self) -> None:
        self._warned: set[tuple[tuple[str, int], int, str]] = set()

    def check(self, topic: Topic, names: Iterable[str], sender: Sender) -> None:
        """Refuse a message with an unknown name, or warn of it, as its topic is configured. Raises DelayRefused."""
        action = topic.settings.unknown_headers
        if action == IGNORE:
            return
        for name in unknown(names):
            if action == REFUSE:
                raise DelayRefused(refusal_of(name))
            self._warn(topic, name[:NAME_CHARACTERS_MAX], sender)

    def _warn(self, topic: Topic, name: str, sender: Sender) -> None:
        warned = (sender.peer, topic.number, name)
        if warned in self._warned:
            return
        if len(self._warned) >= WARNED_MAX:
            self._warned.clear()
        self._warned.add(warned)
        log.warning(
            "unknown header, which asks for nothing name=%r topic=%s wire=%s peer=%s known=%s; the topic config "
            "delay.unknown.headers=refuse refuses such messages, =ignore ends this line",
            name, topic.name, sender.wire, f"{sender.peer[0]}:{sender.peer[1]}", ",".join(_known_like(name)),
        )  # fmt: skip


def unknown(names: Iterable[str]) -> list[str]:
    """Return the names that have a prefix of the known names and are unknown."""
    return [name for name in names if name.startswith(PREFIXES) and name not in KNOWN]


def refusal_of(name: str) -> str:
    """Return the text of the error for an unknown name."""
    known = ", ".join(_known_like(name))
    return f"unknown header {name[:NAME_CHARACTERS_MAX]}; known are {known} (topic config delay.unknown.headers)"


def _known_like(name: str) -> list[str]:
    """Return the known names with the same prefix."""
    return [known for known in MEANINGFUL if name.startswith(known.partition("_")[0] + "_")]
