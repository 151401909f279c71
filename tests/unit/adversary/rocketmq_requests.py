"""RocketMQ requests, valid and hostile, for every row of the dispatch table.

The header's fields come from `protocol.rocketmq.request_headers.REQUESTS`, a JSON body from the form that the handler
reads, so a new row is covered by itself. Receipts of popped messages, half messages and timers come from the world,
which has just made some.
"""

import inspect
import json
import random
import re
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_args, get_origin

import msgspec

from duolog.bridge.rocketmq.request_table import TABLE
from duolog.protocol.rocketmq import bodies, remoting
from duolog.protocol.rocketmq.bodies import Body
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.messages import batch
from duolog.protocol.rocketmq.request_headers import REQUESTS
from tests.unit.adversary import hostile

OPAQUE = 7

# The values of header fields in a valid request, by name.
FIELDS: dict[str, str] = {
    "topic": "orders", "consumerGroup": "billing", "group": "billing", "groupName": "idle", "producerGroup": "shop",
    "queueId": "0", "queueOffset": "0", "maxMsgNums": "8", "sysFlag": "4", "commitOffset": "0", "offset": "0",
    "suspendTimeoutMillis": "1000", "subscription": "*", "subVersion": "0", "defaultTopic": "TBW102", "expType": "TAG",
    "defaultTopicQueueNums": "4", "bornTimestamp": "1", "flag": "0", "invisibleTime": "10000", "pollTime": "1000",
    "bornTime": "0", "initMode": "0", "timestamp": "0", "isForce": "true", "exp": "*", "expressionType": "TAG",
    "key": "k", "value": "v", "namespace": "n", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": "99999999999999",
    "delayLevel": "1", "clientId": "client", "clientID": "client", "index": "0", "count": "10", "order": "false",
    "statsName": "TOPIC_PUT_NUMS", "statsKey": "orders", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "cleanOffset": "false", "tranStateTableOffset": "0",
    "commitLogOffset": "0", "commitOrRollback": "8", "msgId": "7F00000100002A9F0000000000000000",
    "brokerName": "duolog",
    "extraInfo": "0 1 10000 0 0 duolog 0 0", "properties": "UNIQ_KEY\x01U\x02TAGS\x01paid\x02",
    "cluster": "DefaultCluster",
    "reconsumeTimes": "0", "maxReconsumeTimes": "16", "attributes": "", "recallHandle": "x", "boundaryType": "LOWER",
    "attemptId": "a", "maxMsgBytes": "1048576", "unitMode": "false", "batch": "false", "order_": "false",
}  # fmt: skip

# The values of fields in a valid JSON body, by name; the type decides about others.
JSON_VALUES: dict[str, Any] = {
    "topic": "orders", "topicName": "made", "group": "billing", "groupName": "billing", "consumerGroup": "billing",
    "clientID": "client", "clientId": "client", "brokerName": "duolog", "queueId": 0, "subString": "*", "mode": "POP",
    "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "expressionType": "TAG", "strategyName": "AVG",
    "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "c": "billing", "t": "orders", "so": 0, "q": 0, "pt": 1,
    "b": "/w==", "r": "0",
}  # fmt: skip

_PROPERTIES = (
    "", "TAGS\x01paid\x02", "DELAY\x013\x02", "TIMER_DELAY_MS\x011000\x02", "TRAN_MSG\x01true\x02PGROUP\x01shop\x02",
    "AMQ_SCHEDULED_CRON\x01* * * * *\x02",
    "AMQ_SCHEDULED_CRON\x01* * * * * *\x02AMQ_SCHEDULED_DELAY\x01250000000000000\x02",
    "EXPIRE_AFTER_MS\x015000\x02", "TIMER_KEY\x01k\x02TIMER_DELAY_MS\x019000\x02", "INNER_NUM\x013\x02",
    "KEYS\x01k\x02", "__SHARDINGKEY\x01s\x02", "_SYS_MESSAGE_PRIORITY_\x011\x02", "UNIQ_KEY\x01U\x02WAIT\x01false\x02",
)  # fmt: skip
_NOT_JSON: dict[int, Callable[[random.Random], bytes]] = {
    RequestCode.SEND_MESSAGE: lambda rng: b"body",
    RequestCode.SEND_MESSAGE_V2: lambda rng: b"body",
    RequestCode.SEND_REPLY_MESSAGE: lambda rng: b"body",
    RequestCode.SEND_REPLY_MESSAGE_V2: lambda rng: b"body",
    RequestCode.SEND_BATCH_MESSAGE: lambda rng: _batch(rng),
    RequestCode.UPDATE_BROKER_CONFIG: lambda rng: b"maxMessageSize=4194304\n",
}


class Request:
    """One request of a RocketMQ client, before it is encoded."""

    def __init__(self, code: int, ext: dict[str, bytes], body: "bytes | Any", *, is_binary: bool) -> None:
        self.code, self.ext, self.body, self.is_binary = code, ext, body, is_binary
        self.is_oneway = False
        self.loose: dict[str, Any] = {}  # Header fields whose JSON values are not text.

    def encode(self) -> bytes:
        """Return the payload of the frame."""
        body = encoded_body(self)
        flag = remoting.FLAG_ONEWAY if self.is_oneway else 0
        header = self._binary(flag) if self.is_binary else self._json(flag)
        return struct.pack(">I", self.is_binary << 24 | len(header)) + header + body

    def _binary(self, flag: int) -> bytes:
        fields = b"".join(
            struct.pack(">H", len(name)) + name.encode() + struct.pack(">I", len(value)) + value
            for name, value in self.ext.items()
        )
        return struct.pack(">HBHIII", self.code, 0, 501, OPAQUE, flag, 0) + struct.pack(">I", len(fields)) + fields

    def _json(self, flag: int) -> bytes:
        head = {"code": self.code, "language": "JAVA", "version": 501, "opaque": OPAQUE, "flag": flag}
        fields = [_quoted(name.encode()) + b":" + _quoted(value) for name, value in self.ext.items()]
        fields += [_quoted(name.encode()) + b":" + json.dumps(value).encode() for name, value in self.loose.items()]
        return json.dumps(head).encode()[:-1] + b',"extFields":{' + b",".join(fields) + b"}}"

    def mutate(self, rng: random.Random) -> None:
        """Replace one field of the header, or a part of the body."""
        kind = rng.random()
        if kind < 0.55 and self.ext:
            self._mutate_field(rng, hostile.pick(rng, list(self.ext)))
        elif kind < 0.62:
            self.ext[hostile.pick(rng, list(FIELDS))] = hostile.text(rng)
        elif kind < 0.65:
            self.is_oneway = True
        elif isinstance(self.body, bytes):
            self.body = rng.choice(
                (hostile.broken(rng, self.body), hostile.text(rng), hostile.repeated(rng, self.body))
            )
        else:
            self.body = mutated_json(rng, self.body)

    def _mutate_field(self, rng: random.Random, name: str) -> None:
        value = self.ext.pop(name)
        kind = rng.random()
        if kind < 0.1:
            return
        if kind < 0.2 and not self.is_binary:
            self.loose[name] = rng.choice((None, 1, -1.5, True, [], {}, [[]], 1 << 70, {"a": {"b": []}}))
        elif value.lstrip(b"-").isdigit() and kind < 0.8:
            self.ext[name] = str(hostile.number(rng, rng.choice((8, 32, 33, 64, 65)))).encode()
        elif name in ("properties", "i"):
            self.ext[name] = rng.choice((hostile.text(rng), hostile.repeated(rng, value), hostile.broken(rng, value)))
        elif " " in value.decode("latin-1") and kind < 0.9:
            parts = value.split(b" ")  # A receipt.
            parts[rng.randrange(len(parts))] = str(hostile.number(rng, 64)).encode()
            self.ext[name] = b" ".join(parts)
        else:
            self.ext[name] = hostile.text(rng)


def encoded_body(request: Request) -> bytes:
    """Return the bytes of a request's body."""
    return request.body if isinstance(request.body, bytes) else json.dumps(request.body).encode()


def valid(code: int, rng: random.Random, found: Mapping[str, str] | None = None) -> Request:
    """Return a valid request; `found` has fields whose values exist in the world."""
    fields = {**FIELDS, **(found or {})}
    form = REQUESTS.get(RequestCode(code))
    names = [each.encode_name for each in msgspec.structs.fields(form)] if form else []
    ext = {name: fields[name].encode() for name in names if name in fields}
    if "properties" in ext:
        ext["properties"] = hostile.pick(rng, _PROPERTIES).encode()
    if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
        ext = dict(zip("abcdefghijklm", (ext.get(name, b"0") for name in names), strict=False))
    make = _NOT_JSON.get(code)
    form_of_body = body_form(code)
    body: Any = make(rng) if make else _json_of(form_of_body, {**JSON_VALUES, **(found or {})}) if form_of_body else b""
    return Request(code, ext, body, is_binary=code < 1 << 15 and rng.random() < 0.5)


def _quoted(text: bytes) -> bytes:
    """Return a JSON string of bytes that may be invalid UTF-8."""
    escaped = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return b'"' + re.sub(rb"[\x00-\x1f]", lambda found: b"\\u%04x" % found[0][0], escaped) + b'"'


def _batch(rng: random.Random) -> bytes:
    one = batch.encode([batch.Part(0, b"body", hostile.pick(rng, _PROPERTIES).encode())])
    return one * rng.choice((1, 2, 5))


# -- JSON bodies


@cache
def body_form(code: int) -> type[Body] | None:
    """Return the type of the JSON body that the row's handler reads; None if it reads none."""
    return _read_by(TABLE[code].handler, depth=2)


def _read_by(function: Any, depth: int) -> type[Body] | None:
    if depth < 0 or not inspect.isfunction(function):
        return None
    if found := re.search(r"read_body\(\w+, (\w+)\)", inspect.getsource(function)):
        form: type[Body] = function.__globals__.get(found[1]) or getattr(bodies, found[1])
        return form
    called = (function.__globals__.get(name) for name in function.__code__.co_names)
    return next((form for each in called if (form := _read_by(each, depth - 1))), None)


def _json_of(form: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        each.encode_name: values[each.encode_name] if each.encode_name in values else _value_of(each.type, values)
        for each in msgspec.structs.fields(form)
    }


def _value_of(kind: Any, values: Mapping[str, Any]) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _json_of(kind, values)
    if origin in (list, set, frozenset, tuple):
        return [_value_of(inner[0], values)]
    if origin is dict:
        return {"k": _value_of(inner[1], values)} if inner[0] is str else {}
    if origin is not None and inner:
        return _value_of(inner[0], values)
    return {str: "x", bool: False, int: 1, float: 1.0}.get(kind)


def mutated_json(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """Return the document with one node replaced, or its bytes with one fault."""
    if depth == 0 and rng.random() < 0.2:
        return hostile.broken(rng, json.dumps(value).encode())
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = hostile.pick(rng, list(value))
        return {**value, name: mutated_json(rng, value[name], depth + 1)}
    if isinstance(value, list) and value:
        if rng.random() < 0.4:
            return hostile.repeated(rng, value)
        return [mutated_json(rng, value[0], depth + 1), *value[1:]]
    text = hostile.text(rng).decode("utf-8", "replace")
    return rng.choice(
        (None, 0, -1, 1 << 63, -(1 << 63), 1 << 70, 1e308, True, "", text, text, "1", [], {}, [value], [[]])
    )
