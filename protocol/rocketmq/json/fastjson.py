"""Reads and writes JSON as fastjson does in Apache RocketMQ: for all bodies and JSON headers.

`read` returns the same values as fastjson for the same bytes:

    enums         by name or by ordinal            "consumeType":"CONSUME_PASSIVELY"   "consumeType":1
    numbers       from text, and text from numbers "subVersion":"1795354881516"        "value":7
    truth values  from text and numbers            "order":"true"   "order":1
    null, ""      as absent; absent fields have their default values; unknown fields are ignored
    keys, quotes  with the extensions in `lenient_json.py`

C++ clients write enums by ordinal and numbers as text, Go's write null for empty lists, and Java writes a map keyed by
MessageQueue with objects for keys:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:7},"brokerAddrs":{0:"10.0.0.1:10911"}}

Java's tools read such a map in this form only, so `write` writes it: for a field of type `QueueTable`. Integer keys are
written with quotes, which every client reads. Nothing is written with white space: Go splits `brokerAddrs` by hand.

msgspec reads standard JSON with the expected types. All other JSON is read by Python code, which is slower, so it may
have at most LENIENT_BYTES_MAX bytes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec
from msgspec import inspect

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.header import Int64
from duolog.protocol.rocketmq.json import lenient_json

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")
V = TypeVar("V")

BYTES_MAX: Final = 512 << 10
"""The largest body or header: a heartbeat with 4,000 subscriptions. msgspec reads it in up to 30 ms."""

LENIENT_BYTES_MAX: Final = 64 << 10
"""The largest JSON that Python code reads, in up to 40 ms: a C++ client's heartbeat with 400 subscriptions."""


class IllegalJson(ProtocolError):
    """A body or header that fastjson could not read as the expected class. The message has the reason and position."""


class MessageQueue(msgspec.Struct, frozen=True, rename="camel", order=True):
    """A queue in bodies. The class is frozen, because it is the key of a QueueTable."""

    topic: str
    broker_name: str = ""
    queue_id: Int64 = 0


class QueueTable(Generic[V]):
    """A map keyed by MessageQueue."""

    __slots__ = ("rows",)

    def __init__(self, rows: Mapping[MessageQueue, V]) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueueTable) and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"QueueTable({self.rows!r})"


def enum(*names: str) -> msgspec.Meta:
    """Return the annotation of a field that is a Java enum, with its names in the order of their ordinals.

    Unknown names are not changed, because newer clients may have more. msgspec refuses a text that begins with a digit,
    so ordinals written as text are read by the lenient reader.
    """
    return msgspec.Meta(pattern=r"^\D", extra={"enum": names})


def write(value: object) -> bytes:
    """Encode a body."""
    return _encoder.encode(value)


def read(body: Buffer, form: type[T]) -> T:
    """Decode a body as an object of class `form`. Raises IllegalJson."""
    if len(body) > BYTES_MAX:
        raise IllegalJson(f"JSON of {len(body)} bytes; {BYTES_MAX} are allowed")
    decoder = _decoders.get(form)
    if decoder is None:
        decoder = _decoders[form] = msgspec.json.Decoder(form, strict=False, dec_hook=_to_queue_table)
    try:
        value: T = decoder.decode(body)
    except _NOT_JSON as error:
        value = read_leniently(body, form, str(error))
    return value


def read_leniently(body: Buffer, form: type[T], problem: str) -> T:
    """Decode a body that msgspec could not decode, for the reason `problem`. Raises IllegalJson."""
    name = form.__name__.lstrip("_")
    if len(body) > LENIENT_BYTES_MAX:
        raise IllegalJson(
            f"JSON of {len(body)} bytes is no plain JSON of a {name} ({problem}); what is not may have"
            f" {LENIENT_BYTES_MAX}"
        )
    try:
        return _convert(_parse(body), form)
    except (*_NOT_JSON, ProtocolError) as error:
        raise IllegalJson(f"JSON of {len(body)} bytes is no {name}: {error}") from None


# -- Inside


def _parse(body: Buffer) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return lenient_json.parse(str(body, "utf-8"))


# msgspec raises these for bytes that are not JSON or of another form, text that is not UTF-8, and "[[[[...".
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# One decoder for each form that `read` is called with: as many as there are classes of bodies.
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}

_ABSENT: Final = ("", "null")  # Texts that are read as an absent number or truth value (TypeUtils.java#castToInt).


def _convert(value: Any, form: type[T]) -> T:
    coerce = _coercions.get(form)
    if coerce is None:
        coerce = _coercions[form] = _coercion_of(inspect.type_info(form))
    return msgspec.convert(coerce(value), form, strict=False, dec_hook=_to_queue_table)


# What turns a value into one that msgspec takes for a type, or leaves it to msgspec to refuse. None means absent.
_Coerce = Callable[[Any], Any]
_coercions: dict[type[Any], _Coerce] = {}


def _coercion_of(info: inspect.Type) -> _Coerce:
    match info:
        case inspect.Metadata(type=inner, extra={"enum": names}):
            return _enum_coercion(names, _coercion_of(inner))
        case inspect.Metadata(type=inner):
            return _coercion_of(inner)
        case inspect.StructType(fields=fields):
            return _struct_coercion([(each.encode_name, _coercion_of(each.type)) for each in fields])
        case inspect.ListType(item_type=item):
            return _list_coercion(_coercion_of(item))
        case inspect.DictType(value_type=member):
            return _dict_coercion(_coercion_of(member))
        case inspect.UnionType(types=types):  # Each of ours is a type or None.
            (inner,) = [each for each in types if not isinstance(each, inspect.NoneType)]
            return _coercion_of(inner)
        case inspect.StrType():
            return _to_text
        case inspect.IntType():
            return _to_int
        case inspect.FloatType() | inspect.BoolType():
            return lambda value: None if value in _ABSENT else value
    return lambda value: value


def _struct_coercion(fields: list[tuple[str, _Coerce]]) -> _Coerce:
    def coerce(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found = {}
        for name, of_field in fields:
            member = value.get(name)
            if member is not None and (member := of_field(member)) is not None:
                found[name] = member
        return found

    return coerce


def _list_coercion(of_item: _Coerce) -> _Coerce:
    def coerce(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [coerced for item in value if item is not None and (coerced := of_item(item)) is not None]

    return coerce


def _dict_coercion(of_member: _Coerce) -> _Coerce:
    def coerce(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            key: coerced
            for key, member in value.items()
            if member is not None and (coerced := of_member(member)) is not None
        }

    return coerce


def _enum_coercion(names: tuple[str, ...], of_text: _Coerce) -> _Coerce:
    by_ordinal = {str(ordinal): name for ordinal, name in enumerate(names)}

    def coerce(value: Any) -> Any:
        text = of_text(value)
        return by_ordinal.get(text, text) or None

    return coerce


def _to_text(value: Any) -> Any:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _to_int(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, float) and abs(value) < 1 << 63):
        return int(value)
    return None if value in _ABSENT else value


def _from_queue_table(value: object) -> msgspec.Raw:
    if not isinstance(value, QueueTable):
        raise NotImplementedError(f"{type(value).__name__} in a body")
    rows = [write(queue) + b":" + write(row) for queue, row in value.rows.items()]
    return msgspec.Raw(b"{" + b",".join(rows) + b"}")


def _to_queue_table(form: Any, value: Any) -> QueueTable[Any]:
    """Make a table of a dict whose keys are the JSON of queues; msgspec calls this for types that it does not know."""
    (row_form,) = get_args(form)
    rows = msgspec.convert(value, dict[str, Any])
    return QueueTable(
        {
            msgspec.json.decode(key, type=MessageQueue, strict=False): _convert(row, row_form)
            for key, row in rows.items()
        }
    )


_encoder = msgspec.json.Encoder(enc_hook=_from_queue_table)
