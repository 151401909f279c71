"""Proves what a full disk leaves possible: whoever reads goes on reading, and what makes room is done.

A core whose disk is above its mark gets the requests of a client that the broker has never seen.
"""

import pytest

from protocol.kafka.api import ApiKey, ErrorCode
from protocol.rocketmq import flags
from protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.kit.core import ManualCore
from tests.unit.bridge.kafka.desk import Desk
from tests.unit.bridge.rocketmq.office import Client, Office, bodies

PULL_AND_COMMIT = flags.PULL_SUBSCRIPTION | flags.PULL_COMMIT_OFFSET


def fill(core: ManualCore) -> None:
    core.disk.used_bytes = core.disk.total_bytes
    core.store.check_disk()
    assert core.store.refusal


@pytest.fixture
def office() -> Office:
    office = Office()
    office.publish(office.topic(), b"a", b"b")
    fill(office)
    return office


@pytest.fixture
def client(office: Office) -> Client:
    return office.connect()


# -- Reading


def test_group_that_nobody_knows_beats_and_reads(office: Office, client: Client) -> None:
    assert client.beat("fresh").code == ResponseCode.SUCCESS
    assert client.members("fresh") == ["client"]
    config = client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="fresh")
    place = {"consumerGroup": "fresh", "topic": "orders", "queueId": 0}
    position = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **place)
    assert config is not None
    assert position is not None
    assert (config.code, position.code, position.ext["offset"]) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS, "0")
    assert bodies(client.pull(0, consumerGroup="fresh", sysFlag=flags.PULL_SUBSCRIPTION)) == [b"a", b"b"]
    assert "fresh" not in [config.group_name for config in office.rocketmq_groups.all()]


def test_commits_that_nobody_waits_for_are_counted_when_they_are_refused(office: Office, client: Client) -> None:
    pulled = client.pull(1, consumerGroup="fresh", sysFlag=PULL_AND_COMMIT, commitOffset=1)
    assert bodies(pulled) == [b"b"]
    assert office.metrics.refused_commits["rocketmq"] == 1
    place = {"consumerGroup": "fresh", "topic": "orders", "queueId": 0, "commitOffset": 2}
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=True, **place) is None
    assert office.metrics.refused_commits["rocketmq"] == 2


def test_group_that_was_there_before_finds_the_positions_that_wait_for_room(client: Client, office: Office) -> None:
    office.disk.used_bytes = 0
    office.store.check_disk()
    place = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **place, commitOffset=1)
    fill(office)
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=True, **place, commitOffset=2)
    found = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **place)
    stats = client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="billing")
    assert found is not None
    assert stats is not None
    assert (found.code, found.ext["offset"], stats.code) == (ResponseCode.SUCCESS, "2", ResponseCode.SUCCESS)
    assert office.metrics.refused_commits["rocketmq"] == 0


# -- Making room


def test_rocketmq_deletes_a_topic_and_a_group(office: Office, client: Client) -> None:
    assert client.send().code == ResponseCode.SERVICE_NOT_AVAILABLE
    deleted = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
    assert deleted is not None
    assert deleted.code == ResponseCode.SUCCESS
    group = client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="billing", cleanOffset=True)
    assert group is not None
    assert group.code == ResponseCode.SUCCESS
    assert ManualCore(disk=office.disk.after_kill()).topics.get("orders") is None


def test_kafka_deletes_a_topic_and_a_group_and_records() -> None:
    desk = Desk()
    orders = desk.topic()
    desk.publish(orders, b"a")
    desk.publish(desk.topic("more"), b"a")
    desk.connect().ask(
        ApiKey.OFFSET_COMMIT,
        2,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time=-1,
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    )
    assert "g" in desk.positions
    desk.fill_disk(1)
    client = desk.connect()
    (result,) = client.ask(ApiKey.DELETE_TOPICS, 3, topic_names=("orders",)).responses
    (group,) = client.ask(ApiKey.DELETE_GROUPS, 2, groups_names=("g",)).results
    records = [{"name": "more", "partitions": [{"partition_index": 0, "offset": 1}]}]
    (moved,) = client.ask(ApiKey.DELETE_RECORDS, 2, topics=records).topics
    assert (result.error_code, group.error_code) == (ErrorCode.none, ErrorCode.none)
    assert moved.partitions[0].error_code is ErrorCode.none
    again = ManualCore(disk=desk.disk.after_kill())
    assert again.topics.get("orders") is None
    assert "g" not in again.positions
