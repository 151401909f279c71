"""Cores that share a log in a simulated bucket, in virtual time: brokers without ports and threads.

clock, bucket = ManualClock(), SimulatedBucket(1)
core = SharedCore(clock, bucket, "a")
await core.join()            # a standby
await core.own()             # returns once it owns the stream and serves
core.settle()                # at the end of a turn
"""

import asyncio
from typing import Any, cast

from duolog.bridge.cluster.stream_tables import StreamTables
from duolog.bridge.config import LimitsOptions, Options
from duolog.bridge.core import Core
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.net.server import Server
from duolog.store.options import StoreOptions
from duolog.store.shared.events import Event
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.replica import Replica
from duolog.store.store import lock_directory
from tests.kit.clock import ManualClock
from tests.kit.core import LISTENING, STORE_HOST
from tests.kit.disk import CrashDisk
from tests.kit.faults import StrictFaults, reraise
from tests.kit.object_store import SimulatedBucket
from tests.kit.sockets import ManualLoop

STORE = StoreOptions(is_shared=True, spare_bytes=0)


class SharedCore(Core):
    """One broker of a stream."""

    def __init__(
        self,
        clock: ManualClock,
        bucket: SimulatedBucket,
        name: str,
        disk: CrashDisk | None = None,
        options: Options | None = None,
        store: StoreOptions = STORE,
        shared: SharedOptions | None = None,
    ) -> None:
        super().__init__(options or Options(), StrictFaults(clock.mono_ms, reraise), clock)
        self.disk, self.objects, self.name = disk or CrashDisk(), bucket.client(name), name
        self._store_options, self._shared_options = store, shared or SharedOptions()
        self.events: list[Event] = []
        self.replica: Replica
        self._duties: asyncio.Task[None] | None = None

    async def join(self) -> None:
        server = Server(
            cast(Any, ManualLoop()), self.clock, LimitsOptions(), {}, lambda: None, self.faults, self.watchdog
        )
        self.replica = await Replica.join(
            self.objects,
            self.disk,
            lock_directory(self.disk),
            writer=self.name.encode().ljust(16),
            new_stream=b"stream".ljust(16),
            claim=self.name.encode(),
            options=self._shared_options,
            mono_ms=self.clock.mono_ms,
            on_event=self.events.append,
            on_progress=self._sync,
        )
        self.prepare_log(self.disk, self.clock.now_ms(), server, Addresses("broker.example", LISTENING))
        self.stream_tables = StreamTables(self.delays.timers, self.disk, self.replica.named_files)
        self.store = self.replica.open(self._store_options, self.state_log)
        self._duties = asyncio.create_task(self._run_duties())
        self.stream_tables.begin()

    async def own(self) -> None:
        await self.replica.follow()
        await self.replica.begin(self.clock.now_ms())
        await self.stream_tables.complete(self.store.epoch, self.replica.confirm)
        self.serve_log(self.store, self.clock.now_ms(), self.clock.mono_ms(), STORE_HOST, is_takeover=True)
        self.settle()

    def settle(self) -> None:
        """Write and sync what was appended, and begin its upload."""
        self.store.write()
        self._sync()
        self.replica.begin_due_uploads(self.clock.mono_ms())

    def kill(self) -> None:
        """Let the broker end without a word."""
        self.replica.stop()
        self.stream_tables.stop()
        if self._duties is not None:
            self._duties.cancel()

    def _sync(self) -> None:
        while task := self.store.durability.sync_wanted(background=True):
            task.run()
            self.store.durability.synced(task, None)

    async def _run_duties(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            mono_ms = self.clock.mono_ms()
            deadline = self.replica.next_deadline_ms()
            if deadline <= mono_ms:
                self.replica.advance(mono_ms)
            if self.store.checkpoint_due(mono_ms):
                self.store.checkpoint(mono_ms)
                self._sync()
