"""Remoting frames are those of the official Java implementation, both ways; bad ones raise ProtocolError only."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.remoting import (
    EXT_FIELDS_MAX,
    HEADER_BYTES_MAX,
    LANGUAGES,
    Buffer,
    RemotingCommand,
    decode,
    encode,
    encode_stored,
    request,
    response,
)

SEND = {
    "producerGroup": "pg",
    "topic": "TopicA",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "2",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "0",
    "properties": "KEYS\x01k\x02WAIT\x01true\x02",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "maxReconsumeTimes": "3",
    "batch": "false",
}

# What `RemotingCommand.encode()` of org.apache.rocketmq:rocketmq-remoting:5.5.0 wrote, in hex, and of what.
FRAMES = [
    (
        "000001240000011b7b22636f6465223a3331302c226578744669656c6473223a7b2261223a227067222c2262223a22546f70"
        "696341222c2263223a22544257313032222c2264223a2234222c2265223a2232222c2266223a2230222c2267223a22313730"
        "30303030303030303030222c2268223a2230222c2269223a224b4559535c75303030316b5c7530303032574149545c753030"
        "3031747275655c7530303032222c226a223a2230222c226b223a2266616c7365222c226c223a2233222c226d223a2266616c"
        "7365227d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a31372c227365726961"
        "6c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d68656c6c6f",
        RemotingCommand(
            310,
            17,
            dict(zip("abcdefghijklm", SEND.values(), strict=True)),
            b"hello",
            language="JAVA",
            version=479,
            json=True,
        ),
    ),
    (
        "0000019e000001957b22636f6465223a31302c226578744669656c6473223a7b2271756575654964223a2232222c22666c61"
        "67223a2230222c22737973466c6167223a2230222c227265636f6e73756d6554696d6573223a2230222c226261746368223a"
        "2266616c7365222c22756e69744d6f6465223a2266616c7365222c2264656661756c74546f706963223a2254425731303222"
        "2c2264656661756c74546f70696351756575654e756d73223a2234222c2270726f647563657247726f7570223a227067222c"
        "226d61785265636f6e73756d6554696d6573223a2233222c22746f706963223a22546f70696341222c22626f726e54696d65"
        "7374616d70223a2231373030303030303030303030222c2270726f70657274696573223a224b4559535c75303030316b5c75"
        "30303032574149545c7530303031747275655c7530303032227d2c22666c6167223a302c226c616e6775616765223a224a41"
        "5641222c226f7061717565223a31382c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c22"
        "76657273696f6e223a3437397d68656c6c6f",
        RemotingCommand(10, 18, SEND, b"hello", language="JAVA", version=479, json=True),
    ),
    (
        "00000064000000607b22636f6465223a33342c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061"
        "717565223a312c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a"
        "3437397d",
        RemotingCommand(34, 1, {}, b"", language="JAVA", version=479, json=True),
    ),
    (
        "000000b0000000ac7b22636f6465223a31372c226578744669656c6473223a7b226d73674964223a22414243222c22c3a922"
        "3a22f09f9880227d2c22666c6167223a332c226c616e6775616765223a224a415641222c226f7061717565223a2d352c2272"
        "656d61726b223a226e6f20746f70696320e4b8bbe9a298205c22785c225c6e222c2273657269616c697a6554797065437572"
        "72656e74525043223a224a534f4e222c2276657273696f6e223a3437397d",
        RemotingCommand(
            17, -5, {"msgId": "ABC", "é": "😀"}, b"", 3, 'no topic 主题 "x"\n', language="JAVA", version=479, json=True
        ),
    ),
    (
        "000000b5010000ac01360001df0000001100000000000000000000009700016100000002706700016200000006546f706963"
        "41000163000000065442573130320001640000000134000165000000013200016600000001300001670000000d3137303030"
        "30303030303030300001680000000130000169000000114b455953016b025741495401747275650200016a00000001300001"
        "6b0000000566616c736500016c000000013300016d0000000566616c736568656c6c6f",
        RemotingCommand(
            310,
            17,
            dict(zip("abcdefghijklm", SEND.values(), strict=True)),
            b"hello",
            language="JAVA",
            version=479,
            json=False,
        ),
    ),
    (
        "0000013001000127000a0001df0000001200000000000000000000011200077175657565496400000001320004666c616700"
        "000001300007737973466c61670000000130000e7265636f6e73756d6554696d657300000001300005626174636800000005"
        "66616c73650008756e69744d6f64650000000566616c7365000c64656661756c74546f706963000000065442573130320015"
        "64656661756c74546f70696351756575654e756d730000000134000d70726f647563657247726f757000000002706700116d"
        "61785265636f6e73756d6554696d657300000001330005746f70696300000006546f70696341000d626f726e54696d657374"
        "616d700000000d31373030303030303030303030000a70726f70657274696573000000114b455953016b0257414954017472"
        "75650268656c6c6f",
        RemotingCommand(10, 18, SEND, b"hello", language="JAVA", version=479, json=False),
    ),
    (
        "000000190100001500220001df00000001000000000000000000000000",
        RemotingCommand(34, 1, {}, b"", language="JAVA", version=479, json=False),
    ),
    (
        "000000470100004300110001dffffffffb00000003000000146e6f20746f70696320e4b8bbe9a298202278220a0000001a00"
        "056d73674964000000034142430002c3a900000004f09f9880",
        RemotingCommand(
            17, -5, {"msgId": "ABC", "é": "😀"}, b"", 3, 'no topic 主题 "x"\n', language="JAVA", version=479, json=False
        ),
    ),
]


@pytest.mark.parametrize(("frame", "command"), FRAMES)
def test_frames_of_java_are_read(frame: str, command: RemotingCommand) -> None:
    assert read(bytes.fromhex(frame)) == command


@pytest.mark.parametrize(("frame", "command"), [(frame, command) for frame, command in FRAMES if not command.json])
def test_binary_frames_are_those_of_java(frame: str, command: RemotingCommand) -> None:
    command.ext = read(bytes.fromhex(frame)).ext  # in Java's order
    assert written(command).hex() == frame


@pytest.mark.parametrize(("frame", "command"), [(frame, command) for frame, command in FRAMES if command.json])
def test_json_frames_say_what_those_of_java_say(frame: str, command: RemotingCommand) -> None:
    theirs = header_of(bytes.fromhex(frame))
    theirs.pop("serializeTypeCurrentRPC")
    theirs = {"extFields": {}, "remark": None} | theirs
    assert header_of(written(command)) == theirs


int32s = st.integers(-(1 << 31), (1 << 31) - 1)
texts = st.text(max_size=20)
int16s = st.integers(-(1 << 15), (1 << 15) - 1)
commands = st.builds(
    RemotingCommand,
    int16s,
    int32s,
    st.dictionaries(texts, texts, max_size=5),
    st.binary(max_size=50),
    int32s,
    st.none() | st.text(min_size=1, max_size=20),
    st.sampled_from(LANGUAGES),
    int16s,
    st.booleans(),
)


@given(commands)
def test_round_trip(command: RemotingCommand) -> None:
    assert read(written(command)) == command


@given(int32s, st.booleans(), st.integers(0, 65535), st.integers(0, (1 << 63) - 1), texts)
def test_short_way_of_the_answer_to_a_send_gives_what_the_long_one_does(
    opaque: int, json: bool, queue_id: int, queue_offset: int, key: str
) -> None:
    asked = request(310, opaque, json=json)
    ext = {
        "msgId": "7F00000100002A9F0000000000000400",
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "transactionId": key,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    frame = b"".join(encode_stored(asked, ext["msgId"], queue_id, queue_offset, key))
    assert read(frame) == read(written(response(asked, ext=ext)))


def test_body_goes_out_as_the_buffers_it_came_in() -> None:
    pieces: list[Buffer] = [b"he", bytearray(b"l"), memoryview(b"lo")]
    head, *body = encode(request(310, 1, body=pieces))
    assert all(out is piece for out, piece in zip(body, pieces, strict=True))
    assert read(b"".join((head, *body))).body == b"hello"
    assert len(encode(request(310, 1))) == 1


@pytest.mark.parametrize("json_type", [True, False])
def test_answer_has_opaque_and_type_of_its_request(json_type: bool) -> None:
    answer = read(written(response(request(310, 77, json=json_type), 17, "no such topic")))
    assert (answer.opaque, answer.json, answer.code, answer.remark, answer.ext) == (
        77,
        json_type,
        17,
        "no such topic",
        {},
    )
    assert answer.is_response
    assert not answer.is_oneway
    assert request(15, 1, oneway=True).is_oneway


# What clients write who are not strict about types: a header, and the ext fields that it has.
LOOSE: list[tuple[str, dict[str, str]]] = [
    ('{"code":34,"opaque":1}', {}),
    ('{"code":34,"opaque":1,"extFields":null,"remark":null,"language":null,"version":null,"flag":null}', {}),
    (
        '{"code":34,"opaque":1,"extFields":{"a":1,"b":true,"c":null,"d":1.5,"e":"x"}}',
        {"a": "1", "b": "true", "d": "1.5", "e": "x"},
    ),
    ('{"code":"34","opaque":"1","extFields":{"a":{"b":[]}},"unknown":[{}]}', {"a": '{"b":[]}'}),
    ("{code:34,'opaque':1,extFields:{a:'x',1:2}}", {"a": "x", "1": "2"}),
]


@pytest.mark.parametrize(("header", "ext"), LOOSE)
def test_loosely_typed_headers_are_read(header: str, ext: dict[str, str]) -> None:
    command = decode(payload(0, header.encode()))
    assert (command.code, command.opaque, command.ext) == (34, 1, ext)


def test_language_may_be_an_ordinal() -> None:
    assert decode(payload(0, b'{"code":34,"opaque":1,"language":1}')).language == "CPP"


BAD: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("no header length", b"\0\0\0"),
    ("header longer than the frame", struct.pack(">I", 3) + b"{}"),
    ("unknown serialize type", struct.pack(">I", 2 << 24 | 2) + b"{}"),
    ("no JSON", struct.pack(">I", 1) + b"{"),
    ("no object", struct.pack(">I", 2) + b"[]"),
    ("no code", struct.pack(">I", 12) + b'{"opaque":1}'),
    ("no UTF-8", struct.pack(">I", 4) + b'{"\xff"'),
    ("nested without end", struct.pack(">I", 50_000) + b"[" * 50_000),
    ("opaque that cannot be written back", struct.pack(">I", 34) + b'{"code":34,"opaque":1000000000000}'),
    ("ext fields that are a list", struct.pack(">I", 37) + b'{"code":34,"opaque":1,"extFields":[]}'),
    ("binary header cut short", struct.pack(">I", 1 << 24 | 5) + b"\0\x0a\0\0\0"),
    ("negative remark", struct.pack(">Ihbhiii", 1 << 24 | 21, 10, 0, 0, 1, 0, -1) + bytes(4)),
    ("ext beyond the header", struct.pack(">Ihbhiiii", 1 << 24 | 21, 10, 0, 0, 1, 0, 0, 9)),
    ("value beyond the ext", struct.pack(">Ihbhiiiihi", 1 << 24 | 27, 10, 0, 0, 1, 0, 0, 6, 0, 1)),
    ("more header than allowed", struct.pack(">I", HEADER_BYTES_MAX + 1) + b'{"code":34,"opaque":1}'.ljust(1 << 20)),
    ("half a key length", struct.pack(">Ihbhiiiib", 1 << 24 | 22, 10, 0, 0, 1, 0, 0, 1, 0)),
]


@pytest.mark.parametrize(("what", "frame"), BAD)
def test_malformed_frames_are_refused(what: str, frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(memoryview(frame))


@pytest.mark.parametrize("json_type", [True, False])
def test_header_with_too_many_fields_is_refused(json_type: bool) -> None:
    fields = {str(number): "" for number in range(EXT_FIELDS_MAX + 1)}
    with pytest.raises(ProtocolError, match="1024"):
        read(written(request(34, 1, fields, json=json_type)))


@given(st.sampled_from([0, 1, 2]), st.binary(max_size=60), st.integers(0, 3))
def test_any_bytes_raise_nothing_else(serialize_type: int, header: bytes, extra: int) -> None:
    only_protocol_errors(bytes(payload(serialize_type, header)) + bytes(extra))


@given(st.sampled_from([bytes.fromhex(frame)[4:] for frame, _ in FRAMES]), st.data())
def test_damaged_frames_raise_nothing_else(frame: bytes, data: st.DataObject) -> None:
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    only_protocol_errors(bytes(damaged))
    only_protocol_errors(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


def only_protocol_errors(frame: bytes) -> None:
    try:
        command = decode(memoryview(frame))
    except ProtocolError:
        return
    # What could be read can be answered.
    encode(response(command))


def payload(serialize_type: int, header: bytes) -> memoryview:
    return memoryview(struct.pack(">I", serialize_type << 24 | len(header)) + header)


def read(frame: bytes) -> RemotingCommand:
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    return decode(memoryview(frame)[4:])


def written(command: RemotingCommand) -> bytes:
    return b"".join(encode(command))


def header_of(frame: bytes) -> dict[str, Any]:
    (size,) = struct.unpack_from(">I", frame, 4)
    header: dict[str, Any] = json.loads(frame[8 : 8 + size])
    return header
