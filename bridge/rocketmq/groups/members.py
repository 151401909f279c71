"""The members of every group: producers and consumers, as the heartbeats of their clients name them.

    heartbeat                                                ──> the connection is in the groups that it names
    unregister, connection closed, silent for CHANNEL_MS     ──> the connection is in these groups no longer

A client names all its groups in every heartbeat, and what each of them subscribes to. The clustering members of a group
share its queues, whatever each of them subscribes to, so that one subscription has to count for all of them:

    the members differ in        what counts for the group
    nothing                      their subscription
    topics                       the topics that any member names
    the filter of one topic      the newest `subVersion`, as in Apache RocketMQ: the new members of a rolling release
                                 decide, and if they leave, the subscription of the old members counts again

While members differ, `differing()` names the group. A group or a broker may be configured to refuse instead: then a
client that wants other messages than the members is not a member, and gets no queues, until the members have left or
want the same. A client without subscriptions (lite pull, assigned queues) agrees with every subscription. Broadcasting
members share no queues, so each has its own subscription, and subscriptions are never compared.

The module does no I/O. Connections are any hashable objects (`Channel`), times are monotonic milliseconds, and methods
return the consumer groups whose members or subscriptions changed; the caller notifies their members.
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
from duolog.bridge.rocketmq.groups.producer_groups import ProducerGroups
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.bodies import ConsumerData, HeartbeatData, SubscriptionData

MEMBERSHIPS_MAX = 200_000  # Of channels in groups, all together.

FROM_FIRST = "CONSUME_FROM_FIRST_OFFSET"  # ConsumeFromWhere.java


_IN_NO_GROUP: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()


class TooManyMembers(Exception):
    """`rocketmq.groups_max`, `rocketmq.subscriptions_max` or a limit of this module; the message says which."""


class GroupMembers(Generic[Channel]):
    """All groups of RocketMQ clients. `has_members` is what `ClientProtocols` asks.

    The class has more than twenty methods because every change of a group, of whoever it refuses, and of the sums that
    the limits of all groups are checked against is one step: an exception or another caller between them would leave
    sums that no longer fit the groups.
    """

    def __init__(
        self,
        *,
        groups_max: int,
        client_groups_max: int,
        subscriptions_max: int,
        subscribed_bytes_max: int,
        client_subscribed_bytes_max: int,
        memberships_max: int = MEMBERSHIPS_MAX,
    ) -> None:
        self._groups_max, self._client_groups_max = groups_max, client_groups_max
        self._subscriptions_max, self._memberships_max = subscriptions_max, memberships_max
        self._subscribed_bytes_max = subscribed_bytes_max
        self._client_subscribed_bytes_max = client_subscribed_bytes_max
        self.consumers: dict[str, ConsumerGroup[Channel]] = {}
        self.producers: ProducerGroups[Channel] = ProducerGroups()
        self.heartbeats: HeartbeatTimes[Channel] = HeartbeatTimes()
        self._membership_count = 0  # Invariant: the sum over all groups of their channels.
        self._subscribed_bytes = 0  # Invariant: the sum over consumer groups, and over those that they refuse.
        self._differing: dict[str, int] = {}  # Groups whose members differ: in how many subscriptions.
        self._groups_of: dict[Channel, tuple[set[str], set[str]]] = {}  # Its (consumer, producer) groups.
        self._refusals: list[tuple[str, str]] = []
        self._differences: list[tuple[str, str]] = []
        self._kafka_spelling: dict[str, str] = {}  # of consumer groups; the other way round for families

    # -- Asking

    def has_members(self, group: str) -> bool:
        """Say whether the group, in its Kafka spelling, has clustering consumers; broadcast never counts."""
        found = self.consumers.get(self._kafka_spelling.get(group, group))
        return found is not None and found.is_clustering

    def client_ids(self, group: str) -> list[str]:
        found = self.consumers.get(group)
        return found.client_ids() if found is not None else []

    def subscriptions(self, group: str) -> Mapping[str, SubscriptionData] | None:
        """What the group asked for by topic; None if it has no member."""
        found = self.consumers.get(group)
        return found.subscriptions if found is not None else None

    def begins_at_first(self, group: str) -> bool:
        """Say whether the group, where it has no position, wants to begin at the first message there is."""
        found = self.consumers.get(group)
        return found is not None and found.consume_from_where == FROM_FIRST

    def channels(self, group: str) -> Iterable[Channel]:
        """All channels of a consumer group: those to notify."""
        found = self.consumers.get(group)
        return tuple(found.channels) if found is not None else ()

    def is_refused(self, channel: Channel, group: str) -> bool:
        """Say whether the channel wants other messages than the group's members."""
        found = self.consumers.get(group)
        return found is not None and channel in found.refused

    def take_refusals(self) -> list[tuple[str, str]]:
        """Name the (group, client id) of those that were refused since the last call."""
        taken, self._refusals = self._refusals, []
        return taken

    def differing(self) -> Collection[str]:
        """Name the groups whose members subscribe to different messages."""
        return self._differing.keys()

    def take_differences(self) -> list[tuple[str, str]]:
        """Name the (group, client id) of those that came to want something else than others since the last call."""
        taken, self._differences = self._differences, []
        return taken

    def consuming(self, channel: Channel) -> list[tuple[str, str]]:
        """Name the consumer groups that a channel is in, and the client that it is there."""
        consuming, _ = self._groups_of.get(channel, (set[str](), set[str]()))
        clients = ((group, self.consumers[group].channels.get(channel)) for group in sorted(consuming))
        return [(group, client.client_id) for group, client in clients if client is not None]

    # -- Telling

    def note_producer(self, channel: Channel, client: Client, group: str) -> None:
        """Count the channel among its group's producers before its first heartbeat says so, if there is room."""
        consuming, producing = self._groups_of.setdefault(channel, (set(), set()))
        if group in producing or len(group) > NAME_CHARACTERS_MAX or self._membership_count >= self._memberships_max:
            return
        if len(consuming) + len(producing) >= self._client_groups_max:
            return
        if group not in self.producers.groups and len(self.consumers) + len(self.producers.groups) >= self._groups_max:
            return
        producing.add(group)
        self._membership_count += 1
        self.producers.add(group, channel, client)

    def check(self, channel: Channel, data: HeartbeatData) -> None:
        """Raise TooManyMembers if `heartbeat` would exceed a limit. To be called after `check_counts`."""
        new = len([each for each in data.consumer_data_set if each.group_name not in self.consumers])
        new += len([each for each in data.producer_data_set if each.group_name not in self.producers.groups])
        if new and len(self.consumers) + len(self.producers.groups) + new > self._groups_max:
            raise TooManyMembers(f"{new} more groups would exceed rocketmq.groups_max={self._groups_max}")
        for consumer in data.consumer_data_set:
            self._check_room(consumer)
        consuming, _ = self._groups_of.get(channel, _IN_NO_GROUP)
        others = consuming.difference([each.group_name for each in data.consumer_data_set])
        self._check_sums(data, sum([self.consumers[name].size_of(channel) for name in others]))

    def check_counts(self, channel: Channel, data: HeartbeatData) -> None:
        """Raise TooManyMembers if it names too many groups or topics, before anything looks at each of them."""
        named = len(data.consumer_data_set) + len(data.producer_data_set)
        consuming, producing = self._groups_of.get(channel, _IN_NO_GROUP)
        count = named + len(consuming) + len(producing)
        if count > self._client_groups_max:  # Unless some are counted twice.
            count -= len(consuming.intersection([each.group_name for each in data.consumer_data_set]))
            count -= len(producing.intersection([each.group_name for each in data.producer_data_set]))
        if count > self._client_groups_max:
            raise TooManyMembers(f"a client in {count} groups; rocketmq.client_groups_max={self._client_groups_max}")
        for consumer in data.consumer_data_set:
            topics = len(consumer.subscription_data_set)
            if topics > self._subscriptions_max:
                raise TooManyMembers(
                    f"group {consumer.group_name[:NAME_CHARACTERS_MAX]} subscribes to {topics} topics;"
                    f" rocketmq.subscriptions_max={self._subscriptions_max}"
                )

    def heartbeat(
        self, channel: Channel, client: Client, data: HeartbeatData, mono_ms: int, refusing: Container[str] = ()
    ) -> list[str]:
        """Take a heartbeat that passed `check_counts` and `check`; return the consumer groups that it changed.

        `refusing`: the groups that refuse members who want other messages than the others.
        """
        self.heartbeats.note(channel, mono_ms)
        consuming, producing = self._groups_of.setdefault(channel, (set(), set()))
        for producer in data.producer_data_set:
            if producer.group_name not in producing:
                producing.add(producer.group_name)
                self._membership_count += 1
            self.producers.add(producer.group_name, channel, client)
        if data.producer_data_set:
            self.producers.note_client(channel, client.client_id)
        changed = []
        for consumer in data.consumer_data_set:
            name = consumer.group_name
            consuming.add(name)
            if self._consume(channel, client, consumer, refuses=name in refusing, keeps=data.without_sub):
                changed.append(name)
        return changed

    def unregister(self, channel: Channel, *, consumer_group: str = "", producer_group: str = "") -> list[str]:
        """Take the channel out of these groups; return the consumer groups that changed."""
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
        """Forget a channel; return the consumer groups that changed."""
        self.heartbeats.forget(channel)
        self.producers.forget_client(channel)
        consuming, producing = self._groups_of.pop(channel, (set[str](), set[str]()))
        for group in producing:
            self._stop_producing(channel, group)
        for group in consuming:
            self._stop_consuming(channel, group)
        return sorted(consuming)

    # -- Inside

    def _check_room(self, consumer: ConsumerData) -> None:
        name = consumer.group_name
        group = self.consumers.get(name)
        if group is not None and not group.has_room_for(consumer):
            raise TooManyMembers(
                f"the members of group {name} have {DIFFERING_MAX} different subscriptions; no more are allowed"
            )

    def _check_sums(self, data: HeartbeatData, others_size: int) -> None:
        """Count the heartbeat as if all of it were new: whoever is near the bound is refused a little early."""
        names = [data.client_id, *(producer.group_name for producer in data.producer_data_set)]
        if max(map(len, names)) > NAME_CHARACTERS_MAX:
            raise TooManyMembers(f"a name of {max(map(len, names))} characters; {NAME_CHARACTERS_MAX} are allowed")
        count = self._membership_count + len(data.consumer_data_set) + len(data.producer_data_set)
        if count > self._memberships_max:
            raise TooManyMembers(f"{count} members of groups; {self._memberships_max} are allowed")
        size = sum(size_of(each.subscription_data_set) for each in data.consumer_data_set)
        if size + others_size > self._client_subscribed_bytes_max:
            raise TooManyMembers(
                f"subscriptions of {size + others_size} bytes of one client;"
                f" rocketmq.client_subscribed_bytes_max={self._client_subscribed_bytes_max}"
            )
        if self._subscribed_bytes + size > self._subscribed_bytes_max:
            raise TooManyMembers(
                f"subscriptions of {self._subscribed_bytes + size} bytes;"
                f" rocketmq.subscribed_bytes_max={self._subscribed_bytes_max}"
            )

    def _consume(self, channel: Channel, client: Client, data: ConsumerData, *, refuses: bool, keeps: bool) -> bool:
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup()
            self._kafka_spelling[group_of_rocketmq(data.group_name)] = data.group_name
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
        """Keep the sums over all groups: one of them, whose subscriptions took `before_bytes`, has changed."""
        self._subscribed_bytes += group.subscribed_bytes - before_bytes
        count = group.differing
        if count > self._differing.get(name, 0):
            self._differences.append((name, client_id))
        if count:
            self._differing[name] = count
        else:
            self._differing.pop(name, None)

    def _admit_agreeing(self, group: ConsumerGroup[Channel]) -> None:
        """Let those in that want what the group wants now; into a group without members whoever waits longest."""
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
            del self._kafka_spelling[group_of_rocketmq(name)]

    def _stop_producing(self, channel: Channel, name: str) -> None:
        self.producers.remove(name, channel)
        self._membership_count -= 1
