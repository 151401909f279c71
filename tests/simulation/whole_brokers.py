"""Chaos for whole brokers and clients of both protocols, from one seed.

    simulate(seed)          raises AssertionError with what was violated; the same seed gives the same history

Two to four brokers share a log in an object store. Machines are killed, paused, cut off, lose their power or their
disk; the store is slow, refuses, repeats and loses answers. Then all faults end, and `history.py` checks that nothing
that was acknowledged is lost, doubled, early or somewhere else.

Tables of delayed messages, and the objects of the log, are as small and as short-lived as they can be: tables are
written, merged and removed, slots are compacted, and orphans are deleted many times in each simulation.
"""

import asyncio
import random
import secrets
import uuid
from functools import partial
from typing import Final

from duolog.bridge.cluster import membership
from duolog.bridge.config import DelayOptions, Options, StoreSection, TxnOptions
from duolog.bridge.config.storage import SharedSection
from duolog.delay.tables import tables
from duolog.delay.tree import tombstone_job
from duolog.store.shared.files import named_files
from duolog.store.shared.options import SharedOptions
from tests.kit.clock import ManualClock
from tests.kit.disk import CrashDisk
from tests.kit.hosts import HostLoop, run_hosts
from tests.kit.object_store import SimulatedBucket, StoreFaults
from tests.simulation.brokers import Machine
from tests.simulation.history import LOCAL, SHARED, History
from tests.simulation.kafka_clients import Client, Producer, Reader, Setting, TransactionalProducer, create_topics
from tests.simulation.replacing import Replacement, replaced
from tests.simulation.rocketmq_clients import Sender

OPTIONS = Options(
    store=StoreSection(flush="shared", reserve_bytes=0, spare_bytes=0, checkpoint_bytes=64 << 10),
    shared=SharedSection(url="memory://"),
    txn=TxnOptions(check_interval_ms=1_000, immunity_ms=1_000, check_max=100),
    delay=DelayOptions(near_ms=1_000),  # There is a table for what was sent in each second.
)
SMALL: Final[list[Replacement]] = [
    (tables, "COMPACTION_WIDTH", 3),
    (named_files, "PIECE_BYTES", 2_000),
    (tombstone_job, "TOMBSTONES_MS", 1_000),
    (
        membership,
        "SharedOptions",
        partial(
            SharedOptions, segment_bytes=1 << 14, compact_slots=4, kept_slots=16, state_interval_ms=500,
            cleanup_interval_ms=3_000,
        ),
    ),
]  # fmt: skip
SEEDED: Final[list[Replacement]] = [  # The names that brokers choose.
    (secrets, "token_bytes", random.randbytes),
    (uuid, "uuid4", lambda: uuid.UUID(bytes=random.randbytes(16), version=4)),
]
CHAOS_S = 12
SETTLE_S = 60
LATE_MS = 2_000  # A message that was cancelled would be delivered within this time after it was due.
TOPICS = {SHARED: {"flush.mode": "shared"}, LOCAL: {"flush.mode": "sync"}}


def simulate(seed: int) -> History:
    """Run one seed. Raises AssertionError."""
    clock, chance = ManualClock(), random.Random(seed)
    random.seed(seed)  # The brokers choose the queue of a retry, and back-off times, by it.
    with replaced([*SMALL, *SEEDED]):
        return run_hosts(_run(clock, chance), clock, chance.randrange(1 << 32))


async def _run(clock: ManualClock, chance: random.Random) -> History:
    bucket = SimulatedBucket(chance.randrange(1 << 32))
    hosts = [f"10.0.0.{number}" for number in range(1, chance.randrange(3, 6))]
    machines = [Machine(OPTIONS, clock, bucket, host) for host in hosts]
    for machine in machines:
        machine.start()
    history = History()
    setting = Setting(hosts, clock, history, random.Random(chance.randrange(1 << 32)))
    await create_topics(setting, TOPICS)
    clients: list[Sender | Client] = [
        Sender(setting, "rocketmq"), TransactionalProducer(setting, "transactional", SHARED),
        *(kind(setting, name) for name in TOPICS for kind in (Producer, Reader)),
    ]  # fmt: skip
    tasks = [asyncio.create_task(each.run()) for each in clients]
    await _disturb(machines, chance)
    await _heal(machines)
    count = history.acknowledged
    for _ in range(SETTLE_S):
        if history.acknowledged > count + 10:
            break
        await asyncio.sleep(1)
    assert history.acknowledged > count + 10, f"clients are not served: {[each.is_owner for each in machines]}"
    setting.is_over = True
    done, _ = await asyncio.wait(tasks[1:], timeout=SETTLE_S)
    for task in done:
        task.result()  # Raises what ended a client.
    assert len(done) == len(tasks) - 1, "a client does not get an answer"
    await _read_the_rest(Reader(setting, SHARED), history)
    for machine in machines:
        machine.kill()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HostLoop)
    found = [*history.check(), *(failure for each in machines for failure in each.failures), *loop.errors]
    assert not found, f"{len(found)} violations: " + "; ".join(found[:3])
    return history


async def _disturb(machines: list[Machine], chance: random.Random) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HostLoop)
    end_s = loop.time() + CHAOS_S
    while loop.time() < end_s:
        await asyncio.sleep(chance.uniform(0.1, 2))
        _happen(loop, chance.choice(machines), chance)


def _happen(loop: HostLoop, machine: Machine, chance: random.Random) -> None:
    """Let something happen to a machine."""
    what = chance.choice(("kill", "stop", "pause", "clients", "store", "heal", "faults", "slow", "power", "disk"))
    if machine.process is None:
        machine.start()
        return
    match what:
        case "kill":
            machine.kill()
        case "stop" if machine.broker is not None and machine.process.is_running:
            machine.broker.end("asked by the simulation")
        case "pause":
            machine.process.pause(chance.uniform(0.1, 15))
        case "clients":
            loop.network.cut(machine.host)
        case "store":
            machine.faults.is_cut = True
        case "heal":
            loop.network.heal(machine.host)
            _replace(machine.faults, StoreFaults())
        case "faults":
            _replace(
                machine.faults,
                StoreFaults(
                    conflict=chance.uniform(0, 0.2), busy=chance.uniform(0, 0.2), lost_answer=chance.uniform(0, 0.1),
                    lost_request=chance.uniform(0, 0.05), late_request=chance.uniform(0, 0.05), repeated=0.2,
                    stale_list=0.2, timeout_ms=chance.choice((200, 1_000, 5_000)),
                ),
            )  # fmt: skip
        case "slow":
            machine.faults.latency_ms = (500, 2_500)
        case "power":
            machine.kill()
            machine.disk = machine.disk.after_power_cut(chance.randrange(1 << 32))
        case "disk":
            machine.kill()
            machine.disk = CrashDisk()


def _replace(faults: StoreFaults, new: StoreFaults) -> None:
    """Change the faults of a running machine, which has this object."""
    vars(faults).update(vars(new))


async def _heal(machines: list[Machine]) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HostLoop)
    for machine in machines:
        loop.network.heal(machine.host)
        _replace(machine.faults, StoreFaults())
        machine.restarts = True
        if machine.process is None:
            machine.start()


async def _read_the_rest(reader: Reader, history: History) -> None:
    """Read the topic from its start until everything is there that must be, and a while longer."""
    for turn in range(SETTLE_S):
        for partition in (0, 1):
            while await reader.read(partition):
                pass
        now_ms = reader.setting.clock.now_ms()
        if turn > 10 and not history.unseen() and now_ms > history.last_due_ms + LATE_MS:
            return
        await asyncio.sleep(1)
