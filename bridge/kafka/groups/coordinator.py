"""All classic groups of the broker: finds the group of a request, keeps the limits, knows the next deadline.

What one group does is in `group.py`. Only groups that have members, or member ids given out and not yet used, are held
here: positions outlive them in `bridge/state/positions.py`. A member id is never given twice, so nobody can mistake the
first generation of a group that came back for an earlier one. For the same reason nothing of this is in the log: after
a restart members learn that they are unknown, and join again.

Times are monotonic milliseconds. Tickets are the caller's (see `group.py`).
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

from duolog.bridge.config import GroupsOptions
from duolog.bridge.kafka.groups.classic_group import (
    Group,
    Join,
    Joined,
    Leaver,
    Reply,
    State,
    Sync,
    Synced,
    Ticket,
)
from duolog.delay.wheel import Timer, Wheel
from duolog.protocol.kafka.api_messages import ErrorCode

PROTOCOLS_MAX = 100  # of one member; clients have a few
MEMBERS_MAX = 100_000  # of all groups, member ids given out and not yet used included; further ones are refused
MEMBERS_AT_ONCE = 2000  # Of the groups that are due in one turn of the loop, at some 12 us each; or one larger group.
GROUPS_MOVED_AT_ONCE = 1000  # Timers in the wheel that are moved in one turn.
AT_ONCE_MS = 0
PENDING_BYTES = 2048  # more than a member id takes that was given out and not used yet
# Of a group's id, and of what its members call themselves, their type and their protocols. Kafka has no limit of its
# own; without one, names that newer versions can spell would not fit into the answers of older ones.
NAME_CHARACTERS_MAX = 1024


class GroupCoordinator(Generic[Ticket]):
    """The groups by name."""

    def __init__(
        self,
        options: GroupsOptions,
        *,
        members_max: int = MEMBERS_MAX,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._options = options
        self._members_max = members_max
        self._new_id = new_id
        self._groups: dict[str, Group[Ticket]] = {}
        # One timer for each group, not later than its next deadline: sessions are renewed far more often than they end,
        # so a timer is corrected only when it comes up.
        self._wheel: Wheel[str] = Wheel()
        self._timers: dict[str, Timer[str]] = {}
        self._due: deque[str] = deque()  # Groups out of the wheel that `expire` has not come to.
        self._member_count = 0  # Invariant: members and pending members of all groups.
        self._held_bytes = 0  # Invariant: the sum of `_bytes_of` all groups.

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
        if sync.assignments and not self._has_room(group, group.assigned_bytes(sync)):
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
        if not 0 < len(join.group_id) <= NAME_CHARACTERS_MAX:
            return ErrorCode.invalid_group_id
        if any(len(name) > NAME_CHARACTERS_MAX for name in _names_in(join)):
            return ErrorCode.invalid_request
        if not options.session_timeout_min_ms <= join.session_timeout_ms <= options.session_timeout_max_ms:
            return ErrorCode.invalid_session_timeout
        group = self._groups.get(join.group_id)
        if group is None and join.member_id:
            return ErrorCode.unknown_member_id
        is_known = group is not None and (join.member_id in group.members or join.member_id in group.pending)
        if not is_known and self._member_count >= self._members_max:
            return ErrorCode.group_max_size_reached
        size = join.held_bytes
        if size > options.member_bytes_max or len(join.protocols) > PROTOCOLS_MAX:
            return ErrorCode.group_max_size_reached
        known = group.members.get(join.member_id) if group is not None else None
        more_bytes = size if known is None else size - known.protocol_bytes
        if not self._has_room(group, more_bytes):
            return ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _has_room(self, group: Group[Ticket] | None, more_bytes: int) -> bool:
        """Whether a group (None: a new one) may take more; what makes it smaller always may."""
        if more_bytes <= 0:
            return True
        group_bytes = _bytes_of(group) if group is not None else 0
        return (
            group_bytes + more_bytes <= self._options.group_bytes_max
            and self._held_bytes + more_bytes <= self._options.bytes_max
        )

    # -- Looking

    def group(self, group_id: str) -> Group[Ticket] | None:
        """The group, if it has members or has promised somebody a place."""
        return self._groups.get(group_id)

    def groups(self) -> Iterable[Group[Ticket]]:
        return self._groups.values()

    def has_members(self, group_id: str) -> bool:
        """Whether the group has members now."""
        group = self._groups.get(group_id)
        return group is not None and group.state is not State.EMPTY

    @contextmanager
    def _changing(self, group: Group[Ticket]) -> Iterator[None]:
        """Around a call that changes the group: afterwards the totals are right, and an idle group is forgotten."""
        self._member_count -= len(group.members) + len(group.pending)
        self._held_bytes -= _bytes_of(group)
        yield
        self._member_count += len(group.members) + len(group.pending)
        self._held_bytes += _bytes_of(group)
        if group.members or group.pending:
            self._plan(group)
        else:
            del self._groups[group.group_id]
            timer = self._timers.pop(group.group_id, None)
            if timer is not None:
                self._wheel.cancel(timer)

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """A moment not later than the first at which `expire` would do something."""
        return AT_ONCE_MS if self._due else self._wheel.next_deadline_ms()

    def expire(self, now_ms: int) -> list[Reply[Ticket]]:
        """Do what is due: sessions that ended, phases of a rebalance that took too long.

        Where many groups are due the next calls go on with them, for `next_deadline_ms` says so.
        """
        if not self._due:
            self._due.extend(self._wheel.advance(now_ms, GROUPS_MOVED_AT_ONCE))
            for group_id in self._due:
                del self._timers[group_id]
        replies: list[Reply[Ticket]] = []
        left = MEMBERS_AT_ONCE
        while self._due and left > 0:
            group = self._groups.get(self._due.popleft())
            if group is None:
                continue  # Its last member left meanwhile.
            left -= len(group.members) + len(group.pending) + 1
            with self._changing(group):
                replies += group.expire(now_ms)
        return replies

    def _plan(self, group: Group[Ticket]) -> None:
        due_ms, timer = group.next_deadline_ms, self._timers.get(group.group_id)
        if due_ms is None or (timer is not None and timer.deadline_ms <= due_ms):
            return
        if timer is not None:
            self._wheel.cancel(timer)
        self._timers[group.group_id] = self._wheel.add(due_ms, group.group_id)


def _bytes_of(group: Group[Ticket]) -> int:
    return group.held_bytes + PENDING_BYTES * len(group.pending)


def _names_in(join: Join) -> Iterator[str]:
    yield join.instance_id or ""
    yield join.protocol_type
    for name, _ in join.protocols:
        yield name


def _absent(group_id: str) -> ErrorCode:
    """What a request gets that names a group without members."""
    return ErrorCode.unknown_member_id if group_id else ErrorCode.invalid_group_id
