"""Whole brokers of one stream in one process: `SharedBroker` on hosts, disks and an object store that are simulated.

    machine = Machine(options, HostClock(clock), bucket, "10.0.0.1")
    machine.start()                   # a standby, or the owner; begins again by itself when it was deposed
    machine.process.pause(5)
    machine.kill()
    machine.disk = CrashDisk()        # before `start`: the machine is lost
    machine.clock.ahead_ms = 60_000   # its wall clock is set to another time

What a broker is in production runs here, but for threads (syncs end 1 ms after they began), sockets and real files.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar, cast

from duolog.bridge.broker import BeginAgain
from duolog.bridge.config import Options, StoreSection
from duolog.bridge.config.storage import SharedSection
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.running.shared_broker import SharedBroker
from duolog.store.files import Files
from duolog.store.log.commitlog import SyncTask
from duolog.store.objects.interface import LIST_LIMIT, Content, Creation, ObjectEntry, ObjectStore
from duolog.store.store import Store
from tests.kit.clock import HostClock
from tests.kit.disk import CrashDisk
from tests.kit.hosts import Port, Process
from tests.kit.object_store import SimulatedBucket, SimulatedObjects, StoreFaults
from tests.kit.shared_nodes import CANNOT_BE

T = TypeVar("T")
PORTS: Final = {"kafka": 9092, "rocketmq": 10911, "namesrv": 9876, "http": 9644}
SYNC_S: Final = 0.001
OPTIONS: Final = Options(
    store=StoreSection(flush="shared", reserve_bytes=0, spare_bytes=0), shared=SharedSection(url="memory://")
)


class SimulatedBroker(SharedBroker):
    """A broker of a stream, on a simulated host."""

    def __init__(self, options: Options, clock: HostClock, host: str, disk: CrashDisk, objects: ObjectStore) -> None:
        self.decided_ms = 0  # The wall time at which this broker has last decided something as the owner.
        self._host, self._disk, self._given_objects = host, disk, objects
        super().__init__(options, clock, asyncio.get_running_loop())
        self.watchdog.seconds = lambda: clock.mono_us() / 1e6

    @property
    def is_owner(self) -> bool:
        """Whether this broker would answer clients now."""
        return self._is_serving and self.may_answer()

    def _bind(self) -> dict[str, socket.socket]:
        listening = {name: (self._host, number) for name, number in PORTS.items()}
        self.addresses = Addresses(self._host, listening)
        return {name: cast(Any, Port(*address)) for name, address in listening.items()}

    def _open_objects(self) -> ObjectStore:
        return self._given_objects

    def _open_files(self) -> Files:
        return self._disk

    def _end_turn(self) -> None:
        super()._end_turn()
        if self._is_open:
            self.decided_ms = max(self.decided_ms, self.clock.now_ms())

    def start_store_threads(self) -> None:
        self._flusher = cast(Any, LoopFlusher(self.store, self.server.flush))

    def stop_store_threads(self) -> None:
        self._flusher.stop()


class LoopFlusher:
    """A Flusher without threads."""

    def __init__(self, store: Store, flush: Callable[[], None]) -> None:
        self._store, self._flush = store, flush
        self._timer: asyncio.TimerHandle | None = None

    def wake(self, *, background: bool = False) -> None:
        task = None if self._timer else self._store.durability.sync_wanted(background=background)
        if task is not None:
            self._timer = asyncio.get_running_loop().call_later(SYNC_S, self._run, task)

    def next_deadline_ms(self) -> None:
        return None

    def advance(self, mono_ms: int) -> None:
        pass

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _run(self, task: SyncTask) -> None:
        self._timer = None
        task.run()
        self._store.durability.synced(task, None)
        self._flush()
        self.wake()


class Outside:
    """The object store as a process uses it: a request that was sent goes on when the process is paused or dead."""

    def __init__(self, objects: SimulatedObjects) -> None:
        self._objects = objects

    async def create(self, key: str, content: Content) -> Creation:
        return await _outside(self._objects.create(key, content))

    async def get(self, key: str, bytes_max: int) -> bytes | None:
        return await _outside(self._objects.get(key, bytes_max))

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        return await _outside(self._objects.get_range(key, start, length))

    async def list(self, prefix: str, start_after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        return await _outside(self._objects.list(prefix, start_after, limit))

    async def delete(self, keys: Sequence[str]) -> None:
        await _outside(self._objects.delete(keys))


async def _outside(request: Any) -> Any:
    task = asyncio.get_running_loop().create_task(request, context=Context())
    task.add_done_callback(_retrieved, context=Context())
    return await task


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Take note of an exception, because the process that should may be dead."""
    if not task.cancelled():
        task.exception()


class Machine:
    """A host with a disk, on which a broker runs or not."""

    def __init__(self, options: Options, clock: HostClock, bucket: SimulatedBucket, host: str) -> None:
        self.clock = clock
        self.host, self.disk, self.faults = host, CrashDisk(), StoreFaults()
        self.process: Process | None = None
        self.broker: SimulatedBroker | None = None
        self.failures: list[str] = []  # What must not happen to a broker: internal errors, and bugs in requests.
        self.deposed = 0
        self.restarts = False  # A broker that has stopped in order is started again.
        self._decided_ms = 0  # Of brokers that have ended.
        self._serving_since_mono_ms = 0  # Since when the broker serves clients, if it does.
        self._options, self.bucket = options, bucket

    @property
    def is_owner(self) -> bool:
        return self.process is not None and self.process.is_running and self.broker is not None and self.broker.is_owner

    @property
    def served_ms(self) -> int:
        """How long its broker has been the owner, by its own clock; 0 for a standby."""
        return self.clock.mono_ms() - self._serving_since_mono_ms if self.is_owner else 0

    @property
    def decided_ms(self) -> int:
        """The latest wall time at which it has decided something as the owner."""
        return max(self._decided_ms, 0 if self.broker is None else self.broker.decided_ms)

    def start(self) -> None:
        assert self.process is None, "it runs"
        self.disk = self.disk.after_kill()
        process = self.process = Process(self.host, self.clock)
        process.start(self._serve()).add_done_callback(partial(self._ended, process), context=Context())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._note_faults()
        self._decided_ms = self.decided_ms
        self.process = self.broker = None

    async def _serve(self) -> None:
        objects = Outside(self.bucket.client(self.host, self.faults))
        broker = self.broker = SimulatedBroker(self._options, self.clock, self.host, self.disk, objects)
        broker.on_open = self._serves
        await broker.start()
        await broker.ended
        await broker.stop()

    def _serves(self) -> None:
        self._serving_since_mono_ms = self.clock.mono_ms()

    def _ended(self, process: Process, task: asyncio.Task[None]) -> None:
        if process is not self.process:
            return
        error = task.exception()
        self.kill()
        if isinstance(error, BeginAgain):
            self.deposed += 1
            if CANNOT_BE in str(error):
                self.failures.append(f"{self.host} begins again: {error}")
            self.start()
        elif error is None and self.restarts:
            self.start()
        elif error is not None:
            self.failures.append(f"{self.host} ends: {type(error).__name__}: {error}")

    def _note_faults(self) -> None:
        if self.broker is not None and self.broker.faults.counts:
            self.failures.append(f"{self.host}: {dict(self.broker.faults.counts)}")
