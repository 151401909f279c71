"""NOTIFY_CONSUMER_IDS_CHANGED (40): the broker notifies the members of a group to rebalance now instead of within 20 s.

    notify(groups) ──> pending groups ──> the group's connections, CONNECTIONS_AT_ONCE of them in each turn of the loop

A group that changes again before all its members were notified becomes pending once more. So when thousands of members
join at a time, each of them gets a few notifications instead of one for every other member. A connection whose client
does not read its answers is left out.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from duolog.bridge.net.server import Server
from duolog.bridge.rocketmq.consuming.group_configs import GroupConfigs
from duolog.bridge.rocketmq.groups.members import GroupMembers
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.store.entry import Buffer

CONNECTIONS_AT_ONCE: Final = 500
_NO_OPAQUE: Final = 0  # The request is one-way: no answer refers to its opaque.


class ChangeNotifications:
    """The groups whose members are still to be notified."""

    def __init__(
        self, configs: GroupConfigs, members: GroupMembers[RocketMQConnection], server: Server, unsent_bytes_max: int
    ) -> None:
        self._configs, self._members, self._server = configs, members, server
        self._unsent_bytes_max = unsent_bytes_max
        self._groups: dict[str, None] = {}
        self._connections: deque[RocketMQConnection] = deque()  # The members of one group that are not notified yet.
        self._frame: list[Buffer] = []  # The encoded notification for `_connections`.
        self._is_scheduled = False

    def notify(self, groups: Iterable[str]) -> None:
        """Notify the members of these groups, in this turn of the loop and later ones."""
        self._groups.update(dict.fromkeys(groups))
        if not self._is_scheduled:
            self._turn()

    def _turn(self) -> None:
        self._is_scheduled = False
        for _ in range(CONNECTIONS_AT_ONCE):
            if not self._connections and not self._begin_next():
                return
            if self._connections:
                connection = self._connections.popleft()
                if connection.answers.pending_bytes <= self._unsent_bytes_max:
                    connection.answers.write(self._frame)
        self._is_scheduled = True
        self._server.soon("rocketmq notifications of changed groups", self._turn)

    def _begin_next(self) -> bool:
        """Take the next pending group; False if no group is pending."""
        if not self._groups:
            return False
        group = next(iter(self._groups))
        del self._groups[group]
        config = self._configs.get(group)
        if config is not None and config.notify_consumer_ids_changed_enable:
            self._connections.extend(self._members.channels(group))
            ext = {"consumerGroup": group}
            notice = remoting.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, _NO_OPAQUE, ext, oneway=True)
            self._frame = remoting.encode(notice)
        return True
