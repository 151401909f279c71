"""The rule that a consumer group has members in one client protocol at a time, Kafka or RocketMQ.

A group may stop in one client protocol and continue in the other from its committed offsets. It is active in the client
protocol in which it has connected members: consumers with Kafka's `subscribe`, clustering consumers of RocketMQ.
Kafka's `assign` and RocketMQ's broadcasting consumers are not members.

    the group is    a member of the other protocol         a one-way commit of the other protocol
    not active      joins                                  is accepted
    active in one   is refused with its protocol's error   is dropped and counted
"""

from enum import Enum
from typing import Protocol


class ClientProtocol(Enum):
    """The protocol of a group's members."""

    KAFKA = "kafka"
    ROCKETMQ = "rocketmq"


class Membership(Protocol):
    """The group coordinator of a client protocol; a group is named by its Kafka spelling."""

    def has_members(self, group: str) -> bool: ...


class ClientProtocols:
    """Applies the rule; handlers of both protocols ask before they admit a member or accept a commit."""

    def __init__(self, kafka: Membership, rocketmq: Membership) -> None:
        self.kafka, self.rocketmq = kafka, rocketmq

    def active(self, group: str) -> ClientProtocol | None:
        """Return the client protocol in which the group has connected members, or None."""
        if self.kafka.has_members(group):
            return ClientProtocol.KAFKA
        return ClientProtocol.ROCKETMQ if self.rocketmq.has_members(group) else None

    def admits(self, group: str, protocol: ClientProtocol) -> bool:
        """Return whether members and commits of `protocol` are accepted for this group now."""
        return self.active(group) in (None, protocol)
