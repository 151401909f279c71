"""The context of RocketMQ's handlers: one frozen object that names all that they use.

    RocketMQState     the state owners; they exist before the log is opened, which replays their records
    RocketMQContext   the state, the open log and the connections; `Core.open_log` makes it

A handler gets the whole context. A class that lives longer than one request, and a duty, get only the objects that they
use.
"""

from dataclasses import dataclass

from duolog.bridge.clock import Clock
from duolog.bridge.config import Options
from duolog.bridge.data.delayed.delay_commands import DelayCommands
from duolog.bridge.data.delayed.schedules import Schedules
from duolog.bridge.data.expiry import ExpiringQueues
from duolog.bridge.data.publishing.publisher import Publisher
from duolog.bridge.data.reading.queue_reader import QueueReader
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.monitoring.rates import Rates
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.net.nodes import Nodes
from duolog.bridge.net.purgatory import Purgatory
from duolog.bridge.net.server import Server
from duolog.bridge.rocketmq.admin.consume_counts import ConsumeCounts
from duolog.bridge.rocketmq.consuming.change_notifications import ChangeNotifications
from duolog.bridge.rocketmq.consuming.expired_ranges import ExpiredRanges
from duolog.bridge.rocketmq.consuming.group_configs import GroupConfigs
from duolog.bridge.rocketmq.consuming.locks import Locks
from duolog.bridge.rocketmq.consuming.pulled_offsets import PulledOffsets
from duolog.bridge.rocketmq.consuming.request_modes import RequestModes
from duolog.bridge.rocketmq.consuming.reset_marks import ResetMarks
from duolog.bridge.rocketmq.groups.members import GroupMembers
from duolog.bridge.rocketmq.groups.membership_limits import MembershipLimits
from duolog.bridge.rocketmq.namesrv.expected_topics import ExpectedTopics
from duolog.bridge.rocketmq.namesrv.key_values import KeyValues
from duolog.bridge.rocketmq.namesrv.write_permission import WritePermission
from duolog.bridge.rocketmq.pop.pop_checkpoints import PopCheckpoints
from duolog.bridge.rocketmq.producing.batches_in_progress import BatchesInProgress
from duolog.bridge.rocketmq.requests.admission import Admission, Kind
from duolog.bridge.rocketmq.requests.background_requests import BACKGROUND_KINDS, BackgroundQueue
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.retry.retry_topics import RetryTopics
from duolog.bridge.security.security import Security
from duolog.bridge.state.client_protocols import ClientProtocols
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.bridge.state.topics import Topics
from duolog.bridge.state.wall_time import WallTime
from duolog.bridge.tracing.tracing import Tracing
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.store.state_log import StateLog
from duolog.store.store import Store
from duolog.txn.isolation import Isolation


class RocketMQState:
    """The owners of RocketMQ's state. Each registers its records with the state log when it is made."""

    def __init__(self, state_log: StateLog, positions: GroupOffsets, options: Options) -> None:
        rocketmq = options.rocketmq
        self.members: GroupMembers[RocketMQConnection] = GroupMembers(
            MembershipLimits(
                groups_max=rocketmq.groups_max,
                client_groups_max=rocketmq.client_groups_max,
                subscriptions_max=rocketmq.subscriptions_max,
                subscribed_bytes_max=rocketmq.subscribed_bytes_max,
                client_subscribed_bytes_max=rocketmq.client_subscribed_bytes_max,
            )
        )
        self.group_configs = GroupConfigs(state_log, options.groups.count_max, rocketmq.group_config_bytes_max)
        self.key_values = KeyValues(state_log)
        self.request_modes = RequestModes(state_log)
        self.pop_checkpoints = PopCheckpoints(state_log, rocketmq.popped_bytes_max)
        self.expired_ranges = ExpiredRanges(state_log, positions)
        self.admission = Admission(rocketmq)


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What this broker reports about itself to clients and tools."""

    addresses: Addresses
    nodes: Nodes
    started_mono_ms: int
    rates: Rates


@dataclass(frozen=True, slots=True)
class RocketMQMessageContext:
    """Publishing and reading of messages, and the owners of half, delayed and expiring messages."""

    publisher: Publisher
    reader: QueueReader
    isolation: Isolation
    halves: HalfMessageLog
    delay_commands: DelayCommands
    schedules: Schedules
    expiring_queues: ExpiringQueues
    wall_time: WallTime


@dataclass(frozen=True, slots=True)
class RocketMQGroupContext:
    """Consumer and producer groups: configs, members, committed offsets, and notifications to members."""

    configs: GroupConfigs
    members: GroupMembers[RocketMQConnection]
    group_offsets: GroupOffsets
    client_protocols: ClientProtocols
    change_notifications: ChangeNotifications
    request_modes: RequestModes
    expired_ranges: ExpiredRanges
    locks: Locks
    reset_marks: ResetMarks
    consume_counts: ConsumeCounts
    pulled_offsets: PulledOffsets
    retry_topics: RetryTopics


@dataclass(frozen=True, slots=True)
class PopContext:
    """Messages that POP consumers have taken and not acknowledged."""

    checkpoints: PopCheckpoints
    reading: set[tuple[str, int]]  # The groups and queue keys for which a pop waits for a reader thread.


@dataclass(frozen=True, slots=True)
class NameServerContext:
    """What requests to the embedded name server read or change."""

    key_values: KeyValues
    expected_topics: ExpectedTopics
    write_permission: WritePermission


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Limits of requests, and requests that wait for their turn."""

    admission: Admission
    background_queues: dict[Kind, BackgroundQueue]
    batches: BatchesInProgress


@dataclass(frozen=True, slots=True)
class RocketMQContext:
    """The collaborators of the handlers of RocketMQ requests.

    The class has more than 15 fields because handlers of all kinds use the first eleven; the others are in contexts by
    subject.
    """

    clock: Clock
    options: Options
    server: Server
    purgatory: Purgatory
    metrics: Metrics
    poison_records: PoisonRecords
    store: Store
    state_log: StateLog
    topics: Topics
    security: Security
    tracing: Tracing | None
    node: NodeContext
    messages: RocketMQMessageContext
    groups: RocketMQGroupContext
    pop: PopContext
    names: NameServerContext
    requests: RequestContext


def group_context(
    state: RocketMQState,
    positions: GroupOffsets,
    client_protocols: ClientProtocols,
    server: Server,
    retry_topics: RetryTopics,
) -> RocketMQGroupContext:
    """Make the context of groups."""
    unsent_bytes_max = server.connections.limits.unsent_bytes_max
    return RocketMQGroupContext(
        configs=state.group_configs,
        members=state.members,
        group_offsets=positions,
        client_protocols=client_protocols,
        change_notifications=ChangeNotifications(state.group_configs, state.members, server, unsent_bytes_max),
        request_modes=state.request_modes,
        expired_ranges=state.expired_ranges,
        locks=Locks(),
        reset_marks=ResetMarks(),
        consume_counts=ConsumeCounts(),
        pulled_offsets=PulledOffsets(),
        retry_topics=retry_topics,
    )


def request_context(admission: Admission, clock: Clock, wait_ms: int) -> RequestContext:
    """Make the context of requests that wait."""
    queues = {kind: BackgroundQueue(kind, admission, clock, wait_ms) for kind in BACKGROUND_KINDS}
    return RequestContext(admission, queues, BatchesInProgress(admission))
