"""The class AskedClients: the clients to which the last check-backs of half messages were sent, for operators.

They are not in the log: after a restart nothing is known until the next check-back.
"""

from typing import Final

ASKED_MAX: Final = 10_000


class AskedClients:
    """The descriptions of clients by the offsets of half messages; those of the latest `asked_max` that were asked."""

    def __init__(self, asked_max: int = ASKED_MAX) -> None:
        self._asked_max = asked_max
        self._by_offset: dict[int, str] = {}  # In the order of check-backs.

    def note(self, offset: int, client: str) -> None:
        """Note that a client was asked for the verdict on a half message."""
        self._by_offset.pop(offset, None)
        self._by_offset[offset] = client
        if len(self._by_offset) > self._asked_max:
            del self._by_offset[next(iter(self._by_offset))]

    def of(self, offset: int) -> str:
        """Return the client that was asked last; empty if none is known."""
        return self._by_offset.get(offset, "")
