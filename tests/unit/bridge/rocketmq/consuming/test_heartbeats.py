"""Heartbeats, member lists, closed connections and locks, as clients see them; who is notified of changes."""

import pytest

from duolog.bridge.config import GroupsOptions, Options, RocketmqOptions, TopicsOptions
from duolog.bridge.rocketmq.groups.heartbeat_times import CHANNEL_MS, SCAN_INTERVAL_MS
from duolog.bridge.state.topics import TooManyTopics
from duolog.protocol.rocketmq.bodies import (
    CheckClientRequest,
    LockRequest,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies, read
from tests.unit.protocol.rocketmq.test_bodies import OF_CPP

# -- Coming and going


def test_member_is_in_the_list_at_once_and_all_members_are_notified(broker: RocketMQBroker) -> None:
    first, second = broker.connect(), broker.connect()
    assert first.beat("billing", client_id="1").code == 0
    assert (first.members("billing"), first.notified()) == (["1"], ["billing"])
    assert second.beat("billing", "other", client_id="2").code == 0
    assert second.members("billing") == ["1", "2"]
    assert (first.notified(), second.notified()) == (["billing"], ["billing", "other"])


def test_heartbeat_that_changes_nothing_tells_nobody(broker: RocketMQBroker) -> None:
    client = broker.connect()
    client.beat("billing")
    client.notified()
    client.beat("billing")
    assert client.notified() == []
    client.beat("billing", topics=("orders", "more"))
    assert client.notified() == ["billing"]


def unregister(client: Client) -> None:
    client.ask(RequestCode.UNREGISTER_CLIENT, clientID="2", producerGroup="shop", consumerGroup="billing")


def fall_silent(client: Client) -> None:
    broker, members = client.broker, client.broker.rocketmq_context.groups.members
    for _ in range(0, CHANNEL_MS, SCAN_INTERVAL_MS):
        broker.pass_ms(SCAN_INTERVAL_MS)
        for each in members.channels("billing"):
            if each is not client.connection:
                members.heartbeats.note(each, broker.clock.mono_ms())


@pytest.mark.parametrize("leave", [unregister, Client.close, fall_silent])
def test_member_that_leaves_is_removed_from_the_list_and_the_others_are_notified(broker: RocketMQBroker, leave) -> None:
    first, second = broker.connect(), broker.connect()
    first.beat("billing", client_id="1")
    second.beat("billing", client_id="2")
    first.notified()
    leave(second)
    assert first.notified() == ["billing"]
    assert first.members("billing") == ["1"]


def test_group_of_nobody_has_no_list(broker: RocketMQBroker) -> None:
    client = broker.connect()
    answer = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="billing")
    assert (answer.code, answer.remark) == (1, "no consumer for this group, billing")
    client.beat("billing")
    client.close()
    assert broker.connect().members("billing") is None


def test_group_may_want_no_notice(broker: RocketMQBroker) -> None:
    quiet = SubscriptionGroupConfig(group_name="billing", notify_consumer_ids_changed_enable=False)
    broker.rocketmq_context.groups.configs.configure(quiet, 0)
    client = broker.connect()
    client.beat("billing")
    assert client.notified() == []


# -- What a heartbeat makes


def test_group_and_its_retry_topic_are_made_and_survive(broker: RocketMQBroker) -> None:
    broker.connect().beat("billing")
    broker.settle()
    again = RocketMQBroker(broker.disk.after_kill())
    assert again.rocketmq_context.groups.configs.get("billing") is not None
    topic = again.topics.by_rocketmq_name("%RETRY%billing")
    assert topic is not None
    assert (topic.queue_count, topic.perm) == (1, 6)


def test_illegal_group_is_passed_over(broker: RocketMQBroker) -> None:
    client = broker.connect()
    assert client.beat("a b", "billing", "x" * 121).code == 0
    assert (client.members("a b"), client.members("billing")) == (None, ["client"])


@pytest.mark.parametrize("body", [b"", b"garbage", b"[]", b"{}", b'{"clientID":[}'])
def test_heartbeat_that_is_none_is_refused(broker: RocketMQBroker, body: bytes) -> None:
    assert broker.connect().ask(RequestCode.HEART_BEAT, body).code == ResponseCode.SYSTEM_ERROR


def state(broker: RocketMQBroker) -> tuple[object, ...]:
    members = broker.rocketmq_context.groups.members
    return (
        len(broker.topics), len(broker.rocketmq_context.groups.configs.all()), broker.store.next_position,
        list(members.consumers), list(members.producers.groups), members._membership_count, members._subscribed_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "groups", "topics", "says"),
    [
        ({}, 501, 1, "rocketmq.client_groups_max=500"),
        ({"groups_max": 3}, 4, 1, "rocketmq.groups_max=3"),
        ({"subscriptions_max": 2}, 2, 3, "rocketmq.subscriptions_max=2"),
        ({"subscribed_bytes_max": 4096}, 5, 2, "rocketmq.subscribed_bytes_max=4096"),
        ({"client_subscribed_bytes_max": 4096}, 5, 2, "rocketmq.client_subscribed_bytes_max=4096"),
        ({"groups_count_max": 20}, 30, 1, "groups.count_max=20"),
    ],
)
def test_refused_heartbeat_changes_nothing(settings: dict[str, int], groups: int, topics: int, says: str) -> None:
    count_max = settings.pop("groups_count_max", 100_000)
    broker = RocketMQBroker(
        options=Options(rocketmq=RocketmqOptions(**settings), groups=GroupsOptions(count_max=count_max)),
    )
    before, names = state(broker), [f"t{number}" for number in range(topics)]
    for name in names:
        broker.rocketmq_context.names.expected_topics.add(name, broker.clock.mono_ms())
    answer = broker.connect().beat(*[f"g{number}" for number in range(groups)], topics=names)
    assert (answer.code, says in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert state(broker) == before


def test_retry_topics_leave_room_for_other_topics(caplog: pytest.LogCaptureFixture) -> None:
    """Heartbeats of more groups than there may be topics are accepted, and each client can still create a topic."""
    broker = RocketMQBroker(options=Options(topics=TopicsOptions(topics_max=50, group_topics_ratio=0.4)))
    own = len(broker.topics)
    for first in range(0, 60, 20):
        assert broker.connect().beat(*[f"g{number}" for number in range(first, first + 20)]).code == 0
    assert len(broker.topics) - own == 20
    assert caplog.text.count("further topics of this kind are refused prefix=%RETRY% topics=20") == 1
    client = broker.connect()
    for name, code in (("orders", 0), ("%RETRY%g1", 0), ("%RETRY%one-more", ResponseCode.SYSTEM_ERROR), ("%DLQ%g1", 0)):
        answer = client.send(name)
        assert (answer.code, code == 0 or "topics.group_topics_ratio" in answer.remark) == (code, True), name
    broker.settle()
    again = RocketMQBroker(broker.disk.after_kill(), options=broker.options)
    retry = again.topics.by_rocketmq_name("%RETRY%g1")
    assert retry is not None
    with pytest.raises(TooManyTopics):
        again.topics.create("%RETRY%one-more", 1, {}, 0)
    again.topics.delete(retry, 0)
    again.topics.create("%RETRY%one-more", 1, {}, 0)


def test_names_that_repeat_in_a_heartbeat_count_once(broker: RocketMQBroker) -> None:
    client = broker.connect()
    assert client.beat(*["billing"] * 600).code == client.beat("billing", topics=["orders"] * 2500).code == 0
    assert (client.members("billing"), len(broker.rocketmq_context.groups.members.consumers)) == (["client"], 1)


def test_heartbeat_of_cpp_makes_a_member(broker: RocketMQBroker) -> None:
    client = broker.connect()
    assert client.ask(RequestCode.HEART_BEAT, OF_CPP).code == 0
    assert client.members("g") == ["10.0.0.1@7"]
    group = broker.rocketmq_context.groups.members.consumers["g"]
    assert (group.is_clustering, group.consume_type, list(group.subscriptions)) == (True, "CONSUME_PASSIVELY", ["t"])


# -- Members that want different messages


def tagged(broker: RocketMQBroker) -> None:
    topic = broker.topic()
    for tag in ("old", "new"):
        broker.publish(topic, tag.encode(), tag=tag)


def pulled(client: Client) -> tuple[int, list[bytes]]:
    answer = client.pull(0, sysFlag=0, subscription=None)
    return answer.code, bodies(answer) if answer.code == 0 else []


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("by", ["broker", "group"])
def test_rolling_release(is_refused: bool, by: str, caplog: pytest.LogCaptureFixture) -> None:
    """The newest subscription counts for all, with a warning; or its member is refused, where a setting says so."""
    options = RocketmqOptions(refuse_other_subscriptions=is_refused is (by == "broker"))
    broker = RocketMQBroker(options=Options(rocketmq=options))
    tagged(broker)
    old, new = broker.connect(), broker.connect()
    if by == "group":
        attributes = {"+refuse.other.subscriptions": str(is_refused).lower()}
        config = SubscriptionGroupConfig(group_name="billing", attributes=attributes)
        assert old.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config).code == 0
    old.beat("billing", client_id="1", expression="old", version=1)
    new.beat("billing", client_id="2", expression="new", version=2)
    if is_refused:
        assert (old.members("billing"), pulled(old)) == (["1"], (0, [b"old"]))
        assert pulled(new)[0] == ResponseCode.SUBSCRIPTION_NOT_LATEST
    else:
        assert (old.members("billing"), pulled(old), pulled(new)) == (["1", "2"], (0, [b"new"]), (0, [b"new"]))
    assert len(broker.rocketmq_context.groups.members.differing()) == (not is_refused)
    said = "subscription refused" if is_refused else "the newest subscription counts group=billing client=2"
    assert said in caplog.text
    (old if is_refused else new).close()  # The release goes on; or is rolled back.
    left, gets = (new, [b"new"]) if is_refused else (old, [b"old"])
    assert (pulled(left), len(broker.rocketmq_context.groups.members.differing())) == ((0, gets), 0)


def test_broadcasting_members_get_what_each_wants(broker: RocketMQBroker, caplog: pytest.LogCaptureFixture) -> None:
    tagged(broker)
    clients = {tag: broker.connect() for tag in ("old", "new")}
    for version, (tag, client) in enumerate(clients.items()):
        client.beat("billing", client_id=tag, expression=tag, version=version, message_model="BROADCASTING")
    assert {tag: pulled(client) for tag, client in clients.items()} == {"old": (0, [b"old"]), "new": (0, [b"new"])}
    assert "subscribe" not in caplog.text


# -- One protocol at a time


def test_group_that_is_active_in_kafka_takes_no_members(broker: RocketMQBroker) -> None:
    broker.topic()
    broker.kafka_groups_with_members.add("billing")
    client = broker.connect()
    assert client.beat("billing", "other").code == 0
    assert (client.members("billing"), client.members("other")) == (None, ["client"])
    answer = client.pull(0, sysFlag=0)
    assert (answer.code, "is active in Kafka" in answer.remark) == (ResponseCode.SUBSCRIPTION_NOT_EXIST, True)
    broker.kafka_groups_with_members.clear()
    client.beat("billing", "other")
    assert client.members("billing") == ["client"]


def test_broadcast_has_no_members_to_speak_of(broker: RocketMQBroker) -> None:
    broker.kafka_groups_with_members.add("billing")
    client = broker.connect()
    client.beat("billing", message_model="BROADCASTING")
    assert client.members("billing") == ["client"]
    broker.kafka_groups_with_members.clear()
    assert broker.client_protocols.active("billing") is None


# -- Checking


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [
        ("TAG", "a || b", 0),
        ("TAG", "||", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("SQL92", "a = 1", 0),
        ("SQL92", "a =", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("GROOVY", "a", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_subscriptions_are_checked(broker: RocketMQBroker, kind: str, expression: str, code: int) -> None:
    subscription = SubscriptionData(topic="orders", sub_string=expression, expression_type=kind)
    asked = CheckClientRequest(client_id="c", group="billing", subscription_data=subscription)
    assert broker.connect().ask(RequestCode.CHECK_CLIENT_CONFIG, asked).code == code


# -- Locks


def lock(client: Client, who: str, *queue_ids: int, code: int = RequestCode.LOCK_BATCH_MQ) -> list[int]:
    queues = [MessageQueue("orders", "duolog", queue_id) for queue_id in queue_ids]
    answer = client.ask(code, LockRequest(consumer_group="billing", client_id=who, mq_set=queues))
    assert answer.code == 0
    return [queue["queueId"] for queue in read(answer)["lockOKMQSet"]] if code == RequestCode.LOCK_BATCH_MQ else []


def test_queue_is_locked_by_one_client_at_a_time(broker: RocketMQBroker) -> None:
    broker.topic("orders", queues=3)
    client = broker.connect()
    assert lock(client, "1", 0, 1) == [0, 1]
    assert lock(client, "2", 1, 2) == [2]
    lock(client, "1", 1, code=RequestCode.UNLOCK_BATCH_MQ)
    assert lock(client, "2", 0, 1, 1) == [1]
    assert lock(client, "2", 3, -1) == []  # No such queues.


def test_locks_of_who_says_goodbye_are_free_at_once(broker: RocketMQBroker) -> None:
    broker.topic()
    first, second = broker.connect(), broker.connect()
    first.beat("billing", client_id="1")
    second.beat("billing", client_id="2")
    assert lock(second, "2", 0, 1) == [0, 1]
    assert lock(first, "1", 0, 1) == []
    unregister(second)
    assert lock(first, "1", 0, 1) == [0, 1]


def test_group_that_is_active_in_kafka_locks_nothing(broker: RocketMQBroker) -> None:
    broker.kafka_groups_with_members.add("billing")
    assert lock(broker.connect(), "1", 0) == []
