"""The class `Broker`: one broker process, from its start to its end. `duolog serve` runs it.

    start   ports bound ── log recovered, state replayed ── threads started ── ports opened ── ready
    stop    ports closed ── reading of requests ends ── log synced, answers sent ── connections closed ── log closed

A Broker puts the parts together and starts and stops them. It makes no decision about messages or requests.
"""

import asyncio
import errno
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from duolog.bridge import duties, hooks
from duolog.bridge.clock import Clock
from duolog.bridge.config import (
    ConfigError,
    Options,
    name_servers,
    store_options,
)
from duolog.bridge.console.console import Console
from duolog.bridge.core import Core
from duolog.bridge.drain import Drain
from duolog.bridge.hooks import Hooks
from duolog.bridge.http.port import HttpPort
from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.net.addresses import Addresses, StartError, advertised_host, bind, endpoint
from duolog.bridge.net.connections import Bounds
from duolog.bridge.net.server import Server
from duolog.bridge.net.tls.ports import TlsPorts
from duolog.bridge.rocketmq.namesrv.routes import broker_address
from duolog.bridge.rocketmq.producing.check_backs import check_back_loop
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.hooked_connection import HookedConnection
from duolog.bridge.security_start import check_users, start_security
from duolog.bridge.ticker import Ticker
from duolog.bridge.tracing.export import start_export
from duolog.bridge.transactions.check_callbacks import CheckCallbacks
from duolog.protocol.rocketmq.messages.message_id import pack_host
from duolog.store.errors import Corruption, StoreError
from duolog.store.files import RealFiles
from duolog.store.flusher import Flusher
from duolog.store.recovery.format_version import ensure_format
from duolog.store.shared.own_log import check_no_copy
from duolog.store.workers import Workers

if TYPE_CHECKING:
    from duolog.bridge.rocketmq.namesrv.registration import NameServerRegistration
    from duolog.bridge.tracing.otlp import SpanThread

log = logging.getLogger("bridge")

CLOSE_MS = 500  # The time within which connections must send their last answers, after the log was synced.
FILES_BESIDE_CONNECTIONS = 1024  # File descriptors for segments, indexes, the HTTP port and libraries.
NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)

WIRES = {"kafka": "kafka", "rocketmq": "rocketmq", "namesrv": "rocketmq", "http": "http"}  # By the name of the port.

TIMER_THREADS = 3  # One thread may compact tables for minutes while another flushes; the third serves reads.
TIMER_TASKS_WAITING_MAX = 256
TIMER_PAUSE_S = 0.001  # The pause after each block that is written. Writing a block takes 1 to 2 ms.


class BeginAgain(Exception):
    """The broker's state must be dropped, and its program executed again."""


class Broker(Core):
    """A core with ports, threads and timers, all run by one event loop.

    The class has more than 20 methods and 15 fields because each step of the stop undoes a step of the start, in
    reverse order, and needs what that step has made. Most of its fields are those of Core and StateOwners.
    """

    def __init__(self, options: Options, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(options, Faults(clock.mono_ms, self.fail), clock)
        self.poison_records.now_ms = clock.now_ms
        self.loop = loop
        # Done when the broker must stop; after an internal error it holds the exception.
        self.ended: asyncio.Future[None] = loop.create_future()
        self.on_open: Callable[[], None] = _nothing  # Called once clients are served.
        self._is_serving = False
        self._is_open = False  # The log is recovered, and appends may be written.
        self._observed_mono_ms = -1  # The monotonic time at which `wall_time` last compared the clocks.
        self._registration: NameServerRegistration | None = None
        self._spans: SpanThread | None = None  # None without tracing.
        self.server = Server(loop, clock, options.limits, _bounds(options), self._end_turn, self.faults, self.watchdog)
        self.tls = TlsPorts(options, self.server, self._post)
        self._drain = Drain(self.server.connections, self.end)
        self.ticker = Ticker(loop, clock, self.server.touch, self.faults, self.watchdog, self.wall_time.observe)

    def not_ready_reason(self) -> str:
        """Return why requests may fail now; an empty string means that the broker serves requests."""
        if not self._is_serving:
            return "starting or stopping"
        return "draining" if self._drain.has_begun else super().not_ready_reason()

    def end(self, reason: str) -> None:
        """Ask for an orderly stop."""
        log.info("stopping reason=%s", reason)
        if not self.ended.done():
            self.ended.set_result(None)

    async def drain(self, wait_ms: int) -> int:
        """Let clients leave, for at most `wait_ms`, and then stop; return the number of open client connections."""
        self._drain.begin(wait_ms, self.clock.mono_ms())
        self.server.stop_listening(but="http")
        self.server.touch()
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.stop()
        return len(self.server.connections)

    def fail(self, error: BaseException) -> None:
        """End the broker after an internal error: the state in memory may differ from the log.

        The broker does not close in order. From now on the store refuses appends.
        """
        self.store.end_writing(f"the broker stops after an internal error: {error!r}")
        if not self.ended.done():
            self.ended.set_exception(error)

    # -- Starting

    async def start(self) -> None:
        """Recover the log, then open the ports.

        Raises ConfigError if a setting must be changed, and StartError if something else, such as a port in use,
        prevents the start.
        """
        self.prepare()
        bound = self._bind()
        if self.tracing is not None:
            self._spans = start_export(self.tracing.spans, self.options.tracing)
        self._open_store()
        await self.serve_clients()
        await self.listen(bound, self.factories)
        self._is_serving = True
        self.on_open()

    def prepare(self) -> None:
        """Report what no other code catches, and load the certificates. Raises ConfigError."""
        self.loop.set_exception_handler(self._on_loop_exception)
        self.tls.use(self.tls.read(self.options))

    async def serve_clients(self) -> None:
        """Make the parts that serve clients, and start the time of all duties; the log is open."""
        self.hooks = self._start_hooks()
        self._callbacks = CheckCallbacks(
            self.options.txn.check_timeout_ms,
            partial(self.faults.contain, kind="answer of a callback"),
            self.tls.outgoing,
        )
        self.http = HttpPort(self.http_context())
        self.http.drain = self.drain
        self.http.add_pages(Console(self.http.local_api, self.http.read, self.clock, self.options.http).routes())
        await self.http.start()
        self.factories: dict[str, Callable[[], asyncio.BaseProtocol]] = {
            "kafka": lambda: KafkaConnection(self.server, self.kafka_context),
            "rocketmq": self._rocketmq_connection,
            "namesrv": self._name_server_connection,
            "http": self.http.connection,
        }
        self._start_time()
        if addresses := name_servers(self.options.rocketmq.join_namesrv):
            self._registration = self._new_registration(addresses)
            self._registration.start()

    def _new_registration(self, addresses: list[tuple[str, int]]) -> "NameServerRegistration":
        """Return what registers the broker with these name servers. Only a broker that does it loads the module."""
        from duolog.bridge.rocketmq.namesrv.registration import BrokerIdentity, NameServerRegistration, no_tls

        options = self.options.rocketmq
        return NameServerRegistration(
            self.topics,
            self.clock,
            BrokerIdentity(options.cluster, options.broker, broker_address(self.rocketmq_context)),
            partial(self.faults.contain, kind="registration with a name server"),
            addresses,
            self.tls.outgoing if options.join_namesrv_tls else no_tls,
        )

    def _bind(self) -> dict[str, socket.socket]:
        options = self.options
        bound = {
            name: bind(options.server.host, port, setting)
            for name, port, setting in (
                ("kafka", options.kafka.port, "kafka.port"),
                ("rocketmq", options.rocketmq.port, "rocketmq.port"),
                ("namesrv", options.rocketmq.namesrv_port, "rocketmq.namesrv_port"),
                ("http", options.http.port, "http.port"),
            )
        }
        listening = {name: taken.getsockname()[:2] for name, taken in bound.items()}
        self.addresses = Addresses(advertised_host(options.server.host, options.server.advertise), listening)
        return bound

    def _open_store(self) -> None:
        """Recover the log, and make the parts that use it; raises ConfigError or StartError."""
        section, now_ms = self.options.store, self.clock.now_ms()
        directory, host = section.directory, self._store_host()
        try:
            files = RealFiles(directory)
            ensure_format(files)
            check_no_copy(files)
            mono_ms = self.clock.mono_ms()
            self.open_log(
                files,
                store_options(section),
                now_ms,
                mono_ms,
                store_host=host,
                server=self.server,
                addresses=self.addresses,
            )
        except Corruption as error:
            raise StartError(
                f"store.directory: {directory}: {error}; `duolog log verify` lists all damage: restore a backup, or "
                "see what `duolog log repair --dry-run` would leave out"
            ) from error
        except StoreError as error:
            raise StartError(f"store.directory: {directory}: {error}") from error
        except OSError as error:
            kind = ConfigError if error.errno in NO_DIRECTORY else StartError
            reason = "Not a directory" if error.errno == errno.EEXIST else error.strerror or error
            raise kind(f"store.directory: {directory}: {reason}") from error
        self._login_workers = start_security(self.security, self.addresses, self.tls.outgoing, self._post)
        check_users(self.security)
        self.start_store_threads()
        self._is_open = True

    def start_store_threads(self) -> None:
        """Start the threads that sync the log, and those of delayed messages."""
        self._flusher = Flusher(self.store, self._post, time.perf_counter, self.metrics.fsync_s.add)
        self._start_timer_workers()

    def _start_timer_workers(self) -> None:
        """Start the threads that flush, compact and read the sorted tables of delayed messages."""
        self._is_ending = threading.Event()
        refusal = StoreError(f"{TIMER_TASKS_WAITING_MAX} reads of delayed messages wait for a thread")
        self._timer_workers = Workers("timers", TIMER_THREADS, self._post, TIMER_TASKS_WAITING_MAX, refusal)
        context = self.delays.timers.tree.context
        context.executor, context.tables.pause = self._timer_workers, self._pause

    def _pause(self) -> None:
        """Pause in a thread that writes sorted tables, so that the loop can run; raises InterruptedError at a stop."""
        if self._is_ending.wait(0 if self.delays.timers.tree.flush.is_behind else TIMER_PAUSE_S):
            raise InterruptedError("the broker stops")

    def _store_host(self) -> bytes:
        """Return the packed address for message ids and records: IPv4 if possible, because all clients can read it."""
        host, port = self.addresses.rocketmq
        try:
            found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))  # AF_INET is first.
            return pack_host(str(found[0][4][0]), port)
        except UnicodeError as error:
            raise ConfigError(f"server.advertise: {host[:100]!r} is not a host name") from error
        except OSError:
            return pack_host("127.0.0.1", port)

    async def listen(
        self, bound: dict[str, socket.socket], factories: dict[str, Callable[[], asyncio.BaseProtocol]]
    ) -> None:
        """Accept connections on the ports; `factories` makes their protocols, by the name of the port."""
        self.server.connections.count_max = raise_file_limit(self.options.limits.connections_max)
        for name, factory in factories.items():
            await self.server.listen(name, bound[name], self.tls.accepting(WIRES[name], factory))

    def _rocketmq_connection(self) -> RocketMQConnection:
        context = self.rocketmq_connections
        return RocketMQConnection(context) if self.hooks is None else HookedConnection(context, self.hooks)

    def _name_server_connection(self) -> RocketMQConnection:
        bytes_max = self.options.security.login_bytes_max
        return RocketMQConnection(replace(self.rocketmq_connections, first_request_bytes_max=bytes_max))

    def _start_hooks(self) -> Hooks | None:
        if not self.options.hooks.enabled:
            return None
        try:
            found = hooks.installed()
        except Exception as error:
            raise StartError(f"hooks: a hook cannot be created: {type(error).__name__}: {error}") from error
        for each in found:
            log.info("hook found class=%s", type(each).__qualname__)
        return hooks.start(found, self.options.hooks, self._post) if found else None

    def _start_time(self) -> None:
        """Register the duties of the core, of threads and of hooks, and start the ticker."""
        self.check_backs = check_back_loop(self.rocketmq_context, self.half_decisions, self._callbacks)
        add = self.ticker.add
        duties.register(self, self.check_backs, add)
        add("drain", self._drain.next_deadline_ms, lambda now_ms, mono_ms: self._drain.advance(mono_ms))
        self._add_flusher()
        if self.hooks is not None:
            late = self.hooks.advance
            add("hooks", self.hooks.next_deadline_ms, lambda now_ms, mono_ms: late(mono_ms))
        self.ticker.arm(self.clock.mono_ms())

    def _add_flusher(self) -> None:
        advance = self._flusher.advance
        self.ticker.add("flusher", self._flusher.next_deadline_ms, lambda now_ms, mono_ms: advance(mono_ms))

    def ready_line(self) -> str:
        """Return the line that the broker prints on standard output once it serves; scripts wait for it."""
        ports = " ".join(f"{name}={endpoint(host, port)}" for name, (host, port) in self.listening.items())
        return f"ready {ports} data={self.options.store.directory}"

    # -- Running

    def _end_turn(self) -> None:
        """Write what this turn appended, before its answers are sent; set the ticker's timer."""
        if not self._is_open:
            return  # The start failed: recovery has appended, but system topics cannot be created.
        mono_ms = self.clock.mono_ms()
        try:
            self._write(mono_ms)
        finally:
            self.ticker.arm(mono_ms)
        if self._registration is not None:
            self._registration.notice()

    def _write(self, mono_ms: int) -> None:
        if mono_ms != self._observed_mono_ms:  # `observe` runs at most once in each millisecond.
            self._observed_mono_ms = mono_ms
            self.wall_time.observe(self.clock.now_ms(), mono_ms)
        if self.store.written != self.store.next_position:
            self.store.write()
        self._flusher.wake()  # Also called if this turn appended nothing: an answer may wait for an earlier append.

    def _post(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the event loop; threads call this method."""
        self.loop.call_soon_threadsafe(self._run_posted, callback)

    def _run_posted(self, callback: Callable[[], object]) -> None:
        begun_s = self.watchdog.seconds()
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - contained
            self.faults.contain(error, "thread's outcome")
        self.server.flush()  # Answers that the callback completed are sent at once, not at the end of the turn.
        self.server.touch()
        self.watchdog.turned(callback, begun_s)

    def _on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Report an exception that no other code caught; the context of a socket's error names its transport."""
        error, message = context.get("exception"), str(context.get("message"))
        if isinstance(error, OSError) and ("transport" in context or "socket" in context):
            log.warning("socket failed what=%r reason=%r", message, str(error))
        else:
            self.faults.contain(error if isinstance(error, BaseException) else RuntimeError(message), "loop")
        self.server.touch()  # The turn that raised may have ended before it set the ticker's timer.

    # -- Stopping

    async def stop(self) -> None:
        """Finish the requests in progress and close everything; the next start then needs no recovery.

        Waiting for promises and for checkpoints ends after `server.stop_ms` and CLOSE_MS.
        """
        self._is_serving = False
        late_mono_ms = self.clock.mono_ms() + self.options.server.stop_ms + CLOSE_MS
        self.store.abandon_checkpoint_when(lambda: self.clock.mono_ms() >= late_mono_ms)
        if self._registration is not None:
            # This is the first step, so that clients connect to the other brokers of the cluster.
            await self._registration.stop()
        self.server.stop_listening()
        self.server.hold_all()
        self.ticker.stop()
        await self._wait_for_promises()
        await self._callbacks.stop()
        await self.http.stop()
        await self.server.close_all(CLOSE_MS)
        self.stop_store_threads()
        await self.loop.run_in_executor(None, self.security.audit.stop)
        self.store.close(self.clock.now_ms())
        if self._spans is not None:
            await self.loop.run_in_executor(None, self._spans.stop)
        log.info("stopped position=%d", self.store.durable)

    def stop_store_threads(self) -> None:
        """End the threads; those of delayed messages end first."""
        self._is_ending.set()
        self._timer_workers.stop()
        self.tls.stop()
        if self._login_workers is not None:
            self._login_workers.stop()
        if self._is_open:
            self.delays.timers.tree.close()
        self._flusher.stop()

    async def _wait_for_promises(self) -> None:
        """Wait until each promise that was given is kept, for at most `server.stop_ms`."""
        try:
            self.group_offsets.commit_all_collected(self.clock.now_ms())
        except StoreError as error:
            log.warning("committed offsets not stored reason=%r", str(error))
        settled: asyncio.Future[None] = self.loop.create_future()
        self.store.when(self.store.promise(), lambda error: settled.set_result(None))
        self.store.write()
        self._flusher.wake()  # The call follows `when`, because the flusher syncs only if a promise waits.
        await asyncio.wait([settled], timeout=self.options.server.stop_ms / 1000)


def _nothing() -> None:
    pass


# -- Options and limits


def _bounds(options: Options) -> dict[str, Bounds]:
    return {
        wire: Bounds(section.frame_bytes_max, section.unanswered_max, section.idle_ms)
        for wire, section in (("kafka", options.kafka), ("rocketmq", options.rocketmq))
    }


def raise_file_limit(connections_max: int) -> int:
    """Raise the limit of file descriptors as far as the system allows; return the number of connections it is for."""
    wanted = connections_max + FILES_BESIDE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return connections_max
    allowed = max(1, soft - FILES_BESIDE_CONNECTIONS)
    log.warning(
        "few file descriptors, so fewer connections: limits.connections_max=%d allowed=%d nofile=%d",
        connections_max,
        allowed,
        soft,
    )
    return allowed
