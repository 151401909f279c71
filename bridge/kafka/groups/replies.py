"""The waiting JoinGroup and SyncGroup requests of a group, and the replies that are ready."""

from typing import Generic, NamedTuple, TypeVar

from duolog.bridge.kafka.groups.group_requests import JoinResponse, SyncResponse
from duolog.protocol.kafka.api_messages import ErrorCode

Ticket = TypeVar("Ticket")
"""Any value by which the caller recognizes a request when its response comes back."""


class Reply(NamedTuple, Generic[Ticket]):
    """The response to the request with this ticket."""

    ticket: Ticket
    answer: JoinResponse | SyncResponse


class Replies(Generic[Ticket]):
    """Keeps tickets until their responses are ready. Invariant: a ticket is in one table, and gets one reply.

    A member has at most one waiting JoinGroup request and at most one waiting SyncGroup request.
    """

    __slots__ = ("_ready", "joins", "syncs")

    def __init__(self) -> None:
        self.joins: dict[str, Ticket] = {}  # The tickets of waiting JoinGroup requests, by member id.
        self.syncs: dict[str, Ticket] = {}  # The tickets of waiting SyncGroup requests, by member id.
        self._ready: list[Reply[Ticket]] = []

    def add(self, ticket: Ticket, answer: JoinResponse | SyncResponse) -> None:
        """Reply to a request that does not wait, or that the caller took out of `joins` or `syncs`."""
        self._ready.append(Reply(ticket, answer))

    def refuse(self, member_id: str, error: ErrorCode) -> None:
        """Reply to the waiting requests of a member with an error."""
        if member_id in self.joins:
            self.add(self.joins.pop(member_id), JoinResponse(error, member_id))
        if member_id in self.syncs:
            self.add(self.syncs.pop(member_id), SyncResponse(error))

    def take_joins(self) -> dict[str, Ticket]:
        """Remove and return the waiting JoinGroup requests; the caller must reply to each."""
        joins, self.joins = self.joins, {}
        return joins

    def take_syncs(self) -> dict[str, Ticket]:
        """Remove and return the waiting SyncGroup requests; the caller must reply to each."""
        syncs, self.syncs = self.syncs, {}
        return syncs

    def take(self) -> list[Reply[Ticket]]:
        """Return the replies that were added since the last call."""
        ready, self._ready = self._ready, []
        return ready
