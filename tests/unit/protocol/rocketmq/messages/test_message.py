"""Records are those of the official Java implementation, byte for byte; bad ones raise ProtocolError only."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.messages import message
from duolog.protocol.rocketmq.messages.flags import (
    BORN_HOST_V6,
    COMPRESSED,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
)
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.message_id import pack_host

# What `MessageDecoder.encode(MessageExt, false)` of org.apache.rocketmq:rocketmq-common:5.5.0 wrote, in hex: a record
# with this born host, store host and body.
RECORDS = [
    (
        "00000074daa320a73610a6860000000300000007000000000000002a0000001cbe991a14000000000000018bcfe568007f00"
        "0001000015b30000018bcfe5687b0a01020300002a9f0000000200000000000000090000000568656c6c6f06546f70696341"
        "000e6b01760254414753017461674102",
        "127.0.0.1",
        "10.1.2.3",
        b"hello",
    ),
    (
        "00000080daa320a73610a6860000000300000007000000000000002a0000001cbe991a14000000100000018bcfe568000000"
        "0000000000000000000000000001000015b30000018bcfe5687b0a01020300002a9f00000002000000000000000900000005"
        "68656c6c6f06546f70696341000e6b01760254414753017461674102",
        "::1",
        "10.1.2.3",
        b"hello",
    ),
    (
        "00000080daa320a73610a6860000000300000007000000000000002a0000001cbe991a14000000200000018bcfe568007f00"
        "0001000015b30000018bcfe5687b20010db800000000000000000000000100002a9f00000002000000000000000900000005"
        "68656c6c6f06546f70696341000e6b01760254414753017461674102",
        "127.0.0.1",
        "2001:db8::1",
        b"hello",
    ),
    (
        "0000008cdaa320a73610a6860000000300000007000000000000002a0000001cbe991a14000000300000018bcfe568000000"
        "0000000000000000000000000001000015b30000018bcfe5687b20010db800000000000000000000000100002a9f00000002"
        "00000000000000090000000568656c6c6f06546f70696341000e6b01760254414753017461674102",
        "::1",
        "2001:db8::1",
        b"hello",
    ),
    (
        "0000006fdaa320a7000000000000000300000007000000000000002a0000001cbe991a14000000000000018bcfe568007f00"
        "0001000015b30000018bcfe5687b0a01020300002a9f0000000200000000000000090000000006546f70696341000e6b0176"
        "0254414753017461674102",
        "127.0.0.1",
        "10.1.2.3",
        b"",
    ),
]


@pytest.mark.parametrize(("record", "born", "store", "body"), RECORDS)
def test_records_are_those_of_java(record: str, born: str, store: str, body: bytes) -> None:
    expected = Message(
        topic="TopicA",
        body=body,
        properties=b"k\x01v\x02TAGS\x01tagA\x02",
        queue_id=3,
        flag=7,
        queue_offset=42,
        physical_offset=123456789012,
        born_ms=1700000000000,
        born_host=pack_host(born, 5555),
        store_ms=1700000000123,
        store_host=pack_host(store, 10911),
        reconsume_times=2,
        prepared_transaction_offset=9,
    )
    assert message.encode(expected).hex() == record
    found = message.decode(bytes.fromhex(record))
    assert message.is_body_intact(found)
    assert without_derived(found) == expected


hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
messages = st.builds(
    Message,
    topic=st.text(max_size=20) | st.text("abc", min_size=120, max_size=255),
    body=st.binary(max_size=50),
    properties=st.binary(max_size=50),
    queue_id=int32s,
    flag=int32s,
    queue_offset=int64s,
    physical_offset=int64s,
    sys_flag=int32s.map(lambda bits: bits & ~(BORN_HOST_V6 | STORE_HOST_V6)),
    born_ms=int64s,
    born_host=hosts,
    store_ms=int64s,
    store_host=hosts,
    reconsume_times=int32s,
    prepared_transaction_offset=int64s,
)


@given(messages)
def test_round_trip(sent: Message) -> None:
    record = message.encode(sent)
    found = message.decode(bytes(record))
    assert found.size == len(record)
    assert message.is_body_intact(found)
    assert without_derived(found) == sent
    assert message.stored_properties_of(record) == message.properties_of(record) == sent.properties
    assert b"".join(message.Writer(sent.topic, sent.queue_id, sent.store_host).pieces(sent)) == record


@given(messages, st.binary(max_size=10), int64s, int64s, int64s)
def test_stamp_is_as_if_encoded_with_it(
    sent: Message, before: bytes, queue_offset: int, physical_offset: int, store_ms: int
) -> None:
    buffer = bytearray(before) + message.encode(sent)
    message.stamp(buffer, len(before), (physical_offset, queue_offset, store_ms))
    sent.queue_offset, sent.physical_offset, sent.store_ms = queue_offset, physical_offset, store_ms
    assert buffer[len(before) :] == message.encode(sent)


@given(st.lists(messages, max_size=4), st.booleans())
def test_records_of_a_pull_follow_each_other(sent: list[Message], as_view: bool) -> None:
    body = b"".join(map(message.encode, sent))
    found = message.decode_all(memoryview(body) if as_view else body)
    at = 0
    for one in found:
        assert message.size_of(body, at) == one.size
        assert message.queue_offset_of(body, at) == one.queue_offset
        assert message.physical_offset_of(body, at) == one.physical_offset
        assert message.body_of(body, at) == one.body
        assert message.properties_of(body, at) == one.properties
        at += one.size
    assert [without_derived(one) for one in found] == sent


def test_body_of_a_view_is_not_copied() -> None:
    record = memoryview(message.encode(Message("t", b"hello")))
    body = message.decode(record).body
    assert isinstance(body, memoryview)
    assert body.obj is record.obj


def test_long_topic_takes_the_second_version() -> None:
    assert struct.unpack_from(">I", message.encode(Message("t" * 127, b"")), 4) == (message.MAGIC_V1,)
    assert struct.unpack_from(">I", message.encode(Message("t" * 128, b"")), 4) == (message.MAGIC_V2,)


@pytest.mark.parametrize(
    "too_large",
    [
        Message("t" * 256, b""),
        Message("t", b"", b"p" * 32768),
        Message("t", bytes(message.BODY_BYTES_MAX + 1)),
    ],
)
def test_what_exceeds_the_format_is_not_written(too_large: Message) -> None:
    with pytest.raises(ProtocolError):
        message.encode(too_large)


RECORD = message.encode(Message("topic", b"body", b"a\x01b\x02", sys_flag=COMPRESSED))


@pytest.mark.parametrize("end", range(len(RECORD)))
def test_cut_record_is_refused(end: int) -> None:
    with pytest.raises(ProtocolError):
        message.decode(RECORD[:end])


@pytest.mark.parametrize(
    ("what", "at", "form", "value"),
    [
        ("size beyond the buffer", 0, ">i", len(RECORD) + 1),
        ("size short of the fields", 0, ">i", len(RECORD) - 1),
        ("unknown magic", 4, ">I", 0xCBD43194),
        ("negative body", 84, ">i", -1),
        ("body beyond the buffer", 84, ">i", 1 << 30),
        ("topic that is not UTF-8", 93, ">B", 0xFF),
        ("properties beyond what Java reads", 98, ">H", 0x8000),
    ],
)
def test_record_with_a_wrong_field_is_refused(what: str, at: int, form: str, value: int) -> None:
    wrong = bytearray(RECORD)
    struct.pack_into(form, wrong, at, value)
    with pytest.raises(ProtocolError):
        message.decode(wrong + bytes(1 << 16))
    with pytest.raises(ProtocolError):
        message.decode_all(wrong)


@given(st.binary(max_size=200) | messages.map(message.encode), st.data())
def test_any_bytes_raise_nothing_else(record: bytes, data: st.DataObject) -> None:
    damaged = bytearray(record)
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for read in (
        message.decode,
        message.decode_all,
        message.body_of,
        message.properties_of,
        message.stored_properties_of,
        message.size_of,
        message.queue_offset_of,
        message.physical_offset_of,
    ):
        try:
            read(memoryview(damaged))
        except ProtocolError:
            pass


def without_derived(found: Message) -> Message:
    """What was given to be sent: no size, CRC and host bits, which `encode` finds itself."""
    found.size = found.body_crc = 0
    found.sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
    return found


@pytest.mark.parametrize(("expected", "born", "host", "body"), RECORDS)
@pytest.mark.parametrize("store_ip", ["10.9.8.7", "2001:db8::7"])
def test_committed_half_message_is_the_message_written_anew(
    expected: str, born: str, host: str, body: bytes, store_ip: str
) -> None:
    half, store_host = bytes.fromhex(expected), pack_host(store_ip, 1)
    whole = message.decode(half)
    whole.topic, whole.queue_id, whole.properties, whole.store_host = "T" * 200, 3, b"own\x01p\x02", store_host
    whole.sys_flag = whole.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    whole.prepared_transaction_offset, whole.queue_offset, whole.physical_offset = whole.physical_offset, 0, 0
    final = message.committed(half, message.outline_of(half)[2], "T" * 200, 3, b"own\x01p\x02", store_host)
    assert final == message.encode(whole)
