"""The property string of a message, in which a record stores its properties.

    name 0x01 value 0x02  name 0x01 value 0x02 ...        UTF-8; the last 0x02 may be missing

A pair without 0x01, without a name or without a value is ignored. If a name occurs twice, the last pair is valid. A
value may contain 0x01; names cannot contain either byte. Most functions work on the encoded string: `get` finds one
value, `join` appends pairs, and `parse` decodes all pairs. Source: `MessageDecoder.java#string2messageProperties`,
`MessageConst.java`.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from duolog.protocol.errors import ProtocolError

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"
_VALUE_END: Final = ord(VALUE_END)
_KEYS_CACHED_MAX: Final = 256

# -- Names that the broker reads or writes

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_ID: Final = "__transactionId__"
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
INSTANCE_ID: Final = "INSTANCE_ID"
SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"


def parse(raw: bytes | str) -> dict[str, str]:
    """Decode all pairs. Raises ProtocolError if the bytes are not UTF-8."""
    text = raw if isinstance(raw, str) else as_text(raw)
    properties = {}
    for pair in text.split(VALUE_END):
        name, _, value = pair.partition(NAME_END)
        if value and name:
            properties[name] = value
    return properties


def encode(properties: Mapping[str, str]) -> str:
    """Encode pairs. Raises ProtocolError if `parse` would not return the same pairs."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count(VALUE_END) != len(properties) or parse(text) != properties:
        raise ProtocolError(f"properties that the property string cannot hold: {dict(properties)!r:.200}")
    return text


def get(raw: bytes, name: str) -> str | None:
    """Return the value of one property without decoding the others; None if it does not exist."""
    key = _key(name)
    at = raw.rfind(key)
    # A name follows a 0x02 or the beginning. Any other occurrence is within a value or is the end of a longer name.
    while at > 0 and raw[at - 1] != _VALUE_END:
        at = raw.rfind(key, 0, at)
    if at < 0:
        return None
    start = at + len(key)
    end = raw.find(_VALUE_END, start)
    value = raw[start:] if end < 0 else raw[start:end]
    if not value:
        return parse(raw).get(name)  # This pair has no value, so an earlier pair of the same name is valid.
    return as_text(value)


def finder(name: str) -> Callable[[bytes], bytes | None]:
    """Return a function that finds the value of one property, as bytes, faster than `get`: for use on many messages."""
    first = name.encode() + b"\x01"
    later = b"\x02" + first
    first_size, later_size = len(first), len(later)

    def find(raw: bytes) -> bytes | None:
        at = raw.rfind(later)
        if at >= 0:
            start = at + later_size
        elif raw.startswith(first):
            start = first_size
        else:
            return None
        end = raw.find(b"\x02", start)
        value = raw[start:end] if end >= 0 else raw[start:]
        return value or _valued(raw, first)

    return find


def _valued(raw: bytes, start: bytes) -> bytes | None:
    """Return the value of the last pair that begins with `start` and has a value."""
    values = [pair[len(start) :] for pair in raw.split(b"\x02") if pair.startswith(start)]
    return next(filter(None, reversed(values)), None)


@lru_cache(_KEYS_CACHED_MAX)
def _key(name: str) -> bytes:
    """Return the bytes with which a pair of this name begins: the name and 0x01."""
    return name.encode() + b"\x01"


def set_many(raw: bytes, changes: Mapping[str, str | None]) -> bytes:
    """Return `raw` with these values set, and without the properties whose value is None."""
    if any(name.encode() in raw for name in changes):
        merged = {**parse(raw), **changes}
        return encode({name: value for name, value in merged.items() if value is not None}).encode()
    return join(raw, encode({name: value for name, value in changes.items() if value is not None}).encode())


def without(raw: bytes, name: str) -> bytes:
    """Return `raw` without the pairs of one name."""
    key = _key(name)
    if key not in raw:
        return raw
    return b"\x02".join([pair for pair in raw.split(b"\x02") if not pair.startswith(key)])


def join(raw: bytes, added: bytes) -> bytes:
    """Return `raw` followed by another property string, whose values replace those of the same names in `raw`."""
    if raw and added and raw[-1] != _VALUE_END:
        return raw + b"\x02" + added
    return raw + added


def repaired(raw: bytes) -> bytes:
    """Return `raw` with U+FFFD in place of bytes that are not UTF-8, as Java clients decode it.

    Properties that are not UTF-8 are refused when a message is sent; this function is for messages that are stored.
    """
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace").encode()
    return raw


def as_text(raw: bytes) -> str:
    """Decode a part of properties. Raises ProtocolError if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"properties of {len(raw)} bytes are not UTF-8: {error}") from None
