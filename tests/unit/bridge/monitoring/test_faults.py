"""Proves that a fault stays in its request: for each row of both dispatch tables a handler raises, before or behind
what it reserves; the client is answered in its protocol's way or closed, nothing leaks, and another client is served.
"""

import io
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from duolog.bridge.kafka import TABLE as KAFKA
from duolog.bridge.kafka.requests import fault_answers
from duolog.bridge.kafka.requests.api import KafkaApi
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.monitoring.faults import QUIET_MS, Faults
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.net.connection import BUG
from duolog.bridge.records import codec
from duolog.bridge.records.broker import ClusterNamed
from duolog.bridge.rocketmq.request_table import TABLE as ROCKETMQ
from duolog.protocol.kafka.api_messages import (
    ApiKey,
    ErrorCode,
    decode_header,
    decode_request,
    is_flexible,
)
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.store.errors import (
    Fatal,
    Fault,
    HalfApplied,
    StoreError,
)
from duolog.store.promises import Promises
from duolog.store.state_log import StateLog
from tests.kit.clock import ManualClock
from tests.kit.kafka_frames import errors_in, frame_of
from tests.kit.memory_log import MemoryLog
from tests.kit.rows import named_row
from tests.unit.bridge.kafka.bench import KafkaBench
from tests.unit.bridge.kafka.filled import filled
from tests.unit.bridge.rocketmq.broker import RocketMQBroker

KAFKA_VERSIONS = [(api.key, version) for api in KAFKA.values() for version in (api.min_version, api.max_version)]


class Bug(Exception):
    pass


def raises(*_: Any, **__: Any) -> Any:
    raise Bug("in a handler")


def tolerant(broker: Any) -> Any:
    broker.faults.is_strict = False
    return broker


# -- The report


def test_fault_is_logged_once_in_a_while_with_what_was_suppressed(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    faults = Faults(clock.mono_ms, raises)
    with caplog.at_level(logging.ERROR, "bridge"):
        for _ in range(3):
            faults.contain(Bug(), "kafka fetch", "10.0.0.1:5")
        faults.contain(Bug(), "kafka produce")
        clock.pass_ms(QUIET_MS)
        faults.contain(Bug(), "kafka fetch")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" error=")[0] for line in lines] == [
        "fault contained kind='kafka fetch' peer=10.0.0.1:5 suppressed=0",
        "fault contained kind='kafka produce' peer=- suppressed=0",
        "fault contained kind='kafka fetch' peer=- suppressed=2",
    ]
    assert all(record.exc_info for record in caplog.records)
    assert faults.counts == {"kafka fetch": 4, "kafka produce": 1}


def test_only_a_fatal_error_ends_the_process() -> None:
    ended: list[BaseException] = []
    faults = Faults(ManualClock().mono_ms, ended.append)
    for error in (Bug(), AssertionError(), MemoryError(), OSError(), StoreError(), Fault()):
        faults.contain(error, "any")
    assert ended == []
    faults.contain(HalfApplied(), "any")
    assert [type(error) for error in ended] == [HalfApplied]


# -- Requests


@pytest.mark.slow
@pytest.mark.parametrize("reserves", [False, True])
def test_fault_of_a_kafka_handler(monkeypatch: pytest.MonkeyPatch, reserves: bool) -> None:
    def fails(broker: Any, connection: Any, request: Any) -> Any:
        if reserves:
            connection.outbox.reserve()
        raise Bug

    bench = tolerant(KafkaBench())
    other = bench.connect()
    answered = set()
    for key, version in KAFKA_VERSIONS:
        client = bench.connect()
        with monkeypatch.context() as patch:
            patch.setitem(KAFKA, key, KAFKA[key]._replace(handler=fails))
            given = client.ask(key, version)
        assert bench.faults.counts[f"kafka {key.name.lower()}"] >= 1
        if given is None:
            assert client.is_closed
            continue
        answered.add(key)
        if hasattr(given, "error_code"):
            assert given.error_code is ErrorCode.unknown_server_error
        assert {*errors_in(given)} <= {ErrorCode.unknown_server_error}
        assert client.connection.unanswered == 0
        assert client.ask(ApiKey.API_VERSIONS, 2).error_code is ErrorCode.none
    assert other.ask(ApiKey.API_VERSIONS, 2).error_code is ErrorCode.none
    assert {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.END_TXN} <= answered


@pytest.mark.parametrize("api", KAFKA.values(), ids=lambda api: api.key.name)
def test_fault_of_a_request_that_names_things_is_answered_for_each(api: KafkaApi) -> None:
    """Or for the whole, where the response has a place for that."""
    for version in range(api.min_version, api.max_version + 1):
        with named_row(version=version):
            _fault_is_answered_for_each(api.key, version)


def _fault_is_answered_for_each(key: ApiKey, version: int) -> None:
    entity: Any = filled(load_request_schema(key, version), "orders")
    body = io.BytesIO()
    entity_writer(type(entity))(body, entity)
    asked = KafkaRequest(key, version, 7, "c", decode_request(key, version, body.getvalue()), defaultdict(int))
    answer = fault_answers.answer_of(asked, DIRECTORY)
    assert answer is not None
    frame = b"".join(map(bytes, answer.buffers))
    at = 9 if is_flexible(key, version) and key != ApiKey.API_VERSIONS else 8
    response, size = entity_reader(load_response_schema(key, version))(frame, at)
    assert at + size == len(frame)
    assert {*errors_in(response)} == {ErrorCode.unknown_server_error}
    if not hasattr(response, "error_code") and key not in (ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS):
        name = DIRECTORY if key == ApiKey.DESCRIBE_LOG_DIRS else "orders"
        assert f"'{name}'" in repr(response) or key == ApiKey.WRITE_TXN_MARKERS


DIRECTORY = "/data"


@pytest.mark.parametrize("is_null", [False, True])
@pytest.mark.parametrize("api", KAFKA.values(), ids=lambda api: api.key.name)
def test_fault_of_a_request_that_names_nothing_is_answered_or_the_connection_is_closed(
    api: KafkaApi, is_null: bool
) -> None:
    """Closed where an answer would look like success: the request means all by naming nothing."""
    for version in range(api.min_version, api.max_version + 1):
        with named_row(version=version):
            _fault_is_answered_or_closes(api.key, version, is_null)


def _fault_is_answered_or_closes(key: ApiKey, version: int, is_null: bool) -> None:
    request_type: Any = load_request_schema(key, version)
    nullable = {each.name: None for each in fields(request_type) if is_null and fault_answers.is_nullable_array(each)}
    entity: Any = filled(request_type, "orders", 0, **nullable)
    body = io.BytesIO()
    entity_writer(type(entity))(body, entity)
    asked = KafkaRequest(key, version, 7, "c", decode_request(key, version, body.getvalue()), defaultdict(int))
    answer = fault_answers.answer_of(asked, DIRECTORY)
    means_all = (bool(nullable) and key == ApiKey.ELECT_LEADERS and version == 0) or (
        key == ApiKey.DESCRIBE_TOPIC_PARTITIONS
    )
    assert (answer is None) is means_all
    if answer is None:
        return
    frame = b"".join(map(bytes, answer.buffers))
    at = 9 if is_flexible(key, version) and key != ApiKey.API_VERSIONS else 8
    response, size = entity_reader(load_response_schema(key, version))(frame, at)
    assert at + size == len(frame)
    assert {*errors_in(response)} <= {ErrorCode.unknown_server_error}
    if key == ApiKey.METADATA:
        assert not response.brokers
    if key == ApiKey.DESCRIBE_LOG_DIRS:
        assert {*errors_in(response)} == {ErrorCode.unknown_server_error}


def test_fault_of_what_is_named_by_its_place_has_as_many_places() -> None:
    creation = {"resource_name": "orders", "principal": "User:a", "host": "*"}
    body = decode(ApiKey.CREATE_ACLS, 3, creations=[creation] * 3)
    answer = fault_answers.answer_of(KafkaRequest(ApiKey.CREATE_ACLS, 3, 7, "c", body, defaultdict(int)), DIRECTORY)
    assert answer is not None
    response, _ = entity_reader(load_response_schema(ApiKey.CREATE_ACLS, 3))(b"".join(map(bytes, answer.buffers)), 9)
    assert len(response.results) == 3


@pytest.mark.parametrize(
    ("count", "is_answered"), [(fault_answers.ITEMS_MAX, True), (fault_answers.ITEMS_MAX + 1, False)]
)
def test_fault_is_answered_in_one_turn_of_the_loop_or_not_at_all(count: int, is_answered: bool) -> None:
    body = decode(ApiKey.DESCRIBE_GROUPS, 5, groups=tuple(f"g{n}" for n in range(count)))
    answer = fault_answers.answer_of(KafkaRequest(ApiKey.DESCRIBE_GROUPS, 5, 7, "c", body, defaultdict(int)), DIRECTORY)
    assert (answer is not None) is is_answered


def decode(key: ApiKey, version: int, **values: Any) -> Any:
    frame = frame_of(key, version, 7, **values)
    return decode_request(key, version, frame, decode_header(frame[4:]).body_at + 4)


def test_fault_of_a_handler_is_answered_for_each_topic_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = tolerant(KafkaBench())
    monkeypatch.setitem(KAFKA, ApiKey.CREATE_TOPICS, KAFKA[ApiKey.CREATE_TOPICS]._replace(handler=raises))
    client = bench.connect()
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in "ab"]
    given = client.ask(ApiKey.CREATE_TOPICS, 7, topics=topics)
    assert [(each.name, each.error_code, each.error_message) for each in given.topics] == [
        (name, ErrorCode.unknown_server_error, BUG) for name in "ab"
    ]
    assert not client.is_closed


def test_fault_of_produce_is_answered_for_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = tolerant(KafkaBench())
    monkeypatch.setitem(KAFKA, ApiKey.PRODUCE, KAFKA[ApiKey.PRODUCE]._replace(handler=raises))
    topics = [{"name": "a", "partition_data": [{"index": 3, "records": b""}, {"index": 4, "records": b""}]}]
    given = bench.connect().ask(ApiKey.PRODUCE, 9, acks=-1, topic_data=topics)
    answered = [(part.index, part.error_code) for part in given.responses[0].partition_responses]
    assert answered == [(3, ErrorCode.unknown_server_error), (4, ErrorCode.unknown_server_error)]
    client = bench.connect()
    client.send(ApiKey.PRODUCE, 9, acks=0, topic_data=topics, is_answered=False)
    assert client.is_closed


def test_answer_that_comes_after_a_fault_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler raised, but another request had taken its slot."""
    slots = []

    def fails(broker: Any, connection: Any, request: Any) -> Any:
        slots.append((connection.outbox, connection.outbox.reserve()))
        raise Bug

    bench = tolerant(KafkaBench())
    client = bench.connect()
    with monkeypatch.context() as patch:
        patch.setitem(KAFKA, ApiKey.HEARTBEAT, KAFKA[ApiKey.HEARTBEAT]._replace(handler=fails))
        assert client.ask(ApiKey.HEARTBEAT, 4).error_code is ErrorCode.unknown_server_error
    ((outbox, slot),) = slots
    outbox.fill(slot, None)
    assert client.ask(ApiKey.API_VERSIONS, 2).error_code is ErrorCode.none


@pytest.mark.parametrize("is_json", [True, False])
def test_fault_of_a_rocketmq_handler(monkeypatch: pytest.MonkeyPatch, is_json: bool) -> None:
    broker = tolerant(RocketMQBroker())
    client, other = broker.connect(), broker.connect()
    for code, row in ROCKETMQ.items():
        if not is_json and code > 0x7FFF:
            continue  # No binary header can name it.
        with monkeypatch.context() as patch:
            patch.setitem(ROCKETMQ, code, row._replace(handler=raises))
            given = client.ask(code, json=is_json)
            assert given is not None
            assert given.code == ResponseCode.SYSTEM_ERROR
            assert client.ask(code, json=is_json, oneway=True) is None
        assert broker.faults.counts[f"rocketmq {row.counter[1]}"] >= 2
    assert (client.connection.unanswered, client.connection.closed) == (0, False)
    assert other.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "end", [lambda broker: broker.publish(broker.topic(), b"a"), lambda broker: broker.purgatory.check([1 << 16])]
)
def test_fault_of_a_held_pull(end: Callable[[RocketMQBroker], None]) -> None:
    broker = tolerant(RocketMQBroker())
    broker.topic()
    clients = [broker.connect(), broker.connect()]
    for client in clients:
        assert client.pull(0, sysFlag=6) is None
    broker.reader.read_for_rocketmq = raises
    end(broker)
    broker.publish(broker.topic(), b"b")
    for client in clients:
        assert client.last_answer().code == ResponseCode.SYSTEM_ERROR
        assert (client.connection.unanswered, client.connection.held) == (0, set())
    assert len(broker.purgatory) == 0


def test_fault_of_a_held_fetch() -> None:
    bench = tolerant(KafkaBench())
    topic = bench.topic()
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    asked = {"max_wait": 500, "min_bytes": 1, "max_bytes": 1000}
    clients = [bench.connect(), bench.connect()]
    topics = [{"topic": "orders", "partitions": partitions}]
    numbers = [client.send(ApiKey.FETCH, 11, topics=topics, **asked) for client in clients]
    bench.reader.read_for_kafka = raises
    bench.write(topic, b"a")
    for client, number in zip(clients, numbers, strict=True):
        assert client.answer_to(number).error_code is ErrorCode.unknown_server_error
        assert (client.connection.unanswered, client.connection.on_close) == (0, [])
    assert len(bench.purgatory) == 0


def test_fault_outside_of_a_handler_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = tolerant(RocketMQBroker())
    client, other = broker.connect(), broker.connect()
    with monkeypatch.context() as patch:
        patch.setattr("duolog.protocol.rocketmq.remoting.decode", raises)
        client.connection.data_received(b"\0\0\0\x04\x01\0\0\0")
    broker.loop.turn()
    assert client.connection.closed
    assert other.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == ResponseCode.SUCCESS


# -- What happens for many at once


def test_callbacks_behind_one_that_raises_are_called() -> None:
    reported: list[Exception] = []
    outcomes: list[Any] = []
    for tell in (lambda promises: promises.keep(9), lambda promises: promises.fail(0, StoreError())):
        promises = Promises(reported.append)
        for done in (outcomes.append, raises, outcomes.append):
            promises.add(5, done)
        tell(promises)
    assert (len(outcomes), [type(error) for error in reported]) == (4, [Bug, Bug])


def test_turn_that_fails_is_followed_by_others() -> None:
    broker = tolerant(RocketMQBroker())
    client = broker.connect()
    end_turn = broker.server._end_turn
    broker.server._end_turn = raises
    assert client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == ResponseCode.SUCCESS
    broker.server._end_turn = end_turn
    broker.topic()
    assert client.send().code == ResponseCode.SUCCESS


def test_state_that_cannot_follow_the_log_is_fatal() -> None:
    state_log = StateLog(codec, PoisonRecords())
    state_log.attach(cast(Any, MemoryLog()))
    state_log.own(ClusterNamed, raises)
    with pytest.raises(Fatal, match=r"\['ClusterNamed'\] were appended"):
        state_log.commit([ClusterNamed("x")], 0)
