"""The JSON that RocketMQ's Java side writes with fastjson, which is not quite JSON, and reads.

Two liberties: a key may be an integer without quotes, and a map keyed by MessageQueue has objects for keys:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:7},"brokerAddrs":{0:"10.0.0.1:10911"}}

Java's tools read such a map in this form only, so `write` writes it: for a field of type `QueueTable`. Integer keys are
written with quotes, which every client reads. Nothing is written with white space: Go splits `brokerAddrs` by hand.
`read` takes both forms, and null for absent, as Go writes empty lists.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec

from protocol.errors import ProtocolError
from protocol.rocketmq.headers import Int64

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")
V = TypeVar("V")

LENIENT_BYTES_MAX: Final = 256 << 10
"""A longer body is read as plain JSON only: the liberties are read by Python, half a second for a MiB."""


class MessageQueue(msgspec.Struct, frozen=True, rename="camel", order=True):
    """A queue as clients name it; frozen, to be a key."""

    topic: str
    broker_name: str
    queue_id: Int64


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


def write(value: object) -> bytes:
    """Write a body."""
    return _encoder.encode(value)


def read(body: Buffer, form: type[T]) -> T:
    """Read a body as a `form`. Raises ProtocolError for what is no JSON of either kind, or another thing's."""
    decoder = _decoders.get(form)
    if decoder is None:
        decoder = _decoders[form] = msgspec.json.Decoder(form, strict=False, dec_hook=_to_queue_table)
    try:
        value: T = decoder.decode(body)
    except _NOT_JSON:
        value = _read_leniently(body, form)
    return value


# -- Inside

# msgspec raises these for bytes that are not JSON or of another form, text that is not UTF-8, and "[[[[...".
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# One decoder for each form that `read` is called with: as many as there are classes of bodies.
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def _read_leniently(body: Buffer, form: type[T]) -> T:
    try:
        if len(body) > LENIENT_BYTES_MAX:
            raise ProtocolError(f"body of {len(body)} bytes is no plain JSON of a {form.__name__}")
        value = msgspec.json.decode(_to_strict(str(body, "utf-8")))
        return msgspec.convert(_without_nulls(value), form, strict=False, dec_hook=_to_queue_table)
    except _NOT_JSON as error:
        raise ProtocolError(f"body of {len(body)} bytes is no {form.__name__}: {error}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(member) for member in value]
    return value


_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRING_OR_ODD_KEY = re.compile(
    rf"""
      {_STRING}                                         # passed over, whatever it looks like
    | (?<=[{{,]) \s* (-?\d+) (?=\s*:)                   # a number
    | (\{{ (?: [^{{}}\[\]"] | {_STRING} )*+ \}}) (?=\s*:)  # an object; nothing is nested in a key
    """,
    re.DOTALL | re.VERBOSE,
)


def _to_strict(text: str) -> str:
    """Put keys in quotes: a number as it stands, an object as the text of its JSON."""
    return _STRING_OR_ODD_KEY.sub(_quote_key, text)


def _quote_key(match: re.Match[str]) -> str:
    key = match[1] or match[2]
    return msgspec.json.encode(key).decode() if key else match[0]


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
            msgspec.json.decode(key, type=MessageQueue): msgspec.convert(row, row_form, strict=False)
            for key, row in rows.items()
        }
    )


_encoder = msgspec.json.Encoder(enc_hook=_from_queue_table)
