"""What the answers of a standby are made of."""

from collections.abc import Callable
from dataclasses import dataclass

from duolog.bridge.clock import Clock
from duolog.bridge.cluster.forwarding import Forwarding
from duolog.bridge.cluster.owner_requests import OwnerRequests
from duolog.bridge.config import Options
from duolog.bridge.kafka.requests.request import AdvertisedVersions
from duolog.bridge.kafka.requests.sliced_requests import SlicedRequests
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.net.connection import Log
from duolog.bridge.net.nodes import Nodes
from duolog.bridge.net.purgatory import Purgatory
from duolog.bridge.net.server import Server
from duolog.bridge.security.security import Security
from duolog.bridge.state.topics import Topics


@dataclass(frozen=True, slots=True)
class StandbyContext:
    """The state that a standby has replayed and may report, and what it knows of the other brokers."""

    server: Server
    clock: Clock
    options: Options
    metrics: Metrics
    nodes: Nodes
    topics: Topics
    security: Security
    store: Log
    purgatory: Purgatory
    sliced_requests: SlicedRequests
    owner_requests: OwnerRequests
    forwarding: Forwarding
    advertised_versions: AdvertisedVersions
    cluster_id_now: Callable[[], str]  # Empty until the record that has it was replayed.
    is_behind: Callable[[], bool]  # Whether `topics` may lack some that exist.

    @property
    def cluster_id(self) -> str:
        """Kafka's cluster id."""
        return self.cluster_id_now()
