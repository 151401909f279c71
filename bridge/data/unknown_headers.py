"""Headers and properties that look like a wish of the broker's, and are none: TIMER_DELAY_SECS asks for nothing.

    TIMER_, AMQ_SCHEDULED_, EXPIRE_, TRAN_MSG_    the names that mean something begin so; any other that does is
                                                  probably misspelled, and its message would be delivered at once
    delay.unknown.headers of the topic            warn: one line in the log for each producer, topic and name
                                                  refuse: the message is refused; ignore: it is a name like any other

Only messages with such a prefix in their headers come here: what looks for known names finds the prefixes by the same
search. What the broker itself writes (retries, dead letters) is not looked at.
"""

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from duolog.bridge.data import expiry, half_frames
from duolog.bridge.data.delay_headers import TIMER_NAMES, TIMER_REPLACE, DelayRefused
from duolog.bridge.state.topics import Topic
from duolog.delay.recurring import AMQ_NAMES
from duolog.protocol.rocketmq.messages import properties

WARN, REFUSE, IGNORE = CHOICES = ("warn", "refuse", "ignore")

TIMER_PREFIX: Final = "TIMER_"
AMQ_PREFIX: Final = "AMQ_SCHEDULED_"
EXPIRE_PREFIX: Final = expiry.PREFIX
HALF_PREFIX: Final = "TRAN_MSG_"
PREFIXES: Final = (TIMER_PREFIX, AMQ_PREFIX, EXPIRE_PREFIX, HALF_PREFIX)

# What the broker or Apache's writes into messages that were delayed; programs pass them on. MessageConst.java.
_WRITTEN: Final = (
    properties.TIMER_OUT_MS,
    properties.TIMER_ENQUEUE_MS,
    properties.TIMER_DEQUEUE_MS,
    properties.TIMER_DEL_UNIQKEY,
    "TIMER_ROLL_TIMES",
    "TIMER_ROLL_LABEL",
)
MEANT: Final = (*TIMER_NAMES, TIMER_REPLACE, *AMQ_NAMES, *expiry.NAMES, half_frames.ID, half_frames.CHECK_URL)
KNOWN: Final = frozenset((*MEANT, *_WRITTEN))

WARNED_MAX: Final = 10_000  # Triples of producer, topic and name; then all are forgotten, and may be warned of again.
NAME_CHARACTERS_MAX: Final = 100  # Of a name in the log.

log = logging.getLogger("bridge")


class Sender(Protocol):
    """The connection of a producer."""

    @property
    def wire(self) -> str: ...

    @property
    def peer(self) -> tuple[str, int]: ...


class UnknownNames:
    """Who was warned of which names."""

    def __init__(self) -> None:
        self._warned: set[tuple[tuple[str, int], int, str]] = set()

    def check(self, topic: Topic, names: Iterable[str], sender: Sender) -> None:
        """Refuse a message with an unknown name, or warn of it, as its topic says. Raises DelayRefused."""
        action = topic.settings.unknown_headers
        if action == IGNORE:
            return
        for name in unknown(names):
            if action == REFUSE:
                raise DelayRefused(said_of(name))
            self._warn(topic, name[:NAME_CHARACTERS_MAX], sender)

    def _warn(self, topic: Topic, name: str, sender: Sender) -> None:
        place = (sender.peer, topic.number, name)
        if place in self._warned:
            return
        if len(self._warned) >= WARNED_MAX:
            self._warned.clear()
        self._warned.add(place)
        log.warning(
            "unknown header, which asks for nothing name=%r topic=%s wire=%s peer=%s known=%s; the topic config "
            "delay.unknown.headers=refuse refuses such messages, =ignore ends this line",
            name, topic.name, sender.wire, f"{sender.peer[0]}:{sender.peer[1]}", ",".join(_like(name)),
        )  # fmt: skip


def unknown(names: Iterable[str]) -> list[str]:
    """Give those that begin like the broker's own and are none of them."""
    return [name for name in names if name.startswith(PREFIXES) and name not in KNOWN]


def said_of(name: str) -> str:
    """Say why a name is refused."""
    known = ", ".join(_like(name))
    return f"unknown header {name[:NAME_CHARACTERS_MAX]}; known are {known} (topic config delay.unknown.headers)"


def _like(name: str) -> list[str]:
    """Give the known names that begin in the same way."""
    return [known for known in MEANT if name.startswith(known.partition("_")[0] + "_")]
