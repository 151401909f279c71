"""What tools ask of topics, groups and the broker, and change of them."""

import pytest

from duolog.protocol.rocketmq.bodies import ConsumeStats, SubscriptionGroupConfig, TopicStatsTable
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from tests.unit.bridge.rocketmq.office import Client, Office, read


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


# -- Topics


def test_topic_is_made_grown_permitted_and_deleted(office: Office, client: Client) -> None:
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


def test_statistics_of_a_topic(office: Office, client: Client) -> None:
    office.publish(office.topic(), b"a", b"b")
    stats = fastjson.read(client.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="orders").body, TopicStatsTable)
    ends = {queue.queue_id: (row.min_offset, row.max_offset) for queue, row in stats.offset_table.rows.items()}
    assert ends == {0: (0, 2), 1: (0, 0)}
    assert client.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="nowhere").code == ResponseCode.TOPIC_NOT_EXIST


# -- Groups


def test_config_of_a_group_is_kept_whole(office: Office, client: Client) -> None:
    wanted = SubscriptionGroupConfig(group_name="billing", retry_max_times=3, attributes={"+a": "b", "+c": "d"})
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, wanted).code == 0
    wanted.attributes = {"-c": ""}
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, wanted).code == 0
    wanted.attributes = {"a": "b"}
    again = Office(office.disk.after_kill()).connect()
    answer = again.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="billing")
    assert fastjson.read(answer.body, SubscriptionGroupConfig) == wanted
    table = read(again.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert {"billing", "TOOLS_CONSUMER"} <= table["subscriptionGroupTable"].keys()
    assert table["forbiddenTable"] == {}
    new = read(client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="new"))
    assert (new["groupName"], new["retryMaxTimes"]) == ("new", 16)
    missing = client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="no body")
    assert missing.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    illegal = SubscriptionGroupConfig(group_name="a b")
    refused = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, illegal)
    assert refused.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("topic", [None, "orders"])
def test_how_far_a_group_is(office: Office, client: Client, topic: str | None) -> None:
    office.publish(office.topic(), b"a", b"b")
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="billing", topic="orders", queueId=0, commitOffset=1)
    answer = client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="billing", topic=topic)
    stats = fastjson.read(answer.body, ConsumeStats).offset_table.rows
    row = stats[MessageQueue("orders", "duolog", 0)]
    assert (row.broker_offset, row.consumer_offset, len(stats)) == (2, 1, 2)


def test_who_is_connected(office: Office, client: Client) -> None:
    asked = {"consumerGroup": "billing"}
    assert client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, **asked).code == ResponseCode.CONSUMER_NOT_ONLINE
    assert client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="shop").code == ResponseCode.SYSTEM_ERROR
    client.beat("billing")
    one = {"clientId": "client", "clientAddr": "192.0.2.1:40000", "language": "PYTHON", "version": 479}
    found = read(client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, **asked))
    assert (found["connectionSet"], list(found["subscriptionTable"])) == ([one], ["orders"])
    assert read(client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="shop"))["connectionSet"] == [one]


# -- The broker


def test_what_dashboards_cannot_do_without(client: Client) -> None:
    table = read(client.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert all(len([float(part) for part in table[name].split(" ")]) == 3 for name in ("putTps", "getTotalTps"))
    assert float(table["commitLogDiskRatio"]) >= 0
    settings = bytes(client.ask(RequestCode.GET_BROKER_CONFIG).body).decode()
    assert "brokerName=duolog\n" in settings


def test_properties_that_are_unknown_are_accepted_and_reported(office: Office, client: Client) -> None:
    """mqadmin prints a stack trace for every other code; what is known counts all the same."""
    both = b"noSuchThing=1\nautoCreateTopicEnable=false\n"
    answer = client.ask(RequestCode.UPDATE_BROKER_CONFIG, both)
    assert (answer.code, answer.remark) == (0, "unknown here, and ignored: noSuchThing")
    assert office.topics.auto_create is False
    answer = client.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"listenPort=1\n")
    assert (answer.code, answer.remark) == (0, "unknown here, and ignored: listenPort")
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=x\nautoCreateTopicEnable=true").code != 0
    assert office.topics.auto_create is False
