"""The paths around the rules, over RocketMQ: messages named by their place, retries, held and one-way requests.

The user `mallory` may use the topic `own` and the group `crew`; the secret messages are in the topic `orders`. An
authenticator of the test says who has sent a request; `test_acl_signature.py` is about signatures.
"""

from typing import Any

import pytest

from duolog.bridge.config import Options, SecurityOptions
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.records.topics import OriginsAdded
from duolog.bridge.rocketmq.request_table import TABLE
from duolog.bridge.security.logins import new_record
from duolog.bridge.security.quotas.entity import PRODUCED, Entity
from duolog.bridge.security.secret_box import SecretBox
from duolog.bridge.security.session import Session
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of
from duolog.bridge.state.topics import ORIGINS_MAX
from duolog.protocol.rocketmq.codes import RequestCode as Code
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.messages import recall_handle
from duolog.protocol.rocketmq.messages.message_id import parse_message_id
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker
from tests.unit.bridge.rocketmq.popping import got, pop

REFUSED = ResponseCode.NO_PERMISSION


class Names:
    """An authenticator for which each connection is the user that the test names."""

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}

    def session_of(self, connection: Any, command: Any) -> Session:
        connection.session = self.sessions[id(connection)]
        return self.sessions[id(connection)]


class Bench(RocketMQBroker):
    def __init__(self) -> None:
        super().__init__(options=Options(security=SecurityOptions(enabled=True)))
        self.security.use(SecretBox(b"k" * 32))
        gate = self.rocketmq_connections.gate
        assert gate is not None
        self.names = gate.authenticator = Names()
        self.allow("root", "topic", "*", "all")
        self.allow("root", "group", "*", "all")
        for resource, name in (("topic", "own"), ("group", "crew")):
            self.allow("mallory", resource, name, "all")
        for name in ("orders", "own"):
            self.topic(name)

    def allow(self, user: str, resource: str, name: str, operation: str, permission: str = "allow") -> None:
        rule = rule_of(RuleText(user, resource, operation, permission, name))
        self.security.acls.add([rule], self.clock.now_ms())
        self.settle()

    def user(self, name: str) -> Client:
        client = self.connect()
        self.names.sessions[id(client.connection)] = Session(name, "10.0.0.1")
        return client


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def mallory(bench: Bench) -> Client:
    return bench.user("mallory")


def secret(bench: Bench, **properties: str) -> Any:
    raw = "".join(f"{name}\1{value}\2" for name, value in properties.items())
    return bench.user("root").send(body=b"secret", properties=raw, sysFlag=4 if "TRAN_MSG" in properties else 0)


def test_topics_and_groups_of_others_are_refused(bench: Bench, mallory: Client) -> None:
    assert mallory.send("own").code == ResponseCode.SUCCESS
    assert mallory.send("orders").code == REFUSED
    assert mallory.pull(0, "orders", consumerGroup="crew").code == REFUSED
    assert mallory.pull(0, "own", consumerGroup="billing").code == REFUSED
    assert mallory.pull(0, "own", consumerGroup="crew").code == ResponseCode.SUCCESS
    assert mallory.beat("crew", topics=["orders"]).code == REFUSED
    assert mallory.send("new").code == REFUSED, "a topic is not made by the first message"
    assert bench.topics.get("new") is None


def test_remembered_right_to_send_ends_with_the_rule_and_with_the_topic(bench: Bench) -> None:
    bench.allow("carol", "topic", "orders", "write")
    client = bench.user("carol")
    session = bench.names.sessions[id(client.connection)]
    assert [client.send().code for _ in range(2)] == [ResponseCode.SUCCESS] * 2
    numbers = {bench.topics.get("orders").number}
    assert {number for _, number in session.sends} == numbers
    denied = rule_of(RuleText("carol", "topic", "write", "deny", "orders"))
    for change, code in ((bench.security.acls.add, REFUSED), (bench.security.acls.remove, ResponseCode.SUCCESS)):
        change([denied], bench.clock.now_ms())
        assert [client.send().code for _ in range(2)] == [code] * 2
    assert bench.user("root").ask(Code.DELETE_TOPIC_IN_BROKER, topic="orders").code == ResponseCode.SUCCESS
    assert client.send().code == REFUSED, "the first message of a topic needs CREATE"
    assert bench.topics.get("orders") is None
    numbers.add(bench.topic("orders").number)
    assert client.send().code == ResponseCode.SUCCESS
    client.send("%RETRY%crew")
    assert {number for _, number in session.sends} == numbers, "what a retry topic needs changes with its messages"


def test_one_way_request_has_no_effect(bench: Bench, mallory: Client) -> None:
    before = bench.store.next_position
    fields = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": 7}
    assert mallory.ask(Code.UPDATE_CONSUMER_OFFSET, oneway=True, **fields) is None
    assert bench.store.next_position == before


def test_message_named_by_its_place_needs_the_right_on_its_topic(bench: Bench, mallory: Client) -> None:
    _, position = parse_message_id(secret(bench).ext["msgId"])
    assert bench.user("root").ask(Code.VIEW_MESSAGE_BY_ID, offset=position).body.tobytes().count(b"secret") == 1
    assert mallory.ask(Code.VIEW_MESSAGE_BY_ID, offset=position, topic="own").code == REFUSED
    back = {"offset": position, "group": "crew", "delayLevel": 0, "originTopic": "own"}
    assert mallory.beat("crew", topics=["own"]).code == ResponseCode.SUCCESS
    assert mallory.ask(Code.CONSUMER_SEND_MSG_BACK, **back).code == REFUSED


def test_half_message_of_another_topic_is_not_decided(bench: Bench, mallory: Client) -> None:
    sent = secret(bench, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY="K")
    _, position = parse_message_id(sent.ext["msgId"])
    fields = {
        "producerGroup": "shop", "tranStateTableOffset": sent.ext["queueOffset"], "commitLogOffset": position,
        "commitOrRollback": 8, "msgId": "K", "topic": "own",
    }  # fmt: skip
    assert mallory.ask(Code.END_TRANSACTION, **fields).code == REFUSED
    assert bench.user("root").ask(Code.END_TRANSACTION, **fields).code == ResponseCode.SUCCESS


def test_check_back_goes_to_who_may_decide(bench: Bench, mallory: Client) -> None:
    shop = bench.user("root")
    raw = "TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01K\x02"
    assert shop.send(body=b"secret", properties=raw, sysFlag=4).code == ResponseCode.SUCCESS

    def asked() -> tuple[int, int]:
        assert mallory.beat().code == ResponseCode.SUCCESS, "any client may be a producer of the group shop"
        bench.pass_ms(100_000)
        return len(shop.asked(Code.CHECK_TRANSACTION_STATE)), len(mallory.asked(Code.CHECK_TRANSACTION_STATE))

    assert [asked(), asked()] == [(1, 0), (1, 0)]
    shop.close()
    assert asked() == (0, 0)
    bench.allow("mallory", "topic", "orders", "write")
    assert asked() == (0, 1)


def test_replies_go_to_the_user_who_has_the_client_id(bench: Bench, mallory: Client) -> None:
    requester = bench.user("root")
    for each in (requester, mallory):
        assert each.beat(client_id="10.0.0.1@7").code == ResponseCode.SUCCESS
    raw = "REPLY_TO_CLIENT\x0110.0.0.1@7\x02CORRELATION_ID\x01c\x02"
    fields = {
        "producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": raw,
    }  # fmt: skip
    assert bench.user("root").ask(Code.SEND_REPLY_MESSAGE, b"secret", **fields).code == ResponseCode.SUCCESS
    assert len(requester.asked(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)) == 1
    assert mallory.asked(Code.PUSH_REPLY_MESSAGE_TO_CLIENT) == []


def test_recall_handle_with_another_topic_cancels_nothing(bench: Bench, mallory: Client) -> None:
    due_ms = bench.clock.now_ms() + 60_000
    handle = secret(bench, TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY="K").ext["recallHandle"]
    forged = recall_handle.encode(*recall_handle.decode(handle)._replace(topic="own"))
    assert mallory.ask(Code.RECALL_MESSAGE, topic="own", recallHandle=forged).code == REFUSED
    assert bench.user("root").ask(Code.RECALL_MESSAGE, topic="orders", recallHandle=handle).code == 0


def test_dead_letters_and_retries_need_the_right_on_their_origin(bench: Bench, mallory: Client) -> None:
    for prefix in ("%RETRY%", "%DLQ%"):
        bench.topic(f"{prefix}crew", 1)
    bench.group_offsets.commit("crew", [CommittedOffset(bench.topic("orders").key(0), 1)], bench.clock.now_ms())
    for prefix in ("%RETRY%", "%DLQ%"):
        assert mallory.pull(0, f"{prefix}crew", consumerGroup="crew").code == REFUSED
    bench.allow("mallory", "topic", "orders", "read")
    for prefix in ("%RETRY%", "%DLQ%"):
        assert mallory.pull(0, f"{prefix}crew", consumerGroup="crew", suspendTimeoutMillis=0).code != REFUSED
    bench.allow("mallory", "group", "crew", "read", "deny")
    assert mallory.pull(0, "%DLQ%crew", consumerGroup="crew").code == REFUSED


@pytest.mark.parametrize(("prefix", "level"), [("%RETRY%", 1), ("%DLQ%", -1)])
def test_dead_letters_and_retries_need_the_right_on_an_origin_that_the_group_has_left(
    bench: Bench, mallory: Client, prefix: str, level: int
) -> None:
    # A client that commits nothing, and is no member, gives a message back to a group that has its position elsewhere.
    bench.group_offsets.commit("crew", [CommittedOffset(bench.topic("own").key(0), 1)], bench.clock.now_ms())
    _, position = parse_message_id(secret(bench).ext["msgId"])
    root = bench.user("root")
    assert root.beat("crew", topics=["own"]).code == ResponseCode.SUCCESS
    back = {"offset": position, "group": "crew", "delayLevel": level, "originTopic": "orders"}
    assert root.ask(Code.CONSUMER_SEND_MSG_BACK, **back).code == ResponseCode.SUCCESS
    root.close()
    pull = {"consumerGroup": "crew", "suspendTimeoutMillis": 0}
    assert mallory.pull(0, f"{prefix}crew", **pull).code == REFUSED
    assert [*bench.security.origins("crew")] == ["orders", "own"]
    bench.topics.delete(bench.topic("orders"), bench.clock.now_ms())
    bench.settle()
    assert mallory.pull(0, f"{prefix}crew", **pull).code == REFUSED, "the origin is known by its name"
    bench.allow("mallory", "topic", "orders", "read")
    assert mallory.pull(0, f"{prefix}crew", **pull).code != REFUSED


def test_origin_of_a_dead_letter_is_not_what_its_sender_says(bench: Bench, mallory: Client) -> None:
    now_ms = bench.clock.now_ms()
    bench.group_offsets.commit("crew", [CommittedOffset(bench.topic("own").key(0), 1)], now_ms)
    bench.topic("%RETRY%crew", 1)
    # The sender of an ordinary message names another origin.
    _, position = parse_message_id(secret(bench, RETRY_TOPIC="own").ext["msgId"])
    back = {"offset": position, "group": "crew", "delayLevel": -1, "originTopic": "own"}
    assert bench.user("root").ask(Code.CONSUMER_SEND_MSG_BACK, **back).code == ResponseCode.SUCCESS
    assert mallory.pull(0, "%DLQ%crew", consumerGroup="crew").code == REFUSED
    # A member keeps its group from its retry topic by an origin that it may not read.
    bench.allow("mallory", "topic", "orders", "describe")
    assert mallory.send("%RETRY%crew", properties="RETRY_TOPIC\x01orders\x02").code == REFUSED


def test_origins_are_bounded_and_replayed(bench: Bench) -> None:
    dead, now_ms = bench.topic("%DLQ%crew", 1), bench.clock.now_ms()
    bench.topics.add_origins(dead, ["orders"], now_ms)
    before = bench.store.next_position
    bench.topics.add_origins(dead, ["orders"], now_ms)
    assert bench.store.next_position == before, "an origin is noted once"
    (origins,) = [record for record in bench.topics._records_of(dead.number) or [] if isinstance(record, OriginsAdded)]
    assert origins == OriginsAdded(dead.number, ["orders"])
    bench.topics.add_origins(dead, map(str, range(ORIGINS_MAX)), now_ms)
    assert dead.origins == {"orders", "*"}


def test_held_pull_returns_nothing_after_the_right_was_taken(bench: Bench, mallory: Client) -> None:
    assert mallory.beat("crew", topics=["own"]).code == ResponseCode.SUCCESS
    assert mallory.pull(0, "own", consumerGroup="crew", sysFlag=6) is None
    bench.allow("mallory", "topic", "own", "read", "deny")
    bench.publish(bench.topic("own"), b"secret")
    answer = mallory.last_answer()
    assert answer is not None
    assert (answer.code, len(answer.body)) == (REFUSED, 0)


@pytest.mark.parametrize(("resource", "name"), [("topic", "own"), ("group", "crew")])
def test_held_pop_takes_nothing_after_the_right_was_taken(
    bench: Bench, mallory: Client, resource: str, name: str
) -> None:
    assert mallory.beat("crew", topics=["own"]).code == ResponseCode.SUCCESS
    born_ms = bench.clock.now_ms()
    held = {"topic": "own", "consumerGroup": "crew", "pollTime": 15_000, "bornTime": born_ms}
    assert pop(mallory, **held) is None
    bench.allow("mallory", resource, name, "read", "deny")
    bench.publish(bench.topic("own"), b"secret")
    answer = mallory.last_answer()
    assert answer is not None
    assert (answer.code, len(answer.body)) == (REFUSED, 0)
    (message,) = got(pop(bench.user("root"), topic="own", consumerGroup="crew"))
    assert message.body == b"secret", "the group has it for those who have the right"


def test_held_notification_tells_nothing_after_the_right_was_taken(bench: Bench, mallory: Client) -> None:
    held = {"topic": "own", "consumerGroup": "crew", "queueId": -1, "pollTime": 15_000}
    assert mallory.ask(Code.NOTIFICATION, bornTime=bench.clock.now_ms(), **held) is None
    bench.allow("mallory", "topic", "own", "read", "deny")
    bench.publish(bench.topic("own"), b"secret")
    answer = mallory.last_answer()
    assert answer is not None
    assert (answer.code, answer.ext.get("hasMsg")) == (REFUSED, None)


@pytest.mark.parametrize("change", ["denied", "topic deleted"])
def test_send_that_waits_for_its_quota_is_asked_again(bench: Bench, change: str) -> None:
    bench.allow("carol", "topic", "orders", "write")
    carol, root = bench.user("carol"), bench.user("root")
    bench.security.quotas.stored.set(Entity("carol"), {PRODUCED: 1000}, bench.clock.now_ms())
    assert carol.send(body=b"x" * 1050).code == ResponseCode.SUCCESS
    assert carol.send() is None
    if change == "denied":
        bench.allow("carol", "topic", "orders", "write", "deny")
    else:
        assert root.ask(Code.DELETE_TOPIC_IN_BROKER, topic="orders").code == ResponseCode.SUCCESS
    position = bench.store.next_position
    bench.clock.pass_ms(50)
    bench.server.timed_calls.run(bench.clock.mono_ms())
    bench.loop.turn()
    answer = carol.last_answer()
    assert answer is not None
    assert (answer.code, bench.store.next_position) == (REFUSED, position), "the first message of a topic needs CREATE"


def test_send_that_waits_for_its_quota_stays_that_of_its_user(bench: Bench, mallory: Client) -> None:
    """A proxy sends for several users over one connection."""
    bench.security.quotas.stored.set(Entity("mallory"), {PRODUCED: 1000}, bench.clock.now_ms())
    assert mallory.send("own", b"x" * 1050).code == ResponseCode.SUCCESS
    assert mallory.send("own") is None
    session = mallory.connection.session
    mallory.connection.session = Session("root", "10.0.0.1")
    bench.clock.pass_ms(50)
    bench.server.timed_calls.run(bench.clock.mono_ms())
    bench.loop.turn()
    answer = mallory.last_answer()
    assert answer is not None
    assert (answer.code, mallory.connection.session) == (ResponseCode.SUCCESS, session)


def test_every_code_is_refused_to_a_user_without_rights(bench: Bench) -> None:
    nobody = bench.user("nobody")
    fields = {
        "topic": "orders", "consumerGroup": "billing", "group": "billing", "groupName": "billing", "queueId": 0,
        "producerGroup": "shop", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "sysFlag": 0, "flag": 0,
        "bornTimestamp": 1, "offset": 0, "delayLevel": 0, "clientID": "c", "clientId": "c", "namespace": "n",
        "key": "k", "value": "v", "brokerName": "duolog", "username": "u", "subject": "User:u",
    }  # fmt: skip
    body = (
        b'{"consumerGroup":"billing","topic":"orders","group":"billing","mqSet":[{"topic":"orders","brokerName":"duolog",'
        b'"queueId":0}],"consumerDataSet":[{"groupName":"billing"}],"acks":[{"c":"billing","t":"orders"}],"groupName":'
        b'"billing","clientID":"c","clientId":"c","subscriptionData":{"topic":"orders"},"mode":"POP","username":"u"}'
    )
    open_codes = {Code.GET_BROKER_CLUSTER_INFO, Code.GET_KV_CONFIG}
    when_found = {Code.VIEW_MESSAGE_BY_ID, Code.END_TRANSACTION}  # The other tests are about these.
    for code in sorted(TABLE.keys() - open_codes - when_found):
        before = bench.store.next_position
        answer = nobody.ask(code, body, **fields)
        assert answer is not None, Code(code).name
        assert answer.code == REFUSED, f"{Code(code).name}: {answer.code} {answer.remark}"
        assert bench.store.next_position == before, Code(code).name


def test_user_who_may_alter_the_cluster_does_not_become_a_super_user(bench: Bench, mallory: Client) -> None:
    record = new_record(
        "root", "secret", SecretBox(b"k" * 32), SecurityOptions(scram_iterations=4096), 1, is_super=True
    )
    bench.security.users.set(record, 1)
    bench.allow("mallory", "cluster", "", "alter")
    user = b'{"username":"%s","password":"known","userType":"Super"}'
    assert mallory.ask(Code.AUTH_CREATE_USER, user % b"eve", username="eve").code == REFUSED
    assert mallory.ask(Code.AUTH_UPDATE_USER, b'{"password":"known"}', username="root").code == REFUSED
    assert mallory.ask(Code.AUTH_DELETE_USER, username="root").code == REFUSED
    assert mallory.ask(Code.AUTH_CREATE_USER, b'{"password":"known"}', username="eve").code == ResponseCode.SUCCESS
