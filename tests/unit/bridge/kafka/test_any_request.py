"""Any request is answered, waits, or closes its connection; none raises an unexpected exception in a handler.
Each error of an answer is counted once.

Requests are made from the schemas with limit values of each type; one broker serves all.
"""

import struct
from collections import Counter
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from duolog.bridge.kafka import TABLE
from duolog.protocol.kafka.api_messages import ApiKey
from tests.kit.kafka_frames import errors_in
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.bench import Client, KafkaBench

NAMES = st.sampled_from(["orders", "", "absent", "new", "g", "TBW102", "a b", "..", "x" * 300, "\u20ac", "__consumer_offsets"])  # fmt: skip # noqa: E501
SMALL_INTEGERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 16, 32, 100, -2, -3, -100])
BYTES = st.sampled_from([b"", b"\0", batch([b"a"]), batch([b"a"])[:-3], b"\0\0\0\0\0\x01\0\x06orders", b"\xff" * 70])
DURATIONS = st.sampled_from([0, -1, 1, 6_000, 10_000, 2**31 - 1, -(2**31)]).map(lambda ms: timedelta(milliseconds=ms))
TOPIC_ID = UUID(int=7)


def integers(kind: str) -> st.SearchStrategy[int]:
    for name, bits in (("i8", 8), ("i16", 16), ("i32", 32), ("i64", 64), ("u16", 15)):
        if f".{name}'" in kind:
            edges = st.sampled_from([2 ** (bits - 1) - 1, -(2 ** (bits - 1))])
            return st.one_of(SMALL_INTEGERS, edges)
    return SMALL_INTEGERS  # broker and producer ids


def values(type_: Any) -> st.SearchStrategy[Any]:
    """A strategy for a field of that type."""
    is_union = get_origin(type_) not in (None, tuple)
    if is_union:
        return st.one_of(*(values(each) for each in get_args(type_)))
    if type_ is type(None):
        return st.none()
    if get_origin(type_) is tuple:
        return st.lists(values(get_args(type_)[0]), max_size=3).map(tuple)
    if is_dataclass(type_):
        return entities(type_)
    kind = str(type_)
    if type_ is bool:
        return st.booleans()
    if type_ is ErrorCode:
        return st.just(ErrorCode.none)
    if "Timedelta" in kind:
        return DURATIONS
    if type_ is bytes or "Records" in kind:
        return BYTES
    if type_ is UUID:
        return st.just(TOPIC_ID)
    if type_ is float or "f64" in kind:
        return st.just(1.0)
    if type_ is str or any(text in kind for text in ("Name", "GroupId", "TransactionalId")):
        return NAMES
    return integers(kind)


@cache
def entities(entity_type: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({field.name: values(field.type) for field in fields(entity_type)}).map(
        lambda chosen: entity_type(**chosen)
    )


@pytest.fixture(scope="module")
def bench() -> KafkaBench:
    bench = KafkaBench()
    bench.write(bench.topic(), b"a", b"b")
    return bench


EXAMPLES = settings().max_examples
KEYS = [pytest.param(api.key, id=api.key.name) for api in TABLE.values()]


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=EXAMPLES // 5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_request_is_answered_or_closes(bench: KafkaBench, key: ApiKey, data: st.DataObject) -> None:
    version = data.draw(st.integers(TABLE[key].min_version, TABLE[key].max_version), label="version")
    entity = data.draw(entities(load_request_schema(key, version)), label="request")
    bench.topic()
    client = bench.connect()
    chosen = {field.name: getattr(entity, field.name) for field in fields(entity)}
    counted_before = bench.metrics.errors.copy()
    number = client.send(key, version, is_answered=True, **chosen)
    for _ in range(4):
        bench.pass_ms(400_000)  # Longer than any request waits.
    answer = client.answer_to(number)
    assert answer is not None or client.is_closed or (key == ApiKey.PRODUCE and entity.acks == 0)
    if answer is not None:
        errors = Counter(error.name.upper() for error in errors_in(answer) if error is not ErrorCode.none)
        assert Counter(bench.metrics.errors) - Counter(counted_before) == {
            ("kafka", name): n for name, n in errors.items()
        }
    client.connection.close("")
    bench.settle()


@settings(max_examples=2 * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(sorted(TABLE)), version=st.integers(-1, 14), body=st.binary(max_size=80))
def test_garbage_behind_a_header_is_answered_or_closes(bench: KafkaBench, key: int, version: int, body: bytes) -> None:
    client = bench.connect()
    frame = struct.pack(">hhih", key, version, 1, -1) + body
    client.connection.data_received(struct.pack(">i", len(frame)) + frame)
    bench.loop.turn()
    connection = client.connection
    # A Produce request with acks=0 has no answer.
    assert connection.closed or client.transport.taken or connection.unanswered or key == ApiKey.PRODUCE
    connection.close("")
    bench.settle()


def test_other_clients_are_served_afterwards(bench: KafkaBench) -> None:
    assert Client(bench).ask(ApiKey.METADATA, 12, topics=None) is not None
    assert len(bench.purgatory) == 0
