"""The requests of tools about messages, connections and the key-value config: each figure was set by the test."""

from typing import Any

import pytest

from duolog.bridge.config import Options, RocketmqOptions
from duolog.bridge.data.publishing.produced_batches import BatchOrigin
from duolog.bridge.monitoring.rates import (
    DAY_MS,
    INTERVAL_MS,
    Rates,
    Totals,
)
from duolog.bridge.rocketmq.admin.consume_counts import SLOT_MS, ConsumeCounts
from duolog.bridge.rocketmq.namesrv import key_values
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import (
    GroupConfigList,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigList,
)
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import message
from duolog.protocol.rocketmq.messages.message_id import message_id
from tests.kit.core import STORE_HOST
from tests.kit.threads import ManualThreads
from tests.unit.bridge.batches import batch
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies, read

HOUR_MS = 3_600_000


def commit(client: Client, offset: int, group: str = "billing", topic: str = "orders") -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    answer = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
    assert answer is not None
    assert answer.code == 0


# -- Groups


def test_who_reads_a_topic_and_what_a_group_reads(broker: RocketMQBroker, client: Client) -> None:
    broker.topic("orders")
    broker.topic("bills")
    commit(client, 0, "past")
    client.beat("present", topics=("orders", "bills"), expression="a || b")
    who = client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders")
    assert read(who)["groupList"] == ["past", "present"]
    assert read(client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="nowhere"))["groupList"] == []
    assert read(client.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="past"))["topicList"] == ["orders"]
    assert read(client.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="present"))["topicList"] == ["bills", "orders"]
    asked = {"group": "present", "topic": "bills"}
    found = read(client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, **asked))
    assert found["subscriptionData"]["subString"] == "a || b"
    assert (
        read(client.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="x", topic="y"))["subscriptionData"] is None
    )


@pytest.mark.parametrize("clean", [False, True])
def test_a_deleted_group_keeps_its_positions_if_that_is_wished(
    broker: RocketMQBroker, client: Client, clean: bool
) -> None:
    topic = broker.topic()
    client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, SubscriptionGroupConfig(group_name="billing"))
    commit(client, 0)
    kept = broker.group_offsets.fetch("billing", topic.key(0))
    assert client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="billing", cleanOffset=clean).code == 0
    assert broker.rocketmq_context.groups.configs.get("billing") is None
    assert broker.group_offsets.fetch("billing", topic.key(0)) == (None if clean else kept)
    again = RocketMQBroker(broker.disk.after_kill())
    assert again.group_offsets.fetch("billing", topic.key(0)) == (None if clean else kept)


def test_a_group_of_the_systems_own_is_not_deleted(client: Client) -> None:
    answer = client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="TOOLS_CONSUMER", cleanOffset=True)
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_several_topics_and_groups_are_made_by_one_request(broker: RocketMQBroker, client: Client) -> None:
    topics = TopicConfigList(
        topic_config_list=[TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=3) for name in ("a", "b")]
    )
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, topics).code == 0
    assert [broker.topic(name).queue_count for name in ("a", "b")] == [3, 3]
    groups = GroupConfigList(group_config_list=[SubscriptionGroupConfig(group_name=name) for name in ("g", "h")])
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups).code == 0
    assert broker.rocketmq_context.groups.configs.get("h") is not None


def test_all_groups_are_listed_with_what_they_have_left(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(queues=1), b"a", b"b", b"c")
    client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, SubscriptionGroupConfig(group_name="billing"))
    commit(client, 1)
    text = bytes(client.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False).body).decode()
    assert '"totalDiff":2' in text
    assert '{{"topic":"orders","brokerName":"duolog","queueId":0}:{"brokerOffset":3,"consumerOffset":1' in text


# -- Members


def test_producers_are_listed_with_their_last_heartbeat(broker: RocketMQBroker, client: Client) -> None:
    client.beat(client_id="shop@1")
    beat_ms = broker.clock.now_ms()
    broker.clock.pass_ms(5000)
    (found,) = read(client.ask(RequestCode.GET_ALL_PRODUCER_INFO))["data"]["shop"]
    assert (found["clientId"], found["lastUpdateTimestamp"]) == ("shop@1", beat_ms)


def test_who_sent_a_half_message_is_a_producer_before_its_first_heartbeat(
    broker: RocketMQBroker, client: Client
) -> None:
    broker.topic()
    assert client.send(properties="TRAN_MSG\x01true\x02PGROUP\x01shop\x02").code == 0
    (found,) = read(client.ask(RequestCode.GET_ALL_PRODUCER_INFO))["data"]["shop"]
    assert (found["clientId"], found["lastUpdateTimestamp"]) == ("", broker.clock.now_ms())


def member(broker: RocketMQBroker) -> Client:
    found = broker.connect()
    found.beat("billing", client_id="c1")
    found.notified()
    return found


@pytest.mark.parametrize("is_answered", [True, False])
def test_running_info_is_the_members_own_answer(broker: RocketMQBroker, client: Client, is_answered: bool) -> None:
    consumer = member(broker)
    fields = {"consumerGroup": "billing", "clientId": "c1", "jstackEnable": False}
    assert client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields) is None
    (asked,) = consumer.asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert asked.ext["jstackEnable"] == "false"
    if is_answered:
        consumer.say(remoting.response(asked, body=b'{"properties":{}}'))
        assert bytes(client.last_answer().body) == b'{"properties":{}}'
    else:
        broker.pass_ms(6000)
        assert client.last_answer().code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert client.connection.unanswered == 0


@pytest.mark.parametrize(("code", "ext"), [(100_000, {}), (-100_000, {}), (0, {"k" * 32_768: "v"})])
@pytest.mark.parametrize("is_json", [True, False])
def test_answer_of_a_member_that_does_not_fit_the_tools_form_is_an_error(
    broker: RocketMQBroker, client: Client, code: int, ext: dict[str, str], is_json: bool
) -> None:
    """A binary header has 16 bits for the code and for the length of a key."""
    consumer = member(broker)
    fields = {"consumerGroup": "billing", "clientId": "c1"}
    assert client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, json=is_json, **fields) is None
    (asked,) = consumer.asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    consumer.say(remoting.response(asked, code, ext=ext))
    assert client.last_answer().code == (code if is_json else ResponseCode.SYSTEM_ERROR)
    assert (client.connection.unanswered, consumer.connection.closed) == (0, False)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "billing", "clientId": "c1"}),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "billing", "topic": "orders", "clientAddr": ""}),
    ],
)
def test_who_asks_one_way_is_not_answered(
    broker: RocketMQBroker, client: Client, code: RequestCode, fields: dict[str, str]
) -> None:
    consumer = member(broker)
    assert client.ask(code, oneway=True, **fields) is None
    consumer.answer_to(-1)
    (asked,) = consumer.heard
    consumer.say(remoting.response(asked, body=b"{}"))
    assert (client.last_answer(), client.connection.unanswered) == (None, 0)


def test_a_member_consumes_one_message_directly(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()
    sent = client.send(body=b"once more").ext["msgId"]
    consumer = member(broker)
    fields = {"consumerGroup": "billing", "clientId": "c1", "msgId": sent, "brokerName": "?"}
    assert client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields) is None
    (asked,) = consumer.asked(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert (bodies(asked), asked.ext["brokerName"]) == ([b"once more"], "duolog")
    consumer.say(remoting.response(asked, body=b'{"consumeResult":"CR_SUCCESS"}'))
    assert read(client.last_answer()) == {"consumeResult": "CR_SUCCESS"}


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"clientId": "c2"}, "The Consumer <billing> <c2> not online"),
        ({"msgId": "7F00000100002A9F00000000000FFFFF"}, "no message has the id 7F00000100002A9F00000000000FFFFF"),
        ({"msgId": "no id"}, "no id"),
    ],
)
def test_what_cannot_be_consumed_directly(
    broker: RocketMQBroker, client: Client, fields: dict[str, str], remark: str
) -> None:
    broker.topic()
    sent = client.send().ext["msgId"]
    _online = member(broker)
    request = {"consumerGroup": "billing", "clientId": "c1", "msgId": sent, **fields}
    answer = client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **request)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in answer.remark
    assert client.connection.unanswered == 0


def test_what_is_not_committed_is_not_consumed_directly(broker: RocketMQBroker, client: Client) -> None:
    topic, now_ms = broker.topic(), broker.clock.now_ms()
    producer, _ = broker.transactions.init("id", 60_000, None, now_ms)
    for sequence in (0, 1):
        sent = batch([b"open"], producer=(*producer, sequence), is_transactional=True)
        broker.publisher.publish_batch(topic, 0, sent, now_ms, BatchOrigin(transactional_id="id", adds_partition=True))
    broker.settle()
    (_, second) = broker.store.reader.read(topic.queues[0], 0, max_bytes=1000, until=2)
    _online = member(broker)
    broker.store.executors.readers = threads = ManualThreads()
    request = {"consumerGroup": "billing", "clientId": "c1", "msgId": message_id(STORE_HOST, second.position)}
    assert client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **request) is None
    threads.run()
    broker.settle()
    assert client.last_answer().code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert client.connection.unanswered == 0


# -- Topics


def test_what_came_to_a_topic_is_read_off_the_index(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic(queues=1)
    for _ in range(3):
        broker.publish(topic, b"a", b"b")
        broker.clock.pass_ms(HOUR_MS // 2)
    broker.publish(topic, b"c")
    stats = read(client.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders"))
    assert [stats[name]["sum"] for name in ("statsMinute", "statsHour", "statsDay")] == [1, 5, 7]
    whole = {"statsName": "BROKER_PUT_NUMS", "statsKey": "DefaultCluster"}
    assert read(client.ask(RequestCode.VIEW_BROKER_STATS_DATA, **whole))["statsDay"]["sum"] == 7
    for name, key in (
        ("GROUP_GET_NUMS", "none@billing"),
        ("GROUP_GET_SIZE", "orders@billing"),
        ("BROKER_GET_NUMS", ""),
    ):
        unknown = client.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
        assert unknown.code == ResponseCode.SYSTEM_ERROR


def given(client: Any, name: str = "GROUP_GET_NUMS", key: str = "orders@billing") -> list[int]:
    stats = read(client.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key))
    return [stats[name]["sum"] for name in ("statsMinute", "statsHour", "statsDay")]


def test_what_a_group_was_given_is_counted(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), *(b"%d" % n for n in range(7)))
    assert given(client) == [0, 0, 0]
    client.pull(0)
    client.pull(7)
    assert given(client) == given(client, "BROKER_GET_NUMS", "DefaultCluster") == [7, 7, 7]
    assert given(client, key="orders@others") == [0, 0, 0]
    broker.clock.pass_ms(2 * 60_000)
    client.pull(5)
    fields = {"consumerGroup": "billing", "invisibleTime": 10_000, "pollTime": 0, "initMode": 0}
    client.ask(RequestCode.POP_MESSAGE, topic="orders", queueId=0, maxMsgNums=3, **fields)
    assert given(client) == [5, 12, 12]


def test_counts_of_windows_end_with_them() -> None:
    counts = ConsumeCounts(keys_max=2)
    for minute in range(26 * 60):
        counts.add("g", 1, 1, 100, minute * 60_000)
        counts.advance(minute * 60_000 + SLOT_MS)
    now_ms = counts.next_deadline_mono_ms() or minute * 60_000 + SLOT_MS
    assert counts.of("g", 1, now_ms) == [1, 60, 24 * 60]
    assert counts.of("g", 1, now_ms + 3 * 3600_000) == [0, 0, 21 * 60]
    assert counts.of("g", 1, now_ms + 48 * 3600_000) == [0, 0, 0]
    for topic in (2, 3):
        counts.add("g", topic, 1, 100, now_ms)
    assert counts.of_all(now_ms)[0] == 2
    assert len(counts) == 2  # The one that was read longest ago made room.


def test_rows_of_the_index_are_shown(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"bb", tag="red")
    fields = {"topic": "orders", "queueId": 0, "index": 1, "count": 10}
    found = read(client.ask(RequestCode.QUERY_CONSUME_QUEUE, **fields))
    (second,) = message.decode_all(bytes(client.pull(1).body))
    (row,) = found["queueData"]
    assert (row["physicOffset"], row["physicSize"]) == (second.physical_offset, second.size)
    assert (row["tagsCode"], found["minQueueIndex"], found["maxQueueIndex"]) == (112785, 0, 2)
    assert client.ask(RequestCode.QUERY_CONSUME_QUEUE, **{**fields, "topic": "nowhere"}).code == 1


def test_times_of_messages_are_answered(broker: RocketMQBroker, client: Client) -> None:
    topic = broker.topic(queues=1)
    broker.publish(topic, b"a")
    first_ms = broker.clock.now_ms()
    broker.clock.pass_ms(1000)
    broker.publish(topic, b"b")
    commit(client, 1)
    stats = bytes(client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="billing", topic="orders").body)
    assert f'"lastTimestamp":{first_ms}'.encode() in stats
    stats = bytes(client.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="orders").body)
    assert f'"lastUpdateTimestamp":{first_ms + 1000}'.encode() in stats


# -- The broker


def test_settings_change_while_the_broker_runs(broker: RocketMQBroker, client: Client) -> None:
    assert update(client, b"# a comment\nautoCreateTopicEnable=false\nmaxMessageSize=10\n").code == 0
    assert client.send("new").code == ResponseCode.TOPIC_NOT_EXIST
    broker.topic()
    assert client.send(body=bytes(11)).code == ResponseCode.MESSAGE_ILLEGAL
    assert client.send(body=bytes(10)).code == 0
    shown = bytes(client.ask(RequestCode.GET_BROKER_CONFIG).body).decode().splitlines()
    assert {"autoCreateTopicEnable=false", "maxMessageSize=10"} <= set(shown)
    assert update(client, b"sendThreadPoolQueueCapacity=1").code == 0
    broker.is_stalled = True
    assert client.send(body=b"waits") is None
    assert str(client.send(body=b"too many").remark).startswith("[OVERLOAD]")
    assert "sendThreadPoolQueueCapacity=1" in bytes(client.ask(RequestCode.GET_BROKER_CONFIG).body).decode()


@pytest.mark.parametrize(
    "body",
    [
        b"maxMessageSize=0",
        b"maxMessageSize=10\nautoCreateTopicEnable=yes\nx=y",
        b"autoCreateTopicEnable=yes",
        b"maxMessageSize=10\nackThreadPoolQueueCapacity=0",
        b"adminBrokerThreadPoolQueueCapacity=\xd9\xa3",
        b"maxMessageSize=" + b"9" * 5000,
    ],
)
def test_settings_that_cannot_change_change_nothing(broker: RocketMQBroker, client: Client, body: bytes) -> None:
    assert update(client, body).code == ResponseCode.INVALID_PARAMETER
    assert (broker.topics.auto_create, broker.publisher.messages.body_bytes_max) == (True, 4 << 20)


def update(client: Client, body: bytes) -> Any:
    return client.ask(RequestCode.UPDATE_BROKER_CONFIG, body)


def test_rates_are_over_windows() -> None:
    written = 0
    rates = Rates(lambda: Totals(written, 2 * written))
    assert rates.per_second(0) == ([0.0] * 3, [0.0] * 3)
    for step in range(70):
        rates.sample(step * INTERVAL_MS, 0)
        written += 100 if step < 60 else 1000
    now_ms = 70 * INTERVAL_MS
    assert rates.next_deadline_ms() == now_ms
    assert rates.per_second(now_ms)[0] == [100.0, 100.0, (50 * 100 + 10 * 1000) / 600]


# -- What tools keep at the name server


def test_values_are_kept_over_a_restart(broker: RocketMQBroker, client: Client) -> None:
    for key, value in (("a", "1"), ("b", "2"), ("a", "3")):
        assert client.ask(RequestCode.PUT_KV_CONFIG, namespace="ns", key=key, value=value).code == 0
    assert client.ask(RequestCode.DELETE_KV_CONFIG, namespace="ns", key="b").code == 0
    assert client.ask(RequestCode.DELETE_KV_CONFIG, namespace="ns", key="never").code == 0
    again = RocketMQBroker(broker.disk.after_kill()).connect()
    for asked in (client, again):
        assert asked.ask(RequestCode.GET_KV_CONFIG, namespace="ns", key="a").ext["value"] == "3"
        assert asked.ask(RequestCode.GET_KV_CONFIG, namespace="ns", key="b").code == ResponseCode.QUERY_NOT_FOUND
        assert read(asked.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ns"))["table"] == {"a": "3"}


def test_a_value_that_is_too_long_is_refused(client: Client) -> None:
    answer = client.ask(RequestCode.PUT_KV_CONFIG, namespace="ns", key="a", value="x" * 5000)
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_a_wiped_write_permission_is_in_the_routes(broker: RocketMQBroker, client: Client) -> None:
    broker.topic()

    def perm() -> int:
        found: int = read(client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders"))["queueDatas"][0]["perm"]
        return found

    assert client.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="another").ext["wipeTopicCount"] == "0"
    assert perm() == 6
    assert int(client.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="duolog").ext["wipeTopicCount"]) > 1
    assert perm() == 4
    assert int(client.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="duolog").ext["addTopicCount"]) > 1
    assert perm() == 6


def test_totals_of_the_mornings() -> None:
    written = 0
    rates = Rates(lambda: Totals(written, 2 * written))
    mornings = []
    for step, day in enumerate((3, 3, 4, 4, 5, 9)):
        written += 10
        rates.sample(step * INTERVAL_MS, day * DAY_MS)
        mornings.append((rates.this_morning.written, rates.yesterday_morning.written))
    assert mornings == [(0, 0), (0, 0), (30, 0), (30, 0), (50, 30), (60, 60)]


def test_values_and_configs_have_a_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "TEXT_MAX", 100)
    broker = RocketMQBroker(options=Options(rocketmq=RocketmqOptions(group_config_bytes_max=1024)))
    client = broker.connect()

    def put(value: str, key: str = "k") -> int:
        answer = client.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key=key, value=value)
        assert answer is not None
        return answer.code

    def configure(group: str) -> Any:
        config = SubscriptionGroupConfig(group_name=group, attributes={"+a": "x" * 300})
        return client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)

    assert [put("x" * 90), put("y" * 90), put("x" * 10, "other")] == [0, 0, 1]
    client.ask(RequestCode.DELETE_KV_CONFIG, namespace="n", key="k")
    assert put("x" * 90, "other") == 0
    assert [configure("a").code, configure("a").code, configure("b").code] == [0, 0, 1]
    assert "rocketmq.group_config_bytes_max=1024" in configure("b").remark
    client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="a", cleanOffset="false")
    assert configure("b").code == 0
