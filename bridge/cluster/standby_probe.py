"""The class StandbyProbe: which other brokers of the stream clients can reach, for RocketMQ's routes.

Brokers that will not come back stay in `nodes/`, so each broker opens a connection to the RocketMQ port of each other
one every PROBE_S, and closes it at once. A broker is named in routes once a probe has succeeded, and no more once
FAILURES in a row have failed. The owner of the stream is always named, so it is not probed here.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from duolog.bridge.net.nodes import Node, Nodes
from duolog.bridge.net.ports.probe import Probe

PROBE_S: Final = 1.0  # A probe that takes longer has failed.
FAILURES: Final = 2


class StandbyProbe(Probe):
    """The probes of one broker. Their result is `Nodes.reached`."""

    def __init__(self, nodes_now: Callable[[], Nodes]) -> None:
        super().__init__(PROBE_S)
        self._nodes_now = nodes_now
        self._failures: dict[int, int] = {}  # By the number of the broker; without an entry, it was not reached yet.

    async def probe(self) -> None:
        """Probe the RocketMQ ports of all others at the same time."""
        nodes = self._nodes_now()
        others = [node for node in nodes.all if node not in (nodes.own, nodes.owner)]
        found = await asyncio.gather(*(self.connects(each.endpoints.rocketmq) for each in others))
        self.note(nodes, dict(zip(others, found, strict=True)))

    def note(self, nodes: Nodes, found: dict[Node, bool]) -> None:
        """Note which of these brokers was reached."""
        before = self._failures
        self._failures = {
            node.id: 0 if is_reached else before[node.id] + 1
            for node, is_reached in found.items()
            if is_reached or node.id in before
        }
        nodes.reached = frozenset(number for number, count in self._failures.items() if count < FAILURES)
