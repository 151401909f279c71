"""The class VerdictCounts: how many half messages of each topic were committed and rolled back, and after how long."""

from collections.abc import Iterator
from typing import Final

from duolog.bridge.monitoring.histogram import FINISH_BOUNDS_S, Histogram
from duolog.bridge.transactions.op_messages import HalfDecision
from duolog.protocol.names import kafka_name
from duolog.txn.half_verdicts import HalfVerdict

TOPICS_MAX: Final = 10_000  # Topics of some 300 bytes each. The topic that was counted first is dropped for a new one.

_COUNTED: Final = {HalfVerdict.COMMITTED: 0, HalfVerdict.ROLLED_BACK: 1}


class VerdictCounts:
    """The verdicts since the broker started. Half messages that were given up are not counted."""

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        # The time from the append of a half message to its commit.
        self.commit_s = Histogram(FINISH_BOUNDS_S)
        self._topics: dict[str, list[int]] = {}  # By Kafka name: committed, rolled back.
        self._topics_max = topics_max

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, decision: HalfDecision, now_ms: int) -> None:
        """Count one verdict."""
        at = _COUNTED.get(decision.verdict)
        if at is None:
            return
        name = kafka_name(decision.topic)
        found = self._topics.get(name)
        if found is None:
            if len(self._topics) >= self._topics_max:
                del self._topics[next(iter(self._topics))]
            found = self._topics[name] = [0, 0]
        found[at] += 1
        if at == 0:
            self.commit_s.add(max(0, now_ms - decision.stored_ms) / 1000)

    def of(self, verdict: HalfVerdict) -> Iterator[tuple[str, int]]:
        """Yield the Kafka name of each topic, with its number of half messages of this verdict."""
        at = _COUNTED[verdict]
        for name, counts in [*self._topics.items()]:
            yield name, counts[at]
