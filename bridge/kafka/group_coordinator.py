"""All classic groups of the broker: finds the group of a request, keeps the limits, knows the next deadline.

What one group does is in `group.py`. Only groups that have members, or member ids given out and not yet used, are held
here: positions outlive them in `bridge/positions.py`. A member id is never given twice, so nobody can mistake the
first generation of a group that came back for an earlier one. For the same reason nothing of this is in the log: after
a restart members learn that they are unknown, and join again.

Times are monotonic milliseconds. Tickets are the caller's (see `group.py`).
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import Generic

from kio.schema.errors import ErrorCode

from bridge.kafka.group import Group, GroupOptions, Join, Joined, Leaver, Reply, State, Sync, Synced, Ticket


class GroupCoordinator(Generic[Ticket]):
    """The groups by name."""

    def __init__(self, options: GroupOptions, new_id: Callable[[], str] = lambda: str(uuid.uuid4())) -> None:
        self._options = options
        self._new_id = new_id
        self._groups: dict[str, Group[Ticket]] = {}
        # (deadline, tie-breaker, group id): at least one entry per group that is not later than its next deadline.
        # Sessions are renewed far more often than they end, so entries are corrected only when they come up.
        self._agenda: list[tuple[int, int, str]] = []
        self._agenda_of: dict[str, int] = {}
        self._agenda_count = 0
        self._member_count = 0  # Invariant: members and pending members of all groups.
        self._held_bytes = 0  # Invariant: the sum of `held_bytes` of all groups.

    # -- Requests

    def join(self, join: Join, ticket: Ticket, now_ms: int) -> list[Reply[Ticket]]:
        """JoinGroup: the ticket comes back with its answer, from this or a later call."""
        error = self._check_join(join)
        if error is not ErrorCode.none:
            return [Reply(ticket, Joined(error, join.member_id))]
        group = self._groups.setdefault(join.group_id, Group(join.group_id, self._options, self._new_id))
        with self._changing(group):
            return group.join(join, ticket, now_ms)

    def sync(self, sync: Sync, ticket: Ticket, now_ms: int) -> list[Reply[Ticket]]:
        """SyncGroup: the same."""
        group = self._groups.get(sync.group_id)
        if group is None:
            return [Reply(ticket, Synced(_absent(sync.group_id)))]
        if self._held_bytes + sum(len(assignment) for _, assignment in sync.assignments) > self._options.held_bytes_max:
            # Kafka's answer to an assignment that does not fit into its group topic.
            return [Reply(ticket, Synced(ErrorCode.unknown_server_error))]
        with self._changing(group):
            return group.sync(sync, ticket, now_ms)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Heartbeat: renew the member's session."""
        group = self._groups.get(group_id)
        if group is None:
            return _absent(group_id)
        return group.heartbeat(member_id, instance_id, generation, now_ms)

    def leave(
        self, group_id: str, leavers: Sequence[Leaver], now_ms: int
    ) -> tuple[list[ErrorCode], list[Reply[Ticket]]]:
        """LeaveGroup: one error per leaver, and the replies of those who waited for them."""
        group = self._groups.get(group_id)
        if group is None:
            return [_absent(group_id)] * len(leavers), []
        with self._changing(group):
            return group.leave(leavers, now_ms)

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Say whether this OffsetCommit is allowed; without a group it is, unless it claims to come from a member."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.none if generation < 0 else ErrorCode.illegal_generation
        return group.check_commit(member_id, instance_id, generation, now_ms)

    def _check_join(self, join: Join) -> ErrorCode:
        options = self._options
        if not join.group_id:
            return ErrorCode.invalid_group_id
        if not options.session_timeout_min_ms <= join.session_timeout_ms <= options.session_timeout_max_ms:
            return ErrorCode.invalid_session_timeout
        group = self._groups.get(join.group_id)
        if group is None and join.member_id:
            return ErrorCode.unknown_member_id
        is_known = group is not None and (join.member_id in group.members or join.member_id in group.pending)
        if not is_known and self._member_count >= options.total_count_max:
            return ErrorCode.group_max_size_reached
        if self._held_bytes + sum(len(metadata) for _, metadata in join.protocols) > options.held_bytes_max:
            return ErrorCode.group_max_size_reached
        return ErrorCode.none

    # -- Looking

    def group(self, group_id: str) -> Group[Ticket] | None:
        """The group, if it has members or has promised somebody a place."""
        return self._groups.get(group_id)

    def groups(self) -> Iterable[Group[Ticket]]:
        return self._groups.values()

    def is_active(self, group_id: str) -> bool:
        """Whether the group has members now."""
        group = self._groups.get(group_id)
        return group is not None and group.state is not State.EMPTY

    @contextmanager
    def _changing(self, group: Group[Ticket]) -> Iterator[None]:
        """Around a call that changes the group: afterwards the totals are right, and an idle group is forgotten."""
        self._member_count -= len(group.members) + len(group.pending)
        self._held_bytes -= group.held_bytes
        yield
        self._member_count += len(group.members) + len(group.pending)
        self._held_bytes += group.held_bytes
        if group.members or group.pending:
            self._plan(group)
        else:
            del self._groups[group.group_id]
            self._agenda_of.pop(group.group_id, None)

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """A moment not later than the first at which `expire` would do something."""
        return self._agenda[0][0] if self._agenda else None

    def expire(self, now_ms: int) -> list[Reply[Ticket]]:
        """Do what is due: sessions that ended, phases of a rebalance that took too long."""
        replies: list[Reply[Ticket]] = []
        while self._agenda and self._agenda[0][0] <= now_ms:
            due_ms, _, group_id = heappop(self._agenda)
            group = self._groups.get(group_id)
            if group is None or self._agenda_of.get(group_id) != due_ms:
                continue
            del self._agenda_of[group_id]
            with self._changing(group):
                replies += group.expire(now_ms)
        return replies

    def _plan(self, group: Group[Ticket]) -> None:
        due_ms = group.next_deadline_ms()
        planned_ms = self._agenda_of.get(group.group_id)
        if due_ms is None or (planned_ms is not None and planned_ms <= due_ms):
            return
        self._agenda_of[group.group_id] = due_ms
        self._agenda_count += 1
        heappush(self._agenda, (due_ms, self._agenda_count, group.group_id))
        if len(self._agenda) > 2 * len(self._agenda_of) + 64:
            self._agenda = [entry for entry in self._agenda if self._agenda_of.get(entry[2]) == entry[0]]
            heapify(self._agenda)


def _absent(group_id: str) -> ErrorCode:
    """What a request gets that names a group without members."""
    return ErrorCode.unknown_member_id if group_id else ErrorCode.invalid_group_id
