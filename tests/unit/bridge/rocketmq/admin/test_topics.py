"""Tools create, change, delete and describe topics."""

import pytest

from duolog.protocol.rocketmq.bodies import TopicStatsTable
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, read


def create(client: Client, topic: str, queues: int, perm: int = 6) -> int:
    answer = client.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, defaultTopic="TBW102", readQueueNums=queues,
        writeQueueNums=queues, perm=perm, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
    )  # fmt: skip
    assert answer is not None
    return answer.code


def config(client: Client, topic: str) -> tuple[int, int] | None:
    answer = client.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic)
    assert answer is not None
    if answer.code:
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        return None
    found = read(answer)
    assert found["readQueueNums"] == found["writeQueueNums"]
    return found["readQueueNums"], found["perm"]


def test_topic_is_made_grown_permitted_and_deleted(broker: RocketMQBroker, client: Client) -> None:
    assert config(client, "orders") is None
    for queues, perm in ((2, 6), (5, 6), (5, 4)):
        assert create(client, "orders", queues, perm) == 0
        assert config(client, "orders") == (queues, perm)
    assert create(client, "orders", 4) == ResponseCode.INVALID_PARAMETER  # their messages would be lost
    table = read(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert table["topicConfigTable"]["orders"]["topicName"] == "orders"
    for _ in range(2):
        assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders").code == 0
        assert config(client, "orders") is None


@pytest.mark.parametrize("name", ["a.b", "", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "DefaultCluster"])
def test_topics_that_tools_cannot_make(client: Client, name: str) -> None:
    assert create(client, name, 4) == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("name", ["TBW102", "DefaultCluster"])
def test_topics_that_tools_cannot_delete(client: Client, name: str) -> None:
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name).code == ResponseCode.INVALID_PARAMETER


def test_statistics_of_a_topic(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"b")
    stats = fastjson.read(client.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="orders").body, TopicStatsTable)
    ends = {queue.queue_id: (row.min_offset, row.max_offset) for queue, row in stats.offset_table.rows.items()}
    assert ends == {0: (0, 2), 1: (0, 0)}
    assert client.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="nowhere").code == ResponseCode.TOPIC_NOT_EXIST
