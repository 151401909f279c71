"""The context of the HTTP API: frozen objects with what its handlers use of the broker. `Core.http_context` makes it.

HttpContext               what every part of the API uses: settings, clock, log, topics
  .messages               reading and writing messages
  .delayed                pending messages, schedules, idempotency keys
  .groups                 consumer groups of both client protocols
  .transactions           Kafka transactions and half messages
  .monitoring             what status, health and metrics report
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from duolog.bridge.clock import Clock
from duolog.bridge.config import Options, SettingsInForce
from duolog.bridge.data.delayed.delay_commands import DelayCommands
from duolog.bridge.data.delayed.delay_headers import DelayParser
from duolog.bridge.data.delayed.delays import Delays
from duolog.bridge.data.delayed.schedules import Schedules
from duolog.bridge.data.expiry import ExpiringQueues, ExpiryParser
from duolog.bridge.data.publishing.half_decisions import HalfDecisions
from duolog.bridge.data.publishing.publisher import Publisher
from duolog.bridge.data.reading.queue_reader import QueueReader
from duolog.bridge.hooks import Hooks
from duolog.bridge.kafka.groups.coordinator import GroupCoordinator
from duolog.bridge.maintenance import Maintenance
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.monitoring.history import History
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.monitoring.sealed_data import SealedDataCheck
from duolog.bridge.monitoring.topic_rates import TopicRates
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.net.nodes import Nodes
from duolog.bridge.net.server import Server
from duolog.bridge.rocketmq.admin.consume_counts import ConsumeCounts
from duolog.bridge.rocketmq.consuming.group_configs import GroupConfigs
from duolog.bridge.rocketmq.consuming.pulled_offsets import PulledOffsets
from duolog.bridge.rocketmq.groups.members import GroupMembers
from duolog.bridge.rocketmq.pop.pop_checkpoints import PopCheckpoints
from duolog.bridge.rocketmq.requests.admission import Admission
from duolog.bridge.rocketmq.retry.redriven import RedrivenLetters
from duolog.bridge.security.security import Security
from duolog.bridge.state.client_protocols import ClientProtocols
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.bridge.state.idempotency_keys import IdempotencyKeys
from duolog.bridge.state.lag import GroupLags
from duolog.bridge.state.leases import ReaderLeases
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.bridge.tracing.span_queue import SpanQueue
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.bridge.transactions.kafka_transactions import Transactions
from duolog.delay.tree.lists import PendingLists
from duolog.store.entry import Promise
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog
from duolog.store.store import Store
from duolog.txn.half_verdicts import HalfVerdict
from duolog.txn.isolation import Isolation


@dataclass(frozen=True, slots=True)
class MessageContext:
    """Reading and writing messages."""

    reader: QueueReader
    publisher: Publisher
    isolation: Isolation


@dataclass(frozen=True, slots=True)
class DelayedContext:
    """Delayed and recurring messages."""

    delays: Delays
    commands: DelayCommands
    lists: PendingLists
    schedules: Schedules
    delay_parser: DelayParser
    expiry_parser: ExpiryParser
    expiring_queues: ExpiringQueues
    idempotency_keys: IdempotencyKeys


@dataclass(frozen=True, slots=True)
class GroupContext:
    """Consumer groups of both client protocols. The functions take a group's Kafka name."""

    group_offsets: GroupOffsets
    lags: GroupLags
    client_protocols: ClientProtocols
    kafka_groups: GroupCoordinator[Any]
    rocketmq_members: GroupMembers[Any]
    rocketmq_groups: GroupConfigs
    rocketmq_pop_checkpoints: PopCheckpoints
    rocketmq_consume_counts: ConsumeCounts
    rocketmq_pulled_offsets: PulledOffsets
    # (group) -> the numbers of unread retries and unread dead letters.
    unread_failures: Callable[[str], tuple[int, int]]
    # (group, queue of its dead letters) -> those that were redriven.
    redriven_of: Callable[[str, Queue], RedrivenLetters]
    # `rocketmq.retry.redrive.redrive`
    redrive: Callable[[str, str | None, Sequence[int] | None, Callable[[Topic], bool]], Awaitable[tuple[int, Promise]]]


@dataclass(frozen=True, slots=True)
class TransactionContext:
    """Transactions of Kafka producers and half messages of both client protocols."""

    kafka: Transactions
    halves: HalfMessageLog
    half_decisions: HalfDecisions
    # (offset in the half topic, verdict): `rocketmq.producing.half_messages.decide`
    decide_rocketmq: Callable[[int, HalfVerdict], Awaitable[Promise]]


@dataclass(frozen=True, slots=True)
class MonitoringContext:
    """What status, health and metrics report, in addition to the state in the other contexts.

    The class has more than 15 fields because a scrape reads something of nearly every part of the broker.
    """

    addresses: Addresses
    nodes: Nodes
    cluster_id: str
    started_mono_ms: int
    not_ready_reason: Callable[[], str]  # Returns an empty string while requests can be served.
    server: Server
    metrics: Metrics
    history: History
    topic_rates: TopicRates
    faults: Faults
    poison_records: PoisonRecords
    watchdog: Watchdog
    maintenance: Maintenance
    sealed_data: SealedDataCheck
    rocketmq_admission: Admission
    hooks: Hooks | None
    spans: SpanQueue | None  # None without tracing.
    settings_in_force: SettingsInForce


@dataclass(frozen=True, slots=True)
class HttpContext:
    """What every part of the API uses, and the contexts of the parts."""

    options: Options
    clock: Clock
    store: Store
    state_log: StateLog
    topics: Topics
    security: Security
    leases: ReaderLeases
    messages: MessageContext
    delayed: DelayedContext
    groups: GroupContext
    transactions: TransactionContext
    monitoring: MonitoringContext
