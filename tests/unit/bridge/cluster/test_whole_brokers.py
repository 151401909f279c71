"""Whole brokers of one stream in virtual time (`tests/kit/machines.py`): takeovers, standbys, chaos."""

import asyncio
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import pytest

from duolog.bridge.cluster.membership import OwnershipLost
from duolog.bridge.config import DelayOptions, Options, SecurityOptions
from duolog.bridge.config.storage import ClusterSection
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.shared.lease import RELEASED_FOLDER
from tests.kit.clock import HostClock, ManualClock
from tests.kit.hosts import run_hosts
from tests.kit.kafka_frames import answer_of, frame_of
from tests.kit.machines import OPTIONS, PORTS, Machine, SimulatedBroker
from tests.kit.object_store import SimulatedBucket
from tests.kit.rows import first_in_unit
from tests.simulation.history import KAFKA, LATE_MS, SHARED, History
from tests.simulation.whole_brokers import simulate


def run_machines(main: Callable[..., Coroutine[object, object, None]], options: Options = OPTIONS) -> None:
    """Run a test with two machines that share a bucket; nothing may have failed in a broker."""

    async def checked() -> None:
        bucket = SimulatedBucket(3)
        machines = [Machine(options, HostClock(clock), bucket, f"10.0.0.{number}") for number in (1, 2)]
        await main(*machines)
        for each in machines:
            each.kill()
            assert not each.failures

    clock = ManualClock()
    run_hosts(checked(), clock, 3)


def test_standby_owns_the_stream_after_a_kill_and_a_paused_owner_follows() -> None:
    async def main(first: Machine, second: Machine) -> None:
        first.start()
        await asyncio.sleep(1)
        second.start()
        await asyncio.sleep(5)
        assert (first.is_owner, second.is_owner) == (True, False)
        first.kill()
        await asyncio.sleep(5)
        assert second.is_owner
        first.start()
        assert second.process is not None
        second.process.pause(10)
        await asyncio.sleep(5)
        assert first.is_owner
        await asyncio.sleep(10)
        assert (first.is_owner, second.is_owner, second.deposed) == (True, False, 1)

    run_machines(main)


def test_a_deposed_broker_accepts_connections_on_all_ports_until_it_begins_again() -> None:
    """Its standby's HTTP port was stopped when it became the owner, and cannot accept any."""

    def accept_as_standby() -> asyncio.BaseProtocol:
        raise AssertionError("the parts of a standby have ended")

    async def main(first: Machine, second: Machine) -> None:
        first.start()
        await asyncio.sleep(5)
        assert first.is_owner
        assert first.broker is not None
        first.broker._deposed(OwnershipLost("asked by a test"))
        for name in PORTS:
            assert isinstance(first.broker._by_role(name, accept_as_standby)(), asyncio.BaseProtocol)
        assert not first.broker.server.may_answer()
        assert not first.broker.is_owner
        await asyncio.sleep(1)
        assert first.deposed == 1, "it has begun again"

    run_machines(main)


def test_broker_of_a_new_stream_without_any_user_is_refused_before_it_is_ready(tmp_path: Path) -> None:
    security = SecurityOptions(enabled=True, secret_key_file=str(tmp_path / "security.key"))
    clock = ManualClock()
    machine = Machine(
        msgspec.structs.replace(OPTIONS, security=security), HostClock(clock), SimulatedBucket(1), "10.0.0.1"
    )

    async def main() -> None:
        machine.start()
        await asyncio.sleep(1)  # Less than a takeover takes: it never was a standby.
        (failure,) = machine.failures
        assert "StartError: security.enabled: " in failure

    run_hosts(main(), clock, 1)


def test_idle_owner_and_standby_sleep_most_of_the_time() -> None:
    """The deadlines of all duties are read once each time that the ticker is set."""

    async def main(*machines: Machine) -> None:
        for machine in machines:
            machine.start()
            await asyncio.sleep(1)
        set_times = [0, 0]

        def count(index: int) -> None:
            set_times[index] += 1

        for index, machine in enumerate(machines):
            assert machine.broker is not None
            machine.broker.ticker.add("count", lambda index=index: count(index), lambda now_ms, mono_ms: None)
        await asyncio.sleep(10)
        assert max(set_times) < 500

    run_machines(main)


def test_fetch_from_a_standby_has_the_error_in_each_partition() -> None:
    """Java's consumer does not look for the leader because of an error of the whole answer."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1, "current_leader_epoch": -1}
    topics = [{"topic": "orders", "partitions": [partition]}]

    async def main(first: Machine, second: Machine) -> None:
        for machine in (first, second):
            machine.start()
            await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection(second.host, PORTS["kafka"])
        writer.write(frame_of(ApiKey.FETCH, 11, 1, max_bytes=1, session_epoch=-1, topics=topics))
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer = answer_of(ApiKey.FETCH, 11, 1, await reader.readexactly(size))
        assert answer.error_code is ErrorCode.none
        assert answer.responses[0].partitions[0].error_code is ErrorCode.not_leader_or_follower

    run_machines(main)


async def start(owner: Machine, standby: Machine) -> None:
    """Start an owner, and then its standby, which follows it soon."""
    for machine in (owner, standby):
        machine.start()
        await asyncio.sleep(2)


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("asks", [True, False])
def test_standby_takes_over_from_an_owner_that_is_cut_off_if_clients_ask_it(is_on: bool, asks: bool) -> None:
    """The owner reaches the store all the time. Clients come and go until the network is whole again."""
    cluster = ClusterSection(takeover_if_cut_off=is_on)

    async def main(first: Machine, second: Machine) -> None:
        await start(first, second)
        network = asyncio.get_running_loop().network  # type: ignore[attr-defined]
        network.cut(first.host)
        for _ in range(6):
            await asyncio.sleep(0.5)
            if asks:
                _, writer = await asyncio.open_connection(second.host, PORTS["kafka"])
                writer.write(frame_of(ApiKey.API_VERSIONS, 2, 1))
                await asyncio.sleep(0)
                writer.close()
        assert (second.is_owner, first.deposed) == ((True, 1) if is_on and asks else (False, 0))
        is_released = any(key.startswith(RELEASED_FOLDER) for key in second.bucket.objects)
        assert is_released is (is_on and asks), "the lease was given up"
        network.heal(first.host)
        await asyncio.sleep(10)
        assert (second.is_owner, first.deposed) == ((True, 1) if is_on and asks else (False, 0))

    run_machines(main, msgspec.structs.replace(OPTIONS, cluster=cluster))


class Producer:
    """A RocketMQ client that sends to the standby, where it numbers its messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._count = reader, writer, 0

    @classmethod
    async def of(cls, machine: Machine) -> "Producer":
        return cls(*await asyncio.open_connection(machine.host, PORTS["rocketmq"]))

    def send(self) -> None:
        self._count += 1
        fields = {
            "producerGroup": "shop", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0",
        }  # fmt: skip
        command = remoting.request(RequestCode.SEND_MESSAGE, self._count, fields, b"%d" % self._count)
        self._writer.writelines(remoting.encode(command))

    async def answer(self) -> tuple[int, int, int]:
        """Return opaque, code and offset of the next answer; the offset is -1 if there is none."""
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        found = remoting.decode(memoryview(await self._reader.readexactly(size)))
        return found.opaque, found.code, int(found.ext.get("queueOffset", -1))


def test_a_standby_sends_messages_on_to_the_owner_and_over_a_takeover_to_itself() -> None:
    async def main(first: Machine, second: Machine) -> None:
        await start(first, second)
        producer = await Producer.of(second)
        for offset in range(3):
            producer.send()
            assert await producer.answer() == (offset + 1, ResponseCode.SUCCESS, offset)
        first.kill()
        await asyncio.sleep(2.5)
        assert not second.is_owner
        producer.send()  # It waits for the takeover, which comes within the time of a send.
        begun_s = asyncio.get_running_loop().time()
        assert await producer.answer() == (4, ResponseCode.SUCCESS, 3)
        assert asyncio.get_running_loop().time() - begun_s < 2.5
        assert second.is_owner

    run_machines(main)


async def accepts(machine: Machine, name: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(machine.host, PORTS[name])
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


def test_an_owner_that_is_cut_off_from_the_store_refuses_clients_and_its_standby_lets_sends_wait() -> None:
    async def main(first: Machine, second: Machine) -> None:
        await start(first, second)
        producer, late = await Producer.of(second), await Producer.of(first)
        producer.send()
        assert await producer.answer() == (1, ResponseCode.SUCCESS, 0)
        first.faults.is_cut = True
        await asyncio.sleep(2.75)
        assert (first.is_owner, second.is_owner) == (False, False)
        assert [name for name in PORTS if await accepts(first, name)] == ["http"]
        with pytest.raises(asyncio.IncompleteReadError):
            await late.answer()
        producer.send()
        assert await producer.answer() == (2, ResponseCode.SUCCESS, 1)
        assert second.is_owner

    run_machines(main)


@pytest.mark.slow
def test_an_owner_that_reaches_the_store_again_accepts_clients_and_stays_the_owner() -> None:
    """Its clients could not ask it meanwhile, and its standby has found its ports closed: neither is a reason."""

    async def main(first: Machine, second: Machine) -> None:
        await start(first, second)
        producer = await Producer.of(second)
        for is_cut in (False, True, False):
            first.faults.is_cut = second.faults.is_cut = is_cut
            for _ in range(40):
                producer.send()
                await asyncio.sleep(0.25)
            assert await accepts(first, "rocketmq") is not is_cut
        assert (first.is_owner, first.deposed, second.is_owner) == (True, 0, False)

    run_machines(main)


def test_standby_of_an_unplugged_owner_gives_up_what_it_has_sent_on_and_lets_further_sends_wait() -> None:
    """The connection between the two stays open, and nothing comes over it. A client waits for 3 s in all."""

    async def main(first: Machine, second: Machine) -> None:
        await start(first, second)
        producer = await Producer.of(second)
        producer.send()
        assert await producer.answer() == (1, ResponseCode.SUCCESS, 0)
        asyncio.get_running_loop().network.cut(first.host)  # type: ignore[attr-defined]
        first.faults.is_cut = True
        producer.send()
        async with asyncio.timeout(2):
            assert await producer.answer() == (2, ResponseCode.SYSTEM_ERROR, -1)
        await asyncio.sleep(0.5)
        assert not second.is_owner
        producer.send()
        assert await producer.answer() == (3, ResponseCode.SUCCESS, 1)
        assert second.is_owner

    run_machines(main)


def test_standby_that_has_not_read_the_log_does_not_say_that_a_topic_does_not_exist() -> None:
    """A producer of librdkafka, which knew the topic, failed its messages when a standby began on an empty disk."""

    async def create(broker: SimulatedBroker) -> None:
        broker.topics.create("orders", 1, {}, broker.clock.now_ms())

    async def error_of(standby: Machine) -> ErrorCode | None:
        """Ask for the topic; None: the standby accepts no connection, or closes it."""
        topics = [{"name": "orders"}]
        try:
            reader, writer = await asyncio.open_connection(standby.host, PORTS["kafka"])
            writer.write(frame_of(ApiKey.METADATA, 8, 1, topics=topics, allow_auto_topic_creation=False))
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answer = answer_of(ApiKey.METADATA, 8, 1, await reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError):
            return None
        writer.close()
        return ErrorCode(answer.topics[0].error_code)

    async def main(first: Machine, second: Machine) -> None:
        first.start()
        await asyncio.sleep(5)
        assert first.process is not None
        assert first.broker is not None
        await first.process.start(create(first.broker))
        await asyncio.sleep(2)
        second.faults.latency_ms = (300, 300)
        second.start()
        outcomes = []
        while not outcomes or outcomes[-1] is not ErrorCode.none:
            outcomes.append(await error_of(second))
            await asyncio.sleep(0.02)
            assert len(outcomes) < 1_000
        assert set(outcomes) == {None, ErrorCode.none}

    run_machines(main)


@pytest.mark.slow
def test_far_messages_of_a_lost_machine_are_delivered_by_one_with_an_empty_disk() -> None:
    options = Options(store=OPTIONS.store, shared=OPTIONS.shared, delay=DelayOptions(near_ms=1_000))

    async def publish(broker: SimulatedBroker) -> int:
        now_ms = broker.clock.now_ms()
        topic, _ = broker.topics.create("orders", 1, {}, now_ms)
        properties = f"TIMER_DELIVER_MS\x01{now_ms + 60_000}\x02".encode()
        messages = [Message("", b"later", properties, born_ms=now_ms) for _ in range(10)]
        broker.publisher.publish_messages(topic, 0, messages, now_ms)
        return now_ms + 60_000

    async def main(first: Machine, second: Machine) -> None:
        first.start()
        await asyncio.sleep(5)
        assert first.process is not None
        assert first.broker is not None
        due_ms = await first.process.start(publish(first.broker))
        await asyncio.sleep(5)
        assert len(first.broker.delays.timers.tree) == 10, "they are in a table"
        first.kill()
        second.start()
        await asyncio.sleep(10)
        assert second.is_owner
        assert second.broker is not None
        assert len(second.broker.delays.timers.tree) == 10
        topic = second.broker.topics.get("orders")
        assert topic is not None
        await asyncio.sleep((due_ms - second.broker.clock.now_ms()) / 1000 - 0.1)
        assert topic.queues[0].visible_end == 0
        await asyncio.sleep(1)
        assert topic.queues[0].visible_end == 10

    run_machines(main, options)


@pytest.mark.parametrize("is_seen", [True, False])
def test_delayed_message_is_late_only_if_no_reader_saw_it_before_its_answer(is_seen: bool) -> None:
    """A standby that is paused after it sent the message on may give the answer to the client after the delivery."""
    history = History()
    history.sending(b"later", due_ms=1_000)
    if is_seen:
        history.saw(KAFKA, (SHARED, 0, 46), 0, b"later", decided_ms=1_000)
    history.delayed(b"later", 0, due_ms=1_000, mono_ms=2_000)
    history.read_to_the_end(history.owed(0, wall_ms=2_000 + LATE_MS, mono_ms=2_000 + LATE_MS))
    assert ["is late" in each for each in history.violations] == ([] if is_seen else [True])


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_in_unit(range(2), 1))
def test_nothing_is_lost_whatever_happens(seed: int) -> None:
    """`make simulate` runs many more seeds."""
    simulate(seed)


@pytest.mark.slow
def test_same_seed_gives_the_same_history() -> None:
    """Nothing in a broker depends on the addresses of objects, as the order of a set of connections would."""
    assert vars(simulate(107)) == vars(simulate(107))
