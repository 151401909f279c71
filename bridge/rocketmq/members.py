"""Who is there: the producers and consumers of every group, as their heartbeats tell.

    heartbeat ──> a channel (one connection of one client) is in the groups that it names
    unregister, connection closed, CHANNEL_MS without a heartbeat ──> it is out of them

A client tells all its groups in every heartbeat. The subscriptions of a group are those of its last heartbeat: a topic
with a newer `subVersion` replaces, a topic that is absent goes (ConsumerGroupInfo.java#updateSubscription).

All members of a group share its queues, whoever subscribes to what; so where two want different messages, each would
skip what the other wants, and nobody would notice. At home the subscriptions flap. Here whoever comes with another
subscription than the members that are there is refused: it is no member, so it is given no queues. It waits, and comes
in when the others have gone, or want the same. A client without subscriptions (lite pull, assigned) agrees with all.

The object is pure: channels are any hashable things, times are monotonic milliseconds, and every change of a consumer
group's members or subscriptions is returned, for the caller to tell that group (NOTIFY_CONSUMER_IDS_CHANGED).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from protocol.names import group_of_rocketmq
from protocol.rocketmq.bodies import ConsumerData, HeartbeatData, SubscriptionData
from protocol.rocketmq.filters import TAG
from protocol.rocketmq.tags import IllegalExpression, parse_expression

CHANNEL_MS = 120_000  # ConsumerManager.java#CHANNEL_EXPIRED_TIMEOUT; clients beat every 30 s.
SCAN_INTERVAL_MS = 10_000

MEMBERSHIPS_MAX = 200_000  # Of channels in groups, all together.
SUBSCRIBED_BYTES_MAX = 64 << 20  # Of what all groups subscribe to, estimated; a plain subscription takes half a KiB.
NAME_CHARACTERS_MAX = 255  # Of a client id, and of a producer group; those of consumers are legal names.

BROADCASTING = "BROADCASTING"
FROM_FIRST = "CONSUME_FROM_FIRST_OFFSET"  # ConsumeFromWhere.java

Channel = TypeVar("Channel", bound=Hashable)


class TooManyMembers(Exception):
    """`rocketmq.groups_max`, `rocketmq.subscriptions_max` or a limit of this module; the message says which."""


class Client(NamedTuple):
    """One client instance, as its heartbeat and its connection tell."""

    client_id: str
    language: str
    version: int


class ConsumerGroup(Generic[Channel]):
    """The live members of one group, and what they asked for last."""

    __slots__ = (
        "channels", "consume_from_where", "consume_type", "message_model", "refused", "subscribed_bytes",
        "subscriptions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.channels: dict[Channel, Client] = {}
        self.refused: dict[Channel, tuple[Client, ConsumerData]] = {}  # Those that wait, in order of arrival.
        self.subscriptions: dict[str, SubscriptionData] = {}  # by topic
        self.subscribed_bytes = 0  # What they take, estimated.
        self.consume_type = self.message_model = self.consume_from_where = ""

    def client_ids(self) -> list[str]:
        """Each client once, in order of arrival: a client that reconnects has two channels for a moment."""
        return list(dict.fromkeys(client.client_id for client in self.channels.values()))

    def agrees(self, client: Client, data: ConsumerData) -> bool:
        """Say whether the client wants what the other members want."""
        if not self.subscriptions or not data.subscription_data_set:
            return True
        if all(other.client_id == client.client_id for other in self.channels.values()):
            return True
        told = {each.topic: each for each in data.subscription_data_set}
        return (
            data.message_model == self.message_model
            and told.keys() == self.subscriptions.keys()
            and all(_is_same(known, told[topic]) for topic, known in self.subscriptions.items())
        )

    def update(self, data: ConsumerData, *, keep_subscriptions: bool) -> bool:
        """Take over what a heartbeat says; True if the subscriptions changed."""
        self.consume_type = data.consume_type[:NAME_CHARACTERS_MAX]
        self.message_model = data.message_model[:NAME_CHARACTERS_MAX]
        self.consume_from_where = data.consume_from_where[:NAME_CHARACTERS_MAX]
        if keep_subscriptions or (self.subscriptions and len(self.channels) > 1 and not data.subscription_data_set):
            return False
        told = {subscription.topic: subscription for subscription in data.subscription_data_set}
        changed = told.keys() != self.subscriptions.keys()
        for topic, subscription in told.items():
            known = self.subscriptions.get(topic)
            if known is not None and known.sub_version >= subscription.sub_version:
                told[topic] = known
            elif known is None or known.sub_string != subscription.sub_string:
                changed = True
        if changed or told != self.subscriptions:
            self.subscriptions = told
            self.subscribed_bytes = _size_of(told.values())
        return changed


class Members(Generic[Channel]):
    """All groups of RocketMQ clients. `has_members` answers for `bridge.families`."""

    def __init__(
        self,
        *,
        groups_max: int,
        subscriptions_max: int,
        memberships_max: int = MEMBERSHIPS_MAX,
        subscribed_bytes_max: int = SUBSCRIBED_BYTES_MAX,
    ) -> None:
        self._groups_max, self._subscriptions_max = groups_max, subscriptions_max
        self._memberships_max, self._subscribed_bytes_max = memberships_max, subscribed_bytes_max
        self.consumers: dict[str, ConsumerGroup[Channel]] = {}
        self.producers: dict[str, dict[Channel, Client]] = {}
        self._beats: dict[Channel, int] = {}  # The last heartbeat of each channel.
        self._membership_count = 0  # Invariant: the sum over all groups of their channels.
        self._subscribed_bytes = 0  # Invariant: the sum over consumer groups.
        self._groups_of: dict[Channel, tuple[set[str], set[str]]] = {}  # Its (consumer, producer) groups.
        # Channels of clients that have producers, by client id (of a client with two the one heard last), and back.
        self._producer_channels: dict[str, Channel] = {}
        self._producer_ids: dict[Channel, str] = {}
        self._refusals: list[tuple[str, str]] = []
        self._kafka_spelling: dict[str, str] = {}  # of consumer groups; the other way round for families
        self._next_scan_mono_ms: int | None = None

    # -- Asking

    def has_members(self, group: str) -> bool:
        """Say whether the group, in its Kafka spelling, has clustering consumers; broadcast never counts."""
        found = self.consumers.get(self._kafka_spelling.get(group, group))
        return found is not None and bool(found.channels) and found.message_model != BROADCASTING

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

    def last_beat_mono_ms(self, channel: Channel) -> int | None:
        """When a channel in a group sent its last heartbeat; None: it was only noted so far."""
        return self._beats.get(channel)

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

    def producer_channels(self, group: str) -> Sequence[Channel]:
        """All channels of a producer group."""
        return tuple(self.producers.get(group, ()))

    def producer_channel(self, client_id: str) -> Channel | None:
        """Give the channel of a client that has a producer of any group."""
        return self._producer_channels.get(client_id)

    def consuming(self, channel: Channel) -> list[tuple[str, str]]:
        """Name the consumer groups that a channel is in, and the client that it is there."""
        consuming, _ = self._groups_of.get(channel, (set[str](), set[str]()))
        clients = ((group, self.consumers[group].channels.get(channel)) for group in sorted(consuming))
        return [(group, client.client_id) for group, client in clients if client is not None]

    # -- Telling

    def note_producer(self, channel: Channel, client: Client, group: str) -> None:
        """Count the channel among its group's producers before its first heartbeat says so, if there is room."""
        _, producing = self._groups_of.setdefault(channel, (set(), set()))
        if group in producing or len(group) > NAME_CHARACTERS_MAX or self._membership_count >= self._memberships_max:
            return
        if group not in self.producers and len(self.consumers) + len(self.producers) >= self._groups_max:
            return
        producing.add(group)
        self._membership_count += 1
        self.producers.setdefault(group, {})[channel] = client

    def heartbeat(self, channel: Channel, client: Client, data: HeartbeatData, mono_ms: int) -> list[str]:
        """Take a heartbeat; return the consumer groups that it changed. Raises TooManyMembers and takes nothing."""
        self._check(data)
        self._beats[channel] = mono_ms
        if self._next_scan_mono_ms is None:
            self._next_scan_mono_ms = mono_ms + SCAN_INTERVAL_MS
        consuming, producing = self._groups_of.setdefault(channel, (set(), set()))
        for producer in data.producer_data_set:
            if producer.group_name not in producing:
                producing.add(producer.group_name)
                self._membership_count += 1
            self.producers.setdefault(producer.group_name, {})[channel] = client
        if data.producer_data_set:
            self._forget_producer(channel)
            self._producer_channels[client.client_id], self._producer_ids[channel] = channel, client.client_id
        changed = []
        for consumer in data.consumer_data_set:
            consuming.add(consumer.group_name)
            if self._consume(channel, client, consumer, keep_subscriptions=data.without_sub):
                changed.append(consumer.group_name)
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
        self._beats.pop(channel, None)
        self._forget_producer(channel)
        consuming, producing = self._groups_of.pop(channel, (set[str](), set[str]()))
        for group in producing:
            self._stop_producing(channel, group)
        for group in consuming:
            self._stop_consuming(channel, group)
        return sorted(consuming)

    # -- Time

    def next_deadline_mono_ms(self) -> int | None:
        return self._next_scan_mono_ms

    def silent(self, mono_ms: int) -> list[Channel]:
        """Name the channels to close: without a heartbeat for CHANNEL_MS. Looks every SCAN_INTERVAL_MS."""
        if self._next_scan_mono_ms is None or mono_ms < self._next_scan_mono_ms:
            return []
        self._next_scan_mono_ms = mono_ms + SCAN_INTERVAL_MS if self._beats else None
        return [channel for channel, beat_mono_ms in self._beats.items() if mono_ms - beat_mono_ms >= CHANNEL_MS]

    # -- Inside

    def _check(self, data: HeartbeatData) -> None:
        new = sum(consumer.group_name not in self.consumers for consumer in data.consumer_data_set)
        new += sum(producer.group_name not in self.producers for producer in data.producer_data_set)
        if new and len(self.consumers) + len(self.producers) + new > self._groups_max:
            raise TooManyMembers(f"{new} more groups would exceed rocketmq.groups_max={self._groups_max}")
        for consumer in data.consumer_data_set:
            if len(consumer.subscription_data_set) > self._subscriptions_max:
                raise TooManyMembers(
                    f"group {consumer.group_name} subscribes to {len(consumer.subscription_data_set)} topics;"
                    f" rocketmq.subscriptions_max={self._subscriptions_max}"
                )
        self._check_sums(data)

    def _check_sums(self, data: HeartbeatData) -> None:
        """Count the heartbeat as if all of it were new: whoever is near the bound is refused a little early."""
        names = [data.client_id, *(producer.group_name for producer in data.producer_data_set)]
        if max(map(len, names)) > NAME_CHARACTERS_MAX:
            raise TooManyMembers(f"a name of {max(map(len, names))} characters; {NAME_CHARACTERS_MAX} are allowed")
        count = self._membership_count + len(data.consumer_data_set) + len(data.producer_data_set)
        if count > self._memberships_max:
            raise TooManyMembers(f"{count} members of groups; {self._memberships_max} are allowed")
        size = self._subscribed_bytes + sum(_size_of(each.subscription_data_set) for each in data.consumer_data_set)
        if size > self._subscribed_bytes_max:
            raise TooManyMembers(f"subscriptions of {size} bytes; {self._subscribed_bytes_max} are allowed")

    def _consume(self, channel: Channel, client: Client, data: ConsumerData, *, keep_subscriptions: bool) -> bool:
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup()
            self._kafka_spelling[group_of_rocketmq(data.group_name)] = data.group_name
        if not keep_subscriptions and not group.agrees(client, data):
            return self._refuse(group, channel, client, data)
        self._forget_refused(group, channel)
        return self._admit(group, channel, client, data, keep_subscriptions=keep_subscriptions)

    def _admit(
        self, group: ConsumerGroup[Channel], channel: Channel, client: Client, data: ConsumerData,
        *, keep_subscriptions: bool = False,
    ) -> bool:  # fmt: skip
        is_new = channel not in group.channels
        self._membership_count += is_new
        group.channels[channel] = client
        self._subscribed_bytes -= group.subscribed_bytes
        changed = group.update(data, keep_subscriptions=keep_subscriptions)
        self._subscribed_bytes += group.subscribed_bytes
        if changed:
            self._admit_agreeing(group)
        return changed or is_new

    def _admit_agreeing(self, group: ConsumerGroup[Channel]) -> None:
        """Let those in that want what the group wants now; into a group without members whoever waits longest."""
        for channel, (client, data) in list(group.refused.items()):
            if channel in group.refused and (not group.channels or group.agrees(client, data)):
                self._forget_refused(group, channel)
                self._admit(group, channel, client, data)

    def _refuse(self, group: ConsumerGroup[Channel], channel: Channel, client: Client, data: ConsumerData) -> bool:
        was_member = group.channels.pop(channel, None) is not None
        self._membership_count -= was_member
        if channel not in group.refused:
            self._refusals.append((data.group_name, client.client_id))
        self._forget_refused(group, channel)
        self._membership_count += 1
        self._subscribed_bytes += _size_of(data.subscription_data_set)
        group.refused[channel] = client, data
        return was_member

    def _forget_refused(self, group: ConsumerGroup[Channel], channel: Channel) -> None:
        waiting = group.refused.pop(channel, None)
        if waiting is not None:
            self._membership_count -= 1
            self._subscribed_bytes -= _size_of(waiting[1].subscription_data_set)

    def _stop_consuming(self, channel: Channel, name: str) -> None:
        group = self.consumers[name]
        self._forget_refused(group, channel)
        self._membership_count -= group.channels.pop(channel, None) is not None
        if not group.channels:
            group.subscriptions = {}  # However new they are: those who wait now say what is wanted.
            self._admit_agreeing(group)
        if not group.channels:
            self._subscribed_bytes -= group.subscribed_bytes
            del self.consumers[name]
            del self._kafka_spelling[group_of_rocketmq(name)]

    def _forget_producer(self, channel: Channel) -> None:
        client_id = self._producer_ids.pop(channel, None)
        if client_id is not None and self._producer_channels.get(client_id) == channel:
            del self._producer_channels[client_id]

    def _stop_producing(self, channel: Channel, name: str) -> None:
        channels = self.producers[name]
        del channels[channel]
        self._membership_count -= 1
        if not channels:
            del self.producers[name]


def _is_same(one: SubscriptionData, other: SubscriptionData) -> bool:
    """Say whether two subscriptions want the same messages; two conditions in SQL92 only if they are spelled alike."""
    if one.sub_string == other.sub_string or one.expression_type != TAG or other.expression_type != TAG:
        return (one.expression_type, one.sub_string) == (other.expression_type, other.sub_string)
    try:
        return parse_expression(one.sub_string) == parse_expression(other.sub_string)
    except IllegalExpression:
        return False


def _size_of(subscriptions: Iterable[SubscriptionData]) -> int:
    """Estimate what these take in memory."""
    return sum(
        512
        + len(each.topic)
        + len(each.sub_string)
        + len(each.expression_type)
        + sum(64 + len(tag) for tag in each.tags_set)
        + 40 * len(each.code_set)
        for each in subscriptions
    )
