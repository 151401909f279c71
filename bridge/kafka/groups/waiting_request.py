"""A JoinGroup or SyncGroup request that waits for its group."""

from typing import NamedTuple

from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.net.ordered_outbox import OutboxSlot


class WaitingRequest(NamedTuple):
    """The ticket that a group holds: the slot that the answer fills, the request without its body, and its group."""

    connection: OrderedConnection
    slot: OutboxSlot
    request: KafkaRequest
    group_id: str
