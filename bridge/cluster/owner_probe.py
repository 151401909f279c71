"""The class OwnerProbe: whether the owner of the stream is cut off from its clients, as far as a standby can find out.

A standby opens a connection to the owner's Kafka port and to its RocketMQ port in turn, PROBES times in
`cluster.takeover_ms`, and closes it at once.

    the owner was reached    the last probes       a client has asked this standby since    the owner is cut off
    never                    any                   any                                      no
    before                   succeeded, or one     any                                      no
                             has failed
    before                   FAILURES have failed  no                                       no
    before                   FAILURES have failed  yes                                      yes

- An owner that was never reached in its epoch may have ports that only clients reach. And a broker that was taken for
  cut off does not take the stream back before the network between the two is whole again.
- Without a request of a client, this standby may be the one that is cut off.

The standby takes over only if the owner's slots say, too, that no client asks it (`store/shared/follower.py`). So the
stream stays where it is while any client of the Kafka or RocketMQ ports reaches the owner.
"""

import logging
from collections.abc import Callable
from itertools import cycle
from typing import Final, NamedTuple

from duolog.bridge.clock import Clock
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.connections import Connections
from duolog.bridge.net.nodes import Endpoints
from duolog.bridge.net.ports.probe import Probe

PROBES: Final = 6  # In the time of a takeover. A probe that takes longer than the time between two of them has failed.
FAILURES: Final = 2  # In a row, one at each port, after which the owner is not reached.

log = logging.getLogger("cluster")


class ProbedOwner(NamedTuple):
    """An owner of the stream in one epoch."""

    epoch: int
    endpoints: Endpoints


class OwnerProbe(Probe):
    """The probes of one standby. For the replica, it is `Clients` (`store/shared/events.py`)."""

    def __init__(
        self, connections: Connections, clock: Clock, takeover_ms: int, owner_now: Callable[[], ProbedOwner | None]
    ) -> None:
        """`owner_now` returns the owner as far as the log was read; None: it is not known, or it is this broker."""
        super().__init__(takeover_ms / PROBES / 1000)
        self._connections, self._clock, self._owner_now = connections, clock, owner_now
        self._ports = cycle(("kafka", "rocketmq"))
        self._owner: ProbedOwner | None = None  # The one that was probed last.
        self._reached_mono_ms: int | None = None  # When a probe of this owner succeeded last; None: none has.
        self._failures = 0  # Probes that have failed since then.

    # -- What is known

    @property
    def heard_mono_ms(self) -> int:
        """When this broker got the last request of a client."""
        return self._connections.heard_mono_ms

    @property
    def is_reached(self) -> bool:
        """Whether this standby reaches the owner's ports, as far as is known."""
        return self._failures < FAILURES or self._owner != self._owner_now()

    @property
    def is_owner_cut_off(self) -> bool:
        """Whether clients reach this standby, and this standby does not reach the owner's ports."""
        reached_mono_ms = self._reached_mono_ms
        return reached_mono_ms is not None and not self.is_reached and self.heard_mono_ms > reached_mono_ms

    def note(self, owner: ProbedOwner, mono_ms: int, *, is_reached: bool) -> None:
        """Note the outcome of a probe."""
        if owner != self._owner:
            self._owner, self._reached_mono_ms, self._failures = owner, None, 0
        if is_reached:
            if self._failures >= FAILURES:
                log.info("owner is reached again failures=%d", self._failures)
            self._reached_mono_ms, self._failures = mono_ms, 0
            return
        self._failures += 1
        if self._failures == FAILURES and self._reached_mono_ms is not None:
            log.warning("owner is not reached at its ports kafka=%s", endpoint(*owner.endpoints.kafka))

    # -- Probes

    async def probe(self) -> None:
        """Probe the next one of the owner's two ports."""
        port, owner = next(self._ports), self._owner_now()
        if owner is not None:
            is_reached = await self.connects(getattr(owner.endpoints, port))
            self.note(owner, self._clock.mono_ms(), is_reached=is_reached)
