"""Proves the mapping between the protocols: each row of its table, both directions, and malformed input."""

import zlib
from collections.abc import Sequence

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from duolog.protocol.convert import to_kafka, to_rocketmq
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_batch, record_reader
from duolog.protocol.kafka.batch_builder import BatchBuilder
from duolog.protocol.kafka.record_batch import Header, Record
from duolog.protocol.rocketmq.messages import (
    flags,
    message,
    message_id,
    properties,
)
from duolog.protocol.rocketmq.messages.compression import inflate_body
from duolog.protocol.rocketmq.messages.message import Message

BORN, STORED = 1_700_000_000_000, 1_700_000_000_500
V6 = message_id.pack_host("2001:db8::1", 10911)
LIMITS = {"bytes_max": 1 << 20, "inflate_bytes_max": 1 << 20}


def record(body: bytes = b"body", raw: bytes = b"", **fields: object) -> memoryview:
    return memoryview(bytes(message.encode(Message("orders", body, raw, born_ms=BORN, store_ms=STORED, **fields))))


def as_kafka(*records: memoryview, **options: object) -> list[Record]:
    batch, count, _ = to_kafka.kafka_batch(records, 100, 7, **{**LIMITS, **options})
    assert count == len(records)
    header = record_batch.read_header(batch)
    assert (header.record_count, header.crc) == (count, crc32c(bytes(batch[21:])))
    assert (header.base_offset, header.leader_epoch, header.producer_id) == (100, 7, -1)
    found = list(record_reader.records(batch, 1 << 20))
    # One by one they are the same, without a batch.
    options = {"log_append_time": bool(options.get("log_append_time")), "inflate_bytes_max": 1 << 20}
    alone = [to_kafka.kafka_record(each, 100 + at, **options) for at, each in enumerate(records)]
    assert [each._replace(headers=list(each.headers)) for each in found] == alone
    return found


def as_rocketmq(*records: Record, host: bytes = message.NO_HOST, topic: bytes = b"orders") -> list[Message]:
    place = to_rocketmq.Place(topic, 3, 40, 9000, 9999, STORED, host)
    return [message.decode(encoded) for encoded in to_rocketmq.rocketmq_records(records, place)]


def kafka(
    key: bytes | None = None, value: bytes | None = b"v", headers: Sequence[Header] = (), offset: int = 40
) -> Record:
    return Record(offset, BORN, key, value, headers)


def text(pairs: dict[str, str]) -> bytes:
    return properties.encode(pairs).encode()


# -- RocketMQ to Kafka

TO_KAFKA = {
    "plain": (b"body", b"", None, b"body", []),
    "empty body is an empty value": (b"", b"", None, b"", []),
    "null": (b"", text({"__KAFKA_NULL": "true"}), None, None, []),
    "null is said of a body": (b"x", text({"__KAFKA_NULL": "true"}), None, b"x", []),
    "keys are one text": (b"b", text({"KEYS": "a b"}), b"a b", b"b", []),
    "binary key": (b"b", text({"__KAFKA_KEY": "/w=="}), b"\xff", b"b", []),
    "empty key": (b"b", text({"__KAFKA_KEY": "="}), b"", b"b", []),
    "key that is no base64": (b"b", text({"__KAFKA_KEY": "!", "KEYS": "k"}), b"k", b"b", []),
    "the user's": (b"b", text({"TAGS": "T", "UNIQ_KEY": "U", "__SHARDINGKEY": "S", "a": "ä"}), None, b"b",
        [("TAGS", b"T"), ("UNIQ_KEY", b"U"), ("__SHARDINGKEY", b"S"), ("a", "ä".encode())]),
    "what steers": (b"b", text({"WAIT": "true", "DELAY": "3", "CLUSTER": "c", "__RMQ.TRANSIENT.x": "1"}), None, b"b",
        []),
    "malformed pairs": (b"b", b"a\x01\x02nothing\x02\x01x\x02a\x01b\x01c\x02\x02a\x01last", None, b"b",
        [("a", b"last")]),
    "not UTF-8": (b"b", b"a\xff\x01\xfe\x02", None, b"b", [("a\ufffd", b"\xfe")]),
    "escaped": (b"b", text({"__KAFKA_HEADER_0": "x%20y=AQI=", "b": "c", "__KAFKA_HEADER_2": "n!"}), None, b"b",
        [("x y", b"\x01\x02"), ("b", b"c"), ("n", None)]),
    "no escape": (b"b", text({"__KAFKA_HEADER_0": "rubbish", "__KAFKA_HEADER_1": "x=*"}), None, b"b",
        [("__KAFKA_HEADER_0", b"rubbish"), ("__KAFKA_HEADER_1", b"x=*")]),
}  # fmt: skip


@pytest.mark.parametrize(("body", "raw", "key", "value", "headers"), TO_KAFKA.values(), ids=TO_KAFKA)
def test_rocketmq_message_as_kafka_record(
    body: bytes, raw: bytes, key: bytes | None, value: bytes | None, headers: list[Header]
) -> None:
    (found,) = as_kafka(record(body, raw))
    assert (found.offset, found.timestamp_ms, found.key, found.value) == (100, BORN, key, value)
    assert list(found.headers) == headers


@pytest.mark.parametrize("hosts", [{}, {"born_host": V6}, {"store_host": V6}, {"born_host": V6, "store_host": V6}])
@pytest.mark.parametrize("topic", ["orders", "%RETRY%" + "g" * 140])
def test_hosts_and_long_topics_do_not_matter(hosts: dict[str, bytes], topic: str) -> None:
    encoded = message.encode(Message(topic, b"body", text({"KEYS": "k"}), born_ms=BORN, store_ms=STORED, **hosts))
    (found,) = as_kafka(memoryview(bytes(encoded)))
    assert (found.key, found.value, found.timestamp_ms) == (b"k", b"body", BORN)
    (found,) = as_kafka(memoryview(bytes(encoded)), log_append_time=True)
    assert found.timestamp_ms == STORED


@pytest.mark.parametrize("flag", [0, flags.COMPRESSION_ZLIB])
def test_compressed_body_is_inflated(flag: int) -> None:
    body = zlib.compress(b"long " * 1000)
    (found,) = as_kafka(record(body, sys_flag=flags.COMPRESSED | flag))
    assert found.value == b"long " * 1000


@pytest.mark.parametrize("body", [b"not zlib", zlib.compress(b"0" * (1 << 21))])
def test_body_that_does_not_inflate_comes_as_it_lies_there(body: bytes) -> None:
    (found,) = as_kafka(record(body, text({"a": "b"}), sys_flag=flags.COMPRESSED))
    assert found.value == body
    assert list(found.headers) == [("a", b"b"), ("__ROCKETMQ_SYS_FLAG", b"1")]


def test_run_is_split_by_its_size_once_inflated() -> None:
    records = [record(zlib.compress(b"0" * 3000), sys_flag=flags.COMPRESSED)] * 10
    batch, count, _ = to_kafka.kafka_batch(records, 0, 0, bytes_max=10_000, inflate_bytes_max=1 << 20)
    assert count == 3
    assert len(batch) <= 10_000
    assert to_kafka.kafka_batch(records, 0, 0, bytes_max=1, inflate_bytes_max=1 << 20)[1] == 1


def test_run_is_split_where_log_append_time_changes() -> None:
    later = memoryview(bytes(message.encode(Message("orders", b"b", store_ms=STORED + 1))))
    batch, count, _ = to_kafka.kafka_batch([record(), record(), later], 0, 0, log_append_time=True, **LIMITS)
    assert count == 2
    assert record_batch.read_header(batch).is_log_append_time
    assert {found.timestamp_ms for found in record_reader.records(batch, 1 << 20)} == {STORED}


def test_same_records_give_the_same_batch() -> None:
    records = [record(b"x", text({"KEYS": "k", "a": "b"})) for _ in range(5)]
    assert to_kafka.kafka_batch(records, 5, 1, **LIMITS) == to_kafka.kafka_batch(records, 5, 1, **LIMITS)


# -- Kafka to RocketMQ

TO_ROCKETMQ = {
    "plain": (kafka(), b"v", {}),
    "empty value": (kafka(value=b""), b"", {}),
    "null value": (kafka(value=None), b"", {"__KAFKA_NULL": "true"}),
    "key": (kafka(b"order 1"), b"v", {"KEYS": "order 1"}),
    "key of any script": (kafka("ключ".encode()), b"v", {"KEYS": "ключ"}),
    "binary key": (kafka(b"\xff\x00"), b"v", {"__KAFKA_KEY": "/wA="}),
    "key with an end in it": (kafka(b"a\x02b"), b"v", {"__KAFKA_KEY": "YQJi"}),
    "empty key": (kafka(b""), b"v", {"__KAFKA_KEY": "="}),
    "headers": (kafka(b"k", headers=[("TAGS", b"T"), ("x", "ä".encode())]), b"v", {"KEYS": "k", "TAGS": "T", "x": "ä"}),
    "binary header": (kafka(headers=[("x", b"\xff")]), b"v", {"__KAFKA_HEADER_0": "x=/w=="}),
    "null and empty": (kafka(headers=[("x", None), ("y", b"")]), b"v",
        {"__KAFKA_HEADER_0": "x!", "__KAFKA_HEADER_1": "y="}),
    "repeated": (kafka(headers=[("x", b"1"), ("x", b"2")]), b"v", {"x": "1", "__KAFKA_HEADER_1": "x=Mg=="}),
    "names": (kafka(headers=[("", b"1"), ("a\x01", b"1"), ("DELAY", b"3"), ("KEYS", b"k"), ("__KAFKA_NULL", b"true")]),
        b"v", {"__KAFKA_HEADER_0": "=MQ==", "__KAFKA_HEADER_1": "a%01=MQ==", "__KAFKA_HEADER_2": "DELAY=Mw==",
        "__KAFKA_HEADER_3": "KEYS=aw==", "__KAFKA_HEADER_4": "__KAFKA_NULL=dHJ1ZQ=="}),
}  # fmt: skip


@pytest.mark.parametrize(("given_record", "body", "pairs"), TO_ROCKETMQ.values(), ids=TO_ROCKETMQ)
def test_kafka_record_as_rocketmq_message(given_record: Record, body: bytes, pairs: dict[str, str]) -> None:
    (found,) = as_rocketmq(given_record)
    assert inflate_body(found.body, found.sys_flag, 1 << 20) == body
    assert len(found.body) > 0  # Not every client takes a message without one.
    assert properties.parse(found.properties) == pairs
    assert message.is_body_intact(found)


@pytest.mark.parametrize("host", [message.NO_HOST, V6])
@pytest.mark.parametrize("topic", [b"orders", b"%RETRY%" + b"g" * 140])
def test_place_of_a_converted_message(host: bytes, topic: bytes) -> None:
    first, second = as_rocketmq(kafka(), kafka(offset=42), host=host, topic=topic)
    assert (first.topic.encode(), first.queue_id, first.store_host) == (topic, 3, host)
    assert (first.queue_offset, first.physical_offset) == (40, 9000)
    assert (second.queue_offset, second.physical_offset) == (42, 9002)
    assert (first.born_ms, first.store_ms, first.sys_flag & flags.COMPRESSED) == (BORN, STORED, 0)


def test_record_without_a_timestamp_was_born_when_stored() -> None:
    assert as_rocketmq(kafka()._replace(timestamp_ms=-1))[0].born_ms == STORED


def test_what_does_not_fit_is_left_out_and_named() -> None:
    headers = [("small", b"1"), ("giant", b"x" * 40_000), ("после", b"\xff" * 40_000), ("last", b"2")]
    (found,) = as_rocketmq(kafka(b"k" * 40_000, headers=headers))
    assert properties.parse(found.properties) == {
        "small": "1",
        "last": "2",
        "__KAFKA_OMITTED": "KEYS,giant,%D0%BF%D0%BE%D1%81%D0%BB%D0%B5",
    }


def test_many_headers_stay_within_the_format() -> None:
    (found,) = as_rocketmq(kafka(value=None, headers=[(f"header-{n}", b"x" * 100) for n in range(2000)]))
    assert len(found.properties) <= message.PROPERTIES_BYTES_MAX
    assert "header-0" in properties.parse(found.properties)


# -- There and back, and garbage

content = st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
header_name = st.sampled_from(["TAGS", "KEYS", "DELAY", "a", "__KAFKA_NULL", "__KAFKA_HEADER_0", ""]) | st.text(
    max_size=8
)
any_record = st.builds(
    kafka,
    st.none() | content,
    st.none() | content,
    st.lists(st.tuples(header_name, st.none() | content), max_size=6),
)


@given(any_record)
@example(kafka(b"=", None, [("=", b"="), ("!", None), ("%", b""), ("a\x01b", None)]))
def test_kafka_record_survives_the_way_through_rocketmq(given_record: Record) -> None:
    place = to_rocketmq.Place(b"orders", 0, 40, 0, 999, STORED, message.NO_HOST)
    (encoded,) = to_rocketmq.rocketmq_records([given_record], place)
    properties.parse(message.decode(encoded).properties)
    (found,) = as_kafka(memoryview(encoded))
    assert (found.key, found.value, found.timestamp_ms) == (*given_record[2:4], BORN)
    assert list(found.headers) == list(given_record.headers)


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 200))
def test_arbitrary_frames_raise_only_protocol_error(noise: bytes, at: int, size: int) -> None:
    encoded = bytearray(record(b"body", text({"a": "b", "__KAFKA_HEADER_0": "x=AA=="})))
    encoded[at : at + size] = noise
    for frame in (noise, encoded):
        try:
            to_kafka.kafka_batch([memoryview(bytes(frame))], 0, 0, **LIMITS)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                to_kafka.kafka_record(memoryview(bytes(frame)), 0, inflate_bytes_max=1 << 20)


@given(any_record, st.integers(0, 200), st.binary(max_size=4))
def test_arbitrary_batches_raise_only_protocol_error(given_record: Record, at: int, noise: bytes) -> None:
    builder = BatchBuilder()
    builder.append(0, BORN, given_record.key, given_record.value, given_record.headers)
    batch = bytearray(builder.finish(0, 0))
    batch[at : at + len(noise)] = noise
    try:
        opened = record_reader.open_batch(bytes(batch), 1 << 20)
        found, _ = record_reader.read_records(opened, record_reader.FIRST, 10)
    except ProtocolError:
        return
    for encoded in to_rocketmq.rocketmq_records(found, to_rocketmq.Place(b"t", 0, 0, 0, 999, STORED, message.NO_HOST)):
        message.decode(encoded)
