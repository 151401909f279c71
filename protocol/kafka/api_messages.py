"""Kafka's API keys, the headers of requests and responses, and their bodies as kio entities.

    request     api_key i16 | api_version i16 | correlation_id i32 | client_id string? | flexible: tags | body
    response    correlation_id i32 | flexible: tags | body

`client_id` is a classic string even in flexible versions. The response header of ApiVersions never has tags, so that
a client can read it before it knows the broker's versions (KIP-511).

Bodies have one class for each API and version, in `kio.schema.<api>.v<version>`. Such a module is imported at the first
request that needs it, in 3 to 8 ms: all versions of all APIs together take 1 s and 16 MiB, which is too much for the
start. Produce and Fetch are decoded and encoded by `protocol.kafka.produce` and `protocol.kafka.fetch` instead.

Source: Kafka's message definitions (`clients/src/main/resources/common/message/*.json`).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import timedelta
from enum import IntEnum
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

from kio.index import KioIndexError, load_payload_module, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import fetch, produce, request_check
from duolog.protocol.kafka.primitive_types import (
    ELEMENTS_MAX,
    MALFORMED,
    Buffer,
    new_tuple,
    read_classic_string,
    skip_tags,
)

__all__ = (
    "FLEXIBLE_FROM",
    "NO_THROTTLE",
    "ApiKey",
    "ErrorCode",
    "RequestHeader",
    "ResponseTypes",
    "decode_header",
    "decode_request",
    "encode_body",
    "encode_frame",
    "encode_response",
    "is_flexible",
    "milliseconds",
    "response_types",
)


class ApiKey(IntEnum):
    """The APIs that clients use.

    APIs between brokers, and those for telemetry, delegation tokens, reassignment and votes, are not in the list.
    """

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


# The first flexible version of an API (KIP-482). APIs that are not in the table have no flexible version.
FLEXIBLE_FROM: Final[dict[int, int]] = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.DESCRIBE_ACLS: 2,
    ApiKey.CREATE_ACLS: 2,
    ApiKey.DELETE_ACLS: 2,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 2,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.CREATE_PARTITIONS: 2,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.DESCRIBE_QUORUM: 0,
    ApiKey.UPDATE_FEATURES: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 0,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
    ApiKey.SHARE_GROUP_HEARTBEAT: 0,
    ApiKey.SHARE_GROUP_DESCRIBE: 0,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
}
_NEVER: Final = 1 << 15

NO_THROTTLE: Final = timedelta(0)
_MILLISECOND: Final = timedelta(milliseconds=1)

_HEADER = struct.Struct(">hhi")
_FRAME_HEADER = struct.Struct(">ii")
HEADER_BYTES_MIN: Final = _HEADER.size + 2  # Together with the size of the client id.
_NO_TAGS: Final = b"\0"


class RequestHeader(NamedTuple):
    """The header of a request. The API key and the version may be unknown."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str  # "" if the client sent null
    body_at: int  # Where the body begins in the buffer.


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether requests and responses of this version have compact encodings and tagged fields."""
    return version >= FLEXIBLE_FROM.get(api_key, _NEVER)


def milliseconds(duration: timedelta) -> int:
    """Convert a duration of a kio entity to milliseconds."""
    return duration // _MILLISECOND


# -- Requests


def decode_header(buffer: Buffer) -> RequestHeader:
    """Decode the header of a request; `buffer` is the payload of its frame. Raises ProtocolError."""
    if len(buffer) < HEADER_BYTES_MIN:
        raise ProtocolError(
            f"a frame of {len(buffer)} bytes is no Kafka request; the shortest request has {HEADER_BYTES_MIN} bytes"
        )
    try:
        api_key, version, correlation_id = _HEADER.unpack_from(buffer)
        client_id, at = read_classic_string(buffer, _HEADER.size)
        if version >= FLEXIBLE_FROM.get(api_key, _NEVER):
            at = skip_tags(buffer, at)
    except MALFORMED as error:
        raise ProtocolError(f"malformed request header: {error}") from None
    return new_tuple(RequestHeader, (api_key, version, correlation_id, client_id or "", at))


def decode_request(api_key: int, version: int, buffer: Buffer, at: int = 0, elements_max: int = ELEMENTS_MAX) -> Any:
    """Decode the body at `buffer[at:]` as a `produce.ProduceRequest`, a `fetch.FetchRequest` or a kio entity.

    Raises ProtocolError if the body is malformed, has more than `elements_max` array elements, or if there is no schema
    for the API key and version. Unknown tagged fields are skipped, and bytes after the body are ignored, as in Kafka.
    The memory that is used is limited by the size of the frame (`request_check.py`).
    """
    if api_key == ApiKey.PRODUCE:
        return produce.decode_request(version, buffer, at, elements_max)
    if api_key == ApiKey.FETCH:
        return fetch.decode_request(version, buffer, at, elements_max)
    entity_type, read = _reader(api_key, version)
    body = request_check.checked(entity_type, buffer, at, elements_max)
    try:
        entity, _ = read(body, 0)
    except (SerialError, ValueError, KeyError, OverflowError) as error:
        # ValueError: a duration exceeds the range of timedelta, or an error code is unknown.
        raise ProtocolError(f"malformed {entity_type.__name__} of version {version}: {error}") from None
    return entity


@cache
def _reader(api_key: int, version: int) -> tuple[type, Callable[[Buffer, int], tuple[Any, int]]]:
    try:
        entity_type: Any = load_request_schema(api_key, version)
    except KioIndexError:
        raise ProtocolError(f"no schema for API {api_key} version {version}") from None
    return entity_type, entity_reader(entity_type)


# -- Responses


class ResponseTypes:
    """The classes of one version of a response, as constructors that ignore fields which this version does not have.

    A handler therefore passes the fields of the newest version only:

        types = response_types(ApiKey.FIND_COORDINATOR, version)
        types.FindCoordinatorResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, ...)

    A class that the version does not have raises AttributeError. A misspelled optional field is ignored, too.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Python calls this method once for each name, because the constructor is an attribute afterwards.
        constructor = _constructor(getattr(self._module, name))
        setattr(self, name, constructor)
        return constructor

    def __contains__(self, name: str) -> bool:
        """Return whether the version has a class with this name."""
        return hasattr(self._module, name)


@cache
def response_types(api_key: int, version: int) -> ResponseTypes:
    return ResponseTypes(load_payload_module(api_key, version, EntityType.response))


def _constructor(entity_type: Callable[..., Any]) -> Callable[..., Any]:
    known = frozenset(field.name for field in fields(entity_type))  # type: ignore[arg-type]

    def construct(**values: Any) -> Any:
        if values.keys() <= known:
            return entity_type(**values)
        return entity_type(**{name: value for name, value in values.items() if name in known})

    return construct


def encode_body(api_key: int, version: int, entity: Any) -> bytes:
    """Encode the body of a response. `encode_frame` can make several frames of it."""
    parts: list[bytes] = []
    _writer(api_key, version)(SimpleNamespace(write=parts.append), entity)
    return b"".join(parts)


def encode_frame(api_key: int, version: int, correlation_id: int, body: Sequence[bytes]) -> list[bytes]:
    """Return the frame of an encoded body: its pieces, with the length and the header before the first one."""
    tags = _NO_TAGS if is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS else b""
    first, *others = body
    size = 4 + len(tags) + sum(map(len, body))
    return [b"".join((_FRAME_HEADER.pack(size, correlation_id), tags, first)), *others]


def encode_response(api_key: int, version: int, correlation_id: int, entity: Any) -> list[bytes]:
    """Encode a response as one frame, including its length."""
    return encode_frame(api_key, version, correlation_id, [encode_body(api_key, version, entity)])


@cache
def _writer(api_key: int, version: int) -> Callable[[Any, Any], None]:
    return entity_writer(load_response_schema(api_key, version))
