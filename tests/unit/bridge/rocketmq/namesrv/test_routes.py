"""Answers of the name server: routes, byte for byte as clients parse them, and lists of topics."""

import pytest

from duolog.bridge.config import Options, TopicsOptions
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, read

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def test_route_of_a_topic(broker: RocketMQBroker, client: Client) -> None:
    broker.topic("orders.eu", queues=3)
    assert bytes(client.ask(ROUTE, topic="orders|eu").body) == (
        b'{"queueDatas":[{"brokerName":"duolog","readQueueNums":3,"writeQueueNums":3,"perm":6,"topicSysFlag":0}],'
        b'"brokerDatas":[{"cluster":"DefaultCluster","brokerName":"duolog","brokerAddrs":{"0":"127.0.0.1:10911"},'
        b'"enableActingMaster":false}],"filterServerTable":{},"orderTopicConf":null}'
    )


def test_route_waits_until_the_topic_is_durable(broker: RocketMQBroker, client: Client) -> None:
    broker.settle()
    broker.is_stalled = True
    broker.topic()
    assert client.ask(ROUTE, topic="orders") is None
    broker.settle()
    assert client.last_answer().code == 0


@pytest.mark.parametrize("name", ["orders", "%RETRY%billing", "a.b", "OFFSET_MOVED_EVENT", ""])
def test_no_route_for_what_is_not_there(broker: RocketMQBroker, client: Client, name: str) -> None:
    assert client.ask(ROUTE, topic=name).code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.topics.by_rocketmq_name(name) is None


def test_template_has_a_route_where_topics_are_made_so(client: Client) -> None:
    assert read(client.ask(ROUTE, topic="TBW102"))["queueDatas"][0]["perm"] == 7
    strict = RocketMQBroker(options=Options(topics=TopicsOptions(auto_create=False)))
    assert strict.connect().ask(ROUTE, topic="TBW102").code == ResponseCode.TOPIC_NOT_EXIST


# -- Topics that clients wait for


def expect(client: Client, name: str = "orders") -> int:
    client.ask(ROUTE, topic=name)
    answer = client.ask(ROUTE, topic=name)
    assert answer is not None
    return answer.code


def test_who_asks_twice_gets_a_route_and_its_heartbeat_makes_the_topic(broker: RocketMQBroker, client: Client) -> None:
    assert expect(client) == 0
    assert broker.topics.by_rocketmq_name("orders") is None
    client.beat("billing", topics=["orders", "others"])
    topic = broker.topics.by_rocketmq_name("orders")
    assert topic is not None
    assert topic.queue_count == read(client.ask(ROUTE, topic="orders"))["queueDatas"][0]["readQueueNums"] == 4
    assert broker.topics.by_rocketmq_name("others") is None


def test_retry_topic_has_a_route_before_the_first_heartbeat_makes_it(broker: RocketMQBroker, client: Client) -> None:
    assert expect(client, "%RETRY%billing") == 0
    assert broker.topics.by_rocketmq_name("%RETRY%billing") is None
    client.beat("billing")
    assert broker.topics.by_rocketmq_name("%RETRY%billing") is not None


@pytest.mark.parametrize("name", ["%RETRY%a.b", "%DLQ%billing", "a.b", "rmq_sys_x", "OFFSET_MOVED_EVENT"])
def test_names_that_nobody_can_wait_for(client: Client, name: str) -> None:
    assert expect(client, name) == ResponseCode.TOPIC_NOT_EXIST


def test_nobody_waits_where_topics_are_not_made() -> None:
    strict = RocketMQBroker(options=Options(topics=TopicsOptions(auto_create=False)))
    assert expect(strict.connect()) == ResponseCode.TOPIC_NOT_EXIST


def test_polls_and_other_clients_are_no_second_question(broker: RocketMQBroker, client: Client) -> None:
    client.ask(ROUTE, topic="orders")
    assert broker.connect().ask(ROUTE, topic="orders").code == ResponseCode.TOPIC_NOT_EXIST
    broker.pass_ms(30_000)
    assert client.ask(ROUTE, topic="orders").code == ResponseCode.TOPIC_NOT_EXIST


def test_producer_with_such_a_route_has_its_wish_all_the_same(broker: RocketMQBroker, client: Client) -> None:
    expect(client)
    assert client.send("orders", queueId=3, defaultTopicQueueNums=2).ext["queueId"] == "1"
    topic = broker.topics.by_rocketmq_name("orders")
    assert topic is not None
    assert topic.queue_count == 2
    broker.pass_ms(60_000)
    assert client.send("orders", queueId=3).code == ResponseCode.INVALID_PARAMETER


def test_topic_that_is_deleted_is_not_made_again(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    client.beat("billing", topics=["orders"])
    client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
    client.ask(ROUTE, topic="orders")
    client.beat("billing", topics=["orders"])
    assert broker.topics.by_rocketmq_name("orders") is None


# -- The rest


def test_cluster(client: Client) -> None:
    assert read(client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)) == {
        "brokerAddrTable": {
            "duolog": {
                "cluster": "DefaultCluster",
                "brokerName": "duolog",
                "brokerAddrs": {"0": "127.0.0.1:10911"},
                "enableActingMaster": False,
            }
        },
        "clusterAddrTable": {"DefaultCluster": ["duolog"]},
    }


def test_lists_of_topics(broker: RocketMQBroker, client: Client) -> None:
    broker.topic("orders.eu")
    every = read(client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))["topicList"]
    assert {"orders|eu", "TBW102", "DefaultCluster", "duolog"} <= set(every)
    of_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
    assert read(client.ask(of_cluster, cluster="DefaultCluster"))["topicList"] == every
    assert read(client.ask(of_cluster, cluster="other"))["topicList"] == []
    system = read(client.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))
    assert system == {"topicList": ["DefaultCluster", "duolog"], "brokerAddr": "127.0.0.1:10911"}


def test_nothing_is_kept_for_tools(client: Client) -> None:
    keep = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    assert client.ask(RequestCode.GET_KV_CONFIG, **keep).code == ResponseCode.QUERY_NOT_FOUND
    assert client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, **keep).code == ResponseCode.QUERY_NOT_FOUND
    assert client.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders").code == 0
    assert b"listenPort=9876" in bytes(client.ask(RequestCode.GET_NAMESRV_CONFIG).body)
