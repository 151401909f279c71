"""Configs of groups are kept; tools get the committed offsets and the members of groups."""

import pytest

from duolog.protocol.rocketmq.bodies import ConsumeStats, SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, read


def test_config_of_a_group_is_kept_whole(broker: RocketMQBroker, client: Client) -> None:
    wanted = SubscriptionGroupConfig(group_name="billing", retry_max_times=3, attributes={"+a": "b", "+c": "d"})
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, wanted).code == 0
    wanted.attributes = {"-c": ""}
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, wanted).code == 0
    wanted.attributes = {"a": "b"}
    again = RocketMQBroker(broker.disk.after_kill()).connect()
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
def test_how_far_a_group_is(broker: RocketMQBroker, client: Client, topic: str | None) -> None:
    broker.publish(broker.topic(), b"a", b"b")
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="billing", topic="orders", queueId=0, commitOffset=1)
    answer = client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="billing", topic=topic)
    stats = fastjson.read(answer.body, ConsumeStats).offset_table.rows
    row = stats[MessageQueue("orders", "duolog", 0)]
    assert (row.broker_offset, row.consumer_offset, len(stats)) == (2, 1, 2)


def test_who_is_connected(broker: RocketMQBroker, client: Client) -> None:
    asked = {"consumerGroup": "billing"}
    assert client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, **asked).code == ResponseCode.CONSUMER_NOT_ONLINE
    assert client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="shop").code == ResponseCode.SYSTEM_ERROR
    client.beat("billing")
    one = {"clientId": "client", "clientAddr": "192.0.2.1:40000", "language": "PYTHON", "version": 479}
    found = read(client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, **asked))
    assert (found["connectionSet"], list(found["subscriptionTable"])) == ([one], ["orders"])
    assert read(client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="shop"))["connectionSet"] == [one]
