"""The quota of pending delayed messages: what counts, what is refused and how, in each protocol.

A random history with restarts compares the sums with a dict after each step. Time is virtual.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from duolog.bridge.config import DelayOptions, Options, TopicsOptions
from duolog.bridge.data.delayed.delay_commands import Decision
from duolog.bridge.data.publishing.pending_quota import PendingQuotaReached
from duolog.bridge.data.publishing.produced_batches import BatchOrigin
from duolog.bridge.security.quotas.entity import QuotaClient
from duolog.bridge.security.quotas.quotas import REFUSAL_MS
from duolog.delay import quota_entities
from duolog.delay.cancellations import TimerOutcome
from duolog.delay.quota_entities import QuotaEntities, QuotaEntity
from duolog.delay.requested_delay import RequestedDelay
from duolog.delay.rows import ENTITIES_MAX, entity_of, marks_of
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.rocketmq.bodies import GroupRetryPolicy, SubscriptionGroupConfig
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import batch as rocketmq_batch
from duolog.protocol.rocketmq.messages.batch import Part
from duolog.store.errors import StoreError
from duolog.store.options import StoreOptions
from duolog.txn.coordinator import Producer
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk
from tests.kit.http import HEADERS, HttpBench, HttpDialogue, encoded, parsed
from tests.kit.rows import first_in_unit
from tests.unit.bridge.batches import batch
from tests.unit.bridge.data.test_far_timers import bodies
from tests.unit.bridge.data.test_timer_races import Late
from tests.unit.bridge.http.test_metrics import scraped
from tests.unit.bridge.kafka.bench import KafkaBench
from tests.unit.bridge.publish_bench import NOW
from tests.unit.bridge.rocketmq import broker as rocketmq
from tests.unit.bridge.rocketmq.broker import RocketMQBroker
from tests.unit.bridge.rocketmq.producing.test_half_messages import COMMIT, CheckBackBroker, end, send_half
from tests.unit.bridge.security.test_quotas import put

DELAYED: Final = "delayed_messages_pending"
MINUTE: Final = 60_000


# -- What counts


class Ports:
    """A broker with the clients of all protocols, all of them the user ANONYMOUS."""

    def __init__(self) -> None:
        self.core = RocketMQBroker()
        self.topic = self.core.topic("orders", 1)
        self.http = HttpBench(self.core)
        self.rocketmq: rocketmq.Client = self.core.connect()

    def pending(self) -> int:
        return self.core.delays.timers.quota_entities.count_of(QuotaEntity("ANONYMOUS", None))

    def deliver(self, after_ms: int) -> None:
        self.core.clock.pass_ms(after_ms)
        self.core.delays.run(self.core.clock.now_ms(), self.core.clock.mono_ms())
        self.core.settle()

    # Each of these sends, and returns how it was refused; "": it was not.

    def send(self, properties: str, topic: str = "orders", **fields: object) -> str:
        answer = self.rocketmq.send(topic, properties=f"UNIQ_KEY\x01U\x02{properties}", **fields)
        if not answer.code:
            return ""
        assert answer.code == ResponseCode.SYSTEM_BUSY
        return str(answer.remark)

    def send_batch(self, *properties: str) -> str:
        parts = [Part(0, b"x", f"UNIQ_KEY\x01U{number}\x02{each}".encode()) for number, each in enumerate(properties)]
        return self.send("", body=rocketmq_batch.encode(parts), batch=True)

    def post(self, path: str, body: dict[str, object]) -> str:
        status, head, answer = asyncio.run(self._post(encoded("POST", path, json.dumps(body).encode(), HEADERS)))
        if status == 201:
            return ""
        assert (status, b"Retry-After" in head) == (429, False)
        return str(json.loads(answer)["error"])

    async def _post(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Send a request, whose refusal comes after a pause."""
        port = self.http.port()
        await port.start()
        dialogue = HttpDialogue(self.core, port)
        dialogue.send(request)
        await dialogue.turn(50)
        is_refused = not dialogue.transport.taken
        if is_refused:
            self.core.clock.pass_ms(REFUSAL_MS)
            self.core.server.timed_calls.run(self.core.clock.mono_ms())
        found = parsed(await dialogue.answers())
        await port.stop()
        assert is_refused == (found[0] == 429)
        return found


SENDS: Final[dict[str, Callable[[Ports], str]]] = {
    "RocketMQ, level": lambda ports: ports.send("DELAY\x015\x02"),
    "RocketMQ, time": lambda ports: ports.send(f"TIMER_DELIVER_MS\x01{ports.core.clock.now_ms() + MINUTE}\x02"),
    "RocketMQ, batch": lambda ports: ports.send_batch(f"TIMER_DELAY_MS\x01{MINUTE}\x02", ""),
    "RocketMQ, time in a retry topic": lambda ports: ports.send(f"TIMER_DELAY_MS\x01{MINUTE}\x02", "%RETRY%billing"),
    "HTTP, timer": lambda ports: ports.post("/api/timers", {"topic": "orders", "value": "x", "delay_ms": MINUTE}),
    "HTTP, message": lambda ports: ports.post(
        "/api/topics/orders/messages", {"messages": [{"value": "x", "delay_ms": MINUTE}, {"value": "y"}]}
    ),
}


@pytest.mark.parametrize("name", SENDS)
def test_message_above_the_quota_is_refused_until_another_is_delivered(name: str) -> None:
    ports, send = Ports(), SENDS[name]
    quotas = ports.core.security.quotas
    assert send(ports) == ""
    assert ports.pending() == 0, "no quota held"
    put(quotas, "", None, **{DELAYED: 2})
    assert (send(ports), send(ports), ports.pending()) == ("", "", 2)
    end_position = ports.core.store.next_position
    refusal = "quota delayed_messages_pending of ANONYMOUS: 2 delayed messages are pending, and the quota is 2"
    assert send(ports) == refusal
    assert (ports.pending(), ports.core.store.next_position) == (2, end_position)
    assert sum(quotas.throttled.values()) == 1
    ports.deliver(2 * MINUTE)
    assert ports.pending() == 0
    assert send(ports) == ""
    put(quotas, "", None, **{DELAYED: None})
    assert send(ports) == ""
    assert ports.pending() == 1


def test_what_the_broker_delays_itself_and_schedules_do_not_count() -> None:
    ports = Ports()
    put(ports.core.security.quotas, "ANONYMOUS", None, **{DELAYED: 1})
    position = int(ports.rocketmq.send(body=b"failed").ext["msgId"][16:], 16)
    back = {"offset": position, "group": "billing", "delayLevel": 0}
    assert ports.rocketmq.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back).code == 0
    assert ports.send("DELAY\x013\x02", "%RETRY%billing", reconsumeTimes=1) == ""
    assert ports.send("AMQ_SCHEDULED_DELAY\x0110\x02AMQ_SCHEDULED_PERIOD\x0110\x02AMQ_SCHEDULED_REPEAT\x013\x02") == ""
    assert (len(ports.core.delays.timers), ports.pending()) == (2, 0)


@pytest.mark.parametrize("attempts", [1, 99])
@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "AMQ_SCHEDULED_DELAY"])
def test_message_with_a_level_for_a_retry_topic_is_delayed_by_nothing_else(name: str, attempts: int) -> None:
    """Neither where the group's policy replaces the level, nor as a dead letter, which has no delay."""
    ports = Ports()
    put(ports.core.security.quotas, "ANONYMOUS", None, **{DELAYED: 1})
    due = ports.core.clock.now_ms() + MINUTE if name == "TIMER_DELIVER_MS" else MINUTE
    policy = GroupRetryPolicy(customized_retry_policy={"next": [1_000]})
    config = SubscriptionGroupConfig(group_name="billing", group_retry_policy=policy)
    assert ports.rocketmq.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config).code == 0
    raw = f"DELAY\x013\x02{name}\x01{due}\x02"
    assert ports.send(raw, "%RETRY%billing", reconsumeTimes=attempts, maxReconsumeTimes=16) == ""
    ports.deliver(2_000)
    assert (len(ports.core.delays.timers), ports.pending()) == (0, 0)


@pytest.mark.parametrize("level", ["0", "00", "\u00b2", "9" * 5000, " "])
def test_retry_without_a_level_counts(level: str) -> None:
    ports = Ports()
    put(ports.core.security.quotas, "ANONYMOUS", None, **{DELAYED: 0.5})
    raw = f"UNIQ_KEY\x01U\x02DELAY\x01{level}\x02TIMER_DELAY_MS\x01{MINUTE}\x02"
    assert ports.rocketmq.send("%RETRY%billing", properties=raw).code != 0 or not len(ports.core.delays.timers)


def test_messages_over_http_are_refused_all_or_none() -> None:
    ports = Ports()
    put(ports.core.security.quotas, "ANONYMOUS", None, **{DELAYED: 2})
    messages = [{"value": "x", "delay_ms": MINUTE}] * 3
    end_position = ports.core.store.next_position
    assert "the quota is 2" in ports.post("/api/topics/orders/messages", {"messages": messages})
    assert ports.core.store.next_position == end_position


def test_repeated_request_has_the_id_of_its_message_under_a_quota() -> None:
    ports = Ports()
    put(ports.core.security.quotas, "ANONYMOUS", None, **{DELAYED: 1})
    body = {"topic": "orders", "value": "x", "delay_ms": MINUTE}
    asked = [ports.http.ask("POST", "/api/timers", body, {"Idempotency-Key": "one"}) for _ in "ab"]
    assert asked[0] == asked[1]
    assert ports.http.ask("GET", f"/api/timers/{asked[0][1]['id']}")[0] == 200


def kafka_answer(bench: KafkaBench, client: Any, *delayed: bool) -> tuple[ErrorCode, str | None]:
    builder = BatchBuilder()
    for number, is_delayed in enumerate(delayed):
        headers = [("TIMER_DELAY_MS", str(MINUTE).encode())] if is_delayed else []
        builder.append(number, bench.clock.now_ms(), None, b"x", headers)
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": builder.finish(0, -1)}]}]
    answer = client.ask(ApiKey.PRODUCE, 9, transactional_id=None, acks=-1, topic_data=data)
    partition = answer.responses[0].partition_responses[0]
    return partition.error_code, partition.error_message


def test_kafka_batch_above_the_quota_is_refused_as_a_whole() -> None:
    bench = KafkaBench()
    topic = bench.topic("orders")
    put(bench.security.quotas, None, "test", **{DELAYED: 2})
    client = bench.connect()
    assert kafka_answer(bench, client, True, False)[0] is ErrorCode.none
    end_position = bench.store.next_position
    error, message = kafka_answer(bench, client, True, False, True)
    assert error is ErrorCode.policy_violation
    assert message == "quota delayed_messages_pending of ANONYMOUS: 1 delayed messages are pending, and the quota is 2"
    assert bench.store.next_position == end_position
    assert kafka_answer(bench, client, True)[0] is ErrorCode.none
    assert kafka_answer(bench, client, False)[0] is ErrorCode.none
    assert kafka_answer(bench, client, *[True] * 100)[0] is ErrorCode.policy_violation, "in slices"
    assert bench.delays.timers.quota_entities.count_of(QuotaEntity(None, "test")) == 2
    assert bench.security.quotas.throttled == {("kafka", DELAYED): 2}
    bench.topics.delete(topic, bench.clock.now_ms())
    assert len(bench.delays.timers.quota_entities) == 0, "at once, though the timers are dropped later"


def test_half_message_is_refused_when_it_is_sent_and_counts_when_it_is_committed() -> None:
    broker = CheckBackBroker()
    client, sums = broker.connect(), broker.delays.timers.quota_entities
    put(broker.security.quotas, "ANONYMOUS", None, **{DELAYED: 1})
    sent = [send_half(client, TIMER_DELAY_MS=MINUTE) for _ in "ab"]
    assert sums.count_of(QuotaEntity("ANONYMOUS", None)) == 0
    assert [end(client, each, COMMIT).code for each in sent] == [0, 0]
    assert sums.count_of(QuotaEntity("ANONYMOUS", None)) == 2, "a commit is not refused"
    raw = f"TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01K\x02TIMER_DELAY_MS\x01{MINUTE}\x02"
    assert client.send(properties=raw, sysFlag=4).code == ResponseCode.SYSTEM_BUSY
    send_half(client)


def test_commit_is_refused_while_all_numbers_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The half message stays open, so a later commit is accepted, and counts."""
    broker = CheckBackBroker()
    client, sums, topic = broker.connect(), broker.delays.timers.quota_entities, broker.topic()
    put(broker.security.quotas, "", None, **{DELAYED: 9})
    sent = send_half(client, TIMER_DELAY_MS=3 * MINUTE)
    monkeypatch.setattr(quota_entities, "ENTITIES_MAX", 2)
    due = RequestedDelay(broker.clock.now_ms() + MINUTE)
    for user in ("bob", "carol"):
        broker.publisher.publish_delayed(
            topic, 0, Record(0, NOW, None, b"x", []), due, broker.clock.now_ms(), replaces=False,
            client=QuotaClient("http", user),
        )  # fmt: skip
    broker.settle()
    end_position, counted = broker.store.next_position, dict(broker.metrics.records_in)
    answer = end(client, sent, COMMIT)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark == (
        "quota delayed_messages_pending of ANONYMOUS: 2 users and client ids have pending messages, and the limit is 2"
    )
    assert (broker.store.next_position, broker.metrics.records_in) == (end_position, counted)
    broker.pass_ms(MINUTE)
    assert len(sums) == 0
    assert end(client, sent, COMMIT).code == 0
    assert sums.count_of(QuotaEntity("ANONYMOUS", None)) == 1


def test_commit_counts_although_the_client_ids_of_its_user_have_all_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quota_entities, "CLIENT_IDS_OF_USER_MAX", 1)
    broker = CheckBackBroker()
    client, topic = broker.connect(), broker.topic()
    put(broker.security.quotas, "", "", **{DELAYED: 9})
    sent = send_half(client, TIMER_DELAY_MS=MINUTE)
    headers = [("TIMER_DELAY_MS", b"1000")]
    origin = BatchOrigin(client=QuotaClient("kafka", "ANONYMOUS", "app"))
    broker.publisher.publish_batch(topic, 0, batch([b"x"], headers=headers), broker.clock.now_ms(), origin)
    assert end(client, sent, COMMIT).code == 0
    assert broker.delays.timers.quota_entities.count_of(QuotaEntity("ANONYMOUS", "")) == 1


def test_half_message_of_a_kafka_producer_is_refused_when_it_is_sent() -> None:
    core = ManualCore()
    topic = core.topic()
    put(core.security.quotas, None, "app", **{DELAYED: 0.5})
    headers = [("TRAN_MSG_ID", b"one"), ("TIMER_DELAY_MS", b"1000")]
    origin = BatchOrigin(client=QuotaClient("kafka", "alice", "app"))
    with pytest.raises(PendingQuotaReached):
        core.publisher.publish_batch(topic, 0, batch([b"x"], headers=headers), core.clock.now_ms(), origin)
    core.publisher.publish_batch(topic, 0, batch([b"x"], headers=headers[:1]), core.clock.now_ms(), origin)


def test_half_message_is_refused_when_no_number_is_left_for_its_client_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, ever new client ids could take all numbers by half messages."""
    monkeypatch.setattr(quota_entities, "CLIENT_IDS_OF_USER_MAX", 1)
    core = ManualCore()
    topic = core.topic()
    put(core.security.quotas, "", "", **{DELAYED: 9})

    def send(client_id: str, half: bytes = b"") -> None:
        ids = [("TRAN_MSG_ID", half)] if half else []
        sent = batch([b"x"], headers=[("TIMER_DELAY_MS", b"1000"), *ids])
        origin = BatchOrigin(client=QuotaClient("kafka", "alice", client_id))
        core.publisher.publish_batch(topic, 0, sent, core.clock.now_ms(), origin)

    send("c1", b"one")
    send("c1")
    end_position = core.store.next_position
    reason = "of alice: 1 client ids of this user have pending messages, and the limit is 1"
    for half in (b"", b"two"):
        with pytest.raises(PendingQuotaReached, match=reason):
            send("c2", half)
    assert core.store.next_position == end_position
    assert core.security.quotas.throttled == {("kafka", DELAYED): 2}
    send("c1", b"two")


def test_numbers_of_quota_entities_fit_beside_the_size_of_the_name_and_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for entity in (0, 1, 7, 8, 9, 4095, ENTITIES_MAX):
        for name_size in (0, 8):
            assert (entity_of(marks_of(entity, name_size)), marks_of(entity, name_size) & 8) == (entity, name_size)
    assert marks_of(ENTITIES_MAX, 8) == (1 << 16) - 1
    monkeypatch.setattr(quota_entities, "ENTITIES_MAX", 2)
    core = ManualCore()
    topic = core.topic()
    put(core.security.quotas, "", None, **{DELAYED: 9})

    def add(user: str) -> None:
        core.publisher.publish_delayed(
            topic, 0, Record(0, NOW, None, b"x", []), RequestedDelay(core.clock.now_ms() + 1000), core.clock.now_ms(),
            replaces=False, client=QuotaClient("http", user),
        )  # fmt: skip

    for user in ("a" * 300, "b", "a" * 256):
        add(user)
    with pytest.raises(
        PendingQuotaReached, match="of c: 2 users and client ids have pending messages, and the limit is 2"
    ):
        add("c")


def test_client_ids_leave_numbers_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_entities, "CLIENT_IDS_MAX", 5)
    monkeypatch.setattr(quota_entities, "CLIENT_IDS_OF_USER_MAX", 2)
    table = QuotaEntities()

    def add(user: str | None, client_id: str | None) -> int | None:
        entity = QuotaEntity(user, client_id)
        number = None if table.limit_reached(entity) else table.free_number()
        if number is not None:
            table.named(number, entity)
            table.add(7, number)
        return number

    assert [add("alice", str(each)) is not None for each in range(3)] == [True, True, False]
    of_alice = table.limit_reached(QuotaEntity("alice", "2"))
    assert of_alice == "2 client ids of this user have pending messages, and the limit is 2"
    assert [add(None, str(each)) is not None for each in range(4)] == [True, True, True, False]
    of_all = table.limit_reached(QuotaEntity("bob", "app"))
    assert of_all == "5 client ids have pending messages, and the limit is 5"
    assert add("bob", "app") is None
    assert add("bob", None) is not None
    table.credit(7, 1, 1)
    assert add("alice", "2") is not None, "the number of its first client id is free again"
    table.topic_deleted(7)
    assert [add(None, str(each)) is not None for each in range(6)] == [True] * 5 + [False]


def test_client_ids_are_counted_in_any_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_entities, "CLIENT_IDS_MAX", 4)
    rng, table = Random(7), QuotaEntities()
    names, counts = dict[int, QuotaEntity](), Counter[int]()
    reached = Counter[bool]()
    for _ in range(2_000):
        number = rng.randrange(1, 9)
        if rng.random() < 0.4:  # A number may be named again, and an entity may have two of them.
            names[number] = QuotaEntity(rng.choice((None, "alice", "bob")), rng.choice((None, "", "app")))
            table.named(number, names[number])
            table.add(7, number)
            counts[number] += 1
        elif counts[number]:
            table.credit(7, number, 1)
            counts[number] -= 1
            if not counts[number]:
                del names[number]
        is_full = sum(entity.client_id is not None for entity in names.values()) >= 4
        assert bool(table.limit_reached(QuotaEntity("carol", "app"))) == is_full
        reached[is_full] += 1
    assert min(reached[False], reached[True]) > 100


def test_metric_has_one_series_for_no_client_id_and_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ports, anonymous = Ports(), {"user": "ANONYMOUS", "client_id": ""}
    quotas, core = ports.core.security.quotas, ports.core
    put(quotas, "", None, **{DELAYED: 9})
    assert (ports.send("DELAY\x015\x02"), ports.send("DELAY\x015\x02")) == ("", "")
    put(quotas, "", "", **{DELAYED: 9})
    put(quotas, None, "", **{DELAYED: 9})
    assert ports.send("DELAY\x015\x02") == ""
    origin = BatchOrigin(client=QuotaClient("kafka", "alice", "app"))
    late = batch([b"x"], headers=[("TIMER_DELAY_MS", b"60000")])
    core.publisher.publish_batch(ports.topic, 0, late, core.clock.now_ms(), origin)
    name, alice = "duolog_quota_delayed_messages_pending", {"user": "alice", "client_id": "app"}
    assert len(core.delays.timers.quota_entities) == 3
    assert scraped(core)[name] == [(anonymous, 3), (alice, 1)]
    monkeypatch.setattr("duolog.bridge.http.metrics.broker_families.QUOTA_ENTITIES_MAX", 1)
    assert scraped(core)[name] == [(anonymous, 3)], "with the messages of both"


def test_metric_has_the_quota_entities_with_the_most_pending_messages() -> None:
    table = QuotaEntities()
    for number, (entity, count) in enumerate({("alice", None): 3, (None, "app"): 5, ("bob", "app"): 1}.items(), 1):
        table.named(number, QuotaEntity(*entity))
        table.add(7, number, count)
    assert table.largest(2) == [(QuotaEntity(None, "app"), 5), (QuotaEntity("alice", None), 3)]
    assert len(table.largest(20)) == 3


def test_a_rocketmq_connection_is_not_read_for_a_moment_after_a_refusal() -> None:
    ports = Ports()
    put(ports.core.security.quotas, "ANONYMOUS", None, delayed_messages_pending=1)
    assert not ports.send("DELAY\x015\x02")
    assert not ports.rocketmq.transport.is_paused
    assert ports.send("DELAY\x015\x02")
    for passed_ms in (REFUSAL_MS - 1, 1):
        assert ports.rocketmq.transport.is_paused
        ports.core.clock.pass_ms(passed_ms)
        ports.core.server.timed_calls.run(ports.core.clock.mono_ms())
        ports.core.settle()
    assert not ports.rocketmq.transport.is_paused
    assert not ports.send("")


def test_refusals_over_http_share_fifty_in_a_second() -> None:
    core = RocketMQBroker()
    core.topic("orders", 1)
    bench = HttpBench(core)
    put(core.security.quotas, "ANONYMOUS", None, delayed_messages_pending=1)
    body = {"topic": "orders", "value": "x", "delay_ms": MINUTE}
    assert bench.ask("POST", "/api/timers", body)[0] == 201
    for _ in range(3):  # On other connections, at the same time.
        core.security.quotas.refused(DELAYED, "ANONYMOUS", "", core.clock.mono_ms())
    for pause_ms in (4 * REFUSAL_MS, REFUSAL_MS):
        assert bench.ask("POST", "/api/timers", body, pause_ms=pause_ms)[0] == 429


# -- Random histories

LIMIT: Final = 3
OPTIONS: Final = Options(topics=TopicsOptions(queues=1), delay=DelayOptions(near_ms=1_000))
SMALL: Final = StoreOptions(segment_bytes=1 << 15, reserve_bytes=4096, tail_bytes=1 << 14, checkpoint_bytes=1 << 14)
ENTITIES: Final = {
    QuotaClient("http", "alice"): QuotaEntity("alice", None),
    QuotaClient("kafka", "bob", "app"): QuotaEntity("bob", None),
    QuotaClient("kafka", "carol", "app"): QuotaEntity(None, "app"),
    QuotaClient("kafka", "dave", "app"): QuotaEntity(None, "app"),
    QuotaClient("kafka", "dave", "other"): None,
    None: None,
}


class Sent(NamedTuple):
    entity: QuotaEntity | None
    topic: str
    key: bytes | None
    id: str


class History:
    """Random steps, and the messages that are pending after each."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.pending: dict[bytes, Sent] = {}
        self.count = self.refused = 0
        self.producer: Producer | None = None
        self.sequences: Counter[int] = Counter()  # By topic number.
        self.open: list[bytes] = []  # Messages of the open transaction.
        self.start(CrashDisk(), NOW)
        for user, client_id, limit in (("alice", None, LIMIT), ("bob", None, 1_000), (None, "app", LIMIT)):
            put(self.core.security.quotas, user, client_id, **{DELAYED: limit})
        self.core.settle()

    def start(self, disk: CrashDisk, now_ms: int) -> None:
        self.core = ManualCore(OPTIONS, disk, SMALL, now_ms)
        self.late = Late(self.rng)
        self.core.delays.timers.tree.context.executor = self.late

    def run(self, steps: int) -> None:
        weighted: list[tuple[Callable[[], object], int]] = [
            (self.add, 16), (self.add_in_transaction, 5), (self.end_transaction, 2), (self.cancel, 5), (self.move, 6),
            (self.cancel_named, 2), (self.work, 40), (self.turn, 40), (self.pass_time, 8), (self.pause_or_resume, 3),
            (self.delete_topic, 1), (self.checkpoint, 3), (self.kill, 2),
        ]  # fmt: skip
        actions, weights = [action for action, _ in weighted], [weight for _, weight in weighted]
        for _ in range(steps):
            self.rng.choices(actions, weights)[0]()
            self.core.settle()
            self.check()

    def now_ms(self) -> int:
        return self.core.clock.now_ms()

    def name(self) -> str:
        name = self.rng.choice(("orders", "orders", "refunds"))
        self.core.topic(name, 1)
        return name

    # -- Steps

    def add(self) -> None:
        name, key, client = self.name(), self.rng.choice((None, b"a", b"b")), self.rng.choice([*ENTITIES])
        replaces = key is not None and self.rng.random() < 0.3
        replaced = [each for each, sent in self.pending.items() if replaces and (sent.topic, sent.key) == (name, key)]
        body, delay = self.body(), RequestedDelay(self.now_ms() + self.rng.randrange(1, 20_000))
        record = Record(0, self.now_ms(), key, body, [])

        def publish() -> str:
            timer_id, _ = self.core.publisher.publish_delayed(
                self.core.topic(name, 1), 0, record, delay, self.now_ms(), replaces=replaces, client=client
            )
            return self.core.delays.commands.text_ids.text_of(timer_id)

        if (id := self.publish(publish, client, replaced)) is not None:
            for each in replaced:
                del self.pending[each]
            self.pending[body] = Sent(ENTITIES[client], name, key, id)

    def add_in_transaction(self) -> None:
        name, client = self.name(), self.rng.choice([*ENTITIES])
        if self.producer is None:
            self.producer = self.core.transactions.init("id", MINUTE, None, self.now_ms())[0]
            self.sequences.clear()
        topic, body, delay_ms = self.core.topic(name, 1), self.body(), str(self.rng.randrange(1, 20_000)).encode()
        sent = batch(
            [body], headers=[("TIMER_DELAY_MS", delay_ms)], producer=(*self.producer, self.sequences[topic.number]),
            is_transactional=True,
        )  # fmt: skip
        origin = BatchOrigin(transactional_id="id", adds_partition=True, client=client)

        def publish() -> str:
            self.core.publisher.publish_batch(topic, 0, sent, self.now_ms(), origin)
            return ""

        if self.publish(publish, client, []) is not None:
            self.sequences[topic.number] += 1
            self.open.append(body)
            self.pending[body] = Sent(ENTITIES[client], name, None, "")

    def body(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def publish(self, publish: Callable[[], str], client: QuotaClient | None, replaced: list[bytes]) -> str | None:
        """Return the id of a message, or None if its client is at its limit, which the model must agree with."""
        entity = ENTITIES[client]
        count = self.expected()[entity] - sum(self.pending[each].entity == entity for each in replaced)
        is_full = entity is not None and entity != QuotaEntity("bob", None) and count >= LIMIT
        try:
            id = publish()
        except PendingQuotaReached:
            assert is_full
            self.refused += 1
            return None
        assert not is_full
        return id

    def end_transaction(self) -> None:
        if self.producer is None or not self.open:
            return
        is_commit = self.rng.random() < 0.6
        self.core.transactions.end("id", self.producer, self.now_ms(), is_commit=is_commit, renews=True)
        if not is_commit:
            for body in self.open:
                self.pending.pop(body, None)
        self.producer, self.open = None, []

    def some(self) -> tuple[bytes, str] | None:
        known = [(body, sent.id) for body, sent in self.pending.items() if sent.id]
        return self.rng.choice(known) if known else None

    def cancel(self) -> None:
        if (some := self.some()) is not None:
            self.decide(*some, lambda text: self.core.delays.commands.cancel(text, self.now_ms()))

    def move(self) -> None:
        if (some := self.some()) is not None:
            due_ms = self.now_ms() + self.rng.randrange(-5, 20_000)
            self.decide(*some, lambda text: self.core.delays.commands.reschedule(text, due_ms, self.now_ms()))

    def decide(self, body: bytes, text: str, verb: Callable[[str], Decision]) -> None:
        def then(error: StoreError | None) -> None:
            assert error is None
            if verb(text).outcome is TimerOutcome.CANCELLED and body in self.pending:
                del self.pending[body]

        self.core.delays.commands.load(text, then)

    def cancel_named(self) -> None:
        name, key, core = self.name(), self.rng.choice((b"a", b"b")), self.core
        topic = core.topic(name, 1)

        def then(error: StoreError | None) -> None:
            assert error is None
            if topic.number in core.topics:
                core.delays.commands.cancel_named(topic, key, self.now_ms())
                named = [body for body, sent in self.pending.items() if (sent.topic, sent.key) == (name, key)]
                for body in named:
                    del self.pending[body]

        core.delays.commands.load_named(topic, key, then)

    def work(self) -> None:
        self.late.step()

    def turn(self) -> None:
        now_ms = self.now_ms()
        self.core.clock.pass_ms(self.rng.choice((0, 100, 2_000)))
        self.core.clock.set_now_ms(now_ms)
        self.core.delays.timers.tree.run(now_ms, self.core.clock.mono_ms())
        self.core.delays.run(now_ms, self.core.clock.mono_ms())

    def pass_time(self) -> None:
        self.core.clock.pass_ms(self.rng.randrange(1, 5_000))

    def pause_or_resume(self) -> None:
        delays, topic = self.core.delays, self.core.topic(self.name(), 1)
        change = delays.resume if delays.is_paused(topic) else delays.pause
        change(topic, self.now_ms())

    def delete_topic(self) -> None:
        name = self.name()
        self.core.topics.delete(self.core.topic(name, 1), self.now_ms())
        self.pending = {body: sent for body, sent in self.pending.items() if sent.topic != name}
        self.core.settle()
        self.core.sweep()

    def checkpoint(self) -> None:
        """Write a snapshot, from which the next start goes on."""
        if self.core.store.checkpoint_due(self.core.clock.mono_ms()):
            self.core.store.checkpoint(self.core.clock.mono_ms())

    def kill(self) -> None:
        self.start(self.core.disk.after_kill(), self.now_ms())

    # -- Invariants

    def expected(self) -> Counter[QuotaEntity | None]:
        return Counter(sent.entity for sent in self.pending.values())

    def forget_delivered(self) -> None:
        for name in ("orders", "refunds"):
            for body in bodies(self.core, name):
                self.pending.pop(body, None)

    def check(self) -> None:
        self.forget_delivered()
        sums, expected = self.core.delays.timers.quota_entities, self.expected()
        for entity in {*ENTITIES.values()} - {None}:
            assert entity is not None
            assert sums.count_of(entity) == expected[entity], entity
        assert len(sums) == len([entity for entity in expected if entity is not None])

    def finish(self) -> None:
        """Deliver all pending messages."""
        self.end_transaction()
        for name in ("orders", "refunds"):
            self.core.delays.resume(self.core.topic(name, 1), self.now_ms())
        self.core.clock.pass_ms(10**9)
        for _ in range(10_000):
            self.turn()
            self.core.settle()
            while self.late.step():
                pass
            if not len(self.core.delays.timers):
                break
        self.check()
        assert not self.pending
        assert len(self.core.delays.timers.quota_entities) == 0


@pytest.fixture(autouse=True)
def _short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.delay.tree.cursors.READ_ROWS", 5)


@pytest.mark.parametrize("seed", first_in_unit(range(4), 2))
def test_sums_are_the_pending_messages_of_each_quota_entity(seed: int) -> None:
    history = History(seed)
    history.run(400)
    history.finish()
    assert history.refused


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_sums_are_the_pending_messages_in_many_histories(seed: int) -> None:
    history = History(seed)
    history.run(400)
    history.finish()
