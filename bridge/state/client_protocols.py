"""A consumer group has members in one client protocol at a time, Kafka or RocketMQ.

A group may stop in one client protocol and go on in the other from its committed offsets; it never has members in both.
A group is active in the client protocol in which it has live members: Kafka's `subscribe`, RocketMQ's clustering
consumers. Kafka's `assign` and RocketMQ's broadcasting consumers are no members.

    active in     a member of the other client protocol     a one-way commit of the other client protocol
    neither       joins                                     is accepted
    one           is refused with its protocol's own error  is dropped and counted
"""

from enum import Enum
from typing import Protocol


class ClientProtocol(Enum):
    KAFKA = "kafka"
    ROCKETMQ = "rocketmq"


class Membership(Protocol):
    """The group coordinator of a client protocol; a group is named by its Kafka spelling."""

    def has_members(self, group: str) -> bool: ...


class ClientProtocols:
    """The rule, asked by both protocols' handlers before they let a member in or take a commit."""

    def __init__(self, kafka: Membership, rocketmq: Membership) -> None:
        self.kafka, self.rocketmq = kafka, rocketmq

    def active(self, group: str) -> ClientProtocol | None:
        """Give the protocol in which the group has live members."""
        if self.kafka.has_members(group):
            return ClientProtocol.KAFKA
        return ClientProtocol.ROCKETMQ if self.rocketmq.has_members(group) else None

    def admits(self, group: str, protocol: ClientProtocol) -> bool:
        """Say whether members and commits of `protocol` are accepted for this group now."""
        return self.active(group) in (None, protocol)
