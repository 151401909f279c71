"""Pops from a real store: messages popped, acknowledged, revived and made dead letters, also over crashes."""

import base64
import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.consuming.assignment import allocate
from duolog.protocol.rocketmq.bodies import (
    AssignmentRequest,
    BatchAck,
    BatchAckRequest,
    RequestModeRequest,
    SubscriptionGroupConfig,
)
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.receipt import RETRIED, parse_receipt, real_topic
from tests.kit.threads import ManualThreads
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, read
from tests.unit.bridge.rocketmq.popping import DEAD, INVISIBLE_MS, RETRY, Got, ack, bodies_of, got, nothing, pop


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker()
    broker.topic()
    return broker


# -- Popping and acking


def test_messages_of_all_queues_are_popped_once(broker: RocketMQBroker, client: Client) -> None:
    for queue_id in (0, 1):
        broker.publish(broker.topic(), *(b"%d/%d" % (queue_id, n) for n in range(3)), queue_id=queue_id)
    first = got(pop(client, maxMsgNums=4))
    second = got(pop(client))
    assert len(first) == 4
    assert sorted(one.body for one in first + second) == [b"0/0", b"0/1", b"0/2", b"1/0", b"1/1", b"1/2"]
    assert nothing(client)
    for one in first + second:
        assert ack(client, one).code == 0
    broker.pass_ms(INVISIBLE_MS)
    assert nothing(client)
    assert len(broker.rocketmq_context.pop.checkpoints) == 0


def test_what_is_not_acked_comes_back_through_the_retry_topic(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"b", b"c")
    a, b, _ = got(pop(client))
    ack(client, b)
    broker.pass_ms(INVISIBLE_MS - 1)
    assert nothing(client)
    broker.pass_ms(1)
    again = got(pop(client))
    assert [(one.body, one.topic, one.failures) for one in again] == [(b"a", "orders", 1), (b"c", "orders", 1)]
    assert ack(client, a).code == ResponseCode.NO_MESSAGE  # Its time was up.
    assert [ack(client, one).code for one in again] == [0, 0]
    assert ack(client, again[0]).code == ResponseCode.NO_MESSAGE  # Once is enough.
    broker.pass_ms(INVISIBLE_MS)
    assert nothing(client)
    assert broker.metrics.retries == 2


def test_message_that_fails_too_often_is_a_dead_letter(broker: RocketMQBroker, client: Client) -> None:
    config = SubscriptionGroupConfig(group_name="billing", retry_max_times=2)
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config).code == 0
    broker.publish(broker.topic(), b"bad", tag="t")
    failed_ms = []
    for failures in range(3):
        (one,) = got(pop(client))
        assert one.failures == failures
        broker.pass_ms(INVISIBLE_MS)
        failed_ms.append(broker.clock.now_ms())
    assert nothing(client)
    dead = broker.topics.by_rocketmq_name(DEAD)
    assert dead is not None
    (kept,) = broker.store.reader.read(dead.queues[0], 0, max_bytes=1 << 20, until=1)
    found = message.decode(kept.frame)
    found_properties = properties.parse(found.properties)
    assert (bytes(found.body), found.reconsume_times, found_properties["RETRY_TOPIC"], found_properties["TAGS"]) == (
        b"bad",
        3,
        "orders",
        "t",
    )
    assert "POP_CK" not in found_properties
    assert found_properties["FAILED_ATTEMPTS"] == " ".join(f"{at}:{ms}" for at, ms in enumerate(failed_ms, 1))


def test_message_without_room_for_a_receipt_is_a_dead_letter(broker: RocketMQBroker, client: Client) -> None:
    assert client.send(body=b"full", properties=f"a\x01{'x' * 32_500}\x02").code == 0
    broker.publish(broker.topic(), b"other")
    assert bodies_of(pop(client)) == [b"full", b"other"]
    broker.pass_ms(INVISIBLE_MS)
    assert bodies_of(pop(client)) == [b"other"]
    dead = broker.topics.by_rocketmq_name(DEAD)
    assert dead is not None
    assert dead.queues[0].end_offset == 1


def test_consumer_says_when_it_wants_the_message_again(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"b")
    a, b = got(pop(client))
    change = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    answer = ack(client, a, change, invisibleTime=2 * INVISIBLE_MS)
    assert answer.code == 0
    assert ack(client, a).code == ResponseCode.NO_MESSAGE  # Its receipt is another one now.
    parts = a.receipt.split(" ")
    a.receipt = " ".join([str(a.offset), answer.ext["popTime"], answer.ext["invisibleTime"], *parts[3:]])
    ack(client, b)
    broker.pass_ms(INVISIBLE_MS)
    assert nothing(client)
    assert ack(client, a, change, invisibleTime=0).code == 0
    broker.pass_ms(1)
    assert bodies_of(pop(client)) == [b"a"]


def test_batch_of_acks_takes_what_is_good_of_it(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), *(b"%d" % n for n in range(10)))
    popped = got(pop(client))
    receipt = parse_receipt(popped[0].receipt)

    def batch(bits: int, **other: Any) -> BatchAck:
        encoded = base64.b64encode(bits.to_bytes(2, "little")).decode()
        fields: dict[str, Any] = {"group": "billing", "topic": "orders", "queue_id": 0, "pop_ms": receipt.pop_ms}
        return BatchAck(**{**fields, "start_offset": receipt.start_offset, "bits": encoded, **other})

    acks = [batch(0b1111111110), batch(1, pop_ms=1), batch(1, topic="none"), batch(1, queue_id=7)]
    assert client.ask(RequestCode.BATCH_ACK_MESSAGE, BatchAckRequest(acks=acks)).code == 0
    broker.pass_ms(INVISIBLE_MS)
    assert bodies_of(pop(client)) == [b"0"]


def test_what_is_not_wanted_is_passed_over(broker: RocketMQBroker, client: Client) -> None:
    for n in range(6):
        broker.publish(broker.topic(), b"%d" % n, tag="ab"[n % 2])
    assert bodies_of(pop(client, expType="TAG", exp="b", maxMsgNums=2)) == [b"1", b"3"]
    assert bodies_of(pop(client, expType="TAG", exp="b")) == [b"5"]
    broker.publish(broker.topic(), b"6", tag="a")
    assert nothing(client, expType="TAG", exp="b")
    assert nothing(client)  # What was not wanted is behind the group.


@pytest.mark.parametrize(("init_mode", "trimmed", "seen"), [(0, 0, 3), (0, 1, 2), (1, 0, 3), (1, 1, 0)])
def test_where_a_new_group_begins(
    broker: RocketMQBroker, client: Client, init_mode: int, trimmed: int, seen: int
) -> None:
    topic = broker.topic()
    broker.publish(topic, b"a", b"b", b"c")
    broker.store.retention.trim(topic.queues[0], trimmed, broker.clock.now_ms())
    found = pop(client, initMode=init_mode)
    assert (len(got(found)) if found.code == 0 else 0) == seen
    broker.publish(topic, b"later")
    assert bodies_of(pop(client, initMode=init_mode)) == [b"later"]


# -- Waiting


def test_held_pop_gets_what_comes(broker: RocketMQBroker, client: Client) -> None:
    assert pop(client, pollTime=5000) is None
    broker.publish(broker.topic(), b"a", queue_id=1)
    broker.settle()
    assert bodies_of(client.last_answer()) == [b"a"]
    assert client.connection.unanswered == 0
    assert pop(client, pollTime=5000) is None
    broker.pass_ms(5000)
    answer = client.last_answer()
    assert answer is not None
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert (client.connection.unanswered, len(broker.purgatory)) == (0, 0)


def test_held_pop_gets_what_comes_back(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a")
    got(pop(client))
    assert pop(client, pollTime=60_000) is None
    broker.pass_ms(INVISIBLE_MS)
    broker.settle()
    assert bodies_of(client.last_answer()) == [b"a"]


def test_one_message_goes_to_one_of_those_who_wait(broker: RocketMQBroker) -> None:
    clients = [broker.connect() for _ in range(3)]
    for each in clients:
        assert pop(each, pollTime=5000) is None
    broker.publish(broker.topic(), b"a")
    broker.settle()
    answers = [each.last_answer() for each in clients]
    assert [bodies_of(answer) for answer in answers if answer is not None] == [[b"a"]]
    broker.pass_ms(5000)
    assert sum(each.last_answer() is not None for each in clients) == 2


@pytest.mark.parametrize("reads_disk", [False, True])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("the topic is deleted", ResponseCode.TOPIC_NOT_EXIST),
        ("the topic is created again", ResponseCode.TOPIC_NOT_EXIST),
        ("the group is active in Kafka", ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
def test_pop_that_has_waited_is_checked_again(
    broker: RocketMQBroker, client: Client, change: str, code: int, reads_disk: bool
) -> None:
    if reads_disk:
        broker.publish(broker.topic(), b"a")
        broker, client, threads = cold_broker(broker)
    assert pop(client, pollTime=5000) is None
    if not reads_disk:
        one = message.Message("", b"a", born_ms=broker.clock.now_ms())
        broker.publisher.publish_messages(broker.topic(), 0, [one], broker.clock.now_ms())
        broker.settle_log()  # The pop takes the message in the next turn.
    if "Kafka" in change:
        broker.kafka_groups_with_members.add("billing")
    else:
        broker.topics.delete(broker.topic(), broker.clock.now_ms())
    if "again" in change:
        broker.topic()
    if reads_disk:
        threads.run()
    broker.settle()
    answer = client.last_answer()
    assert answer is not None
    assert answer.code == code
    assert len(broker.rocketmq_context.pop.checkpoints) == len(broker.purgatory) == client.connection.unanswered == 0


def test_connection_that_goes_leaves_nothing(broker: RocketMQBroker, client: Client) -> None:
    pop(client, pollTime=5000)
    client.close()
    broker.publish(broker.topic(), b"a")
    broker.settle()
    assert len(broker.purgatory) == 0
    assert bodies_of(pop(broker.connect())) == [b"a"]


# -- Crashes


def test_acked_stays_acked_and_popped_stays_popped_over_a_restart(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a", b"b", b"c")
    a, b, _ = got(pop(client))
    ack(client, a)
    broker.settle()
    again = RocketMQBroker(broker.disk.after_power_cut(3))
    again.clock.pass_ms(broker.clock.now_ms() - again.clock.now_ms())
    other = again.connect()
    assert nothing(other)
    assert ack(other, b).code == 0
    again.pass_ms(INVISIBLE_MS)
    assert bodies_of(pop(other)) == [b"c"]


def test_snapshot_gives_the_same_checkpoints(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), *(b"%d" % n for n in range(6)))
    popped = got(pop(client, maxMsgNums=3))
    ack(client, popped[1])
    ack(client, popped[2], RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=99_000)
    first = got(pop(client, order=True, maxMsgNums=2, attemptId="x"))
    broker.pass_ms(INVISIBLE_MS)
    second = got(pop(client, order=True, maxMsgNums=3, attemptId="y"))
    own = [one.offset for one in second if one.real_topic == "orders"]  # Every fifth pop begins with what is retried.
    assert own == [*[one.offset for one in first], first[-1].offset + 1][: len(own)]
    assert len(own) >= 2
    ack(client, second[0])
    ack(client, second[1], RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=77_000)

    def picture(one: RocketMQBroker) -> object:
        return sorted(
            (
                c.name,
                c.pending,
                c.due_ms,
                c.next_due_ms,
                c.next_offset,
                c.is_ordered,
                c.changed_due_ms,
                c.failures,
                c.attempt_id,
            )
            for c in one.rocketmq_context.pop.checkpoints._checkpoints.values()
        )

    fresh = RocketMQBroker()
    for payload in broker.state_log.snapshot():
        fresh.state_log.replay_state(payload, (0, -1, 0))  # type: ignore[arg-type]
    for payload in broker.state_log.snapshot():
        fresh.state_log.replay_state(payload, (0, -1, 0))  # type: ignore[arg-type]
    assert len(broker.rocketmq_context.pop.checkpoints) == 2
    assert fresh.rocketmq_context.pop.checkpoints._bytes == broker.rocketmq_context.pop.checkpoints._bytes
    assert picture(fresh) == picture(broker)
    broker.topics.delete(broker.topic(), broker.clock.now_ms())
    broker.sweep()
    assert (len(broker.rocketmq_context.pop.checkpoints), broker.rocketmq_context.pop.checkpoints._bytes) == (0, 0)


# -- Messages that a thread has to read


def cold_broker(broker: RocketMQBroker) -> tuple[RocketMQBroker, Client, ManualThreads]:
    """The same log with nothing of it in memory, and a pop that waits for the disk."""
    cold = RocketMQBroker(broker.disk.after_kill())
    cold.disk.cached = False
    cold.store.executors.readers = threads = ManualThreads()
    cold.topic(RETRY, 1)
    return cold, cold.connect(), threads


def test_pop_that_waits_for_the_disk_holds_no_position_of_other_queues(
    broker: RocketMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog.bridge.rocketmq.pop.pop_sources._rounds", itertools.count(2))  # Queue 0 comes first.
    broker.publish(broker.topic(), b"cold", tag="b", queue_id=1)
    cold, client, threads = cold_broker(broker)
    cold.publish(cold.topic(), b"unwanted", tag="a")
    assert pop(client, exp="b", expType="TAG") is None
    other = cold.connect()
    cold.publish(cold.topic(), b"hot", tag="b")
    assert bodies_of(pop(other, queueId=0)) == [b"hot"]
    threads.run()
    cold.settle()
    assert bodies_of(client.last_answer()) == [b"cold"]
    assert nothing(other, queueId=0)


@pytest.mark.parametrize("order", [False, True])
def test_what_was_read_for_a_pop_is_left_if_the_group_has_moved(
    broker: RocketMQBroker, client: Client, order: bool
) -> None:
    broker.publish(broker.topic(), b"a", b"b")
    popped = got(pop(client, order=True)) if order else []
    cold, again, threads = cold_broker(broker)
    cold.clock.pass_ms(broker.clock.now_ms() - cold.clock.now_ms() + INVISIBLE_MS)
    assert pop(again, order=order) is None
    for one in popped:
        assert ack(again, one).code == 0
    if not order:
        cold.group_offsets.commit("billing", [CommittedOffset(cold.topic().key(0), 2)], cold.clock.now_ms())
        cold.settle()
    threads.run()
    cold.settle()
    assert again.answer_to(again._opaque - len(popped)).code == ResponseCode.POLLING_TIMEOUT
    assert nothing(again, order=order)
    assert len(cold.rocketmq_context.pop.checkpoints) == 0


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("pop"), st.integers(1, 5)),
    st.tuples(st.just("ack"), st.integers(0, 9)),
    st.tuples(st.just("change"), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.sampled_from([1, INVISIBLE_MS // 2, INVISIBLE_MS])),
    st.tuples(st.just("kill"), st.just(0)),
)


@settings(max_examples=12)
@given(st.lists(STEPS, max_size=20))
def test_each_message_comes_until_it_is_acked_and_never_after(history: list[tuple[str, int]]) -> None:
    """At any time at most one consumer has a message, and an acknowledged message is never popped again."""
    broker = RocketMQBroker()
    broker.topic()
    config = SubscriptionGroupConfig(group_name="billing", retry_max_times=1000)
    client = broker.connect()
    client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)
    published: set[bytes] = set()
    acked: set[bytes] = set()
    out: dict[bytes, tuple[Got, int]] = {}  # What consumers have, and until when.
    for what, number in history:
        now_ms = broker.clock.now_ms()
        good = [one for one, until_ms in out.values() if until_ms > now_ms]
        if what == "publish":
            fresh = [b"%d" % (len(published) + n) for n in range(number)]
            broker.publish(broker.topic(), *fresh, queue_id=number % 2)
            published.update(fresh)
        elif what == "pop":
            found = pop(client, maxMsgNums=number)
            for one in got(found) if found.code == 0 else []:
                assert one.body not in acked
                assert one.body not in out or out[one.body][1] <= now_ms
                out[one.body] = one, now_ms + INVISIBLE_MS
        elif what == "ack" and good:
            one = good[number % len(good)]
            assert ack(client, one).code == 0
            acked.add(one.body)
            del out[one.body]
        elif what == "change" and good:
            one = good[number % len(good)]
            answer = ack(client, one, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=2 * INVISIBLE_MS)
            parts = one.receipt.split(" ")
            one.receipt = " ".join([str(one.offset), answer.ext["popTime"], answer.ext["invisibleTime"], *parts[3:]])
            out[one.body] = one, now_ms + 2 * INVISIBLE_MS
        elif what == "pass":
            broker.pass_ms(number)
        elif what == "kill":
            broker.settle()
            again = RocketMQBroker(broker.disk.after_power_cut(len(out)))
            again.clock.pass_ms(now_ms - again.clock.now_ms())
            broker, client = again, again.connect()
    broker.pass_ms(2 * INVISIBLE_MS)
    left: set[bytes] = set()
    while (found := pop(client)).code == 0:
        left.update(one.body for one in got(found))
    assert left == published - acked


# -- What is refused


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "a.b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -2}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"attemptId": "x" * 256}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 999}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": None}, ResponseCode.SYSTEM_ERROR),
        ({"exp": "a >", "expType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_pops_that_cannot_be(broker: RocketMQBroker, client: Client, fields: dict[str, object], code: int) -> None:
    broker.publish(broker.topic(), b"a")
    assert pop(client, **fields).code == code
    assert bodies_of(pop(client)) == [b"a"]


def test_receipt_of_a_proxy_ends_with_the_position_of_the_message(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a")
    (one,) = got(pop(client))
    assert ack(client, one, extraInfo=f"{one.receipt} 4711").code == 0


@pytest.mark.parametrize("order", [False, True])
def test_message_that_is_sent_on_gets_a_receipt_of_its_own(broker: RocketMQBroker, client: Client, order: bool) -> None:
    """As in PopMessageAndForwardingIT: the sender has popped the message, whose properties have its receipt."""
    broker.publish(broker.topic(), b"a")
    (one,) = got(pop(client, order=order))
    broker.topic("others")
    broker.pass_ms(1)
    client.send("others", b"POP_CK\x01 in the body", f"KEYS\x01k\x02POP_CK\x01{one.receipt}\x02TAGS\x01t\x02")
    answer = pop(client, topic="others", order=order)
    (forwarded,) = got(answer)
    (stored,) = message.decode_all(bytes(answer.body))
    assert properties.parse(stored.properties).keys() >= {"KEYS", "TAGS"}
    assert ack(client, forwarded).code == 0
    assert ack(client, one).code == 0


@pytest.mark.parametrize("size", [3, 900_000])
def test_body_stays_as_its_sender_packed_it(broker: RocketMQBroker, client: Client, size: int) -> None:
    """As in PopBigMessageIT, also on the way through the retry topic."""
    body = random.Random(size).randbytes(size)
    assert client.send(body=body, sysFlag=1, queueId=0).code == 0
    for failures in range(2):
        answer = pop(client)
        (one,) = message.decode_all(bytes(answer.body))
        assert (bytes(one.body) == body, one.sys_flag & 1, one.reconsume_times) == (True, 1, failures)
        broker.pass_ms(INVISIBLE_MS)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 2}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extraInfo": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"offset": 7}, ResponseCode.NO_MESSAGE),
        ({"consumerGroup": "other"}, ResponseCode.NO_MESSAGE),
    ],
)
def test_acks_that_cannot_be(broker: RocketMQBroker, client: Client, fields: dict[str, object], code: int) -> None:
    broker.publish(broker.topic(), b"a")
    (one,) = got(pop(client))
    assert ack(client, one, **fields).code == code
    assert ack(client, one).code == 0


def test_group_that_is_active_in_kafka_pops_nothing(broker: RocketMQBroker, client: Client) -> None:
    broker.publish(broker.topic(), b"a")
    broker.kafka_groups_with_members.add("billing")
    assert pop(client).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


# -- Assignments

QUEUES = [MessageQueue("t", "b", queue_id) for queue_id in range(5)]


@pytest.mark.parametrize(
    ("strategy", "clients", "shares"),
    [
        ("AVG", ["a"], [[0, 1, 2, 3, 4]]),
        ("AVG", ["a", "b"], [[0, 1, 2], [3, 4]]),
        ("AVG", ["a", "b", "c", "d", "e", "f"], [[0], [1], [2], [3], [4], []]),
        ("AVG_BY_CIRCLE", ["a", "b"], [[0, 2, 4], [1, 3]]),
    ],
)
def test_queues_are_allocated_as_clients_do(strategy: str, clients: list[str], shares: list[list[int]]) -> None:
    found = [[queue.queue_id for queue in allocate(QUEUES, clients, each, strategy)] for each in clients]
    assert found == shares


def assigned(broker: RocketMQBroker, client_id: str, **fields: str) -> Any:
    request = AssignmentRequest(topic="orders", consumer_group="billing", client_id=client_id)
    for name, value in fields.items():
        setattr(request, name, value)
    found = read(broker.connect().ask(RequestCode.QUERY_ASSIGNMENT, request))["messageQueueAssignments"]  # type: ignore[arg-type]
    return None if found is None else [(each["mode"], each["messageQueue"]["queueId"]) for each in found]


def set_mode(broker: RocketMQBroker, mode: str, share: int = 0, topic: str = "orders") -> int:
    request = RequestModeRequest(topic=topic, consumer_group="billing", mode=mode, pop_share_queue_num=share)
    answer = broker.connect().ask(RequestCode.SET_MESSAGE_REQUEST_MODE, request)
    assert answer is not None
    return answer.code


def test_members_are_assigned_queues_to_pull_or_all_of_them_to_pop(broker: RocketMQBroker) -> None:
    members = [broker.connect() for _ in range(3)]
    for number, each in enumerate(members):
        each.beat("billing", client_id=f"c{number}")
    assert [assigned(broker, f"c{n}") for n in range(3)] == [[("PULL", 0)], [("PULL", 1)], []]
    assert assigned(broker, "stranger") == []
    assert assigned(broker, "c0", topic="none") is None
    assert assigned(broker, "c0", consumer_group="none") is None
    assert assigned(broker, "c0", strategy_name="MACHINE_ROOM") is None
    assert assigned(broker, "c0", message_model="BROADCASTING") == [("PULL", 0), ("PULL", 1)]
    assert set_mode(broker, "POP") == 0
    assert [assigned(broker, f"c{n}") for n in range(3)] == [[("POP", -1)]] * 3
    assert set_mode(broker, "POP", share=1) == 0
    assert [assigned(broker, f"c{n}") for n in range(3)] == [[("POP", 0)], [("POP", 1)], [("POP", 0)]]
    assert RocketMQBroker(broker.disk.after_power_cut(0)).rocketmq_context.groups.request_modes.of(
        "billing", "orders"
    ) == (
        "POP",
        1,
    )


@pytest.mark.parametrize(
    ("mode", "topic", "code"),
    [
        ("POP", "%RETRY%billing", ResponseCode.NO_PERMISSION),
        ("POP", "none", ResponseCode.TOPIC_NOT_EXIST),
        ("PUSH", "orders", ResponseCode.INVALID_PARAMETER),
    ],
)
def test_modes_that_cannot_be(broker: RocketMQBroker, mode: str, topic: str, code: int) -> None:
    assert set_mode(broker, mode, topic=topic) == code


@pytest.mark.parametrize("group", ["%", "a" + "|" * 17, "a%" * 60])
def test_group_whose_name_is_hashed_has_the_retry_topic_that_its_clients_read(
    broker: RocketMQBroker, group: str
) -> None:
    """Its Kafka spelling is a hashed form, which cannot be read back: the name that it was made with counts."""
    broker.publish(broker.topic(queues=1), b"a")
    client = broker.connect()
    assert len(got(pop(client, consumerGroup=group))) == 1
    broker.pass_ms(INVISIBLE_MS + 1)
    assert broker.topics.by_rocketmq_name(real_topic(group, "orders", RETRIED)) is not None
    assert len(got(pop(client, consumerGroup=group))) == 1
