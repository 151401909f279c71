"""Which protocol a group is active in, and what that means for members of the other.

A group may stop in one protocol and go on in the other where it was; it is never in both at once. It is active where
it has live members: Kafka's `subscribe`, RocketMQ's clustering consumers. Kafka's `assign` and RocketMQ's broadcast
have no membership and never count.

    active in     a member of the other family              a one-way commit of the other family
    neither       comes in                                  is taken
    one           is refused with its protocol's own error  is dropped and counted
"""

from enum import Enum
from typing import Protocol


class ClientProtocol(Enum):
    KAFKA = "kafka"
    ROCKETMQ = "rocketmq"


class Membership(Protocol):
    """What a protocol's group coordinator answers; the group is named by its Kafka spelling."""

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

    def admits(self, group: str, family: ClientProtocol) -> bool:
        """Say whether members and commits of `family` are taken for this group now."""
        return self.active(group) in (None, family)
