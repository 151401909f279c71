"""What topics there are: their names, numbers, queues, configs and leader epochs, as replayed from state records.

The number of a topic is never used again: a topic that is deleted and created again has a new number, a new id, and
offsets from 0. Its name is stored in the spelling of the request that created it, and is found by the spelling of
either client protocol (`protocol.names`).
"""

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from duolog.bridge.config import TopicsOptions
from duolog.bridge.records.codec import Record
from duolog.bridge.records.topics import (
    EpochStart,
    LeaderEpochsStarted,
    OriginsAdded,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
    TopicNumbersUsed,
)
from duolog.bridge.state import topic_configs
from duolog.bridge.state.group_topics import GroupTopics
from duolog.bridge.state.system_topics import SystemTopic, is_reserved
from duolog.bridge.state.topic_configs import TopicSettings
from duolog.protocol import names
from duolog.store.entry import EntrySlot
from duolog.store.index.queue import QUEUE_ID_BITS, Queue
from duolog.store.state_log import StateLog

EPOCHS_MAX = 64  # The number of epochs that are kept for a queue. Of older ones only the end of the last is known.
EPOCH_STARTS_IN_RECORD = 1000


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
    # The topics from which the messages of a retry or dead-letter topic came, as in OriginsAdded.
    origins: frozenset[str] = frozenset()
    # By queue id; without an entry, the epoch is 0 from offset 0.
    epochs: dict[int, list[EpochStart]] = field(default_factory=dict)

    def key(self, queue_id: int) -> int:
        """Return the queue key of a queue of this topic."""
        return self.number << QUEUE_ID_BITS | queue_id

    def leader_epoch(self, queue_id: int) -> int:
        """Return the present leader epoch of a queue."""
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


class TopicStore(Protocol):
    """What topics use of the store."""

    @property
    def level_max(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    def queue(self, key: int) -> Queue: ...

    def queues(self) -> Iterable[Queue]: ...

    def drop_topic(self, number: int, now_ms: int) -> None: ...


class TopicTable:
    """All topics of the broker. Only the replay of state records changes the table; `Topics` makes the records.

    The class has more than 15 fields because there is a map and its lookup for each of the four names of a topic.
    """

    def __init__(
        self,
        state_log: StateLog,
        options: TopicsOptions,
        system: Collection[SystemTopic],
        config_defaults: Mapping[str, str],
    ) -> None:
        """Register with the state log. `config_defaults` is the result of `topic_configs.broker_defaults`."""
        topic_configs.check(config_defaults)
        self.version = 0  # Incremented with every change, so that caches of metadata can compare it.
        self.config_defaults = config_defaults
        self._default_settings = topic_configs.settings(
            {}, config_defaults
        )  # The settings of all topics without configs.
        self.system = {topic.name: topic for topic in system}
        self.next_number = 1
        self.queue_count = 0  # Invariant: the sum over all topics.
        self.group_topics = GroupTopics(options)
        self.store: TopicStore | None = None
        self._by_number: dict[int, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._by_kafka_name: dict[str, Topic] = {}
        self._by_rocketmq_name: dict[str, Topic] = {}
        self.by_kafka_name = self._by_kafka_name.get
        self.by_rocketmq_name = self._by_rocketmq_name.get
        self.by_number = self._by_number.get
        self.by_id = self._by_id.get
        state_log.own(TopicCreated, self._replay_created)
        state_log.own(TopicChanged, self._replay_changed)
        state_log.own(OriginsAdded, self._replay_origins)
        state_log.own(TopicDeleted, self._replay_deleted)
        state_log.own(TopicNumbersUsed, self._replay_numbers_used)
        state_log.own(LeaderEpochsStarted, self._replay_epochs)
        state_log.on_snapshot(lambda: [TopicNumbersUsed(self.next_number)])
        self._snapshot_copies = state_log.on_copied_snapshot(lambda: self._by_number, self._records_of)

    # -- Finding

    def get(self, name: str) -> Topic | None:
        """Return the topic with this name in the spelling of either client protocol, or None."""
        return self._by_kafka_name.get(name) or self._by_rocketmq_name.get(name)

    def all(self) -> Collection[Topic]:
        """Return all topics."""
        return self._by_number.values()

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def __len__(self) -> int:
        return len(self._by_number)

    def queue(self, key: int) -> Queue | None:
        """Return the queue with this queue key, or None."""
        number, queue_id = Queue.split(key)
        topic = self._by_number.get(number)
        return topic.queues[queue_id] if topic is not None and queue_id < len(topic.queues) else None

    # -- Queues

    def attach_store(self, store: TopicStore) -> None:
        """Assign the queues of the recovered store to the topics."""
        self.store = store
        for topic in self._by_number.values():
            self._bind(topic)

    def _bind(self, topic: Topic) -> None:
        """Assign the queues of the store to a topic; during recovery there is no store yet."""
        if self.store is None:
            return
        for queue_id in range(len(topic.queues), topic.queue_count):
            topic.queues.append(self.store.queue(topic.key(queue_id)))
        for queue in topic.queues:
            queue.level = min(topic.settings.level, self.store.level_max)

    # -- Replay

    def _replay_created(self, record: TopicCreated, slot: EntrySlot) -> None:
        if record.number in self._by_number:
            return  # The log may contain a snapshot twice.
        system = self.system.get(record.name)
        topic = Topic(
            number=record.number,
            name=record.name,
            id=record.id,
            perm=record.perm,
            created_ms=record.created_ms,
            queue_count=record.queue_count,
            configs=record.configs,
            settings=self._settings(record.configs),
            kafka_name=names.kafka_name(record.name),
            rocketmq_name=names.rocketmq_name(record.name),
            is_listed=system is None,
            may_produce=system.may_produce if system else not is_reserved(record.name),
        )
        self.queue_count += topic.queue_count
        self.group_topics.count(topic.rocketmq_name, 1, topic.queue_count)
        self._by_number[topic.number] = self._by_id[topic.id] = topic
        self._by_kafka_name[topic.kafka_name] = self._by_rocketmq_name[topic.rocketmq_name] = topic
        self.next_number = max(self.next_number, topic.number + 1)
        self._bind(topic)
        self.version += 1

    def _settings(self, configs: Mapping[str, str]) -> TopicSettings:
        return topic_configs.settings(configs, self.config_defaults) if configs else self._default_settings

    def _replay_changed(self, record: TopicChanged, slot: EntrySlot) -> None:
        topic = self._by_number.get(record.number)
        if topic is None:
            return
        self._snapshot_copies.before_change(record.number)
        if record.queue_count is not None:
            more = max(0, record.queue_count - topic.queue_count)
            topic.queue_count += more
            self.queue_count += more
            self.group_topics.count(topic.rocketmq_name, 0, more)
        if record.configs is not None:
            topic.configs = record.configs
            topic.settings = self._settings(record.configs)
        if record.perm is not None:
            topic.perm = record.perm
        self._bind(topic)
        self.version += 1

    def _replay_origins(self, record: OriginsAdded, slot: EntrySlot) -> None:
        topic = self._by_number.get(record.number)
        if topic is not None:
            self._snapshot_copies.before_change(record.number)
            topic.origins |= frozenset(record.origins)

    def _replay_deleted(self, record: TopicDeleted, slot: EntrySlot) -> None:
        self._snapshot_copies.before_change(record.number)
        topic = self._by_number.pop(record.number, None)
        if topic is not None:
            self.queue_count -= topic.queue_count
            self.group_topics.count(topic.rocketmq_name, -1, -topic.queue_count)
            del self._by_id[topic.id], self._by_kafka_name[topic.kafka_name]
            del self._by_rocketmq_name[topic.rocketmq_name]
            self.version += 1

    def _replay_numbers_used(self, record: TopicNumbersUsed, slot: EntrySlot) -> None:
        self.next_number = max(self.next_number, record.next_number)

    def _replay_epochs(self, record: LeaderEpochsStarted, slot: EntrySlot) -> None:
        for start in record.starts:
            number, queue_id = Queue.split(start.key)
            topic = self._by_number.get(number)
            if topic is None:
                continue
            if start.epoch > topic.leader_epoch(queue_id):
                self._snapshot_copies.before_change(topic.number)
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
        origins = [OriginsAdded(number, sorted(topic.origins))] if topic.origins else []
        return [created, *origins, *epoch_records(starts)]


def epoch_records(starts: list[EpochStart]) -> list[LeaderEpochsStarted]:
    """Return the records of these epoch starts, with EPOCH_STARTS_IN_RECORD in each at most."""
    places = range(0, len(starts), EPOCH_STARTS_IN_RECORD)
    return [LeaderEpochsStarted(starts[at : at + EPOCH_STARTS_IN_RECORD]) for at in places]
