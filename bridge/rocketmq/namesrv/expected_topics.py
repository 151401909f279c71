"""Expected topics: routes for topics that do not exist yet, so that consumers get their first messages without delay.

A client that finds no route for a topic asks again after 30 s, and a broker cannot make it ask earlier. So a consumer
that starts before its topic exists would get its first messages up to 30 s late. But a starting consumer asks twice
within moments, from two threads, and the second question is answered with a route:

    name server   topic? none ── topic? none ─> a route with `topics.queues` queues, which do not exist yet: expected
    consumer                                     its heartbeat names the topic, which creates it
                                                 its first heartbeat also creates the retry topic of its group
    producer      topic? none ── template? ────> its first send creates the topic, with the number of queues in the
                                                 request; a producer may ask twice, too, and then send to a queue
                                                 beyond that number

An expected topic is remembered as long as a client may use such a route. Times are monotonic.
"""

from typing import Final

AGAIN_MS: Final = 5_000  # The most time between two questions of a starting client. Its polls are 30 s apart.
EXPECTED_MS: Final = 60_000  # The time of two polls.
EXPECTED_MAX: Final = 10_000  # The number of expected topics. The oldest is dropped for a new one.
ASKED_MAX: Final = 100  # The number of topics of one connection. When it is reached, all are dropped.


class RouteMisses:
    """The topics without a route for which one connection has asked."""

    __slots__ = ("_asked_mono_ms",)

    def __init__(self) -> None:
        self._asked_mono_ms: dict[str, int] = {}

    def is_asked_again(self, topic: str, mono_ms: int) -> bool:
        """Note a question for a topic; return whether it is the second one within AGAIN_MS."""
        asked = self._asked_mono_ms
        before = asked.get(topic)
        if len(asked) >= ASKED_MAX:
            asked.clear()
        asked[topic] = mono_ms
        return before is not None and mono_ms - before <= AGAIN_MS


class ExpectedTopics:
    """All expected topics by name."""

    def __init__(self) -> None:
        self._until_mono_ms: dict[str, int] = {}  # In the order of their times.

    def add(self, topic: str, mono_ms: int) -> None:
        """Expect a topic from now on for EXPECTED_MS."""
        until = self._until_mono_ms
        until.pop(topic, None)
        if len(until) >= EXPECTED_MAX:
            del until[next(iter(until))]
        until[topic] = mono_ms + EXPECTED_MS

    def has(self, topic: str, mono_ms: int) -> bool:
        """Return whether a topic is expected."""
        until_mono_ms = self._until_mono_ms.get(topic)
        return until_mono_ms is not None and mono_ms < until_mono_ms
