"""Topics that clients wait for before they are there.

A client that finds no route for a topic asks again after 30 s, and nothing that a broker may say makes it ask sooner.
So a consumer that comes before its topic would see the first messages that late. But at its start it asks twice within
moments, from two threads; and that much is known of who asks twice:

    name server   topic? none ── topic? none ─> a route of `topics.queues` queues, none of them there yet: expected
    consumer                                     its heartbeat names the topic, and makes it
                                                 likewise its retry topic, which any group's first heartbeat makes
    producer      topic? none ── template? ────> the first send makes the topic, as its sender wishes; sometimes it asks
                                                 twice, too, and then may name a queue that its own wish left out

What is expected is remembered for as long as a client may believe in such a route. Times are monotonic.
"""

from typing import Final

AGAIN_MS: Final = 5_000  # Two questions within so long are one client's start; its polls are 30 s apart.
EXPECTED_MS: Final = 60_000  # Two polls.
EXPECTED_MAX: Final = 10_000  # Topics; the oldest make room.
ASKED_MAX: Final = 100  # Topics of one connection; beyond, it starts over.


class RouteMisses:
    """The topics without a route that one connection has asked for."""

    __slots__ = ("_asked_mono_ms",)

    def __init__(self) -> None:
        self._asked_mono_ms: dict[str, int] = {}

    def is_asked_again(self, topic: str, mono_ms: int) -> bool:
        """Note the question; say whether it is the second one within moments."""
        asked = self._asked_mono_ms
        before = asked.get(topic)
        if len(asked) >= ASKED_MAX:
            asked.clear()
        asked[topic] = mono_ms
        return before is not None and mono_ms - before <= AGAIN_MS


class ExpectedTopics:
    """All expected topics, by name."""

    def __init__(self) -> None:
        self._until_mono_ms: dict[str, int] = {}  # The oldest first.

    def add(self, topic: str, mono_ms: int) -> None:
        until = self._until_mono_ms
        until.pop(topic, None)
        if len(until) >= EXPECTED_MAX:
            del until[next(iter(until))]
        until[topic] = mono_ms + EXPECTED_MS

    def has(self, topic: str, mono_ms: int) -> bool:
        until_mono_ms = self._until_mono_ms.get(topic)
        return until_mono_ms is not None and mono_ms < until_mono_ms
