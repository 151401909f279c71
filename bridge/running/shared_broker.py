"""The class SharedBroker: a broker whose log is in an object store, with other brokers that may take over.

    start      ports bound ── store tested ── log recovered ── ports opened: a standby ── ready
    follow     the owner's slots are copied and replayed; when none come, this broker fences the stream
    own        parts that append are made ── clients are served ── store tested again
    deposed    all connections are aborted ── the process begins again as a standby (`OwnershipLost`)
    refused    an object is damaged, or the store lies about creates ── the process ends with one line (`StartError`)

While this broker owns the stream, no answer leaves unless its lease guarantees that no other broker is the owner.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from duolog.bridge.broker import CLOSE_MS, BeginAgain, Broker, raise_file_limit
from duolog.bridge.cluster.forwarding import Forwarding
from duolog.bridge.cluster.membership import OwnershipLost, StreamMembership, open_stream_objects
from duolog.bridge.cluster.owner_probe import OwnerProbe
from duolog.bridge.cluster.owner_requests import OwnerRequests
from duolog.bridge.cluster.standby_context import StandbyContext
from duolog.bridge.cluster.standby_http import StandbyHttpPort
from duolog.bridge.cluster.standby_kafka import StandbyKafkaConnection
from duolog.bridge.cluster.standby_probe import StandbyProbe
from duolog.bridge.cluster.standby_rocketmq import StandbyRocketMQConnection
from duolog.bridge.cluster.stream_tables import StreamTables
from duolog.bridge.config import store_options
from duolog.bridge.kafka import ADVERTISED_VERSIONS
from duolog.bridge.kafka.requests.sliced_requests import SlicedRequests
from duolog.bridge.net.addresses import StartError
from duolog.bridge.net.nodes import Address, Endpoints
from duolog.bridge.rocketmq.access.gate import Gate
from duolog.bridge.rocketmq.access.signed_requests import SignedRequests
from duolog.bridge.running.external_watchdog import ExternalWatchdog
from duolog.bridge.security.secret_box import SecretBox
from duolog.bridge.security_start import check_users, start_security
from duolog.bridge.tracing.export import start_export
from duolog.store.errors import DataDirectoryInUse, StoreError, WritingEnded
from duolog.store.files import Files, RealFiles
from duolog.store.objects.errors import ObjectStoreError, StoreRefused, UnreliableStore
from duolog.store.objects.interface import ObjectStore
from duolog.store.recovery.format_version import UnknownFormat, ensure_format
from duolog.store.shared.lease import lease_length_ms
from duolog.store.shared.requests import RequestsStopped
from duolog.store.store import lock_directory

log = logging.getLogger("bridge")

TABLES_MS = 1_000  # The log reports a takeover that waits for longer for tables of delayed messages.
RELEASE_S = 0.5  # The time for which a deposed broker tries to tell the new owner that its lease has ended.
LOCAL_ERRORS = (DataDirectoryInUse, UnknownFormat, WritingEnded)  # Errors of the data directory, not of the store.
LEASE_CHECK_MS = 200  # The time between two checks of the lease while another broker may be the owner.


class SharedBroker(Broker):
    """A broker of a stream: a standby until it owns the stream.

    The class has more than 20 methods and 15 fields because it extends Broker: it replaces steps of the start and the
    stop, and its start has two parts.
    """

    membership: StreamMembership
    _tables: StreamTables
    _probe: OwnerProbe
    _standby_probe: StandbyProbe
    _forwarding: Forwarding
    _standby_http: StandbyHttpPort
    _following: asyncio.Task[None]
    _releasing: asyncio.Task[None] | None = None  # Set when this broker was deposed: it gives up its lease.
    _has_served = False  # The broker serves as the owner, or did so before it was deposed.
    _checked_mono_ms = 0  # The time of the last check of the lease. There is none before this time.
    _is_refusing = False  # Clients are refused, because the lease has ended.
    _accepting: asyncio.Task[None] | None = None  # Opens the ports again.

    # -- Starting

    async def start(self) -> None:
        """Join the stream and open the ports, as a standby. Raises ConfigError and StartError."""
        self.prepare()
        bound = self._bind()
        if self.tracing is not None:
            self._spans = start_export(self.tracing.spans, self.options.tracing)
        await self._open_stream()
        self._login_workers = start_security(self.security, self.addresses, self.tls.outgoing, self._post)
        await self._join()
        self._forwarding = Forwarding(self.clock, self._serving_address, self.tls.between_brokers)
        context = StandbyContext(
            server=self.server,
            clock=self.clock,
            options=self.options,
            metrics=self.metrics,
            nodes=self.nodes,
            topics=self.topics,
            security=self.security,
            store=self.store,
            purgatory=self.purgatory,
            sliced_requests=SlicedRequests(),
            owner_requests=OwnerRequests(self.options.kafka.answer_bytes_max, self.tls.between_brokers, self._box),
            forwarding=self._forwarding,
            advertised_versions=ADVERTISED_VERSIONS,
            cluster_id_now=lambda: self.cluster_id,
            is_behind=lambda: self.membership.replica.is_behind,
        )
        self._standby_http = StandbyHttpPort(
            context, self.addresses, lambda: self.store.next_position, lambda: self.membership.epoch
        )
        await self._standby_http.start()
        await self._listen_as_standby(bound, context)
        self._start_standby_time()
        self.membership.watch()
        if self.options.rocketmq.standby_routes:
            self._standby_probe.begin()
        if self.options.cluster.takeover_if_cut_off:
            self._probe.begin()
        self._tables.begin()
        self._following = self.loop.create_task(self._follow())

    async def _open_stream(self) -> None:
        """Open the object store. Raises StartError if this broker needs the key of the stream and has none."""
        self._probe = OwnerProbe(
            self.server.connections,
            self.clock,
            self.options.cluster.takeover_ms,
            lambda: self.membership.other_owner(),
        )
        self._standby_probe = StandbyProbe(lambda: self.membership.nodes)
        try:
            self.membership = StreamMembership(
                self._open_objects(),
                self.options,
                self.clock,
                Endpoints.of(self.addresses),
                self.metrics,
                self._deposed,
                self._on_progress,
                self._probe,
            )
            if self.security.is_enabled:
                await self.membership.check_key_file(self.security.key_file, is_there=self.security.has_key_file)
        except StoreError as error:
            raise self._refusal(error) from error

    async def _join(self) -> None:
        """Join the stream and recover the local log. Raises StartError, also if no login is possible."""
        try:
            files = self._open_files()
            ensure_format(files)
            # The lock is taken before any request, so that a second broker by mistake changes nothing.
            lock = lock_directory(files)
            await self.membership.join(files, lock, self._box)
            self.prepare_log(files, self.clock.now_ms(), self.server, self.addresses)
            self.nodes = self.membership.nodes
            self._tables = StreamTables(self.delays.timers, files, self.membership.replica.named_files)
            self.store = self.membership.replica.open(store_options(self.options.store, is_shared=True), self.state_log)
            self.metrics.shared_cache = self.membership.replica.cache_counts
        except (StoreError, OSError) as error:
            raise self._refusal(error) from error
        if self.membership.is_alone:
            check_users(self.security)
        self.topics.attach_store(self.store)
        self.start_store_threads()

    def _refusal(self, error: StoreError | OSError) -> StartError:
        """Return what an operator reads: the data directory or the object store, what is wrong, and what to do."""
        if isinstance(error, OSError):
            return StartError(f"store.directory: {self.options.store.directory}: {error.strerror or error}")
        if isinstance(error, LOCAL_ERRORS):
            return StartError(f"store.directory: {self.options.store.directory}: {error}")
        return StartError(f"{self.options.shared.url}: {error}")

    @property
    def _box(self) -> SecretBox | None:
        """The key of the stream's brokers; None: security is off."""
        return self.security.box if self.security.is_enabled else None

    def _open_objects(self) -> ObjectStore:
        """Return the object store of `shared.url`. Raises StoreRefused."""
        return open_stream_objects(self.options)

    def _open_files(self) -> Files:
        return RealFiles(self.options.store.directory)

    async def _listen_as_standby(self, bound: dict[str, socket.socket], context: StandbyContext) -> None:
        self.server.connections.count_max = raise_file_limit(self.options.limits.connections_max)
        gate = Gate(self.security, SignedRequests(self.security)) if self.security.is_enabled else None
        as_standby: dict[str, Callable[[], asyncio.BaseProtocol]] = {
            "kafka": lambda: StandbyKafkaConnection(context, lambda: self.kafka_context if self._is_serving else None),
            "rocketmq": lambda: StandbyRocketMQConnection(context, gate, self._rocketmq_connection),
            "namesrv": lambda: StandbyRocketMQConnection(context, gate, self._name_server_connection),
            "http": self._standby_http.connection,
        }
        await self.listen(bound, {name: self._by_role(name, factory) for name, factory in as_standby.items()})

    def _by_role(self, name: str, standby: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.BaseProtocol]:
        """Return a factory of the connections of a port: those of a standby until this broker serves.

        A deposed broker makes those of an owner until the process starts again, and answers nothing on them.
        """
        return lambda: self.factories[name]() if self._has_served else standby()

    def _serving_address(self) -> Address | None:
        """Return the address of the owner's RocketMQ port; None: it is not known, not served yet, or not reached."""
        owner = self.nodes.owner
        if owner is None or (self.nodes.is_owner and not self._is_serving) or not self._probe.is_reached:
            return None
        return owner.endpoints.rocketmq

    def _start_standby_time(self) -> None:
        replica, connections = self.membership.replica, self.server.connections
        add = self.ticker.add
        add("lease", self._next_lease_check_mono_ms, lambda now_ms, mono_ms: self._check_lease(mono_ms))
        add("shared log", replica.next_deadline_ms, lambda now_ms, mono_ms: replica.advance(mono_ms))
        super()._add_flusher()
        add(
            "standby's connections",
            lambda: None if self._is_serving else connections.next_deadline_ms(),
            lambda now_ms, mono_ms: connections.sweep(mono_ms),
        )
        calls = self.server.timed_calls
        add(
            "standby's timed calls",
            lambda: None if self._is_serving else calls.next_deadline_mono_ms(),
            lambda now_ms, mono_ms: calls.run(mono_ms),
        )
        self.ticker.arm(self.clock.mono_ms())

    def _add_flusher(self) -> None:
        """Do nothing, because the duty was added when this broker was a standby."""

    # -- Taking over

    async def _follow(self) -> None:
        """Follow the owner until this broker is the owner, and then serve."""
        try:
            await self.membership.replica.follow()
            await self._own()
        except RequestsStopped:
            return
        except OwnershipLost as lost:
            self._deposed(lost)
        except StartError as error:
            self._refuse(error)
        except StoreError as error:
            self._refuse(self._refusal(error))
        except Exception as error:  # noqa: BLE001 - ends the process
            self.fail(error)

    def _refuse(self, error: StartError) -> None:
        """End the process, because an operator must act; no answer leaves any more, and nothing more is uploaded."""
        self._is_serving = False
        self.server.may_answer = _never
        self.membership.replica.stop()
        if not self.ended.done():
            self.ended.set_exception(error)

    async def _own(self) -> None:
        """Make the parts that append, and serve clients. Raises StartError and StoreError."""
        self._probe.stop()
        begun_mono_ms = self.clock.mono_ms()
        # While the store is slow, the lease may end once before the first upload counts.
        self._checked_mono_ms = begun_mono_ms + self.options.cluster.takeover_ms
        check_users(self.security)
        replica = self.membership.replica
        try:
            await replica.begin(self.clock.now_ms())
            await self._complete_tables()
        except OSError as error:
            raise self._refusal(error) from error
        self.serve_log(self.store, self.clock.now_ms(), self.clock.mono_ms(), self._store_host(), is_takeover=True)
        self._is_open = True
        await self.serve_clients()
        self.membership.update_nodes()
        self.server.may_answer = self.http.may_answer = self.may_answer
        self._is_serving = self._has_served = True
        for connection in [*self.server.connections]:
            if isinstance(connection, StandbyRocketMQConnection):
                connection.serve_when_answered()
        await self._standby_http.stop()
        self.server.touch()
        log.info(
            "this broker owns the stream epoch=%d in_ms=%d", self.store.epoch, self.clock.mono_ms() - begun_mono_ms
        )
        self.on_open()
        await self._check_store()

    async def _complete_tables(self) -> None:
        """Wait for the tables of delayed messages. Raises StoreError, RequestsStopped and OSError."""
        begun_mono_ms = self.clock.mono_ms()
        await self._tables.complete(self.store.epoch, self.membership.replica.confirm)
        took_ms = self.clock.mono_ms() - begun_mono_ms
        if took_ms >= TABLES_MS:
            log.warning("tables of delayed messages were downloaded in_ms=%d", took_ms)

    async def _check_store(self) -> None:
        """Test the store again, because it may have changed since the start of this broker. Raises UnreliableStore."""
        try:
            await self.membership.check_store()
        except UnreliableStore:
            raise
        except StoreRefused as error:
            log.warning("object store not tested: %s", error)

    def may_answer(self) -> bool:
        """Whether no other broker can be the owner at this moment."""
        return self.membership.replica.may_answer(self.clock.mono_ms())

    def not_ready_reason(self) -> str:
        """Return why requests may fail now; an empty string means that the broker serves requests."""
        if self._is_serving and not self.may_answer():
            return "the object store does not answer, so another broker may be the owner"
        return super().not_ready_reason()

    def external_watchdog(self) -> ExternalWatchdog:
        """Return the watchdog that disconnects clients while the event loop does not run. It is not started yet."""
        ports = [port for _, port in self.listening.values()]
        lease_ms = lease_length_ms(self.options.cluster.takeover_ms)
        return ExternalWatchdog(self.loop, self.server, ports, lease_ms, self._lease_until_mono_ms)

    def _lease_until_mono_ms(self) -> int | None:
        """Return when the lease of this owner ends; None for a standby."""
        uploader = self.membership.replica.uploader
        return uploader.lease.until_mono_ms if self._is_serving and uploader is not None else None

    def _next_lease_check_mono_ms(self) -> int | None:
        """Return the time at which the lease ends, and after that every LEASE_CHECK_MS until there is one again."""
        until_mono_ms, next_mono_ms = self._lease_until_mono_ms(), self._checked_mono_ms + LEASE_CHECK_MS
        if until_mono_ms is None:
            return None
        return next_mono_ms if self._is_refusing else max(until_mono_ms, next_mono_ms)

    def _check_lease(self, mono_ms: int) -> None:
        """Refuse clients without a lease, because they would wait for answers that may not leave."""
        self._checked_mono_ms = mono_ms
        has_lease = self.may_answer()
        if has_lease and not self._is_refusing:
            return
        self.server.connections.heard_mono_ms = mono_ms  # Clients that are refused are not silent.
        if has_lease:
            self._is_refusing = False
            self._accepting = self.loop.create_task(self._accept_clients())
        else:
            self._refuse_clients()

    def _refuse_clients(self) -> None:
        """Disconnect all clients, and refuse connections, so that clients turn to other brokers at once.

        Ports that accept connections would be asked again and again, because RocketMQ's Java client sends a heartbeat
        over each new connection. If two of its threads connect anew at the same time, one of them may not notice that
        its connection is closed, and waits for the time-out of its request (`NettyRemotingClient.closeChannel`).
        """
        self._is_refusing = True
        self.server.refuse(but="http")
        self.server.abort_all()

    async def _accept_clients(self) -> None:
        """Open the ports again."""
        try:
            await self.server.accept()
        except StartError as error:
            self._refuse(error)

    def _deposed(self, lost: OwnershipLost) -> None:
        if self._releasing is not None:
            return
        self.server.may_answer = _never
        self._refuse_clients()
        has_answered, self._is_serving = self._is_serving, False
        log.warning("another broker owns the stream, this one begins again as a standby reason=%r", str(lost))
        self._releasing = self.loop.create_task(self._begin_again(lost, has_answered=has_answered))

    async def _begin_again(self, lost: OwnershipLost, *, has_answered: bool) -> None:
        """Give up the lease if this broker had one, and end, so that the process begins again."""
        if has_answered:
            with suppress(ObjectStoreError, TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await self.membership.replica.release()
        if not self.ended.done():
            self.ended.set_exception(BeginAgain(str(lost)))

    # -- Running

    def _end_turn(self) -> None:
        if self._is_open:
            super()._end_turn()
        else:
            self._flusher.wake()
            self.ticker.arm(self.clock.mono_ms())

    def _write(self, mono_ms: int) -> None:
        """Write the units of this turn, and begin the uploads that are due."""
        super()._write(mono_ms)
        self.membership.replica.begin_due_uploads(mono_ms)

    def _on_progress(self) -> None:
        """React to slots that count or were copied: promises may be kept, and the copy may be synced."""
        if not self._is_open:
            self.wall_time.copied(self.store.appender.stored_ms, self.clock.mono_ms())
        if not self.store.write_state.is_closed:
            self.server.flush()
            self.server.touch()

    # -- Stopping

    async def stop(self) -> None:
        """Stop in order. An owner first uploads the rest of its log, so that a standby takes over at once."""
        self._following.cancel()
        if self._accepting is not None:
            self._accepting.cancel()
        self._probe.stop()
        self._standby_probe.stop()
        self._forwarding.stop()
        self._tables.stop()
        if self._is_open:
            await super().stop()
            return
        self.server.stop_listening()
        self.ticker.stop()
        await self.membership.stop(0)
        await self._standby_http.stop()
        await self.server.close_all(CLOSE_MS)
        self.stop_store_threads()
        self.store.close_without_writing()

    async def _wait_for_promises(self) -> None:
        await super()._wait_for_promises()
        await self.membership.stop(self.options.server.stop_ms / 1000)


def _never() -> bool:
    return False
