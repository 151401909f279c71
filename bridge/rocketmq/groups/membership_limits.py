"""How many groups, topics and bytes of subscriptions the clients of RocketMQ may have."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from duolog.bridge.rocketmq.groups.consumer_group import NAME_CHARACTERS_MAX, size_of
from duolog.protocol.rocketmq.bodies import HeartbeatData

MEMBERSHIPS_MAX: Final = 200_000  # The number of all memberships of channels in groups.


class TooManyMembers(Exception):
    """A limit is reached: `rocketmq.groups_max`, another setting, or one of this module; the message says which."""


@dataclass(frozen=True, slots=True)
class MembershipLimits:
    """The limits; each field but `memberships_max` is the setting `rocketmq.<name>`."""

    groups_max: int
    client_groups_max: int
    subscriptions_max: int
    subscribed_bytes_max: int
    client_subscribed_bytes_max: int
    memberships_max: int = MEMBERSHIPS_MAX

    def check_counts(self, data: HeartbeatData, consuming: AbstractSet[str], producing: AbstractSet[str]) -> None:
        """Raise TooManyMembers if a heartbeat names too many groups or topics, before each of them is processed.

        `consuming` and `producing` are the groups that the client is in already.
        """
        named = len(data.consumer_data_set) + len(data.producer_data_set)
        count = named + len(consuming) + len(producing)
        if count > self.client_groups_max:  # Some groups may be counted twice; then they are counted exactly below.
            count -= len(consuming & {each.group_name for each in data.consumer_data_set})
            count -= len(producing & {each.group_name for each in data.producer_data_set})
        if count > self.client_groups_max:
            raise TooManyMembers(f"a client in {count} groups; rocketmq.client_groups_max={self.client_groups_max}")
        for consumer in data.consumer_data_set:
            topics = len(consumer.subscription_data_set)
            if topics > self.subscriptions_max:
                raise TooManyMembers(
                    f"group {consumer.group_name[:NAME_CHARACTERS_MAX]} subscribes to {topics} topics;"
                    f" rocketmq.subscriptions_max={self.subscriptions_max}"
                )

    def check_sums(self, data: HeartbeatData, others_size: int, membership_count: int, subscribed_bytes: int) -> None:
        """Check the sums as if all of the heartbeat were new, so a client close to a limit may be refused too early.

        `others_size` is the size of the client's subscriptions in groups that the heartbeat does not name.
        """
        names = [data.client_id, *(producer.group_name for producer in data.producer_data_set)]
        if max(map(len, names)) > NAME_CHARACTERS_MAX:
            raise TooManyMembers(f"a name of {max(map(len, names))} characters; {NAME_CHARACTERS_MAX} are allowed")
        count = membership_count + len(data.consumer_data_set) + len(data.producer_data_set)
        if count > self.memberships_max:
            raise TooManyMembers(f"{count} members of groups; {self.memberships_max} are allowed")
        size = sum(size_of(each.subscription_data_set) for each in data.consumer_data_set)
        if size + others_size > self.client_subscribed_bytes_max:
            raise TooManyMembers(
                f"subscriptions of {size + others_size} bytes of one client;"
                f" rocketmq.client_subscribed_bytes_max={self.client_subscribed_bytes_max}"
            )
        if subscribed_bytes + size > self.subscribed_bytes_max:
            raise TooManyMembers(
                f"subscriptions of {subscribed_bytes + size} bytes;"
                f" rocketmq.subscribed_bytes_max={self.subscribed_bytes_max}"
            )
