"""The state owners: each registers with the state log, which commits and replays the state records of all."""

import base64
import uuid
from collections.abc import Iterable, Iterator
from functools import partial

from duolog.bridge.clock import Clock
from duolog.bridge.config import Options, SettingsInForce, TracingOptions, level_delays_ms
from duolog.bridge.data.delayed.delay_headers import DelayParser
from duolog.bridge.data.delayed.delays import Delays
from duolog.bridge.data.delayed.schedules import Schedules
from duolog.bridge.data.expiry import ExpiringQueues, ExpiryParser
from duolog.bridge.hooks import Hooks
from duolog.bridge.kafka.group_offsets import subscribed_topics
from duolog.bridge.kafka.groups.coordinator import GroupCoordinator
from duolog.bridge.kafka.groups.waiting_request import WaitingRequest
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.monitoring.history import History
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.monitoring.rates import Rates
from duolog.bridge.monitoring.topic_rates import TopicRates
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.bridge.net.purgatory import Purgatory
from duolog.bridge.records import codec
from duolog.bridge.records.broker import ClusterNamed
from duolog.bridge.rocketmq.context import RocketMQState
from duolog.bridge.security.security import Security
from duolog.bridge.state.client_protocols import ClientProtocols
from duolog.bridge.state.clock_set_back import ClockSetBack
from duolog.bridge.state.deleted_topics import DeletedTopics
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.bridge.state.idempotency_keys import IdempotencyKeys
from duolog.bridge.state.producers import Producers
from duolog.bridge.state.system_topics import system_topics
from duolog.bridge.state.topic_configs import broker_defaults
from duolog.bridge.state.topics import Topics
from duolog.bridge.state.wall_time import WallTime
from duolog.bridge.tracing.span_queue import SpanQueue
from duolog.bridge.tracing.traced_messages import TracedMessages
from duolog.bridge.tracing.tracing import Tracing
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.bridge.transactions.kafka_transactions import Transactions
from duolog.store.entry import EntrySlot
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog


class StateOwners:
    """The state owners, with metrics, faults and records set aside.

    The class has more than 15 fields because it is the only place that names every owner.
    """

    def __init__(self, options: Options, faults: Faults, clock: Clock) -> None:
        """Make the state owners. The order in which they register is the order of records in snapshots."""
        self.options = options
        self.settings_in_force = SettingsInForce(options)
        self.faults = faults
        self.clock = clock
        self.started_mono_ms = clock.mono_ms()
        self.hooks: Hooks | None = None
        self.watchdog = Watchdog()
        self.metrics = Metrics()
        self.rates = Rates(self.metrics.totals)
        self.history = History(self.metrics, self.watchdog)
        self.poison_records = PoisonRecords()
        self.state_log = StateLog(codec, self.poison_records)
        self.poison_records.attach(self.state_log)
        self._cluster = _Cluster(self.state_log)
        self.security = Security(self.state_log, options, clock)
        self.wall_time = WallTime(self.state_log, options.retention)
        self.topics = Topics(
            self.state_log,
            options.topics,
            system=system_topics(
                options.rocketmq.cluster, options.rocketmq.broker, len(level_delays_ms(options.delay.levels))
            ),
            config_defaults=broker_defaults(options),
        )
        self.topic_rates = TopicRates(self.topics.all)
        self.group_offsets = GroupOffsets(self.state_log, self.topics.__contains__, options.groups)
        self.producers = Producers(self.state_log, options.kafka)
        self.expiring_queues = ExpiringQueues(self.state_log)
        self.delay_parser, self.expiry_parser = DelayParser(options.delay), ExpiryParser(options.delay)
        self.delays = Delays(
            self.state_log, self.topics, options.delay, self.delay_parser.limits, self.metrics, self.poison_records
        )
        self.idempotency_keys = IdempotencyKeys(self.state_log, options.http)
        self.transactions = Transactions(
            self.state_log, self.topics, self.group_offsets, self.producers, self.delays.timers, options
        )
        self.isolation = self.transactions.isolation
        self.halves = HalfMessageLog(self.state_log, options.txn, options.store.segment_bytes // 2)
        self.schedules = Schedules(self.state_log, self.topics, options.delay, self.metrics, self.poison_records)
        self.kafka_groups: GroupCoordinator[WaitingRequest] = GroupCoordinator(options.groups)
        self.rocketmq_state = RocketMQState(self.state_log, self.group_offsets, options)
        self.clock_set_back = ClockSetBack()
        self.deleted_topics = self._sweep_of_deleted_topics()
        self.client_protocols = ClientProtocols(self.kafka_groups, self.rocketmq_state.members)
        self.purgatory = Purgatory(
            options.limits.held_bytes_max,
            options.limits.connection_held_bytes_max,
            partial(faults.contain, kind="held request"),
        )
        self.topics.on_deleted = self.purgatory.on_deleted
        self.tracing = self._new_tracing(options.tracing) if options.tracing.endpoint else None

    def _new_tracing(self, options: TracingOptions) -> Tracing:
        def name_of(number: int) -> str | None:
            topic = self.topics.by_number(number)
            return None if topic is None else topic.name

        spans, messages = SpanQueue(options.queue_max), TracedMessages(options.remembered_max)
        return Tracing(spans, messages, options.ratio, self.clock.now_ms, name_of)

    def _sweep_of_deleted_topics(self) -> DeletedTopics:
        """Make what removes state of deleted topics from state owners that may have much of it."""
        deleted_topics = DeletedTopics(self.state_log, self.topics.__contains__)
        for owner in (
            self.group_offsets,
            self.producers,
            self.delays,
            self.transactions,
            self.rocketmq_state.pop_checkpoints,
            self.rocketmq_state.expired_ranges,
        ):
            deleted_topics.add(owner.sweep)
        return deleted_topics

    def topics_of_members(self, group: str) -> Iterator[str | None]:
        """Yield the topics to which a group's connected members subscribe; a topic may come more than once."""
        yield from subscribed_topics(self.kafka_groups, group)
        state = self.rocketmq_state
        yield from list(state.members.subscriptions(state.group_configs.name_of(group)) or ())

    # -- For maintenance and timers

    def first_kept_offset(self, queue: Queue) -> int | None:
        """Return the first offset of a queue that retention must keep, or None if retention may remove all records."""
        first_kept = self.halves.first_kept(queue)
        return self.delays.first_kept(queue) if first_kept is None else first_kept

    def expire(self, now_ms: int) -> Iterator[None]:
        """Remove unused groups and transactional ids, and transactions whose records retention has removed."""
        yield from self.group_offsets.expire(now_ms, self.is_alive)
        yield from self.transactions.tidy(now_ms)

    def clock_was_set_back(self, now_ms: int) -> None:
        """Correct stored times in the future, which stem from a wall clock that was ahead and has been set back.

        Corrections that may raise StoreError run last, so that such an error does not prevent the others.
        """
        owners = (self.rocketmq_state.pop_checkpoints, self.halves.state, self.transactions)
        self.clock_set_back.begin([owner.clock_was_set_back(now_ms) for owner in owners])
        self.delays.clock_was_set_back(now_ms)
        self.schedules.clock_was_set_back(now_ms)

    def is_alive(self, group: str) -> bool:
        """Whether a group must not expire: it has members, or an open transaction may commit offsets for it."""
        return self.client_protocols.active(group) is not None or self.transactions.coordinator.has_group(group)

    @property
    def cluster_id(self) -> str:
        """Kafka's cluster id of the data directory."""
        return self._cluster.id


class _Cluster:
    """Kafka's cluster id of this data directory: 16 random bytes in base64 (Uuid.java), made at the first start."""

    def __init__(self, state_log: StateLog) -> None:
        self.id = ""
        self._state_log = state_log
        state_log.own(ClusterNamed, self._replay)
        state_log.on_snapshot(self._snapshot)

    def create_id_if_missing(self, now_ms: int) -> None:
        if not self.id:
            name = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            self._state_log.commit([ClusterNamed(name)], now_ms)

    def _replay(self, record: ClusterNamed, slot: EntrySlot) -> None:
        self.id = record.cluster_id

    def _snapshot(self) -> Iterable[ClusterNamed]:
        if self.id:
            yield ClusterNamed(self.id)
