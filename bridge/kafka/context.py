"""The context of Kafka's handlers: one frozen object that names all that they use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from duolog.bridge.clock import Clock
from duolog.bridge.config import Options
from duolog.bridge.data.publishing.publisher import Publisher
from duolog.bridge.data.reading.queue_reader import QueueReader
from duolog.bridge.kafka.groups.coordinator import GroupCoordinator
from duolog.bridge.kafka.groups.turn_work import TurnWork
from duolog.bridge.kafka.groups.waiting_request import WaitingRequest
from duolog.bridge.kafka.requests.metadata_cache import MetadataCache
from duolog.bridge.kafka.requests.request import AdvertisedVersions
from duolog.bridge.kafka.requests.sliced_requests import SlicedRequests
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.net.connection import Log
from duolog.bridge.net.nodes import Nodes
from duolog.bridge.net.purgatory import Purgatory
from duolog.bridge.security.security import Security
from duolog.bridge.state.client_protocols import ClientProtocols
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.bridge.state.producers import Producers
from duolog.bridge.state.topics import Topics
from duolog.bridge.tracing.tracing import Tracing
from duolog.bridge.transactions.kafka_transactions import Transactions
from duolog.store.entry import Promise
from duolog.store.store import Store
from duolog.txn.isolation import Isolation


class Describing(Protocol):
    """What answers that describe the brokers and their topics need. A standby has it, too."""

    @property
    def options(self) -> Options: ...

    @property
    def nodes(self) -> Nodes: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def advertised_versions(self) -> AdvertisedVersions: ...

    @property
    def topics(self) -> Topics: ...


class Serving(Describing, Protocol):
    """The collaborators of a connection and of a login, on an owner and on a standby."""

    @property
    def clock(self) -> Clock: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def store(self) -> Log: ...

    @property
    def purgatory(self) -> Purgatory: ...

    @property
    def sliced_requests(self) -> SlicedRequests: ...

    @property
    def security(self) -> Security: ...


@dataclass(frozen=True, slots=True)
class KafkaContext:
    """The collaborators of Kafka's handlers; `Core.open_log` makes it.

    The class has more than 15 fields because 45 APIs share it: each field is one state owner or one service, a
    handler uses three or four of them, and Produce and Fetch reach each in one step.
    """

    clock: Clock
    options: Options
    metrics: Metrics
    addresses: Addresses
    nodes: Nodes
    cluster_id: str
    advertised_versions: AdvertisedVersions

    store: Store
    barrier: Callable[[], Promise | None]
    """Returns the promise for an answer that reports state of the broker; None: all state is durable."""
    publisher: Publisher
    reader: QueueReader
    purgatory: Purgatory
    sliced_requests: SlicedRequests

    topics: Topics
    metadata_cache: MetadataCache
    group_offsets: GroupOffsets
    groups: GroupCoordinator[WaitingRequest]
    group_work: TurnWork
    client_protocols: ClientProtocols
    count_unread_failures: Callable[[str], tuple[int, int]]
    """Returns the numbers of a group's retries and dead letters that its RocketMQ consumers have not read."""

    security: Security

    producers: Producers
    transactions: Transactions
    isolation: Isolation
    tracing: Tracing | None
