"""One consumer group: its connected members, the subscription of each, and the one that counts for the group."""

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from duolog.protocol.rocketmq.bodies import ConsumerData, SubscriptionData
from duolog.protocol.rocketmq.filters.subscription_filter import TAG
from duolog.protocol.rocketmq.messages.tags import IllegalExpression, parse_expression

DIFFERING_MAX: Final = 64  # Different subscriptions of one group's clustering members. A rolling release needs two.
# The length of a client id or of the name of a producer group. Names of consumer groups are checked as topic names.
NAME_CHARACTERS_MAX: Final = 255
NOTHING: Final = 0  # The fingerprint of a client without subscriptions.

BROADCASTING: Final = "BROADCASTING"

Channel = TypeVar("Channel", bound=Hashable)


class Client(NamedTuple):
    """A client instance, as described by its heartbeat and its connection."""

    client_id: str
    language: str
    version: int
    user: str = ""  # Who has sent the heartbeat; empty if security is off.


class _Member(NamedTuple):
    """The membership of one channel in a consumer group."""

    client: Client
    is_broadcasting: bool
    fingerprint: int  # Equal for members whose subscriptions select the same messages.
    size: int  # The memory of its subscriptions, estimated as if no other member had the same.


class _Subscription:
    """A subscription of one or more members of a group, which share this object."""

    __slots__ = ("by_topic", "members", "size")

    def __init__(self) -> None:
        # The newest version of each topic's subscription that a member sent while this object exists.
        self.by_topic: dict[str, SubscriptionData] = {}
        self.members = 0
        self.size = 0


class ConsumerGroup(Generic[Channel]):
    """The connected members of one group, and their last subscriptions. A channel is a client's connection."""

    __slots__ = (
        "_clustering", "_members", "_subscriptions", "channels", "consume_from_where", "consume_type", "message_model",
        "refused", "subscribed_bytes", "subscriptions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.channels: dict[Channel, Client] = {}
        # Clients that the group refuses as members, in the order of their arrival.
        self.refused: dict[Channel, tuple[Client, ConsumerData]] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}  # The subscription that counts for the group, by topic.
        self.subscribed_bytes = 0  # The estimated memory of the subscriptions of all members.
        self.consume_type = self.message_model = self.consume_from_where = ""
        self._members: dict[Channel, _Member] = {}  # By channel.
        # The subscriptions of the clustering members and those of the broadcasting members, by fingerprint.
        self._subscriptions: tuple[dict[int, _Subscription], dict[int, _Subscription]] = {}, {}
        self._clustering = 0  # Invariant: the number of clustering members.

    def client_ids(self) -> list[str]:
        """Return each client id once, in the order of arrival. A client that reconnects may have two channels."""
        return list(dict.fromkeys(client.client_id for client in self.channels.values()))

    @property
    def is_clustering(self) -> bool:
        """Return whether any member is clustering, that is, shares the queues with other members."""
        return self._clustering > 0

    @property
    def differing(self) -> int:
        """Return the number of different subscriptions of clustering members; 0 if all members agree."""
        count = len(self._subscriptions[False])
        return count if count > 1 else 0

    def subscription(self, channel: Channel, topic: str) -> SubscriptionData | None:
        """Return the subscription for a channel: its own if it is broadcasting, else that of the group."""
        member = self._members.get(channel)
        if member is None or not member.is_broadcasting:
            return self.subscriptions.get(topic)
        own = self._subscriptions[True].get(member.fingerprint)
        return own.by_topic.get(topic) if own is not None else None

    def size_of(self, channel: Channel) -> int:
        """Return the estimated memory of the channel's subscriptions."""
        member = self._members.get(channel)
        return member.size if member is not None else 0

    def agrees(self, client: Client, data: ConsumerData) -> bool:
        """Return whether a client's subscriptions select the same messages as those of the other clustering members."""
        if not data.subscription_data_set or data.message_model == BROADCASTING:
            return True
        wanted = self._subscriptions[False]
        if not wanted or fingerprint(data.subscription_data_set) in wanted:
            return True
        return not any(
            each.client.client_id != client.client_id for each in self._members.values() if not each.is_broadcasting
        )

    def has_room_for(self, data: ConsumerData) -> bool:
        """Return whether a further member with this subscription keeps the group within DIFFERING_MAX."""
        wanted = self._subscriptions[False]
        if data.message_model == BROADCASTING or len(wanted) < DIFFERING_MAX:
            return True
        own = fingerprint(data.subscription_data_set)
        return own == NOTHING or own in wanted

    def update(self, channel: Channel, client: Client, data: ConsumerData, *, keep_subscriptions: bool) -> bool:
        """Process a member's heartbeat; return True if the group's subscription changed."""
        self.consume_type = data.consume_type[:NAME_CHARACTERS_MAX]
        self.message_model = data.message_model[:NAME_CHARACTERS_MAX]
        self.consume_from_where = data.consume_from_where[:NAME_CHARACTERS_MAX]
        self.channels[channel] = client
        before, was_clustering = self._members.get(channel), self.is_clustering
        if keep_subscriptions and before is not None:
            self._members[channel] = before._replace(client=client)
            return False
        subscriptions = [] if keep_subscriptions else data.subscription_data_set
        member = _Member(client, data.message_model == BROADCASTING, fingerprint(subscriptions), size_of(subscriptions))
        is_newer = self._join(channel, member, subscriptions)
        was_last = self._leave(before) if before is not None else False
        return self._count() if is_newer or was_last or self.is_clustering != was_clustering else False

    def remove(self, channel: Channel) -> bool:
        """Remove a member; return True if the channel was a member."""
        member = self._members.pop(channel, None)
        if member is None:
            return False
        del self.channels[channel]
        was_clustering = self.is_clustering
        if self._leave(member) or self.is_clustering != was_clustering:
            self._count()
        return True

    def _join(self, channel: Channel, member: _Member, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Add a member's subscription; return True if the group's subscription may have changed."""
        self._members[channel] = member
        self._clustering += not member.is_broadcasting
        if member.fingerprint == NOTHING:
            return False
        alike = self._subscriptions[member.is_broadcasting]
        subscription = alike.get(member.fingerprint)
        is_new = subscription is None
        if subscription is None:
            subscription = alike[member.fingerprint] = _Subscription()
            subscription.size = member.size
            self.subscribed_bytes += member.size
        subscription.members += 1
        is_newer = False
        for each in subscriptions:
            known = subscription.by_topic.get(each.topic)
            if known is None or known.sub_version < each.sub_version:
                subscription.by_topic[each.topic] = each
                is_newer = True
        return is_new or is_newer

    def _leave(self, member: _Member) -> bool:
        """Remove a member's subscription; return True if no other member has the same one."""
        self._clustering -= not member.is_broadcasting
        alike = self._subscriptions[member.is_broadcasting]
        subscription = alike.get(member.fingerprint)
        if subscription is None:
            return False
        subscription.members -= 1
        if subscription.members:
            return False
        del alike[member.fingerprint]
        self.subscribed_bytes -= subscription.size
        return True

    def _count(self) -> bool:
        """Compute the group's subscription; return True if it selects other messages than before."""
        newest: dict[str, SubscriptionData] = {}
        counting = self._subscriptions[not self._clustering]
        for subscription in islice(counting.values(), DIFFERING_MAX):
            for topic, each in subscription.by_topic.items():
                if topic not in newest or newest[topic].sub_version <= each.sub_version:
                    newest[topic] = each
        before, self.subscriptions = self.subscriptions, newest
        return fingerprint(before.values()) != fingerprint(newest.values())


def fingerprint(subscriptions: Iterable[SubscriptionData]) -> int:
    """Return a number that is equal for subscriptions that select the same messages; NOTHING for no subscription.

    Two SQL92 conditions count as equal only if their texts are equal.
    """
    wanted = frozenset((each.topic, each.expression_type, _wanted(each)) for each in subscriptions)
    return hash(wanted) or 1 if wanted else NOTHING


def _wanted(subscription: SubscriptionData) -> str | frozenset[str]:
    if subscription.expression_type != TAG:
        return subscription.sub_string
    try:
        return parse_expression(subscription.sub_string)
    except IllegalExpression:
        return subscription.sub_string


def size_of(subscriptions: Iterable[SubscriptionData]) -> int:
    """Return the estimated memory of subscriptions."""
    return sum(
        512
        + len(each.topic)
        + len(each.sub_string)
        + len(each.expression_type)
        + sum(64 + len(tag) for tag in each.tags_set)
        + 40 * len(each.code_set)
        for each in subscriptions
    )
