"""Remoting commands: the requests and answers of RocketMQ's clients and brokers. Each command is one frame.

    length i32 | serialize type u8 | header length u24 | header | body       big-endian; `length` excludes itself

There are two serialize types of the header. An answer has the same type as its request:

    0 JSON      {"code":310,"language":"JAVA","version":479,"opaque":17,"flag":0,"extFields":{"b":"orders"}}
    1 ROCKETMQ  code i16 | language i8 | version i16 | opaque i32 | flag i32 | remark length i32 | remark
                | ext length i32 | { key length i16 | key | value length i32 | value } ...

`opaque` is a number that the sender of a request chooses and the answer repeats; answers may be sent in any order. Bit
0 of `flag` marks an answer, bit 1 a one-way request, which has no answer. `ext` has the header fields, all of them
text. Source: `RemotingCommand.java`, `RocketMQSerializable.java`.
"""

import struct
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.json import fastjson

Buffer = bytes | bytearray | memoryview

FRAME_BYTES_MAX: Final = 16 << 20
"""The default of `com.rocketmq.remoting.frameMaxLength`. A peer closes the connection for a longer frame."""

HEADER_BYTES_MAX: Final = 512 << 10
"""The largest header that is decoded. The longest header of an answer is that of a batch send, with 33 bytes for each
of at most 4,096 messages. The longest field of a request has the properties: 32,767 bytes, in JSON six times that."""

EXT_FIELDS_MAX: Final = 1024
"""The largest number of fields in one header; clients send up to 30."""

VERSION: Final = 479
"""`MQVersion.V5_3_3`. Consumers refuse SQL92 subscriptions if the version of the broker is below 232."""

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2
FLAG_FORWARDED: Final = 4
"""A standby of a shared log has sent the request on for a client. Apache RocketMQ has no such flag.

The signatures of clients do not cover the flags.
"""

LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
    *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
"""The names of `LanguageCode.java`; the index is the number in a binary header."""


class RemotingCommand(msgspec.Struct):
    """One command. A decoded body is a slice of its frame; a body to be encoded may be a sequence of buffers."""

    code: int
    opaque: int
    ext: dict[str, str]
    body: Buffer | Sequence[Buffer] = b""
    flag: int = 0
    remark: str | None = None
    language: str = "PYTHON"
    version: int = VERSION
    json: bool = True  # The type of the header: JSON or ROCKETMQ.
    received_mono_ms: int = 0  # When the connection received the command. Not a part of the frame.

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def is_forwarded(self) -> bool:
        return bool(self.flag & FLAG_FORWARDED)


# -- Building


def request(
    code: int,
    opaque: int,
    ext: dict[str, str] | None = None,
    body: Buffer | Sequence[Buffer] = b"",
    *,
    oneway: bool = False,
    json: bool = True,
) -> RemotingCommand:
    """Create a request. The caller chooses `opaque` and finds the answer by it."""
    return RemotingCommand(code, opaque, {} if ext is None else ext, body, FLAG_ONEWAY if oneway else 0, json=json)


def response(
    asked: RemotingCommand,
    code: int = 0,
    remark: str | None = None,
    ext: dict[str, str] | None = None,
    body: Buffer | Sequence[Buffer] = b"",
) -> RemotingCommand:
    """Create the answer to the request `asked`, with its serialize type.

    `extFields` is always an object, because Java clients do not check for null.
    """
    return RemotingCommand(code, asked.opaque, {} if ext is None else ext, body, FLAG_RESPONSE, remark, json=asked.json)


# -- Reading


def decode(payload: memoryview) -> RemotingCommand:
    """Decode a command from `payload`, a frame without its length. The body is a slice of `payload`.

    Raises ProtocolError for any frame for which Apache RocketMQ closes the connection.
    """
    if len(payload) < 4:
        raise ProtocolError(f"remoting frame of {len(payload)} bytes; the shortest has 4")
    (word,) = _U32.unpack_from(payload)
    header_end = 4 + (word & 0xFFFFFF)
    if header_end > len(payload):
        raise ProtocolError(f"remoting header of {header_end - 4} bytes in a frame of {len(payload)}")
    if header_end - 4 > HEADER_BYTES_MAX:
        raise ProtocolError(f"remoting header of {header_end - 4} bytes; {HEADER_BYTES_MAX} are allowed")
    if word >> 24 == _JSON:
        command = _decode_json(payload[4:header_end])
    elif word >> 24 == _BINARY:
        command = _decode_binary(bytes(payload[4:header_end]))
    else:
        raise ProtocolError(f"unknown serialize type {word >> 24} of a remoting frame; known are 0 and 1")
    if len(command.ext) > EXT_FIELDS_MAX:
        raise ProtocolError(f"remoting header with {len(command.ext)} fields; {EXT_FIELDS_MAX} are allowed")
    command.body = payload[header_end:]
    return command


# -- Writing


def encode(command: RemotingCommand) -> list[Buffer]:
    """Encode a command as one frame: a buffer with length and header, then the buffers of the body without a copy.

    Raises ProtocolError if a field exceeds the limits of the format. Only values that a client has sent can do so.
    """
    if command.json:
        serialize_type, header = _JSON, _encode_json(command)
    else:
        serialize_type, header = _BINARY, _encode_binary(command)
    body = command.body
    pieces: Sequence[Buffer]
    if isinstance(body, (bytes, bytearray, memoryview)):
        size = len(body)
        pieces = (body,) if size else ()
    else:
        size = sum(map(len, body))
        pieces = body
    header_bytes = len(header)
    if header_bytes > _HEADER_BYTES_MAX:
        raise ProtocolError(f"remoting header of {header_bytes} bytes; {_HEADER_BYTES_MAX} are possible")
    return [_HEAD.pack(4 + header_bytes + size, serialize_type << 24 | header_bytes) + header, *pieces]


def encode_stored(
    asked: RemotingCommand, message_id: str, queue_id: int, queue_offset: int, key: str, recall_handle: str = ""
) -> list[Buffer]:
    """Encode the answer to a send, with the place of the stored message. It is faster than `encode` for JSON headers.

    `key` is the UNIQ_KEY of the message, which clients expect as its transaction id. `recall_handle` is set for delayed
    messages only.
    """
    if asked.json:
        handle = b'"recallHandle":"%b",' % recall_handle.encode() if recall_handle else b""
        header = _STORED_JSON % (asked.opaque, handle, message_id.encode(), queue_id, queue_offset, _encode_text(key))
        return [_HEAD.pack(4 + len(header), _JSON << 24 | len(header)) + header]
    ext = {
        "msgId": message_id,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "transactionId": key,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    if recall_handle:
        ext["recallHandle"] = recall_handle
    return encode(response(asked, ext=ext))


# -- JSON headers

_JSON = 0
_U32 = struct.Struct(">I")
_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]  # An answer could not repeat a larger number.
_HEAD = struct.Struct(">iI")
_HEADER_BYTES_MAX = (1 << 24) - 1  # The header length has 24 bits.


_STORED_JSON = (
    '{"code":0,"opaque":%d,"extFields":{%b"msgId":"%b","queueId":"%d","queueOffset":"%d","transactionId":%b,'
    f'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"}},"flag":{FLAG_RESPONSE},"remark":null,"language":"PYTHON",'
    f'"version":{VERSION}}}'
).encode()


class _JsonHeader(msgspec.Struct):
    code: _Int32
    opaque: _Int32
    ext: dict[str, str] = msgspec.field(name="extFields", default_factory=dict)
    flag: _Int32 = 0
    remark: str | None = None
    language: Annotated[str, msgspec.Meta(extra={"enum": LANGUAGES})] = "OTHER"
    version: _Int32 = 0


_decode_header = msgspec.json.Decoder(_JsonHeader).decode
_encode_header = _encode_text = msgspec.json.Encoder().encode
# msgspec raises these three for bytes that are not JSON, text that is not UTF-8, and "[[[[...".
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _decode_json(header: memoryview) -> RemotingCommand:
    try:
        fields = _decode_header(header)
    except _NOT_JSON as error:
        fields = fastjson.read_leniently(header, _JsonHeader, str(error))
    return RemotingCommand(
        fields.code, fields.opaque, fields.ext, b"", fields.flag, fields.remark, fields.language, fields.version, True
    )


def _encode_json(command: RemotingCommand) -> bytes:
    return _encode_header(
        _JsonHeader(
            command.code,
            command.opaque,
            command.ext,
            command.flag,
            command.remark,
            command.language,
            command.version,
        )
    )


# -- Binary headers

_BINARY = 1
_FIXED = struct.Struct(">hbhiii")  # code, language, version, opaque, flag, remark length
_FIXED_BYTES = _FIXED.size
_I32 = struct.Struct(">i")
_KEY_LENGTH = struct.Struct(">h")
_LANGUAGE_NUMBERS = {name: number for number, name in enumerate(LANGUAGES)}
_OTHER = _LANGUAGE_NUMBERS["OTHER"]


def _decode_binary(header: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
        ext_at = _FIXED_BYTES + remark_length
        (ext_length,) = _I32.unpack_from(header, ext_at)
        ext_start = ext_at + 4
        if remark_length < 0 or ext_length < 0 or ext_start + ext_length > len(header):
            raise ProtocolError(
                f"binary remoting header of {len(header)} bytes: remark of {remark_length}, ext of {ext_length}"
            )
        remark = header[_FIXED_BYTES:ext_at].decode() if remark_length else None
        ext = _decode_ext(header, ext_start, ext_start + ext_length)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"binary remoting header of {len(header)} bytes: {error}") from None
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return RemotingCommand(code, opaque, ext, b"", flag, remark, name, version, False)


def _decode_ext(header: bytes, at: int, end: int) -> dict[str, str]:
    ext = {}
    value_length_at = _I32.unpack_from
    while at < end:
        key_at = at + 2
        # Reading two bytes by index is faster than a struct. A negative length is read as one that exceeds `end`.
        key_end = key_at + (header[at] << 8 | header[at + 1])
        value_at = key_end + 4
        (value_length,) = value_length_at(header, key_end)
        at = value_at + value_length
        if value_length < 0 or at > end:
            raise ProtocolError(f"binary remoting header: a value of {value_length} bytes ends at {at} of {end}")
        ext[header[key_at:key_end].decode()] = header[value_at:at].decode()
        if len(ext) > EXT_FIELDS_MAX:
            raise ProtocolError(f"binary remoting header with more than {EXT_FIELDS_MAX} fields")
    return ext


def _encode_binary(command: RemotingCommand) -> bytes:
    try:
        return _binary_header(command)
    except struct.error as error:
        raise ProtocolError(f"code {command.code} or its fields do not fit a binary remoting header: {error}") from None


def _binary_header(command: RemotingCommand) -> bytes:
    remark = b"" if command.remark is None else command.remark.encode()
    pieces: list[bytes] = []
    for key_text, value_text in command.ext.items():
        key, value = key_text.encode(), value_text.encode()
        pieces += (_KEY_LENGTH.pack(len(key)), key, _I32.pack(len(value)), value)
    ext = b"".join(pieces)
    language = _LANGUAGE_NUMBERS.get(command.language, _OTHER)
    fixed = _FIXED.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    return b"".join((fixed, remark, _I32.pack(len(ext)), ext))
