"""The members of all RocketMQ groups: producers and consumers, as their clients' heartbeats name them.

    heartbeat                                               ──> the connection is in the groups that it names
    unregister, connection closed, silent for CHANNEL_MS    ──> the connection leaves these groups

Each heartbeat of a client names all its groups, and the subscriptions of each. The clustering members of a group share
its queues, so one subscription must count for all of them, although their subscriptions may differ:

    the members differ in        the subscription that counts
    nothing                      that of all members
    topics                       the topics that any member names
    the filter of one topic      the one with the newest `subVersion`, as in Apache RocketMQ: in a rolling release the
                                 new members decide, and if they leave, the old subscription counts again

While members differ, `differing()` returns the group. A group or a broker may be configured to refuse instead: then a
client whose subscription selects other messages does not become a member, and gets no queues, until the members have
left or agree with it. A client without subscriptions (lite pull, assigned queues) agrees with every subscription.
Broadcasting members do not share queues, so each has its own subscription, which is never compared.

This module does no I/O. A connection is any hashable object (`Channel`), and times are monotonic milliseconds. Methods
return the consumer groups whose members or subscription changed, so that the caller can notify their members.
Source: ConsumerGroupInfo.java#updateSubscription.
"""

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Generic

from duolog.bridge.rocketmq.groups.consumer_group import (
    DIFFERING_MAX,
    NAME_CHARACTERS_MAX,
    Channel,
    Client,
    ConsumerGroup,
    size_of,
)
from duolog.bridge.rocketmq.groups.heartbeat_times import HeartbeatTimes
from duolog.bridge.rocketmq.groups.membership_limits import MembershipLimits, TooManyMembers
from duolog.bridge.rocketmq.groups.producer_groups import ProducerGroups
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.bodies import ConsumerData, HeartbeatData, SubscriptionData

FROM_FIRST = "CONSUME_FROM_FIRST_OFFSET"  # ConsumeFromWhere.java


_IN_NO_GROUP: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()


class GroupMembers(Generic[Channel]):
    """All groups of RocketMQ clients. `ClientProtocols` calls `has_members`.

    The class has more than 20 methods because a change of a group's members, of the clients that it refuses, and
    of the sums for the limits must be one step. An exception between them would leave wrong sums.
    """

    def __init__(self, limits: MembershipLimits) -> None:
        self._limits = limits
        self.consumers: dict[str, ConsumerGroup[Channel]] = {}
        self.producers: ProducerGroups[Channel] = ProducerGroups()
        self.heartbeats: HeartbeatTimes[Channel] = HeartbeatTimes()
        self._membership_count = 0  # Invariant: the sum of the numbers of channels over all groups.
        self._subscribed_bytes = 0  # Invariant: the sum over the consumer groups and the clients that they refuse.
        # The groups whose members differ, with the number of different subscriptions.
        self._differing: dict[str, int] = {}
        # The consumer groups and the producer groups of each channel.
        self._groups_of: dict[Channel, tuple[set[str], set[str]]] = {}
        self._refusals: list[tuple[str, str]] = []
        self._differences: list[tuple[str, str]] = []
        self._names: dict[str, str] = {}  # The RocketMQ name of each consumer group, by its Kafka name.

    # -- Reading

    def has_members(self, group: str) -> bool:
        """Return whether the group, by its Kafka name, has clustering consumers; broadcasting ones do not count."""
        found = self.consumers.get(self._names.get(group, group))
        return found is not None and found.is_clustering

    def client_ids(self, group: str) -> list[str]:
        """Return the client ids of a consumer group's members."""
        found = self.consumers.get(group)
        return found.client_ids() if found is not None else []

    def subscriptions(self, group: str) -> Mapping[str, SubscriptionData] | None:
        """Return the group's subscription by topic; None if it has no member."""
        found = self.consumers.get(group)
        return found.subscriptions if found is not None else None

    def begins_at_first(self, group: str) -> bool:
        """Return whether the group begins at the log start offset of queues in which it has no committed offset."""
        found = self.consumers.get(group)
        return found is not None and found.consume_from_where == FROM_FIRST

    def channels(self, group: str) -> Iterable[Channel]:
        """Return all channels of a consumer group, to notify them."""
        found = self.consumers.get(group)
        return tuple(found.channels) if found is not None else ()

    def is_refused(self, channel: Channel, group: str) -> bool:
        """Return whether the group refuses the channel because its subscription differs from that of the members."""
        found = self.consumers.get(group)
        return found is not None and channel in found.refused

    def take_refusals(self) -> list[tuple[str, str]]:
        """Return (group, client id) of each client that was refused since the last call."""
        taken, self._refusals = self._refusals, []
        return taken

    def differing(self) -> Collection[str]:
        """Return the groups whose members have different subscriptions."""
        return self._differing.keys()

    def take_differences(self) -> list[tuple[str, str]]:
        """Return (group, client id) of each client whose subscription began to differ since the last call."""
        taken, self._differences = self._differences, []
        return taken

    def consuming(self, channel: Channel) -> list[tuple[str, str]]:
        """Return the consumer groups of a channel, each with the client id that the channel has in it."""
        consuming, _ = self._groups_of.get(channel, (set[str](), set[str]()))
        clients = ((group, self.consumers[group].channels.get(channel)) for group in sorted(consuming))
        return [(group, client.client_id) for group, client in clients if client is not None]

    # -- Changing

    def note_producer(self, channel: Channel, client: Client, group: str) -> None:
        """Add the channel to the producers of a group, before its first heartbeat, if the limits allow it."""
        limits = self._limits
        consuming, producing = self._groups_of.setdefault(channel, (set(), set()))
        if group in producing or len(group) > NAME_CHARACTERS_MAX or self._membership_count >= limits.memberships_max:
            return
        if len(consuming) + len(producing) >= limits.client_groups_max:
            return
        if group not in self.producers.groups and len(self.consumers) + len(self.producers.groups) >= limits.groups_max:
            return
        producing.add(group)
        self._membership_count += 1
        self.producers.add(group, channel, client)

    def check(self, channel: Channel, data: HeartbeatData) -> None:
        """Raise TooManyMembers if `heartbeat` would exceed a limit. Call `check_counts` before."""
        new = len([each for each in data.consumer_data_set if each.group_name not in self.consumers])
        new += len([each for each in data.producer_data_set if each.group_name not in self.producers.groups])
        if new and len(self.consumers) + len(self.producers.groups) + new > self._limits.groups_max:
            raise TooManyMembers(f"{new} more groups would exceed rocketmq.groups_max={self._limits.groups_max}")
        for consumer in data.consumer_data_set:
            self._check_room(consumer)
        consuming, _ = self._groups_of.get(channel, _IN_NO_GROUP)
        others = consuming.difference([each.group_name for each in data.consumer_data_set])
        others_size = sum([self.consumers[name].size_of(channel) for name in others])
        self._limits.check_sums(data, others_size, self._membership_count, self._subscribed_bytes)

    def check_counts(self, channel: Channel, data: HeartbeatData) -> None:
        """Raise TooManyMembers if a heartbeat names too many groups or topics, before each of them is processed."""
        self._limits.check_counts(data, *self._groups_of.get(channel, _IN_NO_GROUP))

    def heartbeat(
        self, channel: Channel, client: Client, data: HeartbeatData, mono_ms: int, refusing: Container[str] = ()
    ) -> list[str]:
        """Process a heartbeat that passed `check_counts` and `check`; return the consumer groups that it changed.

        `refusing` contains the groups that refuse clients whose subscription differs from that of the members.
        """
        self.heartbeats.note(channel, mono_ms)
        consuming, producing = self._groups_of.setdefault(channel, (set(), set()))
        for producer in data.producer_data_set:
            if producer.group_name not in producing:
                producing.add(producer.group_name)
                self._membership_count += 1
            self.producers.add(producer.group_name, channel, client)
        if data.producer_data_set:
            self.producers.note_client(channel, client)
        changed = []
        for consumer in data.consumer_data_set:
            name = consumer.group_name
            consuming.add(name)
            if self._consume(channel, client, consumer, refuses=name in refusing, keeps=data.without_sub):
                changed.append(name)
        return changed

    def unregister(self, channel: Channel, *, consumer_group: str = "", producer_group: str = "") -> list[str]:
        """Remove the channel from these groups; return the consumer groups that changed."""
        consuming, producing = self._groups_of.get(channel, (set[str](), set[str]()))
        if producer_group in producing:
            producing.remove(producer_group)
            self._stop_producing(channel, producer_group)
        if consumer_group not in consuming:
            return []
        consuming.remove(consumer_group)
        self._stop_consuming(channel, consumer_group)
        return [consumer_group]

    def closed(self, channel: Channel) -> list[str]:
        """Remove a closed channel from all its groups; return the consumer groups that changed."""
        self.heartbeats.forget(channel)
        self.producers.forget_client(channel)
        consuming, producing = self._groups_of.pop(channel, (set[str](), set[str]()))
        for group in producing:
            self._stop_producing(channel, group)
        for group in consuming:
            self._stop_consuming(channel, group)
        return sorted(consuming)

    # -- Internal

    def _check_room(self, consumer: ConsumerData) -> None:
        name = consumer.group_name
        group = self.consumers.get(name)
        if group is not None and not group.has_room_for(consumer):
            raise TooManyMembers(
                f"the members of group {name} have {DIFFERING_MAX} different subscriptions; no more are allowed"
            )

    def _consume(self, channel: Channel, client: Client, data: ConsumerData, *, refuses: bool, keeps: bool) -> bool:
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup()
            self._names[group_of_rocketmq(data.group_name)] = data.group_name
        if refuses and not keeps and not group.agrees(client, data):
            return self._refuse(group, channel, client, data)
        self._forget_refused(group, channel)
        return self._admit(group, channel, client, data, keep_subscriptions=keeps)

    def _admit(
        self, group: ConsumerGroup[Channel], channel: Channel, client: Client, data: ConsumerData,
        *, keep_subscriptions: bool = False,
    ) -> bool:  # fmt: skip
        is_new = channel not in group.channels
        self._membership_count += is_new
        before_bytes = group.subscribed_bytes
        changed = group.update(channel, client, data, keep_subscriptions=keep_subscriptions)
        self._count(data.group_name, group, before_bytes, client.client_id)
        if changed:
            self._admit_agreeing(group)
        return changed or is_new

    def _count(self, name: str, group: ConsumerGroup[Channel], before_bytes: int, client_id: str = "") -> None:
        """Update the sums over all groups after a change of one, whose subscriptions took `before_bytes` before."""
        self._subscribed_bytes += group.subscribed_bytes - before_bytes
        count = group.differing
        if count > self._differing.get(name, 0):
            self._differences.append((name, client_id))
        if count:
            self._differing[name] = count
        else:
            self._differing.pop(name, None)

    def _admit_agreeing(self, group: ConsumerGroup[Channel]) -> None:
        """Admit refused clients that agree with the group now. A group without members admits the first of them."""
        for channel, (client, data) in list(group.refused.items()):
            if channel in group.refused and (not group.channels or group.agrees(client, data)):
                self._forget_refused(group, channel)
                self._admit(group, channel, client, data)

    def _refuse(self, group: ConsumerGroup[Channel], channel: Channel, client: Client, data: ConsumerData) -> bool:
        before_bytes = group.subscribed_bytes
        was_member = group.remove(channel)
        self._count(data.group_name, group, before_bytes)
        self._membership_count -= was_member
        if channel not in group.refused:
            self._refusals.append((data.group_name, client.client_id))
        self._forget_refused(group, channel)
        self._membership_count += 1
        self._subscribed_bytes += size_of(data.subscription_data_set)
        group.refused[channel] = client, data
        return was_member

    def _forget_refused(self, group: ConsumerGroup[Channel], channel: Channel) -> None:
        waiting = group.refused.pop(channel, None)
        if waiting is not None:
            self._membership_count -= 1
            self._subscribed_bytes -= size_of(waiting[1].subscription_data_set)

    def _stop_consuming(self, channel: Channel, name: str) -> None:
        group = self.consumers[name]
        self._forget_refused(group, channel)
        before_bytes = group.subscribed_bytes
        self._membership_count -= group.remove(channel)
        self._count(name, group, before_bytes)
        if group.refused:
            self._admit_agreeing(group)
        if not group.channels:
            del self.consumers[name]
            del self._names[group_of_rocketmq(name)]

    def _stop_producing(self, channel: Channel, name: str) -> None:
        self.producers.remove(name, channel)
        self._membership_count -= 1
