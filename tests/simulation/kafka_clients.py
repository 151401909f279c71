"""Kafka clients of simulated brokers: an idempotent producer, a transactional one, and a reader that commits offsets.

They do what stock clients do when a broker fails: ask any broker for Metadata, go to the leader, and send the same
request again until it is answered.
"""

import asyncio
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from duolog.protocol.kafka import record_batch
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.kafka.record_reader import records
from tests.kit.clock import ManualClock
from tests.kit.kafka_frames import answer_of, frame_of
from tests.kit.machines import Machine
from tests.simulation.history import KAFKA, LATE_MS, SHARED, History, Positions
from tests.unit.bridge.batches import batch

REQUEST_S: Final = 3.0
BACKOFF_S: Final = (0.02, 0.3)
PORT: Final = 9092
CONTROL_BIT, TRANSACTIONAL_BIT = 0x20, 0x10
IN_FLIGHT: Final = 4  # Batches of an idempotent producer at a time; Kafka's brokers know repetitions of the last five.
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
TRY_AGAIN: Final = {
    ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available,
    ErrorCode.request_timed_out, ErrorCode.kafka_storage_error, ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.concurrent_transactions,
    ErrorCode.not_controller,
}  # fmt: skip


class Unanswered(Exception):
    """No answer came, so nobody knows what has become of the request."""


@dataclass
class Setting:
    """What all clients of a simulation share."""

    hosts: Sequence[str]
    clock: ManualClock
    history: History
    random: random.Random
    machines: Sequence[Machine]
    is_over: bool = False  # Clients end what they do, and begin nothing.
    calm_mono_ms: dict[str, float] = field(default_factory=dict)  # Host -> until when a disturbance has effects.

    @property
    def decided_ms(self) -> int:
        """The latest wall time at which an owner has decided something."""
        return max(each.decided_ms for each in self.machines)

    def owed(self, partition: int) -> list[bytes]:
        """Return the delayed messages that were delivered, if the owner was not disturbed since it serves."""
        now_ms = self.clock.mono_ms()
        for machine in self.machines:
            undisturbed_ms = min(machine.served_ms, now_ms - self.calm_mono_ms.get(machine.host, 0))
            if undisturbed_ms > LATE_MS:
                return self.history.owed(partition, machine.clock.now_ms(), now_ms)
        return []


class Client:
    """A client with a connection to the broker that it takes for the owner."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.history, self.random = setting, setting.history, setting.random
        self._streams: Streams | None = None
        self._number = 0

    async def run(self) -> None:
        """Do what the client is for, until the simulation is over."""
        raise NotImplementedError

    async def ask(self, key: ApiKey, version: int, **values: Any) -> Any:
        """Send a request to the owner. Raises Unanswered."""
        try:
            async with asyncio.timeout(REQUEST_S):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(await self._leader(), PORT)
                return await self._exchange(self._streams, key, version, **values)
        except (OSError, EOFError, TimeoutError) as error:
            self.leave()
            raise Unanswered(str(error)) from error

    async def ask_all(self, key: ApiKey, version: int, requests: Sequence[dict[str, Any]]) -> list[Any]:
        """Send requests without waiting for their answers; return the answers that come, which are the first ones."""
        answers: list[Any] = []
        try:
            async with asyncio.timeout(REQUEST_S):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(await self._leader(), PORT)
                first = self._number + 1
                for values in requests:
                    self._write(self._streams, key, version, **values)
                while len(answers) < len(requests):
                    answers += (await self._read(self._streams, key, version, first + len(answers)),)
        except (OSError, EOFError, TimeoutError):
            self.leave()
        return answers

    async def until(self, is_done: Callable[[Any], bool], key: ApiKey, version: int, **values: Any) -> Any:
        """Repeat a request until its answer says that it is done."""
        while True:
            try:
                answer = await self.ask(key, version, **values)
            except Unanswered:
                answer = None
            if answer is not None and is_done(answer):
                return answer
            await self.pause()

    async def pause(self) -> None:
        """Wait before a request is repeated, perhaps to another broker."""
        self.leave()
        await asyncio.sleep(self.random.uniform(*BACKOFF_S))

    def leave(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _leader(self) -> str:
        streams = await asyncio.open_connection(self.random.choice(self.setting.hosts), PORT)
        try:
            asked = {"topics": [{"name": SHARED}], "allow_auto_topic_creation": False}
            answer = await self._exchange(streams, ApiKey.METADATA, 8, **asked)
        finally:
            streams[1].close()
        leader = answer.topics[0].partitions[0].leader_id if answer.topics[0].partitions else answer.controller_id
        for broker in answer.brokers:
            if broker.node_id == leader:
                return str(broker.host)
        raise ConnectionError("no leader")

    async def _exchange(self, streams: Streams, key: ApiKey, version: int, **values: Any) -> Any:
        self._write(streams, key, version, **values)
        return await self._read(streams, key, version, self._number)

    def _write(self, streams: Streams, key: ApiKey, version: int, **values: Any) -> None:
        self._number += 1
        streams[1].write(frame_of(key, version, self._number, **values))

    async def _read(self, streams: Streams, key: ApiKey, version: int, number: int) -> Any:
        (size,) = struct.unpack(">i", await streams[0].readexactly(4))
        return answer_of(key, version, number, await streams[0].readexactly(size))


async def create_topics(setting: Setting, topics: dict[str, dict[str, str]]) -> None:
    """Create topics with two partitions and these configs."""
    client = Client(setting)
    asked = [
        {
            "name": name, "num_partitions": 2, "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        for name, configs in topics.items()
    ]  # fmt: skip

    def is_done(answer: Any) -> bool:
        return {each.error_code for each in answer.topics} <= {ErrorCode.none, ErrorCode.topic_already_exists}

    await client.until(is_done, ApiKey.CREATE_TOPICS, 7, topics=asked, timeout=3_000)
    client.leave()


class Batch(NamedTuple):
    """Values that an idempotent producer sends, until they are stored."""

    partition: int
    values: list[bytes]
    request: dict[str, Any]


class Producer(Client):
    """A producer with an id, whose batches are stored once and in their order, however often they are sent."""

    transactional_id: str | None = None

    def __init__(self, setting: Setting, topic: str) -> None:
        super().__init__(setting)
        self.name, self.topic = f"producer of {topic}", topic
        self.id, self.epoch = -1, -1
        self.sequences = [0, 0]  # By partition.
        self._count = 0

    async def initialize(self) -> None:
        """Get an id, or the next epoch of the transactional id."""
        answer = await self.until(
            lambda answer: answer.error_code is ErrorCode.none,
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=self.transactional_id, transaction_timeout=20_000,
        )  # fmt: skip
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences = [0, 0]

    async def run(self) -> None:
        await self.initialize()
        while not self.setting.is_over:
            count = self.random.randrange(1, IN_FLIGHT + 1)
            offsets = await self.produce([self.new_batch(self.random.randrange(2)) for _ in range(count)])
            if offsets is None:
                await self.initialize()
            await asyncio.sleep(self.random.uniform(0, 0.2))
        self.leave()

    def new_batch(self, partition: int) -> Batch:
        values = []
        for _ in range(self.random.randrange(1, 4)):
            self._count += 1
            values.append(f"{self.name}-{self._count}".encode())
            self.history.sending(values[-1])
        self.history.in_order(self.name, values)
        frame = batch(
            values, timestamp_ms=self.setting.clock.now_ms(), is_transactional=self.transactional_id is not None,
            producer=(self.id, self.epoch, self.sequences[partition]),
        )  # fmt: skip
        self.sequences[partition] += len(values)
        topic_data = [{"name": self.topic, "partition_data": [{"index": partition, "records": bytes(frame)}]}]
        request = {"transactional_id": self.transactional_id, "acks": -1, "timeout": 2_000, "topic_data": topic_data}
        return Batch(partition, values, request)

    async def produce(self, batches: Sequence[Batch]) -> list[int] | None:
        """Send batches until they are answered; return their base offsets (-1: not known); None: one was refused."""
        offsets = dict[int, int]()
        while True:
            left = [index for index in range(len(batches)) if index not in offsets]
            if not left:
                return [offsets[index] for index in range(len(batches))]
            answers = await self.ask_all(ApiKey.PRODUCE, 8, [batches[index].request for index in left])
            waiting = set[int]()  # Partitions of batches that are to be sent again.
            for index, answer in zip(left, answers, strict=False):
                found, (partition, values, _) = answer.responses[0].partition_responses[0], batches[index]
                code = ErrorCode(found.error_code)
                if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                    offsets[index] = int(found.base_offset) if code is ErrorCode.none else -1
                    self._stored(batches[index], offsets[index])
                elif code in TRY_AGAIN or (code is ErrorCode.out_of_order_sequence_number and partition in waiting):
                    waiting.add(partition)
                else:
                    if self.topic == SHARED and self.transactional_id is None:
                        self.history.violations.append(f"{values} of {self.name}: {code.name}")
                    return None
            if waiting or len(answers) < len(left):
                await self.pause()

    def _stored(self, done: Batch, offset: int) -> None:
        if self.topic == SHARED:
            for delta, value in enumerate(done.values):
                self.history.stored(value, None if offset < 0 else (SHARED, done.partition, offset + delta))


class TransactionalProducer(Producer):
    """Transactions over both partitions of a topic; some are aborted."""

    def __init__(self, setting: Setting, name: str, topic: str) -> None:
        super().__init__(setting, topic)
        self.name = self.transactional_id = name

    async def run(self) -> None:
        await self.initialize()
        while not self.setting.is_over:
            if not await self._transact():
                await self.initialize()
            await asyncio.sleep(self.random.uniform(0, 0.3))
        self.leave()

    async def _transact(self) -> bool:
        """Run one transaction; False: the broker has ended it, for example because it took too long."""
        who = {"producer_id": self.id, "producer_epoch": self.epoch}
        added = await self.until(
            lambda answer: _added(answer) not in TRY_AGAIN,
            ApiKey.ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id=self.name,
            v3_and_below_topics=[{"name": self.topic, "partitions": (0, 1)}],
            **{f"v3_and_below_{name}": value for name, value in who.items()},
        )  # fmt: skip
        if _added(added) is not ErrorCode.none:
            return False
        batches = [self.new_batch(partition) for partition in (0, 1)]
        offsets = await self.produce(batches)
        if offsets is None:
            return False
        is_commit = self.random.random() < 0.7
        answer = await self.until(
            lambda answer: answer.error_code not in TRY_AGAIN,
            ApiKey.END_TXN, 3, transactional_id=self.name, committed=is_commit, **who,
        )  # fmt: skip
        if answer.error_code is not ErrorCode.none:
            return False
        for done, offset in zip(batches, offsets, strict=True):
            if is_commit:
                super()._stored(done, offset)
            for value in () if is_commit else done.values:
                self.history.never(value)
        return True

    def _stored(self, done: Batch, offset: int) -> None:
        """Do nothing: the records are visible only after the transaction."""


def _added(answer: Any) -> ErrorCode:
    return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


class Reader(Client):
    """Reads both partitions of a topic as `read_committed` does, and commits how far it has read."""

    def __init__(self, setting: Setting, topic: str) -> None:
        super().__init__(setting)
        self.topic = topic
        self.offsets = [0, 0]
        self._positions = Positions(self.history, f"readers-of-{topic}")

    async def run(self) -> None:
        while not self.setting.is_over:
            for partition in (0, 1):
                await self.read(partition)
            if self.random.random() < 0.2:
                await self._commit()
            await asyncio.sleep(self.random.uniform(0, 0.2))

    async def read(self, partition: int) -> int:
        """Read what is there; return how many offsets that were."""
        asked = {
            "partition": partition, "fetch_offset": self.offsets[partition], "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
        }  # fmt: skip
        owed = self.setting.owed(partition) if self.topic == SHARED else ()
        try:
            answer = await self.ask(
                ApiKey.FETCH, 11, isolation_level=1, max_bytes=1 << 20, session_epoch=-1, min_bytes=0,
                replica_id=-1, topics=[{"topic": self.topic, "partitions": [asked]}],
            )  # fmt: skip
        except Unanswered:
            await self.pause()
            return 0
        found = answer.responses[0].partitions[0]
        if found.error_code is ErrorCode.offset_out_of_range:
            if self.topic == SHARED:
                self.history.violations.append(f"offset {self.offsets[partition]} of {partition} is out of range")
            self.offsets[partition] = 0
            return 1
        if found.error_code is not ErrorCode.none:
            await self.pause()
            return 0
        before = self.offsets[partition]
        self._take(partition, found)
        if self.offsets[partition] >= found.high_watermark:
            self.history.read_to_the_end(owed)
        return self.offsets[partition] - before

    def _take(self, partition: int, found: Any) -> None:
        """Note the records, without those of aborted transactions, as Kafka's clients leave them out."""
        aborted = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions or ())
        open_aborted: set[int] = set()
        for frame in record_batch.split(found.records or b""):
            header = record_batch.read_header(frame)
            last = header.base_offset + header.last_offset_delta
            while aborted and aborted[0][0] <= last:
                open_aborted.add(aborted.pop(0)[1])
            if header.attributes & CONTROL_BIT:
                open_aborted.discard(header.producer_id)
            elif not (header.attributes & TRANSACTIONAL_BIT and header.producer_id in open_aborted):
                for record in records(frame, 1 << 20):
                    offset = record.offset
                    if offset >= self.offsets[partition]:
                        place = (self.topic, partition, offset)
                        value = bytes(record.value or b"")
                        self.history.saw(KAFKA, place, header.leader_epoch, value, self.setting.decided_ms)
            self.offsets[partition] = max(self.offsets[partition], last + 1)

    async def _commit(self) -> None:
        """Look at the group's offsets, which never go back behind what was answered, and commit."""
        try:
            asked = [{"name": self.topic, "partition_indexes": (0, 1)}]
            answer = await self.ask(ApiKey.OFFSET_FETCH, 7, group_id=self._positions.group, topics=asked)
            if answer.error_code is ErrorCode.none:
                for index, each in enumerate(answer.topics[0].partitions):
                    self._positions.found(index, each.committed_offset)
                await self._commit_to([*self.offsets])
        except Unanswered:
            await self.pause()

    async def _commit_to(self, offsets: list[int]) -> None:
        partitions = [
            {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1}
            for index, offset in enumerate(offsets)
        ]
        topics, group = (
            [{"name": self.topic, "partitions": partitions}],
            self._positions.committing(dict(enumerate(offsets))),
        )
        answer = await self.ask(
            ApiKey.OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, topics=topics
        )
        if {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.none}:
            self._positions.answered(dict(enumerate(offsets)))
