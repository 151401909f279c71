"""The producer groups: the connections of each group's producers, and the connection of each client."""

from collections.abc import Sequence
from typing import Generic

from duolog.bridge.rocketmq.groups.consumer_group import Channel, Client


class ProducerGroups(Generic[Channel]):
    """The producers of every group, by group and connection."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[Channel, Client]] = {}
        # The connection of each client that has producers, the most recent one if it has two.
        self._channels: dict[str, Channel] = {}
        self._users: dict[str, str] = {}  # The user of each of these clients.
        self._client_ids: dict[Channel, str] = {}

    def channels(self, group: str) -> Sequence[Channel]:
        """Return the connections of a group's producers."""
        return tuple(self.groups.get(group, ()))

    def channel_of(self, client_id: str) -> Channel | None:
        """Return the connection of a client that has a producer in any group."""
        return self._channels.get(client_id)

    def add(self, group: str, channel: Channel, client: Client) -> None:
        self.groups.setdefault(group, {})[channel] = client

    def remove(self, group: str, channel: Channel) -> None:
        channels = self.groups[group]
        del channels[channel]
        if not channels:
            del self.groups[group]

    def note_client(self, channel: Channel, client: Client) -> None:
        """Note the client id of a connection, unless it is that of an open connection of another user.

        Replies go to a client by its id alone, so no client may take over the id of another one.
        """
        client_id, user = client.client_id, client.user
        self.forget_client(channel)
        if self._users.setdefault(client_id, user) == user:
            self._channels[client_id], self._client_ids[channel] = channel, client_id

    def forget_client(self, channel: Channel) -> None:
        """Forget the client id of a connection, unless the client has a newer connection."""
        client_id = self._client_ids.pop(channel, None)
        if client_id is not None and self._channels.get(client_id) == channel:
            del self._channels[client_id], self._users[client_id]
