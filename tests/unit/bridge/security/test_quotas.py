"""Quotas: which one counts, how long a client waits, and what clients of both protocols see."""

import asyncio
import json
from typing import Any

import pytest

from duolog.bridge.config import SecurityOptions
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.net.connection import FRAMES_AT_ONCE
from duolog.bridge.records import codec
from duolog.bridge.rocketmq.requests.quota_check import DELAY_MS_MAX, PAUSE_MS
from duolog.bridge.security.quotas.entity import BadQuota, Entity, candidates
from duolog.bridge.security.quotas.quotas import PAUSE_MS_MAX, REFUSAL_MS, THROTTLE_MS_MAX, WINDOW_MS, Quotas, Rate
from duolog.bridge.security.quotas.stored_quotas import TooManyQuotas
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.store.state_log import StateLog
from tests.kit.core import ManualCore
from tests.kit.http import HEADERS, HttpBench, HttpDialogue, encoded, parsed
from tests.kit.kafka_frames import frame_of
from tests.kit.memory_log import MemoryLog
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.bench import Client, KafkaBench
from tests.unit.bridge.rocketmq import broker as rocketmq
from tests.unit.bridge.rocketmq.broker import RocketMQBroker
from tests.unit.bridge.security import test_http_paths
from tests.unit.bridge.security.test_kafka_login import SecureBench

NOW = 1_700_000_000_000


class Table:
    """Quotas on a log in memory."""

    def __init__(self, **settings: int) -> None:
        self.state_log = StateLog(codec, PoisonRecords())
        self.log = MemoryLog()
        self.quotas = Quotas(self.state_log, SecurityOptions(**settings))
        self.state_log.attach(self.log)

    def set(self, user: str | None, client_id: str | None, **changes: float | None) -> None:
        put(self.quotas, user, client_id, **changes)


def pass_ms(core: ManualCore, ms: int) -> None:
    """Let a time pass, and read again from connections whose time has come."""
    core.clock.pass_ms(ms)
    core.server.timed_calls.run(core.clock.mono_ms())
    core.loop.turn()


def put(quotas: Quotas, user: str | None, client_id: str | None, **changes: float | None) -> None:
    entity = Entity(user, client_id)
    quotas.stored.set(entity, quotas.stored.changed(entity, changes), NOW)


def test_order_in_which_quotas_count_is_that_of_kafka() -> None:
    order = list(candidates("alice", "app"))
    assert [str(entity) for entity in order] == [
        "user=alice client-id=app", "user=alice client-id=<default>", "user=alice",
        "user=<default> client-id=app", "user=<default> client-id=<default>", "user=<default>",
        "client-id=app", "client-id=<default>",
    ]  # fmt: skip
    table = Table()
    for rank, (user, client_id) in reversed(list(enumerate(order))):
        table.set(user, client_id, producer_byte_rate=1000.0 * (rank + 1))
        rate = table.quotas.meter(None, "alice", "app", 0).produced
        assert rate is not None
        rate.use(1000 * (rank + 1) + WINDOW_MS * (rank + 1), 0)
        assert rate.wait_ms(0) == 1000, str(order[rank])


def test_rate_holds_on_average_whatever_the_size_of_requests() -> None:
    for size in (10, 1_000, 25_000):
        rate, mono_ms, used = Rate(1000, 0), 0, 0
        while mono_ms < 100_000:
            rate.use(size, mono_ms)
            used += size
            mono_ms += max(1, rate.wait_ms(mono_ms))
        assert used <= 1000 * (mono_ms + WINDOW_MS) / 1000 + size, size
        assert used >= 1000 * mono_ms / 1000 - size, size
    rate = Rate(1, 0)
    rate.use(1_000_000, 0)
    assert rate.wait_ms(0) == THROTTLE_MS_MAX


def test_clients_share_what_their_quota_is_for() -> None:
    table = Table()
    table.set("", None, consumer_byte_rate=1000)
    meters = [table.quotas.meter(None, user, client_id, 0) for user, client_id in (("a", "1"), ("a", "2"), ("b", "1"))]
    assert meters[0].fetched is meters[1].fetched
    assert meters[0].fetched is not meters[2].fetched
    assert meters[0].produced is None
    assert table.quotas.meter(meters[0], "a", "1", 5) is meters[0]
    table.set("", None, consumer_byte_rate=None)
    assert not table.quotas.has_any
    assert table.quotas.meter(meters[0], "a", "1", 5).fetched is None


def test_tables_are_bounded() -> None:
    table = Table(quotas_max=1, quota_clients_max=2)
    table.set("", None, producer_byte_rate=1000)
    with pytest.raises(TooManyQuotas, match="quotas_max is 1"):
        table.set("bob", None, producer_byte_rate=1)
    rates = []
    for user in "ab":
        rate = table.quotas.meter(None, user, "", 0).produced
        assert rate is not None
        rate.use(5000, 0)
        rates.append(rate)
    assert table.quotas.meter(None, "a", "", 0).produced is rates[0]
    assert table.quotas.meter(None, "c", "", 0).produced is not table.quotas.meter(None, "c", "", 0).produced
    rates[0].use(-5000, 0)  # It is unused now, which a further client does not look for within the same second.
    assert table.quotas.meter(None, "d", "", 500).produced is not table.quotas.meter(None, "d", "", 500).produced
    later_ms = 60_000
    assert table.quotas.meter(None, "c", "", later_ms).produced is table.quotas.meter(None, "c", "", later_ms).produced


def test_connections_are_counted_and_their_rate_makes_them_wait() -> None:
    table = Table()
    table.set("alice", None, connections=2, connection_creation_rate=1)
    first, second, third = (table.quotas.admit("alice", "", 0) for _ in range(3))
    assert (first.wait_ms, second.wait_ms) == (0, 1000)
    assert "quota connections is 2" in third.refusal
    assert first.key is not None
    table.quotas.closed(first.key)
    assert not table.quotas.admit("alice", "", 60_000).refusal
    assert table.quotas.admit("bob", "", 0) == (0, "", None)


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (Entity("a"), "controller_mutation_rate", 1.0),
        (Entity("a"), "producer_byte_rate", 0.0),
        (Entity("a"), "producer_byte_rate", float("nan")),
        (Entity(), "producer_byte_rate", 1.0),
        (Entity("a" * 256), "producer_byte_rate", 1.0),
    ],
)
def test_bad_quotas_are_refused(entity: Entity, key: str, value: float) -> None:
    with pytest.raises(BadQuota):
        Table().quotas.stored.changed(entity, {key: value})


def test_replayed_quotas_are_the_same() -> None:
    table, other = Table(), Table()
    table.set("alice", None, producer_byte_rate=1, connections=3)
    table.set(None, "", request_percentage=5)
    table.set("alice", None, connections=None)
    table.set("bob", "", consumer_byte_rate=1)
    table.set("bob", "", consumer_byte_rate=None)
    for record in table.quotas.stored._snapshot():
        other.state_log.commit([record], NOW)
    assert list(other.quotas.stored.all()) == list(table.quotas.stored.all())
    assert [(str(entity), limits) for entity, limits in other.quotas.stored.all()] == [
        ("client-id=<default>", {"request_percentage": 5}),
        ("user=alice", {"producer_byte_rate": 1}),
    ]


# -- Kafka


def produced(client: Client, size: int) -> Any:
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": batch([b"x" * size])}]}]
    return client.ask(ApiKey.PRODUCE, 9, transactional_id=None, acks=-1, topic_data=data)


def test_produce_above_the_quota_is_stored_and_mutes_the_connection() -> None:
    bench = KafkaBench()
    bench.topic("orders")
    put(bench.security.quotas, None, "test", producer_byte_rate=1000)
    noisy, other = bench.connect(), bench.connect()
    answer = produced(noisy, 3000)
    throttle_ms = int(answer.throttle_time.total_seconds() * 1000)
    assert 2000 <= throttle_ms <= 2400
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
    assert noisy.transport.is_paused
    assert not other.transport.is_paused
    assert noisy.connection.is_muted
    pass_ms(bench, throttle_ms - 1)
    assert noisy.transport.is_paused
    pass_ms(bench, 1)
    assert not noisy.transport.is_paused
    assert noisy.ask(ApiKey.METADATA, 12, topics=[]) is not None
    assert bench.security.quotas.throttled["kafka", "producer_byte_rate"] == 1


def test_requests_behind_one_above_the_quota_wait() -> None:
    bench = KafkaBench()
    bench.topic("orders")
    put(bench.security.quotas, None, "test", producer_byte_rate=1000)
    client = bench.connect()
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": batch([b"x" * 3000])}]}]
    frame = frame_of(ApiKey.PRODUCE, 9, 1, transactional_id=None, acks=-1, topic_data=data)
    client.connection.data_received(frame * 50)
    stored = []
    for _ in range(3):
        bench.loop.turn()
        stored.append(bench.topic("orders").queues[0].end_offset)
        pass_ms(bench, 4000)
    assert stored == [1, 2, 3]


def test_fetch_above_the_quota_has_its_records_and_the_throttle_time() -> None:
    bench = KafkaBench()
    bench.write(bench.topic("orders"), b"x" * 4000)
    put(bench.security.quotas, "ANONYMOUS", None, consumer_byte_rate=1000)
    client = bench.connect()
    partitions = [{"partition": 0, "partition_max_bytes": 10_000}]
    answer = client.ask(ApiKey.FETCH, 11, max_bytes=10_000, topics=[{"topic": "orders", "partitions": partitions}])
    assert len(answer.responses[0].partitions[0].records) > 4000
    assert answer.throttle_time.total_seconds() >= 3


def test_connections_above_the_quota_are_closed() -> None:
    bench = SecureBench()
    put(bench.security.quotas, "alice", None, connections=1)
    clients = [bench.logged_in("alice"), bench.logged_in("alice")]
    for client in clients:
        client.send(ApiKey.METADATA, 12, topics=[])
    assert [client.is_closed for client in clients] == [False, True]
    clients[0].connection.connection_lost(None)
    third = bench.logged_in("alice")
    assert third.ask(ApiKey.METADATA, 12, topics=[]) is not None


def ops(**values: float | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_altered_and_described(version: int) -> None:
    client = KafkaBench().connect()

    def alter(entity: list[dict[str, Any]], *, validate_only: bool = False, **values: float | None) -> Any:
        entries = [{"entity": entity, "ops": ops(**values)}]
        answer = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, version, entries=entries, validate_only=validate_only)
        return answer.entries[0].error_code

    alice = {"entity_type": "user", "entity_name": "alice"}
    anybody = {"entity_type": "user", "entity_name": None}
    app = {"entity_type": "client-id", "entity_name": "app"}
    assert alter([alice], producer_byte_rate=10.0, consumer_byte_rate=20.0) is ErrorCode.none
    assert alter([anybody, app], request_percentage=5.0) is ErrorCode.none
    assert alter([app], validate_only=True, request_percentage=5.0) is ErrorCode.none
    assert alter([alice], consumer_byte_rate=None) is ErrorCode.none
    for entity, values in (
        ([alice], {"controller_mutation_rate": 1.0}),
        ([{"entity_type": "ip", "entity_name": "::1"}], {"connection_creation_rate": 1.0}),
        ([alice, anybody], {"producer_byte_rate": 1.0}),
        ([], {"producer_byte_rate": 1.0}),
    ):
        assert alter(entity, **values) is ErrorCode.invalid_request

    def describe(*components: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
        asked = [
            {"entity_type": kind, "match_type": match_type, "match": match} for kind, match_type, match in components
        ]
        answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=asked, strict=strict)
        assert answer.error_code is ErrorCode.none
        return [
            (
                {each.entity_type: each.entity_name for each in entry.entity},
                {each.key: each.value for each in entry.values},
            )
            for entry in answer.entries
        ]

    first = ({"user": "alice"}, {"producer_byte_rate": 10.0})
    second = ({"user": None, "client-id": "app"}, {"request_percentage": 5.0})
    assert describe() == [second, first]
    assert describe(("user", 2, None)) == [second, first]
    assert describe(("user", 2, None), strict=True) == [first]
    assert describe(("user", 1, None), ("client-id", 0, "app"), strict=True) == [second]
    assert describe(("user", 0, "bob")) == []


# -- HTTP


def test_messages_over_http_above_the_quota_are_refused_until_their_time_has_come() -> None:
    bench = HttpBench(RocketMQBroker())
    quotas, clock = bench.core.security.quotas, bench.core.clock
    bench.core.topic("orders")
    put(quotas, "ANONYMOUS", None, producer_byte_rate=1000)
    messages, timers = "/api/topics/orders/messages", "/api/timers"
    large, small = {"value": "x" * 3500}, {"topic": "orders", "value": "x", "delay_ms": 60_000}
    assert bench.ask("POST", messages, large)[0] == 201
    ends = [queue.visible_end for queue in bench.core.topic("orders").queues]
    for path, body in ((messages, {"value": "x"}), (timers, small)):
        status, head, answer = bench.send(encoded("POST", path, json.dumps(body).encode(), HEADERS), REFUSAL_MS)
        assert (status, b"Retry-After: 3" in head) == (429, True), head
        assert json.loads(answer)["error"] == "the quota producer_byte_rate of ANONYMOUS is used up: try again in 3 s"
    assert [queue.visible_end for queue in bench.core.topic("orders").queues] == ends
    assert quotas.throttled["http", "producer_byte_rate"] == 2
    assert bench.ask("GET", messages)[0] == 200, "another quota"
    clock.pass_ms(3000)
    assert bench.ask("POST", timers, small)[0] == 201


def test_what_refused_requests_over_http_send_counts_too() -> None:
    bench = HttpBench(RocketMQBroker())
    put(bench.core.security.quotas, "ANONYMOUS", None, producer_byte_rate=1000)
    bench.core.topic("orders")
    unknown = {"value": "x" * 3500, "queue": 99}
    assert bench.ask("POST", "/api/topics/orders/messages", unknown)[0] == 400
    body = json.dumps({"value": "x"}).encode()
    status, _, _ = bench.send(encoded("POST", "/api/topics/orders/messages", body, HEADERS), REFUSAL_MS)
    assert status == 429


def test_a_refusal_over_http_that_waits_is_answered_when_the_port_stops() -> None:
    core = RocketMQBroker()
    put(core.security.quotas, "ANONYMOUS", None, producer_byte_rate=1000)
    core.topic("orders")
    bench = HttpBench(core)
    path = "/api/topics/orders/messages"
    assert bench.ask("POST", path, {"value": "x" * 3500})[0] == 201

    async def stopped() -> tuple[int, bytes, bytes]:
        port = bench.port()
        await port.start()
        connection = HttpDialogue(core, port)
        connection.send(encoded("POST", path, b'{"value": "x"}', HEADERS))
        await connection.turn(50)
        assert not connection.transport.taken
        await port.stop()
        return parsed(await connection.answers())

    status, head, answer = asyncio.run(stopped())
    assert (status, b"Retry-After: 3" in head) == (429, True), head
    assert json.loads(answer)["error"] == "the quota producer_byte_rate of ANONYMOUS is used up: try again in 3 s"


def test_messages_that_are_read_over_http_count() -> None:
    bench = HttpBench(RocketMQBroker())
    topic = bench.core.topic("orders")
    bench.core.publish(topic, b"x" * 3000)
    put(bench.core.security.quotas, "ANONYMOUS", None, consumer_byte_rate=1000)
    assert len(bench.ask("GET", "/api/topics/orders/messages")[1]["messages"]) == 1
    for path in ("/api/topics/orders/messages", "/api/timers?topic=orders", "/api/messages/1", "/api/timers/1"):
        assert bench.ask("GET", path, pause_ms=REFUSAL_MS)[0] == 429, path
    assert bench.ask("GET", "/api/topics")[0] == 200
    bench.core.clock.pass_ms(3000)
    assert bench.ask("GET", "/api/timers?topic=orders")[0] == 200


def test_quotas_over_http_are_those_of_the_user_who_has_logged_in() -> None:
    bench = test_http_paths.Bench()
    put(bench.core.security.quotas, "alice", None, producer_byte_rate=1000)
    messages, alice, root = (
        "/api/topics/own/messages",
        test_http_paths.as_user("alice"),
        test_http_paths.as_user("root"),
    )
    assert bench.status("POST", messages, alice, {"value": "x" * 3000}) == 201
    assert bench.ask("POST", messages, {"value": "x"}, alice, REFUSAL_MS)[0] == 429
    assert bench.status("POST", messages, root, {"value": "x"}) == 201


def test_removal_of_a_quota_that_is_not_set_changes_nothing() -> None:
    bench = HttpBench(RocketMQBroker())
    path, both = "/api/quotas", {"producer_byte_rate": None, "connections": None}
    assert bench.ask("POST", path, {"user": "alice", "limits": {"connections": 3}})[0] == 200
    status, answer = bench.ask("POST", path, {"user": "alice", "limits": both})
    assert (status, answer["error"]) == (
        404, "there is no quota producer_byte_rate of user=alice; `duolog quota list` shows all"
    )  # fmt: skip
    assert bench.ask("GET", path)[1] == [{"user": "alice", "client_id": None, "limits": {"connections": 3.0}}]
    assert bench.ask("POST", path, {"user": "alice", "limits": {"connections": None}})[0] == 200
    assert bench.ask("POST", path, {"user": "bob", "limits": {"nonsense": None}})[0] == 400


# -- RocketMQ


def test_send_above_the_quota_is_refused_until_its_time_has_come() -> None:
    bench = RocketMQBroker()
    client = bench.connect()
    client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders", readQueueNums=1, writeQueueNums=1, perm=6)
    put(bench.security.quotas, "", None, producer_byte_rate=1000)
    assert client.send(body=b"x" * 3000).code == ResponseCode.SUCCESS
    refused = client.send(body=b"x")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert refused.remark == (
        "[OVERLOAD]system busy, start flow control for a while, quota producer_byte_rate of ANONYMOUS"
    )
    bench.clock.pass_ms(2000)
    assert client.send(body=b"x").code == ResponseCode.SUCCESS


def sender(sent_bytes: int) -> tuple[RocketMQBroker, rocketmq.Client]:
    """Give a client with a quota of 1,000 bytes a second that has sent so much."""
    bench = RocketMQBroker()
    bench.topic("orders")
    put(bench.security.quotas, "", None, producer_byte_rate=1000)
    client = bench.connect()
    client.connection.bounds = client.connection.bounds._replace(unanswered_max=20_000)
    assert client.send(body=b"x" * sent_bytes).code == ResponseCode.SUCCESS
    return bench, client


class Threads:
    """The threads of a client, which share its connection; each sends when it has got the answer before."""

    def __init__(self, client: rocketmq.Client, count: int) -> None:
        self.client, self._unread = client, count

    def step(self) -> list[int]:
        """Send, if the broker reads, what the threads have to send, and return the codes of answers that have come."""
        codes = [answer.code for answer in heard(self.client)]
        self._unread += len(codes)
        if self._unread and not self.client.transport.is_paused:
            self.client.connection.data_received(send_frame(b"x" * 10) * self._unread)
            self._unread = 0
        return codes


def test_connection_is_not_read_after_a_refusal() -> None:
    bench, client = sender(60_000)
    for _ in range(10):
        assert client.send(body=b"x").code == ResponseCode.SYSTEM_BUSY
        pass_ms(bench, PAUSE_MS - 1)
        assert client.transport.is_paused
        pass_ms(bench, 1)
        assert not client.transport.is_paused


def test_requests_that_came_with_refused_ones_wait_for_one_pause_a_turn() -> None:
    bench, client = sender(60_000)
    before = bench.metrics.requests["rocketmq", "SEND_MESSAGE"]
    client.connection.data_received(b"".join([send_frame()] * (FRAMES_AT_ONCE + 10)) + heartbeat_frame())
    bench.loop.turn()
    assert bench.metrics.requests["rocketmq", "SEND_MESSAGE"] == before + FRAMES_AT_ONCE
    assert client.transport.is_paused
    pass_ms(bench, PAUSE_MS_MAX)
    assert bench.metrics.requests["rocketmq", "SEND_MESSAGE"] == before + FRAMES_AT_ONCE + 10
    assert bench.metrics.requests["rocketmq", "HEART_BEAT"] == 1
    assert client.transport.is_paused
    pass_ms(bench, PAUSE_MS_MAX)
    assert not client.transport.is_paused


def test_send_that_is_a_little_ahead_of_its_quota_is_answered_when_its_time_has_come() -> None:
    bench, client = sender(1050)
    assert client.send(body=b"x") is None
    pass_ms(bench, 49)
    assert client.last_answer() is None
    assert client.transport.is_paused
    pass_ms(bench, 1)
    answer = client.last_answer()
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert not client.transport.is_paused
    assert bench.security.quotas.throttled["rocketmq", "producer_byte_rate"] == 1


@pytest.mark.parametrize("count", [8, 64])
def test_threads_that_wait_for_their_answers_get_their_rate_without_a_refusal(count: int) -> None:
    bench, client = sender(1000)
    threads, codes = Threads(client, count), list[int]()
    for _ in range(2000):
        codes += threads.step()
        pass_ms(bench, 1)
    assert set(codes) == {ResponseCode.SUCCESS}
    assert 200 - count <= len(codes) <= 200 + count


def test_no_send_waits_for_longer_than_its_client_does_and_a_heartbeat_waits_for_one_read() -> None:
    bench, client = sender(1000)
    burst = send_frame(b"x" * 90) * 200
    client.connection.data_received(burst + heartbeat_frame())
    assert bench.metrics.requests["rocketmq", "HEART_BEAT"] == 1
    codes, waited_ms = [answer.code for answer in heard(client)], 0
    while client.transport.is_paused:
        pass_ms(bench, 1)
        waited_ms += 1
        codes += [answer.code for answer in heard(client)]
    assert waited_ms <= DELAY_MS_MAX
    sent = [code for code in codes if code == ResponseCode.SUCCESS]
    assert len(codes) == 201
    assert len(sent) == 1 + DELAY_MS_MAX // 90, "the first send, and those that have waited"


@pytest.mark.slow
@pytest.mark.parametrize("connections", [1, 10, 25])
def test_refusals_of_all_connections_of_a_user_are_few_and_others_are_answered_at_once(connections: int) -> None:
    bench, first = sender(1_000_000)
    noisy = [Threads(client, 1) for client in (first, *(bench.connect() for _ in range(connections - 1)))]
    quiet = bench.connect()
    refused, seconds = 0, 2
    for _ in range(seconds * 1000):
        for threads in noisy:
            codes = threads.step()
            assert set(codes) <= {ResponseCode.SYSTEM_BUSY}
            refused += len(codes)
        answer = quiet.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
        pass_ms(bench, 1)
    assert refused <= connections + seconds * 1000 // REFUSAL_MS


def test_each_of_many_connections_waits_for_the_longest_pause() -> None:
    rate = Rate(1000, 0)
    pauses = [rate.refused(0) for _ in range(100)]
    assert pauses[:3] == [REFUSAL_MS, 2 * REFUSAL_MS, 3 * REFUSAL_MS]
    assert max(pauses) == pauses[-1] == PAUSE_MS_MAX
    assert not rate.is_unused(PAUSE_MS_MAX - 1)
    assert rate.refused(10 * PAUSE_MS_MAX) == 10 * PAUSE_MS_MAX + REFUSAL_MS


def heard(client: rocketmq.Client) -> list[remoting.RemotingCommand]:
    """Take the answers that have come."""
    client.answer_to(-1)
    answers, client.heard = client.heard, []
    return answers


def heartbeat_frame() -> bytes:
    return b"".join(remoting.encode(remoting.request(RequestCode.HEART_BEAT, 1001, {}, b"{}")))


def send_frame(body: bytes = b"x") -> bytes:
    fields = {
        "producerGroup": "shop", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
    }  # fmt: skip
    return b"".join(remoting.encode(remoting.request(RequestCode.SEND_MESSAGE, 1000, fields, body)))
