"""Proves what a full disk leaves possible: reads continue, and requests that free space are carried out.

A core whose disk is above its mark gets the requests of a client that the broker has never seen.
"""

from contextlib import suppress
from dataclasses import replace

import pytest

from duolog.bridge.config import KIB
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import flags
from duolog.store.errors import DiskFull, StoreError
from duolog.store.options import StoreOptions
from tests.kit.core import ManualCore
from tests.kit.disk import SmallDisk
from tests.kit.threads import ManualThreads
from tests.unit.bridge.kafka.bench import KafkaBench
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies

PULL_AND_COMMIT = flags.PULL_SUBSCRIPTION | flags.PULL_COMMIT_OFFSET


def fill(core: ManualCore) -> None:
    core.disk.used_bytes = core.disk.total_bytes
    core.store.check_disk()
    assert core.store.refusal


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker()
    broker.publish(broker.topic(), b"a", b"b")
    fill(broker)
    return broker


@pytest.fixture
def client(broker: RocketMQBroker) -> Client:
    return broker.connect()


# -- Reading


def test_group_that_nobody_knows_beats_and_reads(broker: RocketMQBroker, client: Client) -> None:
    assert client.beat("fresh").code == ResponseCode.SUCCESS
    assert client.members("fresh") == ["client"]
    config = client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="fresh")
    place = {"consumerGroup": "fresh", "topic": "orders", "queueId": 0}
    position = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **place)
    assert config is not None
    assert position is not None
    assert (config.code, position.code, position.ext["offset"]) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS, "0")
    assert bodies(client.pull(0, consumerGroup="fresh", sysFlag=flags.PULL_SUBSCRIPTION)) == [b"a", b"b"]
    assert "fresh" not in [config.group_name for config in broker.rocketmq_context.groups.configs.all()]


def test_commits_that_nobody_waits_for_are_counted_when_they_are_refused(
    broker: RocketMQBroker, client: Client
) -> None:
    pulled = client.pull(1, consumerGroup="fresh", sysFlag=PULL_AND_COMMIT, commitOffset=1)
    assert bodies(pulled) == [b"b"]
    assert broker.metrics.refused_commits["rocketmq"] == 1
    place = {"consumerGroup": "fresh", "topic": "orders", "queueId": 0, "commitOffset": 2}
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=True, **place) is None
    assert broker.metrics.refused_commits["rocketmq"] == 2


def test_group_that_was_there_before_finds_the_positions_that_wait_for_room(
    client: Client, broker: RocketMQBroker
) -> None:
    broker.disk.used_bytes = 0
    broker.store.check_disk()
    place = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **place, commitOffset=1)
    fill(broker)
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=True, **place, commitOffset=2)
    found = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **place)
    stats = client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="billing")
    assert found is not None
    assert stats is not None
    assert (found.code, found.ext["offset"], stats.code) == (ResponseCode.SUCCESS, "2", ResponseCode.SUCCESS)
    assert broker.metrics.refused_commits["rocketmq"] == 0


# -- Making room


SMALL = StoreOptions(
    segment_bytes=64 * KIB,
    reserve_bytes=0,
    tail_bytes=16 * KIB,
    spare_bytes=32 * KIB,
    disk_full_ratio=1.0,  # Only the disk itself says that it is full.
    disk_resume_ratio=0.8,
    recovery_checkpoint_bytes=1 << 30,
)


def fill_to_the_last_block(core: ManualCore, messages_max: int = 1000) -> int:
    """Append until the disk refuses; returns how many messages were taken."""
    taken, filler = 0, core.topic("filler", 1)
    core.publish(core.topic("kept", 1), b"kept")
    core.store.check_disk()  # Has the spare file made.
    with suppress(DiskFull):
        while taken < messages_max:
            core.publish(filler, bytes(3 * KIB))
            taken += 1
    return taken


def look(core: ManualCore) -> None:
    """Do what the background duties do about the disk, some times."""
    for _ in range(4):
        core.store.check_disk()
        for _ in core.store.retention.remove_dead_segments():
            pass
        if core.store.checkpoint_due(0):
            core.store.checkpoint(0)
        core.settle()


@pytest.mark.parametrize("is_started_again", [False, True])
def test_room_is_made_on_a_disk_without_a_free_block(is_started_again: bool) -> None:
    disk = SmallDisk(400 * KIB)
    core = ManualCore(disk=disk, store=SMALL)
    if is_started_again:
        fill_to_the_last_block(core, 60)
        disk.total_bytes = disk.usage()[0]
        disk._locks.clear()
        core = ManualCore(disk=disk, store=SMALL)
        assert core.store.refusal
        assert "spare" not in disk.paths()
    else:
        assert fill_to_the_last_block(core) > 60
    filler = core.topics.get("filler")
    assert filler is not None
    outcomes: list[StoreError | None] = []
    core.store.when(core.topics.delete(filler, core.clock.now_ms()), outcomes.append)
    core.settle()
    assert outcomes == [None]
    look(core)
    assert not core.store.refusal
    assert disk.usage()[0] < 200 * KIB
    assert "spare" in disk.paths()
    core.publish(core.topic("kept"), b"kept, too")
    again = ManualCore(disk=core.disk.after_kill(), store=SMALL)
    assert again.topics.get("filler") is None
    assert again.topic("kept").queues[0].end_offset == 2


def test_deletion_waits_while_a_thread_makes_room() -> None:
    """Its client gets an answer, and not a closed connection, when the spare file makes room for its record."""
    core = ManualCore(disk=SmallDisk(400 * KIB), store=SMALL)
    fill_to_the_last_block(core, 60)
    background = core.store.executors.background = ManualThreads()
    filler = core.topics.get("filler")
    assert filler is not None
    outcomes: list[StoreError | None] = []
    with suppress(DiskFull):
        for _ in range(1000):
            core.publish(filler, bytes(3 * KIB))
    core.store.when(core.topics.delete(filler, core.clock.now_ms()), outcomes.append)
    core.settle()
    assert outcomes == []
    background.run()
    core.settle()
    assert outcomes == [None]


def test_without_a_spare_file_no_room_can_be_made_on_such_a_disk() -> None:
    core = ManualCore(disk=SmallDisk(400 * KIB), store=replace(SMALL, spare_bytes=0))
    fill_to_the_last_block(core)
    filler = core.topics.get("filler")
    assert filler is not None
    outcomes: list[StoreError | None] = []
    core.store.when(core.topics.delete(filler, core.clock.now_ms()), outcomes.append)
    look(core)
    assert isinstance(outcomes[0], DiskFull)
    assert core.store.refusal


def test_rocketmq_deletes_a_topic_and_a_group(broker: RocketMQBroker, client: Client) -> None:
    assert client.send().code == ResponseCode.SERVICE_NOT_AVAILABLE
    deleted = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
    assert deleted is not None
    assert deleted.code == ResponseCode.SUCCESS
    group = client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="billing", cleanOffset=True)
    assert group is not None
    assert group.code == ResponseCode.SUCCESS
    assert ManualCore(disk=broker.disk.after_kill()).topics.get("orders") is None


def test_kafka_deletes_a_topic_and_a_group_and_records() -> None:
    bench = KafkaBench()
    orders = bench.topic()
    bench.publish(orders, b"a")
    bench.publish(bench.topic("more"), b"a")
    bench.connect().ask(
        ApiKey.OFFSET_COMMIT,
        2,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time=-1,
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    )
    assert "g" in bench.group_offsets
    bench.fill_disk(1)
    client = bench.connect()
    (result,) = client.ask(ApiKey.DELETE_TOPICS, 3, topic_names=("orders",)).responses
    (group,) = client.ask(ApiKey.DELETE_GROUPS, 2, groups_names=("g",)).results
    records = [{"name": "more", "partitions": [{"partition_index": 0, "offset": 1}]}]
    (moved,) = client.ask(ApiKey.DELETE_RECORDS, 2, topics=records).topics
    assert (result.error_code, group.error_code) == (ErrorCode.none, ErrorCode.none)
    assert moved.partitions[0].error_code is ErrorCode.none
    again = ManualCore(disk=bench.disk.after_kill())
    assert again.topics.get("orders") is None
    assert "g" not in again.group_offsets
