"""One consumer group's live members: what each of them subscribes to, and what therefore counts for the group."""

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from duolog.protocol.rocketmq.bodies import ConsumerData, SubscriptionData
from duolog.protocol.rocketmq.filters.subscription_filter import TAG
from duolog.protocol.rocketmq.messages.tags import IllegalExpression, parse_expression

DIFFERING_MAX: Final = 64  # Different subscriptions of one group's clustering members; one rolling release makes two.
NAME_CHARACTERS_MAX: Final = 255  # Of a client id, and of a producer group; those of consumers are legal names.
NOTHING: Final = 0  # The fingerprint of a client without subscriptions.

BROADCASTING: Final = "BROADCASTING"

Channel = TypeVar("Channel", bound=Hashable)


class Client(NamedTuple):
    """One client instance, as its heartbeat and its connection tell."""

    client_id: str
    language: str
    version: int


class _Member(NamedTuple):
    """One channel in one consumer group."""

    client: Client
    is_broadcasting: bool
    fingerprint: int  # Of what it wants: equal for members that want the same.
    size: int  # What its subscriptions take, as if it were the only one that has them.


class _Subscription:
    """What one or more members of a group want; kept once for all of them."""

    __slots__ = ("by_topic", "members", "size")

    def __init__(self) -> None:
        # With the newest version that any member has told since somebody wants this.
        self.by_topic: dict[str, SubscriptionData] = {}
        self.members = 0
        self.size = 0


class ConsumerGroup(Generic[Channel]):
    """The live members of one group, and what they asked for last."""

    __slots__ = (
        "_clustering", "_members", "_subscriptions", "channels", "consume_from_where", "consume_type", "message_model",
        "refused", "subscribed_bytes", "subscriptions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.channels: dict[Channel, Client] = {}
        self.refused: dict[Channel, tuple[Client, ConsumerData]] = {}  # Those that wait, in order of arrival.
        self.subscriptions: dict[str, SubscriptionData] = {}  # By topic: what counts for the group.
        self.subscribed_bytes = 0  # What the subscriptions of all members take, estimated.
        self.consume_type = self.message_model = self.consume_from_where = ""
        self._members: dict[Channel, _Member] = {}  # Of the same channels.
        # By is_broadcasting, and by fingerprint.
        self._subscriptions: tuple[dict[int, _Subscription], dict[int, _Subscription]] = {}, {}
        self._clustering = 0  # Invariant: how many members are not broadcasting.

    def client_ids(self) -> list[str]:
        """Each client once, in order of arrival: a client that reconnects has two channels for a moment."""
        return list(dict.fromkeys(client.client_id for client in self.channels.values()))

    @property
    def is_clustering(self) -> bool:
        """Whether any member shares its queues with others."""
        return self._clustering > 0

    @property
    def differing(self) -> int:
        """How many different subscriptions the clustering members have, if more than one; else 0."""
        count = len(self._subscriptions[False])
        return count if count > 1 else 0

    def subscription(self, channel: Channel, topic: str) -> SubscriptionData | None:
        """Give what counts for a channel: its own subscription if it is broadcasting, else that of the group."""
        member = self._members.get(channel)
        if member is None or not member.is_broadcasting:
            return self.subscriptions.get(topic)
        own = self._subscriptions[True].get(member.fingerprint)
        return own.by_topic.get(topic) if own is not None else None

    def size_of(self, channel: Channel) -> int:
        """Estimate what the channel's subscriptions take."""
        member = self._members.get(channel)
        return member.size if member is not None else 0

    def agrees(self, client: Client, data: ConsumerData) -> bool:
        """Say whether a clustering client wants what the other members want."""
        if not data.subscription_data_set or data.message_model == BROADCASTING:
            return True
        wanted = self._subscriptions[False]
        if not wanted or fingerprint(data.subscription_data_set) in wanted:
            return True
        return not any(
            each.client.client_id != client.client_id for each in self._members.values() if not each.is_broadcasting
        )

    def has_room_for(self, data: ConsumerData) -> bool:
        """Say whether the group may have this subscription beside those of its members; see DIFFERING_MAX."""
        wanted = self._subscriptions[False]
        if data.message_model == BROADCASTING or len(wanted) < DIFFERING_MAX:
            return True
        own = fingerprint(data.subscription_data_set)
        return own == NOTHING or own in wanted

    def update(self, channel: Channel, client: Client, data: ConsumerData, *, keep_subscriptions: bool) -> bool:
        """Take over what a member's heartbeat says; True if what counts for the group changed."""
        self.consume_type = data.consume_type[:NAME_CHARACTERS_MAX]
        self.message_model = data.message_model[:NAME_CHARACTERS_MAX]
        self.consume_from_where = data.consume_from_where[:NAME_CHARACTERS_MAX]
        self.channels[channel] = client
        before, was_clustering = self._members.get(channel), self.is_clustering
        if keep_subscriptions and before is not None:
            self._members[channel] = before._replace(client=client)
            return False
        told = [] if keep_subscriptions else data.subscription_data_set
        member = _Member(client, data.message_model == BROADCASTING, fingerprint(told), size_of(told))
        is_newer = self._join(channel, member, told)
        is_gone = self._leave(before) if before is not None else False
        return self._count() if is_newer or is_gone or self.is_clustering != was_clustering else False

    def remove(self, channel: Channel) -> bool:
        """Forget a member; True if it was one."""
        member = self._members.pop(channel, None)
        if member is None:
            return False
        del self.channels[channel]
        was_clustering = self.is_clustering
        if self._leave(member) or self.is_clustering != was_clustering:
            self._count()
        return True

    def _join(self, channel: Channel, member: _Member, told: Iterable[SubscriptionData]) -> bool:
        """Count the member; True if what counts for the group may be another."""
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
        for each in told:
            known = subscription.by_topic.get(each.topic)
            if known is None or known.sub_version < each.sub_version:
                subscription.by_topic[each.topic] = each
                is_newer = True
        return is_new or is_newer

    def _leave(self, member: _Member) -> bool:
        """Stop counting a member; True if nobody else wants what it wanted."""
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
        """Find what counts for the group; True if that wants other messages than before."""
        newest: dict[str, SubscriptionData] = {}
        counting = self._subscriptions[not self._clustering]
        for subscription in islice(counting.values(), DIFFERING_MAX):
            for topic, each in subscription.by_topic.items():
                if topic not in newest or newest[topic].sub_version <= each.sub_version:
                    newest[topic] = each
        before, self.subscriptions = self.subscriptions, newest
        return fingerprint(before.values()) != fingerprint(newest.values())


def fingerprint(subscriptions: Iterable[SubscriptionData]) -> int:
    """Give the same number for subscriptions that want the same messages; NOTHING for none.

    Two conditions in SQL92 want the same only if they are spelled alike.
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
