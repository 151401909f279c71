"""The class `Core`: all parts of a broker without its ports, threads and timers.

    Core(options, faults, clock)   makes the owners of state, all empty, and registers them with the state log
    core.open_log(...)             recovers the log into them, and makes the parts that read and append
    core.kafka_context             what the handlers of Kafka requests use
    core.rocketmq_context          what the handlers of RocketMQ requests use
    core.http_context()            what the HTTP API uses

A Core opens no port and starts no thread, and takes the time only from `clock`. `Broker` adds ports, threads and
timers. Unit tests use a Core with a disk in memory and a clock that they set.
"""

import base64
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from duolog.bridge.clock import Clock
from duolog.bridge.config import Options, level_delays_ms
from duolog.bridge.data.delayed.delay_headers import DelayParser
from duolog.bridge.data.delayed.delays import Delays
from duolog.bridge.data.delayed.delivery_frames import DeliveryFrames
from duolog.bridge.data.delayed.schedules import Schedules
from duolog.bridge.data.expiry import ExpiringQueues, ExpiryParser
from duolog.bridge.data.publishing.half_decisions import HalfDecisions
from duolog.bridge.data.publishing.publisher import Publisher, PublishOwners
from duolog.bridge.data.reading.queue_reader import QueueReader
from duolog.bridge.hooks import Hooks
from duolog.bridge.http.context import (
    DelayedContext,
    GroupContext,
    HttpContext,
    MessageContext,
    MonitoringContext,
    TransactionContext,
)
from duolog.bridge.kafka import ADVERTISED_VERSIONS
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.group_offsets import subscribed_topics
from duolog.bridge.kafka.groups.coordinator import GroupCoordinator
from duolog.bridge.kafka.groups.turn_work import TurnWork
from duolog.bridge.kafka.groups.waiting_request import WaitingRequest
from duolog.bridge.kafka.requests.metadata_cache import MetadataCache
from duolog.bridge.kafka.requests.sliced_requests import SlicedRequests
from duolog.bridge.maintenance import Maintenance
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import Poison
from duolog.bridge.monitoring.rates import Rates
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.net.purgatory import Purgatory
from duolog.bridge.net.server import Server
from duolog.bridge.records import codec
from duolog.bridge.records.broker import ClusterNamed
from duolog.bridge.rocketmq.context import (
    NameServerContext,
    NodeContext,
    PopContext,
    RocketMQContext,
    RocketMQMessageContext,
    RocketMQState,
    group_context,
    request_context,
)
from duolog.bridge.rocketmq.namesrv.expected_topics import ExpectedTopics
from duolog.bridge.rocketmq.namesrv.write_permission import WritePermission
from duolog.bridge.rocketmq.request_table import TABLE
from duolog.bridge.rocketmq.requests.connection import ConnectionContext
from duolog.bridge.rocketmq.retry import dead_letters
from duolog.bridge.rocketmq.retry.redrive import redrive
from duolog.bridge.state.client_protocols import ClientProtocols
from duolog.bridge.state.clock_set_back import ClockSetBack
from duolog.bridge.state.deleted_topics import DeletedTopics
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.bridge.state.idempotency_keys import IdempotencyKeys
from duolog.bridge.state.lag import GroupLags
from duolog.bridge.state.leases import Leases
from duolog.bridge.state.producers import Producers
from duolog.bridge.state.system_topics import system_topics
from duolog.bridge.state.topic_configs import broker_defaults
from duolog.bridge.state.topics import Topics
from duolog.bridge.state.wall_time import WallTime
from duolog.bridge.transactions.half_messages import HalfMessageLog
from duolog.bridge.transactions.kafka_transactions import Transactions
from duolog.store.entry import Appended, Promise, Slot
from duolog.store.files import Files
from duolog.store.index.queue import Queue
from duolog.store.options import StoreOptions
from duolog.store.state_log import StateLog
from duolog.store.store import Store
from duolog.store.unit import Part


class Core:
    """The owners of state, and the parts that read and append to the log.

    The class has more than fifteen fields, because it is the only place that names every part of the broker. Handlers
    do not get the Core: each client protocol, and HTTP, has a frozen context that names what its handlers use.
    """

    def __init__(self, options: Options, faults: Faults, clock: Clock) -> None:
        """Make the owners of state. The order in which they register is the order of records in snapshots."""
        self.options = options
        self.faults = faults
        self.clock = clock
        self.started_mono_ms = clock.mono_ms()
        self.hooks: Hooks | None = None
        self.watchdog = Watchdog()
        self.metrics = Metrics()
        self.rates = Rates(self.metrics.totals)
        self.poison = Poison()
        self.state_log = StateLog(codec, self.poison)
        self.poison.attach(self.state_log)
        self._cluster = _Cluster(self.state_log)
        self.wall_time = WallTime(self.state_log, options.retention)
        self.topics = Topics(
            self.state_log,
            options.topics,
            system=system_topics(
                options.rocketmq.cluster, options.rocketmq.broker, len(level_delays_ms(options.delay.levels))
            ),
            config_defaults=broker_defaults(options),
        )
        self.group_offsets = GroupOffsets(self.state_log, self.topics.__contains__, options.groups)
        self.producers = Producers(self.state_log, options.kafka)
        self.expiring_queues = ExpiringQueues(self.state_log)
        self.delay_parser, self.expiry_parser = DelayParser(options.delay), ExpiryParser(options.delay)
        self.delays = Delays(self.state_log, self.topics, options.delay, self.metrics, self.poison)
        self.idempotency_keys = IdempotencyKeys(self.state_log, options.http)
        self.transactions = Transactions(
            self.state_log, self.topics, self.group_offsets, self.producers, self.delays.timers, options
        )
        self.isolation = self.transactions.isolation
        self.halves = HalfMessageLog(self.state_log, options.txn, options.store.segment_bytes // 2)
        self.schedules = Schedules(self.state_log, self.topics, options.delay, self.metrics, self.poison)
        self.kafka_groups: GroupCoordinator[WaitingRequest] = GroupCoordinator(options.groups)
        self.rocketmq_state = RocketMQState(self.state_log, self.group_offsets, options)
        self.clock_set_back = ClockSetBack()
        self.deleted_topics = DeletedTopics(self.state_log, self.topics.__contains__)
        for owner in (
            self.group_offsets,
            self.producers,
            self.delays,
            self.transactions,
            self.rocketmq_state.pop_checkpoints,
            self.rocketmq_state.expired_ranges,
        ):
            self.deleted_topics.add(owner.sweep)
        self.client_protocols = ClientProtocols(self.kafka_groups, self.rocketmq_state.members)
        self.purgatory = Purgatory(
            options.limits.held_bytes_max,
            options.limits.connection_held_bytes_max,
            partial(faults.contain, kind="held request"),
        )
        self.topics.on_deleted = self.purgatory.on_deleted

    def open_log(
        self,
        files: Files,
        options: StoreOptions,
        now_ms: int,
        mono_ms: int,
        *,
        store_host: bytes,
        server: Server,
        addresses: Addresses,
    ) -> None:
        """Recover the log, and make the parts that need it. Each append asks `server` to end the turn with a write.

        `store_host` is the packed address of the RocketMQ port for records and message ids: 8 or 20 bytes.
        Raises StoreError if the log cannot be used, and OSError.
        """
        self.server, self.addresses = server, addresses
        self.delays.begin(now_ms, files)
        self.store = Store.open(files, options, self.state_log, now_ms)
        self.rocketmq_state.admission.attach(self.store)
        turn_log = TurnLog(self.store, server.touch)
        self.state_log.attach(turn_log)
        self.wall_time.begin(self.store.appender, now_ms, mono_ms)
        has_lost = self.poison.counts["state record"] > 0
        self.topics.attach(self.store, now_ms, clean=self.store.clean, has_lost=has_lost)
        owners = PublishOwners(
            self.topics,
            self.delays,
            self.schedules,
            self.halves,
            self.expiring_queues,
            self.producers,
            self.transactions,
        )
        self.publisher = Publisher(
            turn_log, self.state_log, owners, self.metrics, self.wall_time, self.options, store_host
        )
        self.delivery_frames = DeliveryFrames(self.topics, self.expiring_queues, self.wall_time, store_host)
        self.reader = QueueReader(self.store, self.transactions.isolation, self.metrics, self.options)
        self.reader.listen(store_host)
        self.halves.attach(self.store, self.topics, store_host)
        self.store.durability.on_visible = self.purgatory.on_visible
        self.store.durability.contain = partial(self.faults.contain, kind="answer")
        self._cluster.name_if_new(now_ms)
        self.delays.attach(self.store, self.delivery_frames, self._cluster.id)
        self.schedules.attach(self.delivery_frames)
        self.wall_time.on_step, self.wall_time.on_set_back = self.transactions.clock_stepped, self._clock_was_set_back
        self.wall_time.observe(now_ms, mono_ms)
        if self.store.appender.has_time_steps:
            self._clock_was_set_back(
                now_ms
            )  # The log may still hold times of a wrong clock that were not corrected before the last stop.
        self.store.checkpoint_after_replay(mono_ms)
        self.clock_set_back.run_all()
        self.leases = Leases(self.store.retention.dead_segments, self.options.leases)
        self.maintenance = Maintenance(
            self.store,
            self.store.retention,
            lambda: [*self.topics.all()],
            self._first_kept_offset,
            self._expire,
            self.options.retention.check_interval_ms,
            mono_ms,
            partial(self.faults.contain, kind="retention of a queue"),
        )
        self.half_decisions = HalfDecisions(self.clock, self.store, self.topics, self.halves, self.publisher)
        self.rocketmq_context = self.make_rocketmq_context()
        self.rocketmq_connections = self._rocketmq_connection_context()
        self.kafka_context = self.make_kafka_context()

    # -- Contexts

    def make_kafka_context(self) -> KafkaContext:
        """Collect what the handlers of Kafka requests use; the log must be open."""
        return KafkaContext(
            clock=self.clock,
            options=self.options,
            metrics=self.metrics,
            addresses=self.addresses,
            cluster_id=self.cluster_id,
            advertised_versions=ADVERTISED_VERSIONS,
            store=self.store,
            barrier=self.state_log.barrier,
            publisher=self.publisher,
            reader=self.reader,
            purgatory=self.purgatory,
            sliced_requests=SlicedRequests(),
            group_work=TurnWork(),
            topics=self.topics,
            metadata_cache=MetadataCache(),
            group_offsets=self.group_offsets,
            groups=self.kafka_groups,
            client_protocols=self.client_protocols,
            count_failed=partial(dead_letters.failed_of, self.rocketmq_context),
            producers=self.producers,
            transactions=self.transactions,
            isolation=self.isolation,
        )

    def http_context(self) -> HttpContext:
        """Collect what the HTTP API uses; the log must be open."""
        return HttpContext(
            options=self.options,
            clock=self.clock,
            store=self.store,
            state_log=self.state_log,
            topics=self.topics,
            leases=self.leases,
            messages=MessageContext(self.reader, self.publisher, self.isolation),
            delayed=DelayedContext(
                self.delays,
                self.delays.commands,
                self.delays.timers.tree.lists,
                self.schedules,
                self.delay_parser,
                self.expiry_parser,
                self.expiring_queues,
                self.idempotency_keys,
            ),
            groups=GroupContext(
                group_offsets=self.group_offsets,
                lags=GroupLags(self.topics, self.group_offsets, self._subscribed_topics),
                client_protocols=self.client_protocols,
                kafka_groups=self.kafka_groups,
                rocketmq_members=self.rocketmq_state.members,
                rocketmq_groups=self.rocketmq_state.group_configs,
                rocketmq_pop_checkpoints=self.rocketmq_state.pop_checkpoints,
                unread_failures=partial(dead_letters.failed_of, self.rocketmq_context),
                position_in=partial(dead_letters.position_in, self.rocketmq_context),
                redrive=partial(redrive, self.rocketmq_context),
            ),
            transactions=TransactionContext(
                kafka=self.transactions,
                halves=self.halves,
                half_decisions=self.half_decisions,
            ),
            monitoring=MonitoringContext(
                addresses=self.addresses,
                cluster_id=lambda: self.cluster_id,
                started_mono_ms=self.started_mono_ms,
                not_ready_reason=self.not_ready_reason,
                server=self.server,
                metrics=self.metrics,
                faults=self.faults,
                poison=self.poison,
                watchdog=self.watchdog,
                maintenance=self.maintenance,
                rocketmq_admission=self.rocketmq_state.admission,
                hooks=self.hooks,
            ),
        )

    def make_rocketmq_context(self) -> RocketMQContext:
        """Collect what the handlers of RocketMQ requests use; the log must be open."""
        state = self.rocketmq_state
        return RocketMQContext(
            clock=self.clock,
            options=self.options,
            server=self.server,
            purgatory=self.purgatory,
            metrics=self.metrics,
            poison=self.poison,
            store=self.store,
            state_log=self.state_log,
            topics=self.topics,
            node=NodeContext(self.addresses, self.started_mono_ms, self.rates),
            messages=RocketMQMessageContext(
                publisher=self.publisher,
                reader=self.reader,
                isolation=self.isolation,
                halves=self.halves,
                delay_commands=self.delays.commands,
                schedules=self.schedules,
                expiring_queues=self.expiring_queues,
                wall_time=self.wall_time,
            ),
            groups=group_context(state, self.group_offsets, self.client_protocols, self.server),
            pop=PopContext(state.pop_checkpoints, set()),
            names=NameServerContext(state.key_values, ExpectedTopics(), WritePermission()),
            requests=request_context(state.admission, self.clock, self.options.rocketmq.wait_ms),
        )

    def _rocketmq_connection_context(self) -> ConnectionContext:
        """Collect what the connections of RocketMQ clients use."""
        return ConnectionContext(
            server=self.server,
            store=self.store,
            purgatory=self.purgatory,
            metrics=self.metrics,
            admission=self.rocketmq_state.admission,
            background_queues=self.rocketmq_context.requests.background_queues,
            halves=self.halves,
            table=TABLE,
            inflate_bytes_max=self.options.convert.inflate_bytes_max,
            handlers=self.rocketmq_context,
        )

    def not_ready_reason(self) -> str:
        """Return why requests may fail now; an empty string means that nothing is wrong."""
        return self.store.refusal

    def _subscribed_topics(self, group: str) -> Iterator[str | None]:
        """Yield the topics to which a group's connected members subscribe; a topic may come more than once."""
        yield from subscribed_topics(self.kafka_groups, group)
        state = self.rocketmq_state
        yield from list(state.members.subscriptions(state.group_configs.name_of(group)) or ())

    # -- For maintenance and timers

    def _first_kept_offset(self, queue: Queue) -> int | None:
        """Return the first offset of a queue that retention must keep, or None if retention may remove all records."""
        first_kept = self.halves.first_kept(queue)
        return self.delays.first_kept(queue) if first_kept is None else first_kept

    def _expire(self, now_ms: int) -> Iterator[None]:
        """Remove unused groups and transactional ids, and transactions whose records retention has removed."""
        yield from self.group_offsets.expire(now_ms, self.is_alive)
        yield from self.transactions.tidy(now_ms)

    def _clock_was_set_back(self, now_ms: int) -> None:
        """Correct stored times in the future, which stem from a wall clock that was ahead and has been set back.

        Corrections that may raise StoreError run last, so that such an error does not prevent the others.
        """
        owners = (self.rocketmq_state.pop_checkpoints, self.halves.state, self.transactions)
        self.clock_set_back.begin([owner.clock_was_set_back(now_ms) for owner in owners])
        self.delays.clock_was_set_back(now_ms)
        self.schedules.clock_was_set_back(now_ms)

    def is_alive(self, group: str) -> bool:
        """Whether a group must not expire: it has members, or an open transaction may commit offsets for it."""
        return self.client_protocols.active(group) is not None or self.transactions.coordinator.holds(group)

    @property
    def cluster_id(self) -> str:
        return self._cluster.id

    @property
    def listening(self) -> Mapping[str, tuple[str, int]]:
        return self.addresses.listening

    @property
    def rocketmq_address(self) -> tuple[str, int]:
        """The host and port to which RocketMQ clients are told to connect."""
        return self.addresses.rocketmq


class TurnLog:
    """The store's append functions; each call also asks for a write of the log at the end of the turn."""

    __slots__ = ("_append", "_append_freeing", "_touch", "promise")

    def __init__(self, store: Store, touch: Callable[[], None]) -> None:
        self._append, self._append_freeing = store.append, store.appender.append_freeing
        self._touch = touch
        self.promise: Callable[[], Promise] = store.promise

    def append(self, entries: Sequence[Part], now_ms: int) -> Appended:
        self._touch()
        return self._append(entries, now_ms)

    def append_freeing(self, entries: Sequence[Part], now_ms: int) -> Appended:
        self._touch()
        return self._append_freeing(entries, now_ms)


class _Cluster:
    """Kafka's cluster id of this data directory: 16 random bytes in base64 (Uuid.java), made at the first start."""

    def __init__(self, state_log: StateLog) -> None:
        self.id = ""
        self._state_log = state_log
        state_log.own(ClusterNamed, self._replay)
        state_log.on_snapshot(self._snapshot)

    def name_if_new(self, now_ms: int) -> None:
        if not self.id:
            name = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            self._state_log.commit([ClusterNamed(name)], now_ms)

    def _replay(self, record: ClusterNamed, slot: Slot) -> None:
        self.id = record.cluster_id

    def _snapshot(self) -> Iterable[ClusterNamed]:
        if self.id:
            yield ClusterNamed(self.id)
