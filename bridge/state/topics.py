"""Topics: their names, numbers, queues, configs and leader epochs.

The number of a topic is never used again: a topic that is deleted and created again has a new number, a new id, and
offsets from 0. Its name is stored in the spelling of the request that created it, and is found by the spelling of
either client protocol (`protocol.names`).

Changes go through the state log. A change is visible at once; the promise that a method returns says when the change is
durable and may be answered. Every other answer that reports topics waits for `StateLog.barrier()`.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from duolog.bridge.config import TopicsOptions
from duolog.bridge.records.codec import Record
from duolog.bridge.records.topics import (
    EpochStart,
    LeaderEpochsStarted,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
    TopicNumbersUsed,
)
from duolog.bridge.state import topic_configs
from duolog.bridge.state.group_topics import GroupTopics
from duolog.bridge.state.topic_configs import TopicSettings
from duolog.protocol import names
from duolog.protocol.rocketmq.messages.flags import PERM_INHERIT, PERM_READ_WRITE
from duolog.protocol.rocketmq.names import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    NOT_ALLOWED_TO_SEND,
    OP_HALF_TOPIC,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)
from duolog.store.entry import Promise, Slot
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog

QUEUE_ID_BITS = 16
EPOCHS_MAX = 64  # The number of epochs that are kept for a queue. Of older ones only the end of the last is known.
EPOCH_STARTS_IN_RECORD = 1000
AUTO_CREATED_QUEUES_MAX = (
    8  # TopicConfigManager.java: TBW102's own number limits the queues that a producer may ask for.
)

_KAFKA_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})

logger = logging.getLogger("bridge")


class TopicError(Exception):
    """A topic cannot be created or changed in this way; each client protocol has an error code for it."""


class TopicExists(TopicError):
    """A topic has this name, or a name with the same spelling in the other client protocol."""


class UnknownTopic(TopicError):
    pass


class InvalidTopicName(TopicError):
    pass


class InvalidQueueCount(TopicError):
    pass


class TooManyTopics(TopicError):
    """`topics.topics_max`, `topics.queues_in_all_max` or the share of `topics.group_topics_ratio` is reached."""


class TopicStore(Protocol):
    """What topics use of the store."""

    def queue(self, key: int) -> Queue: ...

    def queues(self) -> Iterable[Queue]: ...

    def drop_topic(self, number: int, now_ms: int) -> None: ...


class SystemTopic(NamedTuple):
    """A topic that the broker creates at its start. All clients may read it; producers only with `may_produce`."""

    name: str
    queue_count: int
    perm: int = PERM_READ_WRITE
    may_produce: bool = False


def system_topics(cluster: str, broker: str, delay_levels: int = 18) -> Collection[SystemTopic]:
    """Return the topics that RocketMQ clients and tools expect, and the topics of delayed messages."""
    return (
        SystemTopic(AUTO_CREATE_TOPIC, AUTO_CREATED_QUEUES_MAX, PERM_READ_WRITE | PERM_INHERIT),
        # RocketMQ's tools send to this topic to measure a cluster.
        SystemTopic(cluster, 16, PERM_READ_WRITE | PERM_INHERIT, may_produce=True),
        SystemTopic(broker, 1, PERM_READ_WRITE | PERM_INHERIT, may_produce=True),
        SystemTopic(cluster + REPLY_SUFFIX, 1, may_produce=True),
        SystemTopic(TRACE_TOPIC, 1, may_produce=True),
        SystemTopic(HALF_TOPIC, 1),
        SystemTopic(OP_HALF_TOPIC, 1),
        SystemTopic(TRANS_CHECK_MAX_TIME_TOPIC, 1),
        SystemTopic(SCHEDULE_TOPIC, delay_levels),
        SystemTopic(TIMER_TOPIC, 1),
    )


@dataclass(slots=True, eq=False)
class Topic:
    """One topic. Only the replay of state records changes it."""

    number: int
    name: str
    id: uuid.UUID
    perm: int
    created_ms: int
    queue_count: int
    configs: Mapping[str, str]  # Overrides only.
    settings: TopicSettings
    kafka_name: str
    rocketmq_name: str
    # Whether Kafka clients see the topic in listings. They do not see the templates that RocketMQ's tools need.
    is_listed: bool
    may_produce: bool
    queues: list[Queue] = field(default_factory=list)  # In the order of queue ids.
    # By queue id; without an entry, the epoch is 0 from offset 0.
    epochs: dict[int, list[EpochStart]] = field(default_factory=dict)

    def key(self, queue_id: int) -> int:
        return self.number << QUEUE_ID_BITS | queue_id

    def leader_epoch(self, queue_id: int) -> int:
        starts = self.epochs.get(queue_id)
        return starts[-1].epoch if starts else 0

    def epoch_at(self, queue_id: int, offset: int) -> tuple[int, int | None]:
        """Return the leader epoch of an offset, and the offset at which the next epoch begins, if there is one."""
        epoch = 0
        for start in self.epochs.get(queue_id, ()):
            if start.start_offset > offset:
                return epoch, start.start_offset
            epoch = start.epoch
        return epoch, None

    def epoch_end(self, queue_id: int, epoch: int) -> tuple[int, int]:
        """Return what OffsetForLeaderEpoch answers: the greatest epoch up to `epoch`, and its end offset.

        Returns (-1, -1) if that epoch is unknown.
        """
        starts = self.epochs.get(queue_id, ())
        if epoch > self.leader_epoch(queue_id) or epoch < 0:
            return -1, -1
        known, end = -1 if len(starts) == EPOCHS_MAX else 0, self.queues[queue_id].visible_end
        for start in starts:
            if start.epoch > epoch:
                return known, start.start_offset
            known = start.epoch
        return known, end


class Topics:
    """All topics of the broker.

    The class has more than twenty methods, because creating, changing and deleting topics share the names in both
    spellings and the limits of topics and queues.
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
        self.version = 0  # Incremented with every change, so that caches of metadata can compare it.
        self.auto_create = options.auto_create
        self.config_defaults = dict(config_defaults or {})
        topic_configs.check(self.config_defaults)
        self._state_log, self._options = state_log, options
        self._system = {topic.name: topic for topic in system}
        self._next_number = 1
        self._queue_count = 0  # Invariant: the sum over all topics.
        self._group_topics = GroupTopics(options)
        self._by_number: dict[int, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._by_kafka_name: dict[str, Topic] = {}
        self._by_rocketmq_name: dict[str, Topic] = {}
        self._store: TopicStore | None = None
        # Called with the queue keys of a deleted topic; not during recovery.
        self.on_deleted: Callable[[Sequence[int]], None] = lambda keys: None
        self.by_kafka_name = self._by_kafka_name.get
        self.by_rocketmq_name = self._by_rocketmq_name.get
        self.by_number = self._by_number.get
        self.by_id = self._by_id.get
        state_log.own(TopicCreated, self._replay_created)
        state_log.own(TopicChanged, self._replay_changed)
        state_log.own(TopicDeleted, self._replay_deleted)
        state_log.own(TopicNumbersUsed, self._replay_numbers_used)
        state_log.own(LeaderEpochsStarted, self._replay_epochs)
        state_log.on_snapshot(lambda: [TopicNumbersUsed(self._next_number)])
        self._moment = state_log.on_copied_snapshot(lambda: self._by_number, self._records_of)

    # -- Finding

    def get(self, name: str) -> Topic | None:
        """Return the topic with this name in the spelling of either client protocol, or None."""
        return self._by_kafka_name.get(name) or self._by_rocketmq_name.get(name)

    def all(self) -> Collection[Topic]:
        return self._by_number.values()

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def __len__(self) -> int:
        return len(self._by_number)

    def queue(self, key: int) -> Queue | None:
        """Return the queue with this queue key, or None."""
        topic = self._by_number.get(key >> QUEUE_ID_BITS)
        queue_id = key & (1 << QUEUE_ID_BITS) - 1
        return topic.queues[queue_id] if topic is not None and queue_id < len(topic.queues) else None

    # -- Starting

    def attach(self, store: TopicStore, now_ms: int, *, clean: bool, has_lost: bool = False) -> None:
        """Connect topics with the queues of the recovered store.

        Drops the queues of deleted topics, creates missing system topics, and begins new leader epochs. `has_lost` says
        that some state records could not be replayed. The record that created a topic may be among them, so queues
        without a topic are not dropped then, but become a topic again.

        If the broker did not stop in order (`clean` is False), records that queues with `flush.mode=async` had shown
        may be lost. These queues get a higher leader epoch, which tells Kafka clients that the log may have changed.
        """
        self._store = store
        for topic in self._by_number.values():
            self._bind(topic)
        for number in sorted({queue.key >> QUEUE_ID_BITS for queue in store.queues()} - self._by_number.keys()):
            if has_lost:
                self._recover(number, now_ms)
            else:
                logger.warning("dropped queues of a deleted topic number=%d", number)
                store.drop_topic(number, now_ms)
        for system in self._system.values():
            if system.name not in self._by_rocketmq_name:
                # The limits do not apply to system topics.
                self._create(system.name, system.queue_count, {}, now_ms, system.perm)
            elif (topic := self._by_rocketmq_name[system.name]).queue_count < system.queue_count:
                self._state_log.commit([TopicChanged(topic.number, queue_count=system.queue_count)], now_ms)
        if not clean:
            self._begin_epochs(now_ms)

    def _recover(self, number: int, now_ms: int) -> None:
        """Create a topic for queues whose own topic was lost, so that their messages can be read or deleted."""
        assert self._store is not None, "the store is not open"
        name = f"recovered-{number}"
        while self.get(name) is not None:
            name += "-"
        keys = [queue.key for queue in self._store.queues() if queue.key >> QUEUE_ID_BITS == number]
        queue_count = 1 + max(key & (1 << QUEUE_ID_BITS) - 1 for key in keys)
        logger.error("the topic of these queues is lost, they are found as name=%s queues=%d", name, queue_count)
        created = TopicCreated(number, name, uuid.uuid4(), queue_count, PERM_READ_WRITE, {}, now_ms)
        try:
            self._state_log.commit([created], now_ms)
        except StoreError as error:
            # The number must not be used again: a new topic with it would contain these messages.
            self._next_number = max(self._next_number, number + 1)
            logger.error("recovered topic cannot be made before the next start name=%s reason=%r", name, str(error))

    def _begin_epochs(self, now_ms: int) -> None:
        starts = [
            EpochStart(queue.key, topic.leader_epoch(queue_id) + 1, queue.end_offset)
            for topic in self._by_number.values()
            for queue_id, queue in enumerate(topic.queues)
            if not queue.durable and queue.end_offset
        ]
        if starts:
            self._state_log.commit([LeaderEpochsStarted(part) for part in _parts(starts)], now_ms)

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
        number = self._next_number
        created = TopicCreated(number, name, uuid.uuid4(), queue_count, perm, dict(configs), now_ms)
        promise = self._state_log.commit([created], now_ms).promise
        return self._by_number[number], promise

    def check_new(self, name: str, queue_count: int, configs: Mapping[str, str]) -> None:
        """Raise what `create` would raise, for requests that only validate."""
        if not (names.is_kafka_topic(name) or names.is_rocketmq_topic(name)):
            raise InvalidTopicName(f"topic name {name[:300]!r} is legal neither in Kafka nor in RocketMQ")
        taken = self._by_kafka_name.get(names.kafka_name(name)) or self._by_rocketmq_name.get(names.rocketmq_name(name))
        if taken:
            raise TopicExists(f"topic {name} exists" + (f" as {taken.name}" if taken.name != name else ""))
        count = len(self._by_number) - len(self._system)
        if name not in self._system and count >= self._options.topics_max:
            raise TooManyTopics(f"{count} topics; topics.topics_max is {self._options.topics_max}")
        self._check_queue_count(name, queue_count, queue_count)
        if refusal := self._group_topics.refusal(names.rocketmq_name(name), queue_count):
            raise TooManyTopics(refusal)
        topic_configs.check(configs)

    def delete(self, topic: Topic, now_ms: int) -> Promise:
        assert self._store is not None, "the store is not open"
        if topic.name in self._system:
            raise InvalidTopicName(f"topic {topic.name} is the broker's own")
        promise = self._state_log.free([TopicDeleted(topic.number)], now_ms).promise
        # The record comes first: after a crash in between, the next start finds queues without a topic and drops them.
        self._store.drop_topic(topic.number, now_ms)
        self.on_deleted([topic.key(queue_id) for queue_id in range(topic.queue_count)])
        return promise

    def add_queues(self, topic: Topic, queue_count: int, now_ms: int, requested_by: str) -> Promise:
        """Increase the number of queues to `queue_count`; `requested_by` names the request and its client for the log.

        Queues are never removed, because their records would be lost. Raises InvalidQueueCount, TooManyTopics,
        StoreError.
        """
        self.check_more_queues(topic, queue_count)
        # Logged as a warning, because keys move to other queues, and tools request it by default: mqadmin updateTopic
        # sends 8 queues without -r and -w.
        text = "topic gets more queues topic=%s from=%d to=%d asked_by=%s"
        logger.warning(text, topic.name, topic.queue_count, queue_count, requested_by)
        return self._state_log.commit([TopicChanged(topic.number, queue_count=queue_count)], now_ms).promise

    def check_more_queues(self, topic: Topic, queue_count: int) -> None:
        """Raise what `add_queues` would raise, for requests that only validate."""
        if queue_count <= topic.queue_count:
            raise InvalidQueueCount(f"topic {topic.name} has {topic.queue_count} queues already")
        self._check_queue_count(topic.name, queue_count, queue_count - topic.queue_count)

    def configure(self, topic: Topic, configs: Mapping[str, str], now_ms: int) -> Promise:
        """Replace all overrides of the topic's configs. Raises InvalidConfig, StoreError."""
        topic_configs.check(configs)
        return self._state_log.commit([TopicChanged(topic.number, configs=dict(configs))], now_ms).promise

    def permit(self, topic: Topic, perm: int, now_ms: int) -> Promise:
        """Set the permission of a topic for RocketMQ clients (PERM_* in `protocol.rocketmq.flags`)."""
        return self._state_log.commit([TopicChanged(topic.number, perm=perm)], now_ms).promise

    def _check_queue_count(self, name: str, queue_count: int, more: int) -> None:
        most = self._options.queues_max
        if not 1 <= queue_count <= most:
            raise InvalidQueueCount(f"topic {name} cannot have {queue_count} queues; 1 to {most} are allowed")
        if self._queue_count + more > self._options.queues_in_all_max:
            raise TooManyTopics(
                f"{self._queue_count} queues; topics.queues_in_all_max is {self._options.queues_in_all_max}"
            )

    # -- Creating on first use

    def auto_create_for_kafka(self, name: str, now_ms: int) -> Topic | None:
        """Create a topic that a Metadata request named; None if auto-creation is off, or not allowed for this name."""
        if not self.auto_create or not names.is_kafka_topic(name) or self._is_reserved(name):
            return None
        return self.create(name, self._options.queues, {}, now_ms)[0]

    def auto_create_for_rocketmq(self, name: str, template: str, wished_queues: int, now_ms: int) -> Topic | None:
        """Create a topic that a send request named; None if it may not be created.

        `template` is the topic in the request whose permission and number of queues are the maximum (TBW102). A retry
        topic is always created, with `wished_queues` queues, and a dead-letter topic with one queue
        (TopicConfigManager.java).
        """
        if name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and names.is_rocketmq_topic(name):
            queue_count = max(wished_queues, 1) if name.startswith(RETRY_PREFIX) else 1
            return self.create(name, queue_count, {}, now_ms)[0]
        pattern = self._by_rocketmq_name.get(template)
        if pattern is None or not pattern.perm & PERM_INHERIT or not self.may_auto_create_for_rocketmq(name):
            return None
        queue_count = min(wished_queues if wished_queues > 0 else self._options.queues, pattern.queue_count)
        return self.create(name, queue_count, {}, now_ms, perm=pattern.perm & ~PERM_INHERIT)[0]

    def may_auto_create_for_rocketmq(self, name: str) -> bool:
        """Return whether a send request may create a topic of this name from a template."""
        may = self.auto_create and names.is_rocketmq_topic(name)
        return may and not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and not self._is_reserved(name)

    def _is_reserved(self, name: str) -> bool:
        spelled = names.rocketmq_name(name)
        return name in _KAFKA_INTERNAL or spelled in NOT_ALLOWED_TO_SEND or spelled.startswith(SYSTEM_PREFIX)

    # -- Replay

    def _replay_created(self, record: TopicCreated, slot: Slot) -> None:
        if record.number in self._by_number:
            return  # The log may contain a snapshot twice.
        system = self._system.get(record.name)
        topic = Topic(
            number=record.number,
            name=record.name,
            id=record.id,
            perm=record.perm,
            created_ms=record.created_ms,
            queue_count=record.queue_count,
            configs=record.configs,
            settings=topic_configs.settings(record.configs, self.config_defaults),
            kafka_name=names.kafka_name(record.name),
            rocketmq_name=names.rocketmq_name(record.name),
            is_listed=system is None,
            may_produce=system.may_produce if system else not self._is_reserved(record.name),
        )
        self._queue_count += topic.queue_count
        self._group_topics.count(topic.rocketmq_name, 1, topic.queue_count)
        self._by_number[topic.number] = self._by_id[topic.id] = topic
        self._by_kafka_name[topic.kafka_name] = self._by_rocketmq_name[topic.rocketmq_name] = topic
        self._next_number = max(self._next_number, topic.number + 1)
        self._bind(topic)
        self.version += 1

    def _replay_changed(self, record: TopicChanged, slot: Slot) -> None:
        topic = self._by_number.get(record.number)
        if topic is None:
            return
        self._moment.before_change(record.number)
        if record.queue_count is not None:
            more = max(0, record.queue_count - topic.queue_count)
            topic.queue_count += more
            self._queue_count += more
            self._group_topics.count(topic.rocketmq_name, 0, more)
        if record.configs is not None:
            topic.configs = record.configs
            topic.settings = topic_configs.settings(record.configs, self.config_defaults)
        if record.perm is not None:
            topic.perm = record.perm
        self._bind(topic)
        self.version += 1

    def _replay_deleted(self, record: TopicDeleted, slot: Slot) -> None:
        self._moment.before_change(record.number)
        topic = self._by_number.pop(record.number, None)
        if topic is not None:
            self._queue_count -= topic.queue_count
            self._group_topics.count(topic.rocketmq_name, -1, -topic.queue_count)
            del self._by_id[topic.id], self._by_kafka_name[topic.kafka_name]
            del self._by_rocketmq_name[topic.rocketmq_name]
            self.version += 1

    def _replay_numbers_used(self, record: TopicNumbersUsed, slot: Slot) -> None:
        self._next_number = max(self._next_number, record.next_number)

    def _replay_epochs(self, record: LeaderEpochsStarted, slot: Slot) -> None:
        for start in record.starts:
            topic = self._by_number.get(start.key >> QUEUE_ID_BITS)
            if topic is None:
                continue
            queue_id = start.key & (1 << QUEUE_ID_BITS) - 1
            if start.epoch > topic.leader_epoch(queue_id):
                self._moment.before_change(topic.number)
                starts = topic.epochs.setdefault(queue_id, [])
                starts.append(start)
                del starts[:-EPOCHS_MAX]
        self.version += 1

    def _records_of(self, number: int) -> list[Record] | None:
        topic = self._by_number.get(number)
        if topic is None:
            return None
        created = TopicCreated(
            number, topic.name, topic.id, topic.queue_count, topic.perm, topic.configs, topic.created_ms
        )
        starts = [start for starts in topic.epochs.values() for start in starts]
        return [created, *(LeaderEpochsStarted(part) for part in _parts(starts))]

    def _bind(self, topic: Topic) -> None:
        """Assign the queues of the store to a topic; during recovery there is no store yet."""
        if self._store is None:
            return
        for queue_id in range(len(topic.queues), topic.queue_count):
            topic.queues.append(self._store.queue(topic.key(queue_id)))
        for queue in topic.queues:
            queue.durable = topic.settings.durable


def _parts(starts: list[EpochStart]) -> Iterable[list[EpochStart]]:
    for at in range(0, len(starts), EPOCH_STARTS_IN_RECORD):
        yield starts[at : at + EPOCH_STARTS_IN_RECORD]
