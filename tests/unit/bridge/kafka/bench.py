"""A broker core with Kafka connections and without sockets. Its clients' frames are written and read by kio, so they do
not depend on the codecs under test.

    bench = KafkaBench()
    client = bench.connect()
    answer = client.ask(ApiKey.METADATA, 12, topics=None)

A request that waits is answered later: `client.send(...)` gives its number, `client.answer_to(number)` None so far.
"""

from collections import deque
from typing import Any, TypeVar

from duolog.bridge.config import GroupsOptions, KafkaOptions, Options, SecurityOptions
from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.state.client_protocols import ClientProtocols
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.framing import FrameReader
from duolog.store.options import StoreOptions
from tests.kit.core import ManualCore, Members
from tests.kit.kafka_frames import answer_of, frame_of
from tests.kit.sockets import connect
from tests.kit.threads import ManualThreads
from tests.unit.bridge.batches import batch

T = TypeVar("T")
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

    def __init__(self, bench: KafkaBench, connection: KafkaConnection | None = None) -> None:
        self.bench = bench
        self.connection = connection or KafkaConnection(bench.server, bench.kafka_context)
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
            self._answers[expected] = answer_of(key, version, expected, frame)
        return self._answers.get(number)

    @property
    def is_closed(self) -> bool:
        self.bench.loop.turn()
        return self.connection.closed
