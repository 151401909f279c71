"""Verdicts on half messages of Kafka producers: a commit and the message that it makes visible are one unit."""

from dataclasses import dataclass
from functools import partial

from duolog.bridge.clock import Clock
from duolog.bridge.data.half_frames import final_record, read_half
from duolog.bridge.data.publishing.publisher import Publisher
from duolog.bridge.data.units import NOTHING
from duolog.bridge.security.quotas.entity import QuotaClient
from duolog.bridge.state.topics import Topics
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.bridge.transactions.op_messages import HalfDecision
from duolog.store.entry import Promise, Stored
from duolog.store.store import Store
from duolog.txn.half_verdicts import HalfVerdict


@dataclass(frozen=True, slots=True)
class HalfDecisions:
    """Decides the half messages of Kafka producers."""

    clock: Clock
    store: Store
    topics: Topics
    halves: HalfMessageLog
    publisher: Publisher

    def decide(self, half: Stored, verdict: HalfVerdict, client: QuotaClient | None = None) -> Promise | None:
        """Append a verdict on a Kafka producer's half message; None if its topic was deleted.

        A delayed message counts in the quota of `client`, who commits it. Raises UnknownHalf, AlreadyDecided,
        StoreError, PendingQuotaReached if it cannot be counted, and DelayRefused if the delay is more than
        `delay.max_days` allows now.
        """
        now_ms = self.clock.now_ms()
        if not self.halves.state.judge(half.base_offset, verdict):
            return self.store.promise()  # The half message has this verdict already.
        plan = NOTHING
        _, name, queue_id, record = read_half(half.frame)
        if verdict is HalfVerdict.COMMITTED:
            topic = self.topics.get(name)
            if topic is None:
                return None
            final = final_record(record)
            # The message was counted in the metrics when it was sent, so its unit does not count it again.
            plan = self.publisher.unit_of(
                self.publisher.batches.plan_committed(
                    topic, queue_id % topic.queue_count, final, now_ms, sent_ms=half.stored_ms
                )
            )
        append = partial(self.publisher.append_accepted, client=client)
        return self.halves.end(half.base_offset, HalfDecision(verdict, name, half.stored_ms, plan), now_ms, append)
