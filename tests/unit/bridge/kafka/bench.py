"""A broker core with Kafka connections and without sockets. Its clients' frames are written and read by kio, so they do
not depend on the codecs under test.

    bench = KafkaBench()
    client = bench.connect()
    answer = client.ask(ApiKey.METADATA, 12, topics=None)

A request that waits is answered later: `client.send(...)` gives its number, `client.answer_to(number)` None so far.
"""

import struct
from collections import deque
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from duolog.bridge.config import GroupsOptions, KafkaOptions, Options, SecurityOptions
from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.state.client_protocols import ClientProtocols
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.framing import FrameReader
from duolog.protocol.kafka.api_messages import ApiKey, is_flexible
from duolog.store.options import StoreOptions
from tests.kit.core import ManualCore, Members
from tests.kit.sockets import connect
from tests.kit.threads import ManualThreads
from tests.unit.bridge.batches import batch

T = TypeVar("T")
_NO_TIME = b"\xff" * 8
SMALL_STORE = StoreOptions(segment_bytes=4 << 20, reserve_bytes=0, tail_bytes=64 << 10)


class KafkaBench(ManualCore):
    """A broker core (`tests/kit/core.py`) with Kafka clients. `groups` are settings of the group coordinator."""

    def __init__(
        self, kafka: KafkaOptions | None = None, security: SecurityOptions | None = None, **groups: int
    ) -> None:
        of_groups = GroupsOptions(**({"initial_rebalance_delay_ms": 0} | groups))
        options = Options(groups=of_groups, kafka=kafka or KafkaOptions(), security=security or SecurityOptions())
        super().__init__(options, store=SMALL_STORE)
        self.rocketmq_groups_with_members = Members()
        self.client_protocols = ClientProtocols(self.kafka_groups, self.rocketmq_groups_with_members)
        self.kafka_context = self.make_kafka_context()
        self.reader_threads = self.store.executors.readers = ManualThreads()

    def write(self, topic: Topic, *values: bytes, partition: int = 0, timestamp_ms: int | None = None) -> None:
        """Append one batch of a Kafka producer, and make it visible."""
        at_ms = self.clock.now_ms() if timestamp_ms is None else timestamp_ms
        self.publisher.publish_batch(topic, partition, batch(values, timestamp_ms=at_ms), self.clock.now_ms())
        self.settle()

    def fill_disk(self, used_ratio: float) -> None:
        """Fill the disk to this ratio, and let the broker notice."""
        self.disk.used_bytes = int(self.disk.total_bytes * used_ratio)
        self.store.check_disk()
        self.reader_threads.run()

    def connect(self) -> "Client":
        return Client(self)


class Client:
    """One connection of a Kafka client."""

    def __init__(self, bench: KafkaBench) -> None:
        self.bench = bench
        self.connection = KafkaConnection(bench.server, bench.kafka_context)
        self.transport = connect(self.connection, bench.loop)
        self._frames = FrameReader(1 << 26)
        self._asked: deque[tuple[int, int, int]] = deque()  # The number, API key and version of each request.
        self._answers: dict[int, Any] = {}
        self._number = 0

    def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """Send a request; return its answer, or None if it waits."""
        return self.answer_to(self.send(key, version, **values))

    def send(self, key: int, version: int, /, *, is_answered: bool = True, **values: Any) -> int:
        self._number += 1
        if is_answered:
            self._asked.append((self._number, key, version))
        self.connection.data_received(frame_of(key, version, self._number, **values))
        self.bench.loop.turn()
        return self._number

    def answer_to(self, number: int) -> Any:
        """Return the answer to the request with this number; answers must come in the order of the requests."""
        taken = bytes(self.transport.taken)
        self.transport.taken.clear()
        for frame in self._frames.feed(taken):
            expected, key, version = self._asked.popleft()
            at = 5 if is_flexible(key, version) and key != ApiKey.API_VERSIONS else 4
            assert struct.unpack_from(">i", frame)[0] == expected, "answers come in the order of asking"
            if key == ApiKey.DESCRIBE_TRANSACTIONS:
                # A time of -1 says that there is none; kio cannot read it.
                frame = bytes(frame).replace(_NO_TIME, bytes(8))
            entity, size = entity_reader(load_response_schema(key, version))(frame, at)
            assert at + size == len(frame), "the answer is as long as it says"
            self._answers[expected] = entity
        return self._answers.get(number)

    @property
    def is_closed(self) -> bool:
        self.bench.loop.turn()
        return self.connection.closed


def frame_of(key: int, version: int, number: int, /, **values: Any) -> bytes:
    """Encode a request. Values that the version lacks are left out, and missing values are empty."""
    parts = [struct.pack(">hhi", key, version, number), b"\0\x04test"]
    if is_flexible(key, version):
        parts.append(b"\0")
    entity_type: Any = load_request_schema(key, version)
    entity_writer(entity_type)(cast(Any, _Parts(parts)), _filled(entity_type, values))
    frame = b"".join(parts)
    return struct.pack(">i", len(frame)) + frame


class _Parts:
    def __init__(self, parts: list[bytes]) -> None:
        self.write = parts.append


def _filled(entity_type: Any, values: dict[str, Any]) -> Any:
    """Make an entity of plain values: dicts and lists for nested entities, numbers for durations."""
    filled = {}
    for field in fields(entity_type):
        if field.name in values:
            filled[field.name] = _value(field.type, values[field.name])
        elif field.default is MISSING and field.default_factory is MISSING:
            filled[field.name] = _empty(field.type)
    return entity_type(**filled)


def _value(type_: Any, value: Any) -> Any:
    element = next((each for each in _parts_of(type_) if get_origin(each) is tuple), None)
    if element is not None and isinstance(value, list):
        return tuple(_value(get_args(element)[0], each) for each in value)
    if isinstance(value, dict):
        return _filled(next(each for each in _parts_of(type_) if is_dataclass(each)), value)
    if "Timedelta" in str(type_) and isinstance(value, int):
        return timedelta(milliseconds=value)
    return value


def _empty(type_: Any) -> Any:
    kinds = _parts_of(type_)
    if type(None) in kinds:
        return None
    (kind,) = kinds
    if get_origin(kind) is tuple:
        return ()
    if is_dataclass(kind):
        return _filled(kind, {})
    name = str(kind)
    if "Timedelta" in name:
        return timedelta(0)
    if kind is bool:
        return False
    if kind is bytes:
        return b""
    return "" if kind is str or any(text in name for text in ("Name", "GroupId", "TransactionalId")) else 0


def _parts_of(type_: Any) -> tuple[Any, ...]:
    is_union = get_origin(type_) is not None and get_origin(type_) is not tuple
    return get_args(type_) if is_union else (type_,)
