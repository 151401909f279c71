"""Creates, changes and deletes topics, also on first use, within the limits of topics and queues.

Changes go through the state log. A change is visible at once; the promise that a method returns says when the change is
durable and may be answered. Every other answer that reports topics waits for `StateLog.barrier()`.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from duolog.bridge.config import TopicsOptions
from duolog.bridge.records.topics import (
    EpochStart,
    OriginsAdded,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
)
from duolog.bridge.state import topic_configs
from duolog.bridge.state.system_topics import SystemTopic, is_reserved
from duolog.bridge.state.topic_table import Topic, TopicStore, TopicTable, epoch_records
from duolog.protocol import names
from duolog.protocol.rocketmq.messages.flags import PERM_INHERIT, PERM_READ_WRITE
from duolog.protocol.rocketmq.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
)
from duolog.store.entry import SHARED, SYNCED, WRITTEN, Promise
from duolog.store.errors import StoreError
from duolog.store.options import LEVELS
from duolog.store.state_log import StateLog

logger = logging.getLogger("state")

ORIGINS_MAX: Final = 100  # Origins of one retry or dead-letter topic; beyond, it has messages of any topic.
ANY_ORIGIN: Final = "*"


class TopicError(Exception):
    """A topic cannot be created or changed in this way; each client protocol has an error code for it."""


class TopicExists(TopicError):
    """A topic has this name, or a name with the same spelling in the other client protocol."""


class UnknownTopic(TopicError):
    """There is no topic of this name."""


class InvalidTopicName(TopicError):
    """The name is not allowed, or is reserved for a topic of the broker."""


class InvalidQueueCount(TopicError):
    """The number of queues is too small or too large, or would decrease."""


class TooManyTopics(TopicError):
    """`topics.topics_max`, `topics.queues_in_all_max` or the share of `topics.group_topics_ratio` is reached."""


class Topics(TopicTable):
    """The topics of the broker, and what changes them.

    The class has more than 20 methods and 15 fields because it extends TopicTable, which holds and replays the state,
    by the methods that append changes of it.
    """

    def __init__(
        self,
        state_log: StateLog,
        options: TopicsOptions,
        *,
        system: Collection[SystemTopic] = (),
        config_defaults: Mapping[str, str] | None = None,
    ) -> None:
        """Register with the state log. `config_defaults` is the result of `topic_configs.broker_defaults`."""
        super().__init__(state_log, options, system, dict(config_defaults or {}))
        self.auto_create = options.auto_create
        self._state_log, self._options = state_log, options
        # Called with the queue keys of a deleted topic; not during recovery.
        self.on_deleted: Callable[[Sequence[int]], None] = lambda keys: None

    # -- Starting

    def attach(
        self, store: TopicStore, now_ms: int, *, clean: bool, has_lost: bool = False, is_takeover: bool = False
    ) -> None:
        """Connect topics with the queues of the recovered store.

        Drops the queues of deleted topics, creates missing system topics, and begins new leader epochs. `has_lost` says
        that some state records could not be replayed. The record that created a topic may be among them, so queues
        without a topic are not dropped then, but become a topic again.

        If the broker did not stop in order (`clean` is False), records that queues with `flush.mode=async` had shown
        may be lost. These queues get a higher leader epoch, which tells Kafka clients that the log may have changed.
        After a takeover from another broker (`is_takeover`), and at the first start after `duolog move --from` or
        `duolog restore`, all queues get one.
        """
        self.attach_store(store)
        numbers = {queue.topic for queue in store.queues()}
        without_topic = sorted(number for number in numbers if number not in self)
        if has_lost:
            for number in without_topic:
                self._recover(number, store, now_ms)
        if is_takeover or not clean:
            # The following records come later: if a power failure loses the epochs, the next start finds an empty run.
            self._begin_epochs(now_ms, SHARED if is_takeover else WRITTEN)
        if not has_lost:
            for number in without_topic:
                logger.warning("dropped queues of a deleted topic number=%d", number)
                store.drop_topic(number, now_ms)
        for system in self.system.values():
            if (topic := self.by_rocketmq_name(system.name)) is None:
                # The limits do not apply to system topics.
                self._create(system.name, system.queue_count, {}, now_ms, system.perm)
            elif topic.queue_count < system.queue_count:
                self._state_log.commit([TopicChanged(topic.number, queue_count=system.queue_count)], now_ms)

    def _recover(self, number: int, store: TopicStore, now_ms: int) -> None:
        """Create a topic for queues whose own topic was lost, so that their messages can be read or deleted."""
        name = f"recovered-{number}"
        while self.get(name) is not None:
            name += "-"
        queue_count = 1 + max(queue.queue_id for queue in store.queues() if queue.topic == number)
        logger.error("a topic was lost, its queues are now in topic name=%s queues=%d", name, queue_count)
        created = TopicCreated(number, name, uuid.uuid4(), queue_count, PERM_READ_WRITE, {}, now_ms)
        try:
            self._state_log.commit([created], now_ms)
        except StoreError as error:
            # The number must not be used again: a new topic with it would contain these messages.
            self.next_number = max(self.next_number, number + 1)
            logger.error("recovered topic not created, the next start tries again: name=%s reason=%r", name, str(error))

    def _begin_epochs(self, now_ms: int, level: int) -> None:
        """Let the queues up to this level of durability begin a leader epoch; an empty one may have lost all.

        It has the number of the run, which no other run has. The number after the last leader epoch could be given
        twice: this run may show records before its own record of the epochs survives it.
        """
        assert self.store is not None, "the store is not open"
        starts = [
            EpochStart(queue.key, self.store.epoch, queue.end_offset)
            for topic in self.all()
            for queue in topic.queues
            if queue.level <= level
        ]
        if starts:
            self._state_log.commit(epoch_records(starts), now_ms)

    # -- Changing

    def create(
        self, name: str, queue_count: int, configs: Mapping[str, str], now_ms: int, *, perm: int = PERM_READ_WRITE
    ) -> tuple[Topic, Promise]:
        """Create a topic. Raises TopicError, InvalidConfig, StoreError."""
        self.check_new(name, queue_count, configs)
        return self._create(name, queue_count, configs, now_ms, perm)

    def _create(
        self, name: str, queue_count: int, configs: Mapping[str, str], now_ms: int, perm: int
    ) -> tuple[Topic, Promise]:
        number = self.next_number
        created = TopicCreated(number, name, uuid.uuid4(), queue_count, perm, dict(configs), now_ms)
        promise = self._state_log.commit([created], now_ms).promise
        topic = self.by_number(number)
        assert topic is not None, "the replay of the record creates the topic"
        return topic, promise

    def check_new(self, name: str, queue_count: int, configs: Mapping[str, str]) -> None:
        """Raise what `create` would raise, for requests that only validate."""
        if not (names.is_kafka_topic(name) or names.is_rocketmq_topic(name)):
            raise InvalidTopicName(f"topic name {name[:300]!r} is legal neither in Kafka nor in RocketMQ")
        taken = self.by_kafka_name(names.kafka_name(name)) or self.by_rocketmq_name(names.rocketmq_name(name))
        if taken:
            raise TopicExists(f"topic {name} exists" + (f" as {taken.name}" if taken.name != name else ""))
        count = len(self) - len(self.system)
        if name not in self.system and count >= self._options.topics_max:
            raise TooManyTopics(f"{count} topics; topics.topics_max is {self._options.topics_max}")
        self._check_queue_count(name, queue_count, queue_count)
        if refusal := self.group_topics.refusal(names.rocketmq_name(name), queue_count):
            raise TooManyTopics(refusal)
        self._check_configs(configs)

    def delete(self, topic: Topic, now_ms: int) -> Promise:
        """Delete a topic with its records. Raises InvalidTopicName for a topic of the broker, and StoreError."""
        assert self.store is not None, "the store is not open"
        if topic.name in self.system:
            raise InvalidTopicName(f"topic {topic.name} is the broker's own")
        promise = self._state_log.free([TopicDeleted(topic.number)], now_ms).promise
        # The record comes first: after a crash in between, the next start finds queues without a topic and drops them.
        self.store.drop_topic(topic.number, now_ms)
        self.on_deleted([topic.key(queue_id) for queue_id in range(topic.queue_count)])
        return promise

    def add_queues(self, topic: Topic, queue_count: int, now_ms: int, requested_by: str) -> Promise:
        """Increase the number of queues to `queue_count`; `requested_by` names the request and its client for the log.

        Queues are never removed, because their records would be lost. New ones begin with the leader epoch of the run:
        if this change is lost with what they had shown, they do not begin again with the same one. Raises
        InvalidQueueCount, TooManyTopics, StoreError.
        """
        assert self.store is not None, "the store is not open"
        self.check_more_queues(topic, queue_count)
        # Logged as a warning, because keys move to other queues, and tools request it by default: mqadmin updateTopic
        # sends 8 queues without -r and -w.
        logger.warning(
            "topic gets more queues topic=%s from=%d to=%d asked_by=%s",
            topic.name, topic.queue_count, queue_count, requested_by,
        )  # fmt: skip
        epoch = self.store.epoch
        starts = [EpochStart(topic.key(queue_id), epoch, 0) for queue_id in range(topic.queue_count, queue_count)]
        changed = TopicChanged(topic.number, queue_count=queue_count)
        return self._state_log.commit([changed, *epoch_records(starts)], now_ms).promise

    def check_more_queues(self, topic: Topic, queue_count: int) -> None:
        """Raise what `add_queues` would raise, for requests that only validate."""
        if queue_count <= topic.queue_count:
            raise InvalidQueueCount(f"topic {topic.name} has {topic.queue_count} queues already")
        self._check_queue_count(topic.name, queue_count, queue_count - topic.queue_count)

    def configure(self, topic: Topic, configs: Mapping[str, str], now_ms: int) -> Promise:
        """Replace all overrides of the topic's configs. Raises InvalidConfig, StoreError."""
        self._check_configs(configs)
        return self._state_log.commit([TopicChanged(topic.number, configs=dict(configs))], now_ms).promise

    def _check_configs(self, configs: Mapping[str, str]) -> None:
        topic_configs.check(configs)
        if LEVELS[configs.get("flush.mode", "async")] > (SYNCED if self.store is None else self.store.level_max):
            raise topic_configs.InvalidConfig(
                f"topic config flush.mode={configs['flush.mode']} needs an object store: start the broker with --shared"
            )

    def add_origins(self, topic: Topic, origins: Iterable[str], now_ms: int) -> None:
        """Note that messages of these topics, in Kafka's spelling, are put into a retry or dead-letter topic.

        Above ORIGINS_MAX of them, the topic has messages of any topic. Raises StoreError.
        """
        new = set(origins) - topic.origins
        if not new or ANY_ORIGIN in topic.origins:
            return
        if len(topic.origins) + len(new) > ORIGINS_MAX:
            new = {ANY_ORIGIN}
        self._state_log.commit([OriginsAdded(topic.number, sorted(new))], now_ms)

    def permit(self, topic: Topic, perm: int, now_ms: int) -> Promise:
        """Set the permission of a topic for RocketMQ clients (PERM_* in `protocol.rocketmq.flags`)."""
        return self._state_log.commit([TopicChanged(topic.number, perm=perm)], now_ms).promise

    def _check_queue_count(self, name: str, queue_count: int, more: int) -> None:
        most = self._options.queues_max
        if not 1 <= queue_count <= most:
            raise InvalidQueueCount(f"topic {name} cannot have {queue_count} queues; 1 to {most} are allowed")
        if self.queue_count + more > self._options.queues_in_all_max:
            raise TooManyTopics(
                f"{self.queue_count} queues; topics.queues_in_all_max is {self._options.queues_in_all_max}"
            )

    # -- Creating on first use

    def auto_create_for_kafka(self, name: str, now_ms: int) -> Topic | None:
        """Create a topic that a Metadata request named; None if auto-creation is off, or not allowed for this name."""
        if not self.auto_create or not names.is_kafka_topic(name) or is_reserved(name):
            return None
        return self.create(name, self._options.queues, {}, now_ms)[0]

    def auto_create_for_rocketmq(self, name: str, template: str, requested_queues: int, now_ms: int) -> Topic | None:
        """Create a topic that a send request named; None if it may not be created.

        `template` is the topic in the request whose permission and number of queues are the maximum (TBW102). A retry
        topic is always created, with `requested_queues` queues, and a dead-letter topic with one queue
        (TopicConfigManager.java).
        """
        if name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and names.is_rocketmq_topic(name):
            queue_count = max(requested_queues, 1) if name.startswith(RETRY_PREFIX) else 1
            return self.create(name, queue_count, {}, now_ms)[0]
        pattern = self.by_rocketmq_name(template)
        if pattern is None or not pattern.perm & PERM_INHERIT or not self.may_auto_create_for_rocketmq(name):
            return None
        queue_count = min(requested_queues if requested_queues > 0 else self._options.queues, pattern.queue_count)
        return self.create(name, queue_count, {}, now_ms, perm=pattern.perm & ~PERM_INHERIT)[0]

    def may_auto_create_for_rocketmq(self, name: str) -> bool:
        """Return whether a send request may create a topic of this name from a template."""
        may = self.auto_create and names.is_rocketmq_topic(name)
        return may and not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and not is_reserved(name)
