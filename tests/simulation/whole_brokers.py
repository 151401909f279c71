"""Chaos for whole brokers and clients of both protocols, from one seed.

    simulate(seed)          raises AssertionError with what was violated; the same seed gives the same history

Two to four brokers share a log in an object store. Machines are killed, paused, cut off, lose their power or their
disk; the store is slow, refuses, repeats and loses answers. In half of the seeds the machines' clocks differ: wall
clocks are wrong by minutes and jump, and monotonic clocks differ in their rates by as much as the owner's lease allows
(`store/shared/lease.py`). Then all faults end, and `history.py` checks that nothing that was acknowledged is lost,
doubled, early, late, out of order or somewhere else.

Tables of delayed messages, and the objects of the log, are as small and as short-lived as they can be: tables are
written, merged and removed, slots are compacted, and orphans are deleted many times in each simulation.
"""

import asyncio
import gc
import math
import random
import secrets
import uuid
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Final

from duolog.bridge import hooks
from duolog.bridge.cluster import membership
from duolog.bridge.config import DelayOptions, GroupsOptions, Options, StoreSection, TxnOptions
from duolog.bridge.config.storage import SharedSection
from duolog.delay.tables import compaction
from duolog.delay.tree import tombstone_job
from duolog.store.shared.files import named_files
from duolog.store.shared.options import SharedOptions
from tests.kit.clock import HostClock, ManualClock
from tests.kit.disk import CrashDisk
from tests.kit.hosts import Process, run_hosts, running_loop
from tests.kit.machines import Machine
from tests.kit.object_store import SimulatedBucket, StoreFaults
from tests.simulation.history import LATE_MS, LOCAL, SHARED, History
from tests.simulation.kafka_clients import Client, Producer, Reader, Setting, TransactionalProducer, create_topics
from tests.simulation.kafka_member import Member
from tests.simulation.replacing import Replacement, replaced
from tests.simulation.rocketmq_clients import Consumer, RocketMQClient, Sender

OPTIONS = Options(
    store=StoreSection(flush="shared", reserve_bytes=0, spare_bytes=0, checkpoint_bytes=64 << 10),
    shared=SharedSection(url="memory://"),
    txn=TxnOptions(check_interval_ms=1_000, immunity_ms=1_000, check_max=100),
    groups=GroupsOptions(initial_rebalance_delay_ms=100),
    delay=DelayOptions(near_ms=1_000),  # There is a table for what was sent in each second.
)
SMALL: Final[list[Replacement]] = [
    (compaction, "COMPACTION_WIDTH", 3),
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
READ_ONCE: Final[list[Replacement]] = [(hooks, "entry_points", cache(entry_points))]  # Of all installed packages.
CHAOS_S = 12
SETTLE_S = 60
# A half message that was stored while the wall clock was ahead is checked back once the clock shows that time again.
READ_S = SETTLE_S + 2 * 180
# A request that was sent before a fault of the store ended may wait for its time-out, and for its next attempt.
AFTER_FAULTS_MS = 6_000
GAINED_PPM = 50_000  # Two clocks differ by less than a tenth.
AHEAD_MS = (0, 2_000, 180_000)  # A wall clock is wrong by this at most.
FAULTS = ("kill", "stop", "pause", "clients", "store", "heal", "faults", "slow", "power", "disk")
TOPICS = {SHARED: {"flush.mode": "shared"}, LOCAL: {"flush.mode": "sync"}}


def simulate(seed: int) -> History:
    """Run one seed. Raises AssertionError."""
    clock, chance = ManualClock(), random.Random(seed)
    random.seed(seed)  # The brokers choose the queue of a retry, and back-off times, by it.
    gc.disable()  # Coroutines of killed processes are closed after the run: what they do then would change it.
    try:
        with replaced([*SMALL, *SEEDED, *READ_ONCE]):
            return run_hosts(_run(clock, chance), clock, chance.randrange(1 << 32))
    finally:
        gc.enable()


async def _run(clock: ManualClock, chance: random.Random) -> History:
    bucket = SimulatedBucket(chance.randrange(1 << 32))
    hosts = [f"10.0.0.{number}" for number in range(1, chance.randrange(3, 6))]
    differ = chance.random() < 0.5
    machines = [Machine(OPTIONS, _clock(clock, chance) if differ else HostClock(clock), bucket, host) for host in hosts]
    for machine in machines:
        machine.start()
    history = History()
    setting = Setting(hosts, clock, history, random.Random(chance.randrange(1 << 32)), machines)
    await create_topics(setting, TOPICS)
    clients: list[RocketMQClient | Client] = [
        Sender(setting, "rocketmq"), Consumer(setting), Member(setting), Member(setting),
        TransactionalProducer(setting, "transactional", SHARED),
        *(kind(setting, name) for name in TOPICS for kind in (Producer, Reader)),
    ]  # fmt: skip
    tasks = [asyncio.create_task(each.run()) for each in clients]
    await _disturb(setting, chance, (*FAULTS, "clock") if differ else FAULTS)
    _heal(setting)
    await _until_served(history, machines)
    setting.is_over = True
    done, _ = await asyncio.wait(tasks[1:], timeout=SETTLE_S)
    for task in (each for each in tasks if each.done()):
        task.result()  # Raises what ended a client.
    assert len(done) == len(tasks) - 1, "a client does not get an answer"
    await _read_the_rest(setting)
    for machine in machines:
        machine.kill()
    failures = [failure for each in machines for failure in each.failures]
    found = [*history.check(), *failures, *running_loop().errors]
    assert not found, f"{len(found)} violations: " + "; ".join(found[:3])
    return history


async def _until_served(history: History, machines: list[Machine]) -> None:
    """Wait until clients of all kinds go on."""
    enough, commits = history.acknowledged + 10, history.members.commits
    for _ in range(SETTLE_S):
        if history.acknowledged > enough and history.members.commits > commits:
            return
        await asyncio.sleep(1)
    raise AssertionError(f"clients are not served: {[each.is_owner for each in machines]}")


def _clock(true: ManualClock, chance: random.Random) -> HostClock:
    return HostClock(true, chance.randrange(-GAINED_PPM, GAINED_PPM + 1), _ahead_ms(chance))


def _ahead_ms(chance: random.Random) -> int:
    most_ms = chance.choice(AHEAD_MS)
    return chance.randrange(-most_ms, most_ms + 1)


async def _disturb(setting: Setting, chance: random.Random, kinds: Sequence[str]) -> None:
    end_ms = setting.clock.mono_ms() + CHAOS_S * 1_000
    while setting.clock.mono_ms() < end_ms:
        await asyncio.sleep(chance.uniform(0.1, 2))
        machine = chance.choice(setting.machines)
        if machine.process is None:
            machine.start()
        else:
            _happen(setting, machine, machine.process, chance.choice(kinds), chance)


def _happen(setting: Setting, machine: Machine, process: Process, what: str, chance: random.Random) -> None:
    """Let something happen to a machine."""
    match what:
        case "kill":
            machine.kill()
        case "stop" if machine.broker is not None and process.is_running:
            machine.broker.end("asked by the simulation")
        case "pause":
            seconds = chance.uniform(0.1, 15)
            process.pause(seconds)
            _calm_from(setting, machine, setting.clock.mono_ms() + seconds * 1_000)
        case "clients":
            running_loop().network.cut(machine.host)
        case "clock":
            machine.clock.ahead_ms = _ahead_ms(chance)
            _calm_from(setting, machine, setting.clock.mono_ms())
        case "heal":
            _heal_one(setting, machine)
        case "store" | "faults" | "slow":
            setting.calm_mono_ms[machine.host] = math.inf
            _begin_faults(machine.faults, what, chance)
        case "power":
            machine.kill()
            machine.disk = machine.disk.after_power_cut(chance.randrange(1 << 32))
        case "disk":
            machine.kill()
            machine.disk = CrashDisk()


def _calm_from(setting: Setting, machine: Machine, mono_ms: float) -> None:
    """Note that a disturbance of a machine has effects until then."""
    setting.calm_mono_ms[machine.host] = max(setting.calm_mono_ms.get(machine.host, 0), mono_ms)


def _begin_faults(faults: StoreFaults, what: str, chance: random.Random) -> None:
    match what:
        case "store":
            faults.is_cut = True
        case "slow":
            faults.latency_ms = (500, 2_500)
        case "faults":
            _replace(
                faults,
                StoreFaults(
                    conflict=chance.uniform(0, 0.2), busy=chance.uniform(0, 0.2), lost_answer=chance.uniform(0, 0.1),
                    lost_request=chance.uniform(0, 0.05), late_request=chance.uniform(0, 0.05), repeated=0.2,
                    stale_list=0.2, timeout_ms=chance.choice((200, 1_000, 5_000)),
                ),
            )  # fmt: skip


def _replace(faults: StoreFaults, new: StoreFaults) -> None:
    """Change the faults of a running machine, which has this object."""
    vars(faults).update(vars(new))


def _heal(setting: Setting) -> None:
    """End all faults; NTP sets the clocks right."""
    for machine in setting.machines:
        _heal_one(setting, machine)
        machine.clock.ahead_ms = 0
        machine.restarts = True
        if machine.process is None:
            machine.start()


def _heal_one(setting: Setting, machine: Machine) -> None:
    running_loop().network.heal(machine.host)
    _replace(machine.faults, StoreFaults())
    calm_ms, now_ms = setting.calm_mono_ms.get(machine.host, 0), setting.clock.mono_ms()
    setting.calm_mono_ms[machine.host] = max(now_ms + AFTER_FAULTS_MS, calm_ms if calm_ms < math.inf else 0)


async def _read_the_rest(setting: Setting) -> None:
    """Read the topic from its start until everything is there that must be, and a while longer."""
    history, consumer = setting.history, Consumer(setting)
    readers = (Reader(setting, SHARED), consumer)
    for turn in range(READ_S):
        for reader in readers:
            for partition in (0, 1):
                while await reader.read(partition):
                    pass
        while await consumer.read_retries():
            pass
        # A message that was cancelled would be delivered soon after it was due, too.
        if (
            turn > 10
            and not (history.unseen() or history.retries.missing())
            and setting.clock.now_ms() > history.last_due_ms + 2 * LATE_MS
        ):
            return
        await asyncio.sleep(1)
