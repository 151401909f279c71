"""The limit on the work of Kafka groups, of all connections together, in one turn of the loop.

A request that completes a rebalance has a reply for each member, and many such requests of different groups may be read
in one turn. A reply takes up to 12 us, so the sum over all groups is limited, too:

    replies in this turn    a request to a group                                   the answers of a group's members
    up to ANSWERED_MAX      is handled                                             up to 50 are encoded at once
    up to REPLIES_MAX       is handled                                             are encoded in later turns
    more                    is received again in the next turn (`TurnIsFull`)
"""

from typing import Final

from duolog.bridge.net.connection import TurnIsFull
from duolog.bridge.net.server import Server

REPLIES_MAX: Final = 2000  # The last request may exceed it, by the members of one group.
ANSWERED_MAX: Final = 200  # Encoding an answer takes some 50 us.


class TurnWork:
    """Counts the replies of this turn."""

    def __init__(self) -> None:
        self.replies = 0

    @property
    def is_full(self) -> bool:
        return self.replies >= REPLIES_MAX

    def check(self) -> None:
        """Raise TurnIsFull if the request must wait for the next turn."""
        if self.is_full:
            raise TurnIsFull

    def add(self, replies: int, server: Server) -> bool:
        """Count replies; False: their answers must wait for later turns."""
        if not self.replies:
            server.soon("kafka groups", self._begin_turn)
        self.replies += replies
        return self.replies <= ANSWERED_MAX

    def _begin_turn(self) -> None:
        self.replies = 0
