"""Offset resets by tools: where members of all client versions continue, and which of their commits are ignored."""

from typing import Any

import pytest

from duolog.bridge.rocketmq.consuming import offset_resets
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import ConsumerStatus, ResetOffsetBody, SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.json.fastjson import MessageQueue, QueueTable
from tests.kit.threads import ManualThreads
from tests.unit.adversary.budget import counted
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies

OLD, NEW = 409, 493
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
TELL = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
HOLD = 2 | 4  # SUSPEND, SUBSCRIPTION


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker()
    topic = broker.topic()
    for n in range(10):
        broker.publish(topic, b"%d" % n)
        broker.clock.pass_ms(1000)
    return broker


def member(broker: RocketMQBroker, version: int = NEW) -> Client:
    client = broker.connect()
    client.version = version
    client.beat("billing")
    return client


def reset(broker: RocketMQBroker, **fields: object) -> Any:
    request = {"topic": "orders", "group": "billing", "timestamp": -1, "isForce": True, **fields}
    return broker.connect().ask(RESET, **request)


def position(client: Client) -> int:
    answer = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="billing", topic="orders", queueId=0)
    assert answer is not None
    return int(answer.ext["offset"])


def commit(client: Client, offset: int) -> Any:
    fields = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": offset}
    return client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)


# -- Where to


@pytest.mark.parametrize(
    ("fields", "offsets"),
    [
        ({"timestamp": -1}, {0: 10, 1: 0}),
        ({"timestamp": 0}, {0: 0, 1: 0}),
        ({"timestamp": "at 4"}, {0: 4, 1: 0}),
        ({"timestamp": "at 4", "queueId": 0}, {0: 4}),
        ({"queueId": 0, "offset": 7}, {0: 7}),
        ({"queueId": 0, "offset": 10}, {0: 10}),
    ],
)
def test_offsets_are_reset_as_requested(
    broker: RocketMQBroker, fields: dict[str, object], offsets: dict[int, int]
) -> None:
    client = member(broker)
    begun_ms = broker.clock.now_ms() - 10_000
    if fields.get("timestamp") == "at 4":
        fields = fields | {"timestamp": begun_ms + 4000}
    answer = reset(broker, **fields)
    assert answer.code == 0
    found = fastjson.read(answer.body, ResetOffsetBody).offset_table.rows
    assert {queue.queue_id: offset for queue, offset in found.items()} == offsets
    assert {(queue.topic, queue.broker_name) for queue in found} == {("orders", "duolog")}
    assert position(client) == offsets[0]
    assert position(RocketMQBroker(broker.disk.after_power_cut(1)).connect()) == offsets[0]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 0, "offset": 11}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 0, "offset": -1}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_cannot_be_is_refused(broker: RocketMQBroker, fields: dict[str, object], code: int) -> None:
    client = member(broker)
    commit(client, 5)
    assert reset(broker, **fields).code == code
    assert position(client) == 5


def test_group_that_is_active_in_kafka_is_not_moved(broker: RocketMQBroker) -> None:
    member(broker).close()
    broker.kafka_groups_with_members.add("billing")
    assert reset(broker).code == ResponseCode.SYSTEM_ERROR


# -- What live members see


def test_next_pull_goes_there_once(broker: RocketMQBroker) -> None:
    client = member(broker)
    assert len(bodies(client.pull(2))) == 8
    reset(broker, timestamp=0)
    moved = client.pull(10)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert len(bodies(client.pull(0))) == 10
    assert len(bodies(client.pull(9))) == 1


def test_held_pull_goes_there_at_once(broker: RocketMQBroker) -> None:
    client = member(broker)
    assert client.pull(10, sysFlag=HOLD) is None
    reset(broker, timestamp=0)
    moved = client.last_answer()
    assert moved is not None
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert client.connection.unanswered == 0


def test_commits_on_their_way_are_passed_over(broker: RocketMQBroker) -> None:
    client = member(broker)
    commit(client, 10)
    reset(broker, timestamp=0)
    assert commit(client, 10).remark == "Offset has been previously reset"
    client.pull(10, sysFlag=1 | 4, commitOffset=10, queueId=0)
    assert position(client) == 0
    commit(client, 3)
    assert position(client) == 3


def test_old_push_consumer_is_notified_and_its_pulls_are_left_alone(broker: RocketMQBroker) -> None:
    client, other = member(broker, OLD), member(broker, NEW)
    assert client.pull(10, sysFlag=HOLD) is None
    reset(broker, timestamp=0)
    (notice,) = client.asked(TELL)
    rows = fastjson.read(notice.body, ResetOffsetBody).offset_table.rows
    assert notice.is_oneway
    assert rows == {MessageQueue("orders", "duolog", 0): 0, MessageQueue("orders", "duolog", 1): 0}
    assert (notice.ext["topic"], notice.ext["group"]) == ("orders", "billing")
    assert client.last_answer() is None  # Its pull is still held.
    assert other.asked(TELL) == []
    commit(client, 10)  # It does so until its ten seconds are over.
    assert position(client) == 0
    assert len(bodies(client.pull(0))) == 10
    commit(client, 10)
    assert position(client) == 10


def test_old_lite_consumer_learns_it_from_its_pull(broker: RocketMQBroker) -> None:
    client = member(broker, OLD)
    reset(broker, timestamp=0)
    assert client.pull(10, sysFlag=16 | 4).code == ResponseCode.PULL_OFFSET_MOVED


def test_group_without_members_leaves_no_mark(broker: RocketMQBroker) -> None:
    member(broker).close()
    reset(broker, timestamp=0)
    client = member(broker)
    assert len(bodies(client.pull(5))) == 5


# -- Asking the members


def test_members_say_where_they_are(broker: RocketMQBroker) -> None:
    first, second, tool = broker.connect(), broker.connect(), broker.connect()
    first.beat("billing", client_id="one")
    second.beat("billing", client_id="two")
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    assert tool.ask(code, topic="orders", group="billing") is None
    for client, offset in ((first, 3), (second, 4)):
        (asked,) = client.asked(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
        table = QueueTable({MessageQueue("orders", "duolog", 0): offset})
        body = fastjson.write(ConsumerStatus(message_queue_table=table))
        client.say(remoting.response(asked, body=body))
    answer = tool.last_answer()
    assert answer is not None
    found = fastjson.read(answer.body, ConsumerStatus).consumer_table
    assert {name: [*table.rows.values()] for name, table in found.items()} == {"one": [3], "two": [4]}


@pytest.mark.parametrize("how", ["silent", "closed", "garbage"])
def test_members_that_do_not_say_are_left_out(broker: RocketMQBroker, how: str) -> None:
    client, tool = member(broker), broker.connect()
    tool.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="orders", group="billing", clientAddr="client")
    if how == "silent":
        broker.pass_ms(10_000)
    elif how == "closed":
        client.close()
    else:
        (asked,) = client.asked(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
        client.say(remoting.response(asked, body=b"garbage"))
    answer = tool.last_answer()
    assert answer is not None
    assert tool.connection.unanswered == 0
    assert not client.connection.calls


def test_so_many_members_are_asked_at_once_and_say_so_many_bytes_in_all(
    broker: RocketMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, tool = [broker.connect() for _ in range(5)], broker.connect()
    for number, client in enumerate(clients):
        client.beat("billing", client_id=f"c{number}")
    body = fastjson.write(ConsumerStatus(message_queue_table=QueueTable({MessageQueue("orders", "duolog", 0): 7})))
    monkeypatch.setattr("duolog.bridge.rocketmq.consuming.offset_resets.ASKED_AT_ONCE", 2)
    monkeypatch.setattr("duolog.bridge.rocketmq.consuming.offset_resets.STATUS_BYTES_MAX", 3 * len(body))
    tool.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="orders", group="billing")
    clients[2].close()
    for client in clients:
        assert sum(len(each.connection.calls) for each in clients) <= 2
        if client is not clients[2]:
            (asked,) = client.asked(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
            client.say(remoting.response(asked, body=body))
    answer = tool.last_answer()
    assert answer is not None
    assert [*fastjson.read(answer.body, ConsumerStatus).consumer_table] == ["c0", "c1", "c3"]
    assert tool.connection.unanswered == 0


def test_group_without_members_has_nobody_to_check(broker: RocketMQBroker) -> None:
    SubscriptionGroupConfig(group_name="billing")
    answer = broker.connect().ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="orders", group="billing")
    assert answer is not None
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


def test_positions_of_many_queues_are_moved_in_turns_of_the_loop(
    broker: RocketMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_resets, "QUEUES_AT_ONCE", 50)
    many = broker.topic("many", queues=420)
    client, member = broker.connect(), broker.connect()
    member.beat("billing", topics=("many",))
    turns: list[int] = []
    run = broker.loop.turn
    broker.loop.turn = lambda: None  # type: ignore[method-assign]
    for timestamp in (-1, 5):
        given = client.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="many", group="billing", timestamp=timestamp, isForce=True
        )
        while given is None:
            with counted(calls=True) as work:
                broker.loop._soon.popleft()()
            turns.append(work.units)
            broker.server.flush()
            broker.settle_log()
            given = client.last_answer()
        assert given.code == 0
        fastjson.read(given.body, ResetOffsetBody)
        assert bytes(given.body).count(b"queueId") == many.queue_count
    broker.loop.turn = run  # type: ignore[method-assign]
    assert len(turns) >= 2 * many.queue_count // 50
    assert max(turns) < 100 * 50  # All queues would be eight times as many.
    assert len(broker.group_offsets.all_of("billing")) == many.queue_count
    assert all(broker.rocketmq_context.groups.reset_marks.find("billing", queue.key) == 0 for queue in many.queues)


@pytest.mark.parametrize("reads_disk", [False, True])
def test_group_that_becomes_active_in_kafka_during_a_reset_is_moved_no_further(
    broker: RocketMQBroker, monkeypatch: pytest.MonkeyPatch, reads_disk: bool
) -> None:
    monkeypatch.setattr(offset_resets, "QUEUES_AT_ONCE", 1)
    client = member(broker)
    commit(client, 5)
    if reads_disk:
        broker.group_offsets.advance(broker.clock.mono_ms(), broker.clock.now_ms())
        broker.settle()
        broker = RocketMQBroker(broker.disk.after_kill())
        broker.disk.cached = False
        threads = broker.store.executors.readers = ManualThreads()
        client = member(broker)
    tool, run_turns = broker.connect(), broker.loop.turn
    broker.loop.turn = lambda: None  # type: ignore[method-assign]
    fields = {"topic": "orders", "group": "billing", "timestamp": 0, "isForce": True}
    assert tool.ask(RESET, **fields) is None
    broker.kafka_groups_with_members.add("billing")
    broker.loop.turn = run_turns  # type: ignore[method-assign]
    if reads_disk:
        threads.run()
    broker.settle()
    answer = tool.last_answer()
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert position(client) == (5 if reads_disk else 0), "the first queue was moved before"
