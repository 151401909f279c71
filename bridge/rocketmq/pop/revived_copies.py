"""The copies of popped messages whose invisible time is over, for the group's retry topic or its dead-letter topic.

`revive.py` says which messages are copied.
"""

import logging
from typing import Final

from duolog.bridge.data.publishing.publisher import Publisher
from duolog.bridge.data.publishing.refusals import IllegalMessage
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.data.units import UnitPlan, joined
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.rocketmq.consuming.group_configs import GroupConfigs
from duolog.bridge.rocketmq.pop.pop_checkpoints import PopCheckpoint, settled
from duolog.bridge.rocketmq.retry import dead_letters
from duolog.bridge.rocketmq.retry.failed_copies import copy_of, counted_failure, fixed
from duolog.bridge.rocketmq.retry.retry_topics import RetryTopics
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.bridge.state.wall_time import WallTime
from duolog.protocol.rocketmq.bodies import SubscriptionGroupConfig
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.entry import Buffer
from duolog.store.index.queue import Queue

RECEIPT_BYTES_MAX: Final = 512  # The size of the receipt in the properties of a message that is popped again.

logger = logging.getLogger("rocketmq")


class RevivedCopies:
    """Makes and appends the copies."""

    def __init__(
        self,
        configs: GroupConfigs,
        topics: Topics,
        retry_topics: RetryTopics,
        publisher: Publisher,
        metrics: Metrics,
        poison_records: PoisonRecords,
        wall_time: WallTime,
    ) -> None:
        self._configs, self._topics, self._retry_topics, self._publisher = configs, topics, retry_topics, publisher
        self._metrics, self._poison_records, self._wall_time = metrics, poison_records, wall_time

    def append(self, checkpoint: PopCheckpoint, topic: Topic, found: Records, now_ms: int) -> None:
        """Append the copies of the pending messages of `found`, and the end of their invisible time, as one unit.

        Raises ANSWERABLE, and then nothing was appended.
        """
        done = [offset for offset in checkpoint.pending if offset < found.next_offset]
        failed = [buffer for buffer in found.buffers if checkpoint.is_pending(message.queue_offset_of(buffer))]
        plans = self._plans(checkpoint, topic, failed, now_ms)
        self._publisher.append(joined(plans, [settled(checkpoint.name, done)]), now_ms)

    def _plans(self, checkpoint: PopCheckpoint, topic: Topic, failed: list[Buffer], now_ms: int) -> list[UnitPlan]:
        """Plan the copies of the messages that were not acknowledged."""
        config = self._retry_topics.group_config(self._configs.name_of(checkpoint.name.group))
        plans: list[UnitPlan] = []
        for buffer in failed:
            try:
                copy = self._copy(checkpoint, topic, config, buffer, now_ms)
            except Exception as error:  # noqa: BLE001 - set aside, or raised again
                _, queue_id = Queue.split(checkpoint.name.key)
                place = f"{topic.name} queue {queue_id}, offset {message.queue_offset_of(buffer)}"
                self._poison_records.set_aside("popped message", place, error)
                continue
            if copy is None:
                continue
            again, is_dead = copy
            target = self._target(config, topic, is_dead=is_dead)
            try:
                plans.append(self._publisher.messages.plan_messages(target, 0, [again], now_ms))
            except IllegalMessage as error:
                # Only a Kafka record can be too large: its headers fill the format, and the copy has more properties.
                logger.warning("popped message not sent again group=%s reason=%r", config.group_name, str(error))
                continue
            dead_letters.count(self._metrics, is_dead=is_dead)
        return plans

    def _target(self, config: SubscriptionGroupConfig, topic: Topic, *, is_dead: bool) -> Topic:
        origins = self._retry_topics.origins_of(topic.rocketmq_name)
        if is_dead:
            return self._retry_topics.dead_letters_of(config, origins)
        return self._retry_topics.popped_retries_of(config.group_name, topic, origins)

    def _copy(
        self, checkpoint: PopCheckpoint, topic: Topic, config: SubscriptionGroupConfig, buffer: Buffer, now_ms: int
    ) -> tuple[Message, bool] | None:
        """Return the copy of a message, and whether it is a dead letter; None: no copy is made."""
        each = message.decode(buffer)
        raw = each.properties = properties.repaired(each.properties)
        expires_ms = dead_letters.expiry_of(self._topics, each)
        has_expired = expires_ms is not None and expires_ms <= now_ms - self._wall_time.ahead_ms
        if has_expired and dead_letters.drops_expired(self._topics, topic, raw):
            return None
        first_ms = properties.get(raw, properties.FIRST_POP_TIME) or str(checkpoint.name.pop_ms)
        if has_expired and expires_ms:
            return dead_letters.expired_copy(each, expires_ms), True
        popped = {properties.FIRST_POP_TIME: first_ms, properties.POP_CK: None}
        changes = {**popped, **fixed(expires_ms), **counted_failure(each, now_ms)}
        again = copy_of(each, changes)
        # The copy gets a receipt when it is popped again. Without room for it, no pop of the queue could be answered.
        is_full = len(again.properties) > message.PROPERTIES_BYTES_MAX - RECEIPT_BYTES_MAX
        reason = dead_letters.reason_of(each.reconsume_times + 1, config.retry_max_times, is_full=is_full)
        if reason is None:
            return again, False
        return copy_of(each, {**changes, dead_letters.REASON: reason}), True
