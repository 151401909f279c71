"""What an owner has appended and the object store lacks: a limit, a metric, and what a takeover loses of it.

The brokers run in virtual time, on simulated hosts (`tests/kit/machines.py`).
"""

import asyncio
import random
import re
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from duolog.bridge.config import Options
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.remoting import RemotingCommand
from tests.kit.clock import HostClock, ManualClock
from tests.kit.hosts import run_hosts
from tests.kit.kafka_frames import answer_of, frame_of
from tests.kit.machines import OPTIONS, PORTS, Machine
from tests.kit.object_store import SimulatedBucket
from tests.simulation.history import History
from tests.simulation.kafka_clients import Setting
from tests.simulation.rocketmq_clients import Connection, Sender
from tests.unit.bridge.batches import batch

TOPIC = "orders"  # With `flush.mode=sync`: acknowledged before it is uploaded.
MIB = 1 << 20
BODY = bytes(300_000)
# State records are not waited for either: with `shared`, Metadata with a leader epoch would wait for its upload.
SYNC = msgspec.structs.replace(OPTIONS, store=msgspec.structs.replace(OPTIONS.store, flush="sync"))


def run_machines(main: Callable[[list[Machine]], Coroutine[object, object, None]], options: Options = OPTIONS) -> None:
    async def checked() -> None:
        bucket = SimulatedBucket(5)
        machines = [Machine(options, HostClock(clock), bucket, f"10.0.0.{number}") for number in (1, 2)]
        await main(machines)
        for each in machines:
            each.kill()
            assert not each.failures

    clock = ManualClock()
    run_hosts(checked(), clock, 5)


async def serve(machine: Machine) -> None:
    """Start the first broker of a stream, and create the topic."""
    machine.start()
    await asyncio.sleep(5)
    configs = [{"name": "flush.mode", "value": "sync"}]
    topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    created = await ask(machine, ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=3_000)
    assert created.topics[0].error_code is ErrorCode.none


async def ask(machine: Machine, key: ApiKey, version: int, **values: Any) -> Any:
    """Send a request of a Kafka client."""
    reader, writer = await asyncio.open_connection(machine.host, PORTS["kafka"])
    writer.write(frame_of(key, version, 1, **values))
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    answer = answer_of(key, version, 1, await reader.readexactly(size))
    writer.close()
    return answer


async def produce(machine: Machine, *values: bytes) -> tuple[ErrorCode, int]:
    """Write one batch; return the error code and the base offset."""
    asked = [{"name": TOPIC, "partition_data": [{"index": 0, "records": bytes(batch(values))}]}]
    answer = await ask(machine, ApiKey.PRODUCE, 8, acks=-1, timeout=2_000, topic_data=asked)
    (partition,) = answer.responses[0].partition_responses
    return ErrorCode(partition.error_code), partition.base_offset


async def send(machine: Machine) -> RemotingCommand:
    """Send a message of a RocketMQ client."""
    sender = Sender(Setting([machine.host], ManualClock(), History(), random.Random(1), [machine]), "sender")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(sender), machine.host, PORTS["rocketmq"])
    answer = await connection.ask(
        RequestCode.SEND_MESSAGE, b"body", producerGroup="group", topic=TOPIC, defaultTopic="TBW102",
        defaultTopicQueueNums=1, queueId=0, sysFlag=0, bornTimestamp=0, flag=0, properties="",
    )  # fmt: skip
    connection.close()
    return answer


async def behind_bytes(machine: Machine) -> float:
    """Return the metric of what the store lacks."""
    reader, writer = await asyncio.open_connection(machine.host, PORTS["http"])
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: {machine.host}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    found = re.search(rb"^duolog_shared_behind_bytes (\S+)", answer, re.MULTILINE)
    assert found is not None, answer
    return float(found[1])


def test_appends_are_refused_while_the_store_lacks_more_of_the_log_than_the_limit() -> None:
    shared = msgspec.structs.replace(OPTIONS.shared, behind_bytes_max=MIB)

    async def main(machines: list[Machine]) -> None:
        owner = machines[0]
        await serve(owner)
        owner.faults.is_cut = True
        written = 0
        while (error := (await produce(owner, BODY))[0]) is ErrorCode.none:
            written += 1
        # What is measured before an append may be just below the limit.
        assert MIB / len(BODY) <= written <= MIB / len(BODY) + 1
        assert error is ErrorCode.kafka_storage_error  # Kafka's clients send again.
        refused = await send(owner)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "shared.behind_bytes_max is 1048576" in refused.remark
        assert MIB < await behind_bytes(owner) < MIB + 2 * len(BODY)
        owner.faults.is_cut = False
        await asyncio.sleep(2)
        assert await behind_bytes(owner) == 0
        assert await produce(owner, b"after") == (ErrorCode.none, written)
        assert (await send(owner)).code == ResponseCode.SUCCESS

    run_machines(main, msgspec.structs.replace(OPTIONS, shared=shared))


async def epoch_of(machine: Machine, partition: int = 0) -> int:
    answer = await ask(machine, ApiKey.METADATA, 8, topics=[{"name": TOPIC}])
    epoch: int = answer.topics[0].partitions[partition].leader_epoch
    return epoch


async def end_of(machine: Machine, epoch: int, current: int) -> tuple[ErrorCode, int, int]:
    """Return the error, the epoch and the end offset of an OffsetForLeaderEpoch."""
    partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    topics = [{"topic": TOPIC, "partitions": [partition]}]
    answer = await ask(machine, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)
    (found,) = answer.topics[0].partitions
    return ErrorCode(found.error_code), found.leader_epoch, found.end_offset


def test_a_takeover_tells_kafka_clients_where_the_logs_part() -> None:
    async def main(machines: list[Machine]) -> None:
        first, second = machines
        await serve(first)
        assert await produce(first, b"kept", b"kept too") == (ErrorCode.none, 0)
        second.start()
        await asyncio.sleep(5)
        first.faults.is_cut = True
        assert await produce(first, b"lost", b"lost too", b"also lost") == (ErrorCode.none, 2)
        old = await epoch_of(first)
        assert await end_of(first, old, old) == (ErrorCode.none, old, 5)
        first.kill()
        await asyncio.sleep(5)
        new = await epoch_of(second)
        assert second.broker is not None
        assert new == second.broker.store.epoch > old, "the number of the run"
        # A consumer at offset 5 of the old epoch learns that it has read what is gone.
        assert await end_of(second, old, new) == (ErrorCode.none, old, 2)
        assert await end_of(second, old, old) == (ErrorCode.fenced_leader_epoch, -1, -1)
        assert await produce(second, b"another record at offset 2") == (ErrorCode.none, 2)
        assert await end_of(second, old, new) == (ErrorCode.none, old, 2)
        assert await end_of(second, new, new) == (ErrorCode.none, new, 3)

    run_machines(main)


def test_an_owner_that_uploads_nothing_has_leader_epochs_that_no_other_owner_has() -> None:
    async def main(machines: list[Machine]) -> None:
        first, second = machines
        await serve(first)
        assert await produce(first, b"kept", b"kept too") == (ErrorCode.none, 0)
        oldest = await epoch_of(first)
        second.start()
        await asyncio.sleep(5)
        assert second.broker is not None
        serves = asyncio.Event()
        second.broker.on_open = serves.set
        first.kill()
        await serves.wait()
        second.faults.is_cut = True
        assert await produce(second, b"lost", b"lost too", b"also lost") == (ErrorCode.none, 2)
        lost = await epoch_of(second)
        second.kill()
        first.start()
        await asyncio.sleep(10)
        assert await produce(first, b"another record at offset 2") == (ErrorCode.none, 2)
        new = await epoch_of(first)
        assert oldest < lost < new
        assert await end_of(first, lost, new) == (ErrorCode.none, oldest, 2)

    run_machines(main, SYNC)


def test_a_queue_that_is_lost_and_added_again_has_another_leader_epoch() -> None:
    async def epoch_of_new_queue(machine: Machine) -> int:
        topic = {"name": TOPIC, "count": 2, "assignments": None}
        added = await ask(machine, ApiKey.CREATE_PARTITIONS, 3, topics=[topic], timeout_ms=3_000, validate_only=False)
        assert added.results[0].error_code is ErrorCode.none
        return await epoch_of(machine, 1)

    async def main(machines: list[Machine]) -> None:
        first, second = machines
        await serve(first)
        second.start()
        await asyncio.sleep(5)
        first.faults.is_cut = True
        lost = await epoch_of_new_queue(first)
        first.kill()
        await asyncio.sleep(5)
        assert await epoch_of_new_queue(second) > lost

    run_machines(main, SYNC)
