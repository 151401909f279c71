"""Proves the catalog of topics: names in both spellings, limits, creation on first use, configs, leader epochs."""

from dataclasses import dataclass, field

import pytest

from duolog.bridge.config import Options, RetentionOptions, TopicsOptions
from duolog.bridge.records import codec
from duolog.bridge.state import topic_configs
from duolog.bridge.state.topic_configs import InvalidConfig
from duolog.bridge.state.topic_table import EPOCHS_MAX, Topic
from duolog.bridge.state.topics import InvalidQueueCount, InvalidTopicName, TooManyTopics, TopicExists
from duolog.protocol.rocketmq.messages.flags import PERM_READ_WRITE
from duolog.store.entry import SHARED, SYNCED, WRITTEN
from tests.kit.memory_log import MemoryLog
from tests.unit.bridge.replayed_state import NOW, State, new_state, open_state


def opened(options: Options | None = None) -> State:
    return open_state(MemoryLog(), new_state(options))


@pytest.mark.parametrize(("name", "kafka", "rocketmq"), [
    ("orders", "orders", "orders"),
    ("orders.eu", "orders.eu", "orders|eu"),
    ("orders|eu", "orders.eu", "orders|eu"),
    ("%RETRY%g", "..RETRY..g", "%RETRY%g"),
])  # fmt: skip
def test_topic_is_found_under_both_spellings(name: str, kafka: str, rocketmq: str) -> None:
    topics = opened().topics
    topic, _ = topics.create(name, 2, {}, NOW)
    assert (topic.name, topic.kafka_name, topic.rocketmq_name) == (name, kafka, rocketmq)
    assert topics.by_kafka_name(kafka) is topics.by_rocketmq_name(rocketmq) is topics.by_id(topic.id) is topic
    assert topics.get(kafka) is topics.get(rocketmq) is topics.by_number(topic.number) is topic
    for taken in (kafka, rocketmq):
        with pytest.raises(TopicExists):
            topics.create(taken, 1, {}, NOW)


def test_topic_created_again_is_a_new_one() -> None:
    topics = opened().topics
    first, _ = topics.create("orders", 2, {}, NOW)
    first.queues[0].end_offset = 7
    topics.delete(first, NOW)
    assert topics.get("orders") is None
    second, _ = topics.create("orders", 2, {}, NOW)
    assert second.number > first.number
    assert second.id != first.id
    assert second.queues[0].end_offset == 0


def test_every_change_moves_the_version() -> None:
    topics = opened().topics
    versions = [topics.version]
    topic, _ = topics.create("orders", 2, {}, NOW)
    for change in (
        lambda: None,
        lambda: topics.add_queues(topic, 3, NOW, "a test"),
        lambda: topics.configure(topic, {"retention.ms": "1"}, NOW),
        lambda: topics.permit(topic, 4, NOW),
        lambda: topics.delete(topic, NOW),
    ):
        change()
        versions.append(topics.version)
    assert versions == sorted(set(versions))


REFUSED = {
    "name": ("or ders", 1, {}, InvalidTopicName),
    "name of both alphabets": ("a.b%c", 1, {}, InvalidTopicName),
    "no queues": ("a", 0, {}, InvalidQueueCount),
    "too many queues": ("a", 9, {}, InvalidQueueCount),
    "unknown config": ("a", 1, {"x": "y"}, InvalidConfig),
    "bad config": ("a", 1, {"retention.ms": "soon"}, InvalidConfig),
    "taken": ("TBW102", 1, {}, TopicExists),
}


@pytest.mark.parametrize(("name", "queue_count", "configs", "error"), REFUSED.values(), ids=REFUSED)
def test_refused_topic(name: str, queue_count: int, configs: dict[str, str], error: type[Exception]) -> None:
    topics = opened(Options(topics=TopicsOptions(queues_max=8))).topics
    version = topics.version
    with pytest.raises(error):
        topics.create(name, queue_count, configs, NOW)
    assert topics.version == version


def test_number_of_topics_is_limited() -> None:
    topics = opened(Options(topics=TopicsOptions(topics_max=6))).topics
    for number in range(6):
        topics.create(f"t{number}", 1, {}, NOW)
    with pytest.raises(TooManyTopics):
        topics.create("one-more", 1, {}, NOW)


def test_queues_are_added_never_taken_away(caplog: pytest.LogCaptureFixture) -> None:
    topics = opened().topics
    topic, _ = topics.create("orders", 2, {}, NOW)
    kept = topic.queues[:2]
    topics.add_queues(topic, 5, NOW, "a test")
    assert "topic gets more queues topic=orders from=2 to=5 asked_by=a test" in caplog.text
    assert (topic.queues[:2], len(topic.queues)) == (kept, 5)
    for count in (5, 1, 2000):
        with pytest.raises(InvalidQueueCount):
            topics.add_queues(topic, count, NOW, "a test")


# -- Creating on first use


def test_kafka_creates_with_the_default_number_of_queues() -> None:
    topics = opened(Options(topics=TopicsOptions(queues=3))).topics
    topic = topics.auto_create_for_kafka("orders", NOW)
    assert topic is not None
    assert topic.queue_count == 3
    for name in ("a b", "__consumer_offsets", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"):
        assert topics.auto_create_for_kafka(name, NOW) is None


@pytest.mark.parametrize(("name", "template", "requested", "count"), [
    ("orders", "TBW102", 4, 4),
    ("orders", "TBW102", 100, 8),
    ("orders", "TBW102", 0, 4),
    ("orders", "DefaultCluster", 100, 16),
    ("orders", "none", 4, None),
    ("orders", "plain", 4, None),
    ("%RETRY%g", "", 4, 4),
    ("%RETRY%g", "", 0, 1),
    ("%DLQ%g", "TBW102", 4, 1),
    ("or.ders", "TBW102", 4, None),
    ("SCHEDULE_TOPIC_XXXX", "TBW102", 4, None),
])  # fmt: skip
def test_rocketmq_creates_by_the_template(name: str, template: str, requested: int, count: int | None) -> None:
    topics = opened().topics
    topics.create("plain", 1, {}, NOW)
    topic = topics.auto_create_for_rocketmq(name, template, requested, NOW)
    assert (topic and topic.queue_count) == count
    assert topic is None or topic.perm == PERM_READ_WRITE


def test_nothing_but_retry_topics_is_created_where_that_is_off() -> None:
    topics = opened(Options(topics=TopicsOptions(auto_create=False))).topics
    assert topics.auto_create_for_kafka("orders", NOW) is None
    assert topics.auto_create_for_rocketmq("orders", "TBW102", 4, NOW) is None
    assert topics.auto_create_for_rocketmq("%RETRY%g", "TBW102", 4, NOW) is not None


def test_system_topics_are_made_once_and_hold_no_messages() -> None:
    log = MemoryLog()
    topic = open_state(log).topics.get("TBW102")
    again = open_state(log).topics.get("TBW102")
    assert topic is not None
    assert again is not None
    assert again.id == topic.id
    assert (again.queue_count, again.perm, again.may_produce, again.is_listed) == (8, 7, False, False)
    with pytest.raises(InvalidTopicName):
        open_state(log).topics.delete(again, NOW)


@dataclass
class UndroppedLog(MemoryLog):
    """A log whose broker was killed before it dropped the queues of a deleted topic, unless `drops` is set."""

    drops: bool = False
    records_before: set[int] = field(default_factory=set)  # How many records came before each drop.

    def drop_topic(self, number: int, now_ms: int) -> None:
        self.records_before.add(len(self.kept))
        if self.drops:
            super().drop_topic(number, now_ms)


def test_queues_of_a_topic_that_went_are_dropped_at_start() -> None:
    log = UndroppedLog()
    state = open_state(log)
    topic, _ = state.topics.create("orders", 2, {}, NOW)
    state.topics.delete(topic, NOW)
    log.drops = True
    open_state(log)
    assert topic.number not in {queue.key >> 16 for queue in log.queues()}


# -- Configs


def test_config_comes_from_topic_then_broker_then_table() -> None:
    broker = topic_configs.broker_defaults(Options(retention=RetentionOptions(ms=5)))
    for overrides, expected in (({}, "5"), ({"retention.ms": "7"}, "7")):
        assert topic_configs.value_of("retention.ms", overrides, broker) == expected
    assert topic_configs.value_of("segment.ms", {}, broker) == "604800000"


def test_settings_follow_the_configs() -> None:
    topics = opened().topics
    topic, _ = topics.create("orders", 1, {"flush.mode": "async", "cleanup.policy": "compact,delete"}, NOW)
    assert (topic.settings.level, topic.queues[0].level) == (WRITTEN, WRITTEN)
    assert (topic.settings.compact, topic.settings.delete) == (True, True)
    topics.configure(topic, {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"}, NOW)
    assert (topic.settings.level, topic.queues[0].level) == (SYNCED, SYNCED)
    assert (topic.settings.compact, topic.settings.delete, topic.settings.log_append_time) == (True, False, True)
    assert topic.settings.max_message_bytes == 4 * (1 << 20) + (1 << 16)


def test_flush_mode_shared_needs_an_object_store() -> None:
    bench = opened()
    with pytest.raises(topic_configs.InvalidConfig, match="start the broker with --shared"):
        bench.topics.create("orders", 1, {"flush.mode": "shared"}, NOW)
    bench.topics.store.level_max = SHARED
    topic, _ = bench.topics.create("orders", 1, {"flush.mode": "shared"}, NOW)
    assert topic.queues[0].level == SHARED


@pytest.mark.parametrize("name", topic_configs.TABLE)
def test_default_of_every_config_passes_its_own_check(name: str) -> None:
    topic_configs.check({name: topic_configs.TABLE[name].default})


# -- Leader epochs


def epochs(log: MemoryLog, state: State, topic: Topic, *ends: int) -> None:
    """Let runs begin when the queue had these ends, the first one with the number 1."""
    for end in ends:
        topic.queues[0].end_offset = topic.queues[0].visible_end = end
        state.topics._begin_epochs(NOW, WRITTEN)
        log.epoch += 1


def test_epoch_history_answers_where_each_epoch_ended() -> None:
    state = open_state(log := MemoryLog(), new_state())
    topic, _ = state.topics.create("orders", 1, {"flush.mode": "async"}, NOW)
    epochs(log, state, topic, 10, 20)
    topic.queues[0].visible_end = 25
    assert [topic.epoch_end(0, epoch) for epoch in (-1, 0, 1, 2, 3)] == [(-1, -1), (0, 10), (1, 20), (2, 25), (-1, -1)]
    assert [topic.epoch_at(0, offset) for offset in (0, 9, 10, 20, 99)] == [
        (0, 10), (0, 10), (1, 20), (2, None), (2, None),
    ]  # fmt: skip


def test_empty_queue_begins_an_epoch_too() -> None:
    """All that it had may be lost, and readers have seen it in the epoch before."""
    state = opened()
    topic = state.topics.create("orders", 2, {"flush.mode": "async"}, NOW)[0]
    state.topics._begin_epochs(NOW, WRITTEN)
    assert [topic.leader_epoch(queue_id) for queue_id in range(2)] == [1, 1]


def test_leader_epochs_begin_before_any_other_record_of_a_run() -> None:
    """If a power failure loses them, the run is empty. By that the next start knows that it must begin them."""
    log = UndroppedLog()
    state = open_state(log)
    orders, deleted = (state.topics.create(name, 1, {"flush.mode": "async"}, NOW)[0] for name in ("orders", "deleted"))
    state.topics.delete(deleted, NOW)
    log.kept = [each for each in log.kept if b"TBW102" not in each.body]  # An older version had no such topic.
    began = len(log.kept)
    log.records_before.clear()
    again = open_state(log, clean=False).topics
    decoded = [type(codec.decode(each.body)).__name__ for each in log.kept[began:]]
    assert decoded[0] == "LeaderEpochsStarted"
    assert "TopicCreated" in decoded
    assert log.records_before == {began + 1}
    topic = again.get("orders")
    assert topic is not None
    assert topic.leader_epoch(0) > orders.leader_epoch(0)


def test_epoch_history_is_bounded() -> None:
    state = open_state(log := MemoryLog(), new_state())
    topic, _ = state.topics.create("orders", 1, {"flush.mode": "async"}, NOW)
    epochs(log, state, topic, *range(1, EPOCHS_MAX + 10))
    assert len(topic.epochs[0]) == EPOCHS_MAX
    assert topic.leader_epoch(0) == EPOCHS_MAX + 9
    assert topic.epoch_end(0, 3)[0] == -1


def test_queues_of_all_topics_together_are_bounded() -> None:
    own = sum(topic.queue_count for topic in opened(Options()).topics.all())
    topics = opened(Options(topics=TopicsOptions(queues_in_all_max=own + 6))).topics
    first, _ = topics.create("first", 4, {}, NOW)
    with pytest.raises(TooManyTopics, match="queues_in_all_max"):
        topics.create("second", 3, {}, NOW)
    with pytest.raises(TooManyTopics, match="queues_in_all_max"):
        topics.add_queues(first, 7, NOW, "a test")
    topics.add_queues(first, 6, NOW, "a test")
    topics.delete(first, NOW)
    topics.create("second", 6, {}, NOW)
