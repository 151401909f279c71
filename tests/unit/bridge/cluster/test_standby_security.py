"""Proves that a standby asks its clients who they are on all ports, decides by the rules that it follows, and sends on
to the owner only what the client may do; and that brokers with another key, or without security, are no part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from duolog.bridge.cluster.forwarding import Forwarding
from duolog.bridge.cluster.owner_login import log_in
from duolog.bridge.cluster.owner_requests import OwnerRequests
from duolog.bridge.cluster.security_mark import KEY, WrongSecurity, check_key, check_key_file, check_security
from duolog.bridge.cluster.standby_context import StandbyContext
from duolog.bridge.cluster.standby_http import StandbyHttpPort
from duolog.bridge.cluster.standby_kafka import STANDBY_TABLE, StandbyKafkaConnection
from duolog.bridge.cluster.standby_rocketmq import StandbyRocketMQConnection
from duolog.bridge.config import Options, SecurityOptions
from duolog.bridge.kafka import ADVERTISED_VERSIONS, TABLE
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.sliced_requests import SlicedRequests
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.net.nodes import Endpoints, Node, Nodes
from duolog.bridge.net.tls.peer import TlsPeer
from duolog.bridge.rocketmq.access.gate import Gate
from duolog.bridge.rocketmq.access.signed_requests import SignedRequests
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.security.acls import Acls
from duolog.bridge.security.authorizer import Authorizer
from duolog.bridge.security.logins import BROKER, BROKER_MECHANISM, Logins, login_of_broker
from duolog.bridge.security.rules import Operation
from duolog.bridge.security.scram import LoginFailed
from duolog.bridge.security.secret_box import SecretBox
from duolog.bridge.security.security import OPEN
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of
from duolog.bridge.security.users import UserError, Users, check_name
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.remoting import RemotingCommand
from tests.kit.clock import ManualClock
from tests.kit.core import PORTS, ManualCore
from tests.kit.http import HEADERS, HttpDialogue, encoded, parsed
from tests.kit.loop import run
from tests.kit.object_store import SimulatedBucket
from tests.kit.signing import signature_of
from tests.unit.bridge.kafka.bench import Client as KafkaClient
from tests.unit.bridge.rocketmq.broker import Client as RocketMQClient
from tests.unit.bridge.rocketmq.broker import RocketMQBroker
from tests.unit.bridge.security.test_http_paths import Full, as_user
from tests.unit.bridge.security.test_kafka_login import BOX, RECORDS, SETTINGS, SecureBench, login

OWN = Endpoints(("standby", 1), ("standby", 2), ("standby", 3), ("standby", 4))
OWNER = Endpoints(("owner", 1), ("owner", 2), ("owner", 3), ("owner", 4))
OTHER_BOX = SecretBox(b"o" * 32)
PAGE = {"response_partition_limit": 2000, "cursor": None}  # Of DescribeTopicPartitions


class Asked:
    """Takes the place of `OwnerRequests`: counts what is sent on, which nobody answers."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self, waiting: Coroutine[Any, Any, None]) -> bool:
        waiting.close()
        self.count += 1
        return True


class Forwarded:
    """Takes the place of `Forwarding`: notes what is sent on to the owner, whose answers a test gives."""

    def __init__(self) -> None:
        self.got: list[tuple[str, RemotingCommand]] = []  # The user, and the request.
        self.waiting: list[Callable[[RemotingCommand], None]] = []

    def forward(self, user: str, command: RemotingCommand, size: int, done: Callable[[RemotingCommand], None]) -> None:
        self.got.append((user, command))
        self.waiting.append(done)

    def answer(self) -> None:
        """Let the owner answer the oldest request that waits."""
        number = len(self.got) - len(self.waiting)
        self.waiting.pop(0)(remoting.response(self.got[number][1], ext={"queueOffset": "7"}))


def context_of(
    core: ManualCore,
    asked: Asked,
    forwarded: Forwarded | None = None,
    is_behind: Callable[[], bool] = lambda: False,
) -> StandbyContext:
    nodes = Nodes(Node(1, OWN), None)
    nodes.set({0: OWNER}, OWNER)
    return StandbyContext(
        server=core.server,
        clock=core.clock,
        options=core.options,
        metrics=core.metrics,
        nodes=nodes,
        topics=core.topics,
        security=core.security,
        store=core.store,
        purgatory=core.purgatory,
        sliced_requests=SlicedRequests(),
        owner_requests=cast(OwnerRequests, asked),
        forwarding=cast(Forwarding, forwarded),
        advertised_versions=ADVERTISED_VERSIONS,
        cluster_id_now=lambda: core.cluster_id,
        is_behind=is_behind,
    )


class KafkaStandby(SecureBench):
    """A standby with the users alice and root, which serves once `serving` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Asked()
        self.serving: KafkaContext | None = None
        self.is_behind = False
        self._context = context_of(self, self.asked, is_behind=lambda: self.is_behind)

    def connect(self) -> KafkaClient:
        return KafkaClient(self, StandbyKafkaConnection(self._context, lambda: self.serving))


# -- Kafka


def test_nothing_but_the_login_is_served_before_it() -> None:
    standby = KafkaStandby()
    for key in TABLE.keys() - {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}:
        client = standby.connect()
        client.send(key, TABLE[key].max_version)
        assert client.is_closed, key
    assert standby.asked.count == 0


def test_wrong_password_closes_the_connection() -> None:
    client = KafkaStandby().connect()
    assert login(client, "alice", "wrong")[-1].error_code is ErrorCode.sasl_authentication_failed
    assert client.is_closed


def test_metadata_shows_what_the_client_may_see_and_names_the_owner() -> None:
    standby = KafkaStandby()
    for name in ("orders", "payments"):
        standby.topics.create(name, 1, {}, standby.clock.now_ms())
    standby.allow("topic", "orders", "describe")
    alice = standby.logged_in("alice")
    found = alice.ask(ApiKey.METADATA, 12, topics=None)
    assert [(each.name, each.partitions[0].leader_id) for each in found.topics] == [("orders", 0)]
    assert [each.host for each in found.brokers] == ["owner", "standby"]
    (refused,) = alice.ask(ApiKey.METADATA, 12, topics=[{"name": "payments"}]).topics
    assert (refused.error_code, refused.partitions) == (ErrorCode.topic_authorization_failed, ())


def test_pages_of_topics_show_what_metadata_shows() -> None:
    """Java's admin client, which Spark asks for partitions, repeats no such request that was refused for a topic."""
    standby = KafkaStandby()
    for name in ("orders", "payments"):
        standby.topics.create(name, 1, {}, standby.clock.now_ms())
    standby.allow("topic", "orders", "describe")
    alice = standby.logged_in("alice")
    (found,) = alice.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], **PAGE).topics
    assert (found.name, found.error_code, found.partitions[0].leader_id) == ("orders", ErrorCode.none, 0)
    (refused,) = alice.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "payments"}], **PAGE).topics
    assert (refused.error_code, refused.partitions) == (ErrorCode.topic_authorization_failed, ())


@pytest.mark.parametrize(
    ("key", "version", "further"),
    [(ApiKey.METADATA, 12, {"allow_auto_topic_creation": False}), (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, PAGE)],
    ids=["Metadata", "DescribeTopicPartitions"],
)
def test_standby_that_has_not_read_the_log_says_of_no_topic_that_it_does_not_exist(
    key: ApiKey, version: int, further: dict[str, Any]
) -> None:
    standby = KafkaStandby()
    standby.topics.create("orders", 1, {}, standby.clock.now_ms())
    standby.is_behind = True
    root = standby.logged_in("root")
    (known,) = root.ask(key, version, topics=[{"name": "orders"}], **further).topics
    assert known.error_code is ErrorCode.none
    root.send(key, version, topics=[{"name": "orders"}, {"name": "unread"}], **further)
    assert root.is_closed
    standby.is_behind = False
    found = standby.logged_in("root").ask(key, version, topics=[{"name": "unread"}], **further).topics
    assert [each.error_code for each in found] == [ErrorCode.unknown_topic_or_partition]


@pytest.mark.parametrize(
    ("rights", "sent_on"),
    [((), 0), (("describe",), 0), (("describe", "create"), 1)],
    ids=["no right", "may see it", "may create it"],
)
def test_a_topic_is_created_by_the_owner_only_for_who_may_create_it(rights: tuple[str, ...], sent_on: int) -> None:
    standby = KafkaStandby()
    for operation in rights:
        standby.allow("topic", "new", operation)
    standby.logged_in("alice").ask(ApiKey.METADATA, 12, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert standby.asked.count == sent_on


def test_a_request_is_not_sent_on_as_long_as_a_part_of_it_is_refused() -> None:
    standby = KafkaStandby()
    for operation in ("describe", "create"):
        standby.allow("topic", "new", operation)
    alice = standby.logged_in("alice")
    answer = alice.ask(
        ApiKey.METADATA, 12, topics=[{"name": "new"}, {"name": "secret"}], allow_auto_topic_creation=True
    )
    errors = {each.name: each.error_code for each in answer.topics}
    assert errors["secret"] is ErrorCode.topic_authorization_failed
    assert standby.asked.count == 0


def test_a_producer_id_is_asked_for_only_for_who_may_write() -> None:
    standby = KafkaStandby()
    alice = standby.logged_in("alice")
    assert alice.ask(ApiKey.INIT_PRODUCER_ID, 4).error_code is ErrorCode.cluster_authorization_failed
    assert standby.asked.count == 0
    standby.allow("topic", "orders", "write")
    assert alice.ask(ApiKey.INIT_PRODUCER_ID, 4) is None  # It waits for the owner.
    assert standby.asked.count == 1


def test_coordinators_are_named_to_who_may_use_the_group() -> None:
    standby = KafkaStandby()
    alice = standby.logged_in("alice")
    asked = {"key_type": 0, "coordinator_keys": ["crew"]}
    assert alice.ask(ApiKey.FIND_COORDINATOR, 4, **asked).coordinators[0].error_code is (
        ErrorCode.group_authorization_failed
    )
    standby.allow("group", "crew", "describe")
    (found,) = alice.ask(ApiKey.FIND_COORDINATOR, 4, **asked).coordinators
    assert (found.error_code, found.host) == (ErrorCode.none, "owner")


def test_a_removed_user_is_refused_on_an_open_connection() -> None:
    standby = KafkaStandby()
    alice = standby.logged_in("alice")
    standby.security.users.remove("alice", standby.clock.now_ms())
    alice.send(ApiKey.METADATA, 12, topics=None)
    assert alice.is_closed


def test_a_connection_keeps_its_login_at_the_takeover() -> None:
    standby = KafkaStandby()
    standby.topics.create("orders", 1, {}, standby.clock.now_ms())
    alice, stranger = standby.logged_in("alice"), standby.connect()
    standby.serving = standby.kafka_context
    answer = alice.ask(ApiKey.LIST_OFFSETS, 5, replica_id=-1, topics=[{"name": "orders", "partitions": []}])
    assert answer is not None
    assert not alice.is_closed
    stranger.send(ApiKey.METADATA, 12, topics=None)
    assert stranger.is_closed


@pytest.mark.parametrize(
    ("key", "topics", "error"),
    [
        (ApiKey.PRODUCE, [{"name": "orders", "partition_data": [{"index": 0}]}], "NOT_LEADER_OR_FOLLOWER"),
        (ApiKey.HEARTBEAT, [], "NOT_COORDINATOR"),
        (ApiKey.CREATE_TOPICS, [{"name": "new"}], "NOT_CONTROLLER"),
    ],
)
def test_a_refusal_is_counted_by_the_name_that_an_owner_counts_errors_by(
    key: ApiKey, topics: list[Any], error: str
) -> None:
    bench = KafkaStandby()
    alice = bench.connect()
    login(alice, "alice", "secret")
    values: dict[str, Any] = {"acks": 1, "topic_data": topics} if key == ApiKey.PRODUCE else {"topics": topics}
    alice.ask(key, TABLE[key].max_version, **values)
    assert bench.metrics.errors == {("kafka", error): 1}


def test_only_what_a_standby_answers_is_decided_by_rules() -> None:
    """A refusal says the same of everything, so it needs no right; what is answered has the row of an owner."""
    for key, row in STANDBY_TABLE.items():
        is_answered = row.handler.__name__ != "_refused"
        assert (row.access is TABLE[key].access) or not is_answered, key
    answered = {key for key, row in STANDBY_TABLE.items() if row.handler.__name__ != "_refused"}
    assert answered == {
        *(ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA),
        *(ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.INIT_PRODUCER_ID),
    }


# -- RocketMQ


SEND = RequestCode.SEND_MESSAGE_V2
# The fields of a send, with the short names of SendMessageRequestHeaderV2.
SENT = {"a": "shop", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}


class RocketMQStandby(RocketMQBroker):
    def __init__(self) -> None:
        super().__init__(options=Options(security=SecurityOptions(enabled=True)))
        self.security.use(BOX)
        for record in RECORDS:
            self.security.users.set(record, self.clock.now_ms())
        self.topic("orders")
        self.settle()
        self.forwarded = Forwarded()
        context = context_of(self, Asked(), self.forwarded)
        gate = Gate(self.security, SignedRequests(self.security))
        connection = StandbyRocketMQConnection(context, gate, lambda: RocketMQConnection(self.rocketmq_connections))
        self.client = RocketMQClient(self, cast(Any, connection))

    def allow(self, operation: str) -> None:
        rule = rule_of(RuleText("alice", "topic", operation, "allow", "orders"))
        self.security.acls.add([rule], self.clock.now_ms())

    def ask(self, code: int, secret: bytes = b"secret", user: str = "alice", **fields: str) -> Any:
        signed = fields | {"AccessKey": user}
        return self.client.ask(code, **signed, Signature=signature_of(signed, b"", secret).decode())


def test_a_route_is_given_to_who_signs_and_may_see_the_topic() -> None:
    standby = RocketMQStandby()
    unsigned = standby.client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert unsigned is not None
    assert unsigned.code == ResponseCode.NO_PERMISSION
    route = RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert standby.ask(route, topic="orders").code == ResponseCode.NO_PERMISSION
    standby.allow("describe")
    found = standby.ask(route, topic="orders")
    assert (found.code, b"owner:2" in bytes(found.body)) == (ResponseCode.SUCCESS, True)


def test_a_wrong_signature_is_answered_late_and_ends_the_connection() -> None:
    standby = RocketMQStandby()
    route, delay_ms = RequestCode.GET_ROUTEINFO_BY_TOPIC, standby.options.security.failed_login_delay_ms
    assert standby.ask(route, b"wrong", topic="orders") is None
    assert standby.ask(route, b"also wrong", topic="orders") is None
    standby.clock.pass_ms(delay_ms)
    standby.server.timed_calls.run(standby.clock.mono_ms())
    answers = [standby.client.answer_to(number) for number in (1, 2)]
    assert [each and each.code for each in answers] == [ResponseCode.NO_PERMISSION, None]
    assert standby.client.connection.closed


def test_lists_need_the_right_that_they_need_on_an_owner_and_all_else_is_refused() -> None:
    standby = RocketMQStandby()
    every = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    assert standby.ask(every).code == ResponseCode.NO_PERMISSION
    assert standby.ask(every, user="root").code == ResponseCode.SUCCESS
    assert standby.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS
    assert standby.ask(RequestCode.PULL_MESSAGE, user="root").code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_message_is_sent_on_for_who_signs_and_may_write() -> None:
    standby = RocketMQStandby()
    assert standby.ask(SEND, **SENT).code == ResponseCode.NO_PERMISSION
    standby.allow("write")
    assert standby.ask(SEND, b"wrong", **SENT) is None
    assert standby.forwarded.got == []
    standby = RocketMQStandby()
    standby.allow("write")
    assert standby.ask(SEND, **SENT) is None
    ((user, command),) = standby.forwarded.got
    assert (user, command.ext["Signature"], command.ext["b"]) == ("alice", command.ext["Signature"], "orders")
    standby.forwarded.answer()
    standby.loop.turn()
    found = standby.client.last_answer()
    assert found is not None
    assert (found.code, found.ext["queueOffset"]) == (0, "7")


def test_a_message_of_who_shows_a_certificate_is_not_sent_on() -> None:
    standby = RocketMQStandby()
    standby.client.connection.tls = TlsPeer("TLSv1.3", "any", "root", "CN=root")
    refused = standby.client.ask(SEND, **SENT)
    assert refused is not None
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert standby.client.beat("crew").code == ResponseCode.SUCCESS
    assert standby.forwarded.got == []


# -- HTTP


def ask_http(core: ManualCore, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    return asking_http(core, method, path, headers)[:2]


def asking_http(core: ManualCore, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes, bytes]:
    async def main() -> tuple[int, bytes, bytes]:
        port = StandbyHttpPort(context_of(core, Asked()), core.addresses, lambda: 0, lambda: 1)
        await port.start()
        dialogue = HttpDialogue(core, cast(Any, port))
        dialogue.send(encoded(method, path, b"", HEADERS | headers))
        answer = parsed(await dialogue.answers())
        await port.stop()
        return answer

    return asyncio.run(main())


def test_http_asks_who_and_what_and_sends_the_rest_to_the_owner() -> None:
    core = SecureBench()
    statuses = {
        (path, name): ask_http(core, "GET", path, as_user(name) if name else {})[0]
        for path in ("/healthz", "/readyz?role=any", "/metrics", "/api/status", "/api/topics")
        for name in ("", "alice", "root")
    }
    assert statuses == {
        **{("/healthz", name): 200 for name in ("", "alice", "root")},
        **{("/readyz?role=any", name): 200 for name in ("", "alice", "root")},
        ("/metrics", ""): 401,
        ("/metrics", "alice"): 403,
        ("/metrics", "root"): 200,
        ("/api/status", ""): 401,
        ("/api/status", "alice"): 403,
        ("/api/status", "root"): 200,
        ("/api/topics", ""): 401,
        ("/api/topics", "alice"): 307,
        ("/api/topics", "root"): 307,
    }
    assert ask_http(core, "DELETE", "/api/topics/orders", as_user("alice", "wrong"))[0] == 401
    status, head = ask_http(core, "DELETE", "/api/topics/orders", as_user("alice"))
    assert (status, b"Location: http://owner:4/api/topics/orders" in head) == (307, True)
    assert ask_http(core, "GET", "/api/status", {})[1].count(b"WWW-Authenticate: Basic") == 1


def test_http_request_is_to_be_repeated_while_so_many_logins_wait_for_a_thread() -> None:
    core = SecureBench()
    core.security.executor = Full()
    assert ask_http(core, "GET", "/api/status", as_user("root"))[0] == 503


@pytest.mark.parametrize("is_enabled", [False, True])
def test_readyz_of_a_standby_that_is_open_to_others_warns(is_enabled: bool) -> None:
    core = SecureBench() if is_enabled else ManualCore()
    core.addresses = Addresses("broker.example", {name: ("192.0.2.7", port) for name, port in PORTS.items()})
    warning = b"" if is_enabled else OPEN.format(host="192.0.2.7").encode()
    for path, status, word in (("/readyz", 503, b"standby\n"), ("/readyz?role=any", 200, b"ready\n")):
        found = asking_http(core, "GET", path, {})
        assert (found[0], found[2]) == (status, word + warning)


# -- Between brokers


def new_logins(*, accepts_brokers: bool = True, box: SecretBox = BOX) -> tuple[Logins, Authorizer]:
    core = SecureBench()
    users, acls = core.security.users, core.security.acls
    assert isinstance(users, Users)
    assert isinstance(acls, Acls)
    return Logins(users, SETTINGS, box, accepts_brokers=accepts_brokers), core.security.authorizer


def test_brokers_with_one_key_log_in_to_each_other_and_may_do_everything() -> None:
    logins, authorizer = new_logins()
    server, client = logins.scram(BROKER_MECHANISM), login_of_broker(BOX)
    client.check(server.final(client.final(server.first(client.first()))))
    session = logins.session_of_scram(server, "10.0.0.1")
    assert authorizer.is_valid(session)
    assert authorizer.allows_cluster(session, Operation.CREATE)


@pytest.mark.parametrize(
    ("accepts_brokers", "box"), [(True, OTHER_BOX), (False, BOX)], ids=["another key", "a log that is not shared"]
)
def test_a_login_of_a_broker_that_is_none_fails(accepts_brokers: bool, box: SecretBox) -> None:
    logins, _ = new_logins(accepts_brokers=accepts_brokers)
    server, client = logins.scram(BROKER_MECHANISM), login_of_broker(box)
    with pytest.raises(LoginFailed):
        server.final(client.final(server.first(client.first())))


def test_a_server_without_the_key_is_no_owner() -> None:
    logins, _ = new_logins(box=OTHER_BOX)
    client = login_of_broker(BOX)
    client.final(logins.scram(BROKER_MECHANISM).first(client.first()))
    for answer in (b"", b"v=AAAA"):
        with pytest.raises(LoginFailed):
            client.check(answer)
    with pytest.raises(LoginFailed, match="another login"):
        login_of_broker(BOX).final(b"r=stale,s=AAAA,i=4096")


def test_no_user_may_have_the_name_of_a_broker() -> None:
    with pytest.raises(UserError):
        check_name(BROKER)


@pytest.mark.parametrize(
    "answer", [b"", b"\0\0\0\0\0\x21", b"\0\0\0\0\0\0", b"\0\0\0\0\0\0\x7f\xff"], ids=["none", "error", "cut", "long"]
)
def test_an_answer_to_the_login_that_is_none_ends_it(answer: bytes) -> None:
    answers = [b"\0\0\0\0\0\0\0\0\0\0", answer]

    async def exchange(request: bytes) -> bytes:
        return answers.pop(0)

    with pytest.raises(LoginFailed):
        asyncio.run(log_in(exchange, BOX))


def test_the_bucket_says_with_which_key_its_brokers_ask_who_their_clients_are() -> None:
    bucket = SimulatedBucket(1)

    async def main() -> None:
        objects = bucket.client("a")
        await check_security(objects, None)  # Security is off for all of them.
        await check_key(objects, BOX)
        assert KEY not in bucket.objects
        await check_security(objects, BOX)
        await check_security(objects, BOX)
        await check_key(objects, BOX)
        assert b"k" * 32 not in bucket.objects[KEY]
        with pytest.raises(WrongSecurity, match="copy their file"):
            await check_security(objects, OTHER_BOX)
        with pytest.raises(WrongSecurity, match="copy their file"):
            await check_key(objects, OTHER_BOX)
        with pytest.raises(WrongSecurity, match=r"have security\.enabled, and this one has not"):
            await check_security(objects, None)

    run(main(), ManualClock())


def test_a_broker_without_the_key_file_is_no_part_of_a_stream_that_has_a_key() -> None:
    bucket, path = SimulatedBucket(1), Path("security.key")

    async def main() -> None:
        objects = bucket.client("a")
        await check_key_file(objects, path, is_there=False)
        await check_security(objects, BOX)
        with pytest.raises(WrongSecurity, match=r"security\.key does not exist, .*copy their file to this machine"):
            await check_key_file(objects, path, is_there=False)
        await check_key_file(objects, path, is_there=True)

    run(main(), ManualClock())


@pytest.mark.parametrize("seed", range(5))
def test_of_two_brokers_that_start_together_with_different_keys_one_is_refused(seed: int) -> None:
    bucket = SimulatedBucket(seed)

    async def main() -> list[BaseException | None]:
        return await asyncio.gather(
            check_security(bucket.client("a"), BOX),
            check_security(bucket.client("b"), OTHER_BOX),
            return_exceptions=True,
        )

    refused = [each for each in run(main(), ManualClock()) if each is not None]
    assert [type(each) for each in refused] == [WrongSecurity]
