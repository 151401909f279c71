"""`open_on_stream`: the state of a stream in an object store, for commands that change it while no broker owns it.

with open_on_stream(options) as core:
    core.security.users.set(record, core.clock.now_ms())
# what was committed is in the object store now

The command follows the stream as a standby does, takes it over, and ends its ownership like an owner that is stopped:
the next broker takes over at once. A broker that owns the stream keeps it, because it is never silent for long enough.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from duolog.bridge.clock import SystemClock
from duolog.bridge.cluster.membership import ID_BYTES, open_stream_objects, shared_options
from duolog.bridge.cluster.security_mark import check_key, check_key_file
from duolog.bridge.cluster.stream_tables import StreamTables
from duolog.bridge.config import ConfigError, Options, store_options
from duolog.bridge.core import Core
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.net.addresses import NO_PORTS, StartError
from duolog.bridge.net.server import Server
from duolog.bridge.security.secret_box import SecretBox
from duolog.protocol.rocketmq.messages.message_id import pack_host
from duolog.store.errors import StoreError
from duolog.store.files import RealFiles
from duolog.store.flusher import Flusher
from duolog.store.recovery.format_version import ensure_format
from duolog.store.shared.events import Event
from duolog.store.shared.replica import Replica
from duolog.store.shared.requests import RequestsStopped
from duolog.store.store import lock_directory

WITHIN_S: Final = 30.0  # The longest wait for the ownership, and then for the uploads.
DUTIES_S: Final = 0.02


@contextmanager
def open_on_stream(options: Options) -> Iterator[Core]:
    """Yield the state of the stream of `shared.url`, of which `store.directory` becomes a copy; upload the changes.

    Raises ConfigError, and StartError if a broker owns the stream, or if the stream or the directory cannot be used.
    """
    try:
        with asyncio.Runner() as runner:
            stream = _Stream(options, runner.get_loop())
            runner.run(stream.take_over())
            try:
                yield stream.core
            finally:
                runner.run(stream.give_back())
    except RequestsStopped as error:
        raise StartError(f"{options.shared.url}: a broker has taken over the stream meanwhile: run it again") from error
    except StoreError as error:
        raise StartError(f"{options.shared.url}: {error}") from error
    except OSError as error:
        raise ConfigError(f"--data {options.store.directory}: {error.strerror or error}") from error


class _Stream:
    """One ownership of a stream, without ports."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self._options, self._clock = options, SystemClock()
        self.core = Core(options, Faults(self._clock.mono_ms, _raise), self._clock)
        core = self.core
        self._server = Server(loop, self._clock, options.limits, {}, lambda: None, core.faults, core.watchdog)
        self._loop = loop

    async def take_over(self) -> None:
        options, core, clock = self._options, self.core, self._clock
        files = RealFiles(options.store.directory)
        ensure_format(files)
        lock = lock_directory(files)
        objects = open_stream_objects(options)
        await check_key_file(objects, core.security.key_file, is_there=core.security.has_key_file)
        core.security.use(SecretBox.load(core.security.key_file))
        await check_key(objects, core.security.box)
        self._replica = await Replica.join(
            objects,
            files,
            lock,
            writer=secrets.token_bytes(ID_BYTES),  # Its number is that of no broker, most probably.
            new_stream=secrets.token_bytes(ID_BYTES),
            claim=b"a command",
            options=shared_options(options),
            mono_ms=clock.mono_ms,
            on_event=_ignore,
            on_progress=self._on_progress,
        )
        core.prepare_log(files, clock.now_ms(), self._server, NO_PORTS)
        core.store = self._replica.open(store_options(options.store, is_shared=True), core.state_log)
        core.topics.attach_store(core.store)
        self._flusher = Flusher(core.store, self._call_soon, time.perf_counter, core.metrics.fsync_s.add)
        self._duties = asyncio.create_task(self._run_duties())
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._replica.follow()
        except TimeoutError:
            raise StartError(
                f"{options.shared.url}: a broker owns the stream: use its HTTP port (--http), or stop all brokers"
            ) from None
        await self._replica.begin(clock.now_ms())
        tables = StreamTables(core.delays.timers, files, self._replica.named_files)
        await tables.complete(core.store.epoch, self._replica.confirm)
        host = pack_host("127.0.0.1", 0)  # For messages that are written; these commands write none.
        core.serve_log(core.store, clock.now_ms(), clock.mono_ms(), host, is_takeover=True)

    async def give_back(self) -> None:
        """Upload what was committed, and end the ownership. Raises StartError if the store does not answer."""
        core = self.core
        core.store.write()
        self._flusher.wake()
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._replica.end()
        except TimeoutError:
            raise StartError(f"{self._options.shared.url}: the object store does not answer") from None
        finally:
            self._duties.cancel()
            self._replica.stop()
            core.delays.timers.tree.close()
            self._flusher.stop()
            core.store.close_without_writing()

    def _on_progress(self) -> None:
        self._flusher.wake()

    def _call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    async def _run_duties(self) -> None:
        while True:
            await asyncio.sleep(DUTIES_S)
            mono_ms = self._clock.mono_ms()
            if self._replica.next_deadline_ms() <= mono_ms:
                self._replica.advance(mono_ms)


def _raise(error: BaseException) -> None:
    raise error


def _ignore(event: Event) -> None:
    pass
