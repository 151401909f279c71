"""NOTIFY_CONSUMER_IDS_CHANGED (40): the members of a group are told to rebalance now instead of within 20 s.

    tell(groups) ──> groups that are pending ──> their channels, CHANNELS_AT_ONCE in each turn of the loop

A group that changes again before all its members were told is pending once more, so thousands that join at a time cost
each other one notice in a while instead of one for each of them. A channel that takes nothing is left out.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.store.entry import Buffer

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker
    from duolog.bridge.rocketmq.requests.connection import RocketMQConnection

CHANNELS_AT_ONCE: Final = 500
_NO_ANSWER: Final = 0  # The number of a request that nobody answers.


class ChangeNotifications:
    """The groups whose members are still to be told."""

    def __init__(self) -> None:
        self._groups: dict[str, None] = {}
        self._channels: deque[RocketMQConnection] = deque()  # Of the group that is being told.
        self._frame: list[Buffer] = []  # What these get.
        self._is_scheduled = False

    def tell(self, broker: "Broker", groups: Iterable[str]) -> None:
        self._groups.update(dict.fromkeys(groups))
        if not self._is_scheduled:
            self._turn(broker)

    def _turn(self, broker: "Broker") -> None:
        self._is_scheduled = False
        unsent_bytes_max = broker.options.limits.unsent_bytes_max
        for _ in range(CHANNELS_AT_ONCE):
            if not self._channels and not self._begin_next(broker):
                return
            if self._channels:
                channel = self._channels.popleft()
                if channel.answers.pending_bytes <= unsent_bytes_max:
                    channel.answers.write(self._frame)
        self._is_scheduled = True
        broker.loop.call_soon(self._turn, broker)

    def _begin_next(self, broker: "Broker") -> bool:
        """Take the next group; False: there is none."""
        if not self._groups:
            return False
        group = next(iter(self._groups))
        del self._groups[group]
        config = broker.rocketmq_groups.get(group)
        if config is not None and config.notify_consumer_ids_changed_enable:
            self._channels.extend(broker.rocketmq_members.channels(group))
            ext = {"consumerGroup": group}
            notice = remoting.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, _NO_ANSWER, ext, oneway=True)
            self._frame = remoting.encode(notice)
        return True
