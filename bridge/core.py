"""The class `Core`: all parts of a broker without its ports, threads and timers.

    Core(options, faults, clock)   makes the state owners, all empty (`owners.py`)
    core.open_log(...)             recovers the log into them, and makes the parts that read and append
    core.kafka_context             what the handlers of Kafka requests use
    core.rocketmq_context          what the handlers of RocketMQ requests use
    core.http_context()            what the HTTP API uses

A Core opens no port and starts no thread, and takes the time only from `clock`. `Broker` adds ports, threads and
timers. Unit tests use a Core with a disk in memory and a clock that they set.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from duolog.bridge.data.delayed.delivery_frames import DeliveryFrames
from duolog.bridge.data.publishing.half_decisions import HalfDecisions
from duolog.bridge.data.publishing.publisher import Publisher, PublishOwners
from duolog.bridge.data.reading.queue_reader import QueueReader
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
from duolog.bridge.kafka.groups.turn_work import TurnWork
from duolog.bridge.kafka.requests.metadata_cache import MetadataCache
from duolog.bridge.kafka.requests.sliced_requests import SlicedRequests
from duolog.bridge.maintenance import Maintenance
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.monitoring.sealed_data import SealedDataCheck
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.net.nodes import Nodes
from duolog.bridge.net.server import Server
from duolog.bridge.owners import StateOwners
from duolog.bridge.rocketmq.access.gate import Gate, first_request_bytes_max
from duolog.bridge.rocketmq.access.signed_requests import SignedRequests
from duolog.bridge.rocketmq.context import (
    NameServerContext,
    NodeContext,
    PopContext,
    RocketMQContext,
    RocketMQMessageContext,
    group_context,
    request_context,
)
from duolog.bridge.rocketmq.namesrv.expected_topics import ExpectedTopics
from duolog.bridge.rocketmq.namesrv.write_permission import WritePermission
from duolog.bridge.rocketmq.pop.revive import Reviver
from duolog.bridge.rocketmq.pop.revived_copies import RevivedCopies
from duolog.bridge.rocketmq.producing import half_messages
from duolog.bridge.rocketmq.request_table import TABLE
from duolog.bridge.rocketmq.requests.connection import ConnectionContext
from duolog.bridge.rocketmq.retry.redrive import redrive
from duolog.bridge.rocketmq.retry.redriven import redriven_of
from duolog.bridge.rocketmq.retry.retry_topics import RetryTopics
from duolog.bridge.rocketmq.retry.unread_failures import count_unread_failures
from duolog.bridge.security.resources import DLQ, RETRY
from duolog.bridge.state.lag import GroupLags
from duolog.bridge.state.leases import ReaderLeases
from duolog.bridge.tracing.tracing import Tracing
from duolog.store.entry import Appended, Promise
from duolog.store.files import Files
from duolog.store.index.queue import Queue
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from duolog.store.unit import Part


class Core(StateOwners):
    """The state owners, the parts that read and append to the log, and the contexts of the handlers.

    The class has more than 20 methods and 15 fields because it is the only place that names every part of the broker:
    its fields are the parts and the state owners, and each method makes or connects some of them. Core extends
    StateOwners because the state owners alone recover a log; it adds the parts that need the open log. Handlers do not
    get the Core: each client protocol, and HTTP, has a frozen context that names what its handlers use.
    """

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
        """Recover the log, and make the parts that need it. Each append makes `server` write at the end of the turn.

        `store_host` is the packed address of the RocketMQ port for records and message ids: 8 or 20 bytes.
        Raises StoreError if the log cannot be used, and OSError.
        """
        self.prepare_log(files, now_ms, server, addresses)
        self.serve_log(Store.open(files, options, self.state_log, now_ms), now_ms, mono_ms, store_host)

    def prepare_log(self, files: Files, now_ms: int, server: Server, addresses: Addresses) -> None:
        """Set what the state owners need before they replay a log. To be called before a store is opened."""
        self.server, self.addresses, self._files = server, addresses, files
        self.nodes = Nodes.alone(addresses)
        self.delays.timers.begin(now_ms, files)

    def serve_log(
        self, store: Store, now_ms: int, mono_ms: int, store_host: bytes, *, is_takeover: bool = False
    ) -> None:
        """Make the parts that read and append to a store, in which a run has begun and whose state was replayed.

        With `is_takeover`, another broker has appended to the log until now, so all queues get a higher leader epoch.
        """
        self.store = store
        self.rocketmq_state.admission.attach(self.store)
        turn_log = self._turn_log()
        self.state_log.attach(turn_log)
        self.wall_time.begin(self.store.appender, now_ms, mono_ms)
        has_lost = self.poison_records.counts["state record"] > 0
        follows_owner = is_takeover or self.store.is_last_run_empty
        self.topics.attach(self.store, now_ms, clean=self.store.clean, has_lost=has_lost, is_takeover=follows_owner)
        self._make_publisher_and_readers(turn_log, store_host)
        self.halves.attach(self.store, self.topics, store_host, self.publisher.append_accepted)
        self.store.durability.on_visible = self.purgatory.on_visible
        self.store.durability.contain = partial(self.faults.contain, kind="answer")
        self._cluster.create_id_if_missing(now_ms)
        self.delays.attach(self.store, self.delivery_frames, self._cluster.id)
        self.schedules.attach(self.delivery_frames)
        self._observe_clock(now_ms, mono_ms)
        if not is_takeover:
            self.store.checkpoint_after_replay(mono_ms)
        self.clock_set_back.run_all()
        self.leases = ReaderLeases(self.store.retention.dead_segments, self.options.leases)
        self.maintenance = self._maintenance(mono_ms)
        self.sealed_data = self._sealed_data_check()
        self.half_decisions = HalfDecisions(self.clock, self.store, self.topics, self.halves, self.publisher)
        self.rocketmq_context = self.make_rocketmq_context()
        self.reviver = self._reviver()
        self.rocketmq_connections = self._rocketmq_connection_context()
        self.kafka_context = self.make_kafka_context()
        self.security.origins = self._origins

    def _origins(self, group: str) -> Iterator[str]:
        """Yield the topics, in Kafka's spelling, whose messages may be in the retry and dead-letter topic of a group.

        These are the topics whose messages are in the two topics now, and the topics that the group consumes.
        """
        for prefix in (RETRY, DLQ):
            failed = self.topics.by_kafka_name(prefix + group)
            if failed is not None:
                yield from failed.origins
        subscribed = (name for name in self.topics_of_members(group) if name is not None)
        found = {
            *(self.topics.by_number(Queue.split(key)[0]) for key in self.group_offsets.all_of(group)),
            *map(self.topics.get, subscribed),
        }
        for topic in found:
            if topic is not None and not topic.kafka_name.startswith((RETRY, DLQ)):
                yield topic.kafka_name

    def _turn_log(self) -> "TurnLog":
        if self.tracing is None:
            return TurnLog(self.store, self.server.touch)
        self.tracing.attach(self.store.when)
        return TracedLog(self.store, self.server.touch, self.tracing, self.faults)

    def _make_publisher_and_readers(self, turn_log: "TurnLog", store_host: bytes) -> None:
        owners = PublishOwners(
            self.topics,
            self.delays,
            self.schedules,
            self.halves,
            self.expiring_queues,
            self.producers,
            self.transactions,
            self.security.quotas,
        )
        self.publisher = Publisher(
            turn_log, self.state_log, owners, self.metrics, self.wall_time, self.options, store_host
        )
        self.delivery_frames = DeliveryFrames(self.topics, self.expiring_queues, self.wall_time, store_host)
        self.reader = QueueReader(self.store, self.transactions.isolation, self.metrics, self.options)
        self.reader.listen(store_host)

    def _observe_clock(self, now_ms: int, mono_ms: int) -> None:
        self.wall_time.on_step, self.wall_time.on_set_back = self.transactions.clock_stepped, self.clock_was_set_back
        self.wall_time.observe(now_ms, mono_ms)
        if self.store.appender.has_time_steps:
            # The log may still hold times of a wrong clock that were not corrected before the last stop.
            self.clock_was_set_back(now_ms)

    def _sealed_data_check(self) -> SealedDataCheck:
        store = self.store
        return SealedDataCheck(
            self._files,
            lambda: [each for each in store.segments() if each.known_end <= store.written],
            self.delays.timers.tree.context.tables.view,
            lambda: store.executors.background,
            self.options.store.verify_bytes_per_s,
        )

    def _maintenance(self, mono_ms: int) -> Maintenance:
        return Maintenance(
            self.store,
            self.store.retention,
            lambda: [*self.topics.all()],
            self.first_kept_offset,
            self.expire,
            self.options.retention.check_interval_ms,
            mono_ms,
            partial(self.faults.contain, kind="retention of a queue"),
        )

    # -- Contexts

    def make_kafka_context(self) -> KafkaContext:
        """Collect what the handlers of Kafka requests use; the log must be open."""
        return KafkaContext(
            clock=self.clock,
            options=self.options,
            metrics=self.metrics,
            addresses=self.addresses,
            nodes=self.nodes,
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
            count_unread_failures=partial(count_unread_failures, self.rocketmq_context),
            security=self.security,
            producers=self.producers,
            transactions=self.transactions,
            isolation=self.isolation,
            tracing=self.tracing,
        )

    def http_context(self) -> HttpContext:
        """Collect what the HTTP API uses; the log must be open."""
        return HttpContext(
            options=self.options,
            clock=self.clock,
            store=self.store,
            state_log=self.state_log,
            topics=self.topics,
            security=self.security,
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
            groups=self._http_groups(),
            transactions=TransactionContext(
                kafka=self.transactions,
                halves=self.halves,
                half_decisions=self.half_decisions,
                decide_rocketmq=partial(half_messages.decide, self.rocketmq_context),
            ),
            monitoring=self._http_monitoring(),
        )

    def _http_groups(self) -> GroupContext:
        return GroupContext(
            group_offsets=self.group_offsets,
            lags=GroupLags(self.topics, self.group_offsets, self.topics_of_members),
            client_protocols=self.client_protocols,
            kafka_groups=self.kafka_groups,
            rocketmq_members=self.rocketmq_state.members,
            rocketmq_groups=self.rocketmq_state.group_configs,
            rocketmq_pop_checkpoints=self.rocketmq_state.pop_checkpoints,
            rocketmq_consume_counts=self.rocketmq_context.groups.consume_counts,
            rocketmq_pulled_offsets=self.rocketmq_context.groups.pulled_offsets,
            unread_failures=partial(count_unread_failures, self.rocketmq_context),
            redriven_of=partial(redriven_of, self.rocketmq_context),
            redrive=partial(redrive, self.rocketmq_context),
        )

    def _http_monitoring(self) -> MonitoringContext:
        return MonitoringContext(
            addresses=self.addresses,
            nodes=self.nodes,
            cluster_id=self.cluster_id,
            started_mono_ms=self.started_mono_ms,
            not_ready_reason=self.not_ready_reason,
            server=self.server,
            metrics=self.metrics,
            history=self.history,
            topic_rates=self.topic_rates,
            faults=self.faults,
            poison_records=self.poison_records,
            watchdog=self.watchdog,
            maintenance=self.maintenance,
            sealed_data=self.sealed_data,
            rocketmq_admission=self.rocketmq_state.admission,
            hooks=self.hooks,
            spans=None if self.tracing is None else self.tracing.spans,
            settings_in_force=self.settings_in_force,
        )

    def make_rocketmq_context(self) -> RocketMQContext:
        """Collect what the handlers of RocketMQ requests use; the log must be open."""
        state = self.rocketmq_state
        names_v2 = self.options.rocketmq.retry_topic_v2
        retry_topics = RetryTopics(state.group_configs, self.topics, self.purgatory, self.clock, names_v2=names_v2)
        return RocketMQContext(
            clock=self.clock,
            options=self.options,
            server=self.server,
            purgatory=self.purgatory,
            metrics=self.metrics,
            poison_records=self.poison_records,
            store=self.store,
            state_log=self.state_log,
            topics=self.topics,
            security=self.security,
            tracing=self.tracing,
            node=NodeContext(self.addresses, self.nodes, self.started_mono_ms, self.rates),
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
            groups=group_context(state, self.group_offsets, self.client_protocols, self.server, retry_topics),
            pop=PopContext(state.pop_checkpoints, set()),
            names=NameServerContext(state.key_values, ExpectedTopics(), WritePermission()),
            requests=request_context(state.admission, self.clock, self.options.rocketmq.wait_ms),
        )

    def _reviver(self) -> Reviver:
        """Make what revives popped messages whose invisible time is over."""
        state, retry_topics = self.rocketmq_state, self.rocketmq_context.groups.retry_topics
        copies = RevivedCopies(
            state.group_configs,
            self.topics,
            retry_topics,
            self.publisher,
            self.metrics,
            self.poison_records,
            self.wall_time,
        )
        return Reviver(state.pop_checkpoints, self.topics, self.reader, copies, self.purgatory, self.clock)

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
            gate=Gate(self.security, SignedRequests(self.security)) if self.security.is_enabled else None,
            quotas=self.security.quotas,
            first_request_bytes_max=first_request_bytes_max(self.options),
            inflate_bytes_max=self.options.convert.inflate_bytes_max,
            handlers=self.rocketmq_context,
        )

    def not_ready_reason(self) -> str:
        """Return why requests may fail now; an empty string means that nothing is wrong."""
        return self.store.refusal

    @property
    def listening(self) -> Mapping[str, tuple[str, int]]:
        """The host and port of each listening socket, by the name of the port."""
        return self.addresses.listening

    @property
    def rocketmq_address(self) -> tuple[str, int]:
        """Return the advertised host and port of the RocketMQ listener."""
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


class TracedLog(TurnLog):
    """A TurnLog that makes the spans of traced messages in what it appends."""

    __slots__ = ("_faults", "_tracing")

    def __init__(self, store: Store, touch: Callable[[], None], tracing: Tracing, faults: Faults) -> None:
        super().__init__(store, touch)
        self._tracing, self._faults = tracing, faults

    def append(self, entries: Sequence[Part], now_ms: int) -> Appended:
        appended = super().append(entries, now_ms)
        try:
            self._tracing.appended(entries, appended, now_ms)
        except Exception as error:  # noqa: BLE001 - the unit is in the log already
            self._faults.contain(error, "tracing")
        return appended
