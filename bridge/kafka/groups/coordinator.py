"""The group coordinator: it finds the classic group of a request, enforces the limits, and knows the next deadline.

`classic_group.py` decides what a group does. The coordinator keeps a group while it has members or reserved member ids;
committed offsets outlive it in `state/group_offsets.py`. A member id is never given out twice, so no member mistakes
the first generation of a new group for a generation of an earlier group with the same name. For the same reason the log
holds nothing of this: after a restart members learn that they are unknown, and join again.

Times are monotonic milliseconds. Tickets are values of the caller's choice (see `classic_group.py`).
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

from duolog.bridge.config import GroupsOptions
from duolog.bridge.kafka.groups.classic_group import ClassicGroup
from duolog.bridge.kafka.groups.group_requests import (
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from duolog.bridge.kafka.groups.rebalance import GroupState
from duolog.bridge.kafka.groups.replies import Reply, Ticket
from duolog.delay.wheel import Wheel, WheelTimer
from duolog.protocol.kafka.api_messages import ErrorCode

PROTOCOLS_MAX = 100  # The protocols of one member; clients have a few.
MEMBERS_MAX = 100_000  # The members of all groups, with reserved member ids; further JoinGroups are refused.
MEMBERS_AT_ONCE = 2000  # In the groups that one turn of the loop expires, at some 12 us each; or one larger group.
GROUPS_MOVED_AT_ONCE = 1000  # Timers that the wheel moves in one turn of the loop.
AT_ONCE_MS = 0
RESERVED_ID_BYTES = 2048  # A reserved member id takes less memory than this.
# Characters in a group's id, and in the names of its members, their protocol type and their protocols. Kafka has no
# limit of its own; without one, names that newer versions can carry would not fit into answers of older versions.
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
        self._groups: dict[str, ClassicGroup[Ticket]] = {}
        # One timer for each group, which fires not later than the group's next deadline. Sessions are renewed far more
        # often than they end, so a timer is corrected only when it fires.
        self._wheel: Wheel[str] = Wheel()
        self._timers: dict[str, WheelTimer[str]] = {}
        self._due: deque[str] = deque()  # Groups whose timer has fired and that `expire` has not handled yet.
        self._member_count = 0  # Invariant: members and reserved member ids of all groups.
        self._held_bytes = 0  # Invariant: the sum of `_bytes_of` over all groups.

    # -- Requests

    def join(self, join: JoinRequest, ticket: Ticket, now_ms: int) -> list[Reply[Ticket]]:
        """Handle JoinGroup. The ticket comes back with its response among these replies or those of a later call."""
        error = self._check_join(join)
        if error is not ErrorCode.none:
            return [Reply(ticket, JoinResponse(error, join.member_id))]
        group = self._groups.get(join.group_id)
        if group is None:
            group = self._groups[join.group_id] = ClassicGroup(join.group_id, self._options, self._new_id)
        with self._changing(group):
            return group.join(join, ticket, now_ms)

    def sync(self, sync: SyncRequest, ticket: Ticket, now_ms: int) -> list[Reply[Ticket]]:
        """Handle SyncGroup. The ticket comes back with its response among these replies or those of a later call."""
        group = self._groups.get(sync.group_id)
        if group is None:
            return [Reply(ticket, SyncResponse(_error_without_group(sync.group_id)))]
        if sync.assignments and not self._has_room(group, group.members.assignment_growth_bytes(sync)):
            # Kafka gives this answer to assignments that do not fit into a record of its group topic.
            return [Reply(ticket, SyncResponse(ErrorCode.unknown_server_error))]
        with self._changing(group):
            return group.sync(sync, ticket, now_ms)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Handle Heartbeat, which renews the member's session."""
        group = self._groups.get(group_id)
        if group is None:
            return _error_without_group(group_id)
        return group.heartbeat(member_id, instance_id, generation, now_ms)

    def leave(
        self, group_id: str, leaving: Sequence[MemberIdentity], now_ms: int
    ) -> tuple[list[ErrorCode], list[Reply[Ticket]]]:
        """Handle LeaveGroup: return an error for each member, and the replies to requests that waited for them."""
        group = self._groups.get(group_id)
        if group is None:
            return [_error_without_group(group_id)] * len(leaving), []
        with self._changing(group):
            return group.leave(leaving, now_ms)

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Check an OffsetCommit. Where there is no group it is allowed, unless it claims to come from a member."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.none if generation < 0 else ErrorCode.illegal_generation
        return group.check_commit(member_id, instance_id, generation, now_ms)

    def _check_join(self, join: JoinRequest) -> ErrorCode:
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
        member = group.members.get(join.member_id) if group is not None else None
        is_known = member is not None or (group is not None and join.member_id in group.rebalance.reserved_ids)
        if not is_known and self._member_count >= self._members_max:
            return ErrorCode.group_max_size_reached
        size = join.held_bytes
        if size > options.member_bytes_max or len(join.protocols) > PROTOCOLS_MAX:
            return ErrorCode.group_max_size_reached
        more_bytes = size if member is None else size - member.protocol_bytes
        if not self._has_room(group, more_bytes):
            return ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _has_room(self, group: ClassicGroup[Ticket] | None, more_bytes: int) -> bool:
        """Whether a group (None: a new one) may grow by so much. A change that makes it smaller is always allowed."""
        if more_bytes <= 0:
            return True
        group_bytes = _bytes_of(group) if group is not None else 0
        return (
            group_bytes + more_bytes <= self._options.group_bytes_max
            and self._held_bytes + more_bytes <= self._options.bytes_max
        )

    # -- The groups

    def group(self, group_id: str) -> ClassicGroup[Ticket] | None:
        """Return the group if it has members or reserved member ids."""
        return self._groups.get(group_id)

    def groups(self) -> Iterable[ClassicGroup[Ticket]]:
        return self._groups.values()

    def has_members(self, group_id: str) -> bool:
        """Whether the group has members now."""
        group = self._groups.get(group_id)
        return group is not None and group.state is not GroupState.EMPTY

    @contextmanager
    def _changing(self, group: ClassicGroup[Ticket]) -> Iterator[None]:
        """Surround a call that changes the group: afterwards the totals are right, and an empty group is dropped."""
        reserved_ids = group.rebalance.reserved_ids
        self._member_count -= len(group.members) + len(reserved_ids)
        self._held_bytes -= _bytes_of(group)
        yield
        self._member_count += len(group.members) + len(reserved_ids)
        self._held_bytes += _bytes_of(group)
        if group.members or reserved_ids:
            self._plan(group)
        else:
            del self._groups[group.group_id]
            timer = self._timers.pop(group.group_id, None)
            if timer is not None:
                self._wheel.cancel(timer)

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Return a time not later than the first at which `expire` has something to do."""
        return AT_ONCE_MS if self._due else self._wheel.next_deadline_ms()

    def expire(self, now_ms: int) -> list[Reply[Ticket]]:
        """End the sessions and the phases of rebalances whose time is over, and return the replies that follow.

        Where many groups are due, the next calls handle the others: `next_deadline_ms` asks for them at once.
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
                continue  # Its last member has left since its timer fired.
            left -= len(group.members) + len(group.rebalance.reserved_ids) + 1
            with self._changing(group):
                replies += group.expire(now_ms)
        return replies

    def _plan(self, group: ClassicGroup[Ticket]) -> None:
        due_ms, timer = group.rebalance.next_deadline_ms, self._timers.get(group.group_id)
        if due_ms is None or (timer is not None and timer.deadline_ms <= due_ms):
            return
        if timer is not None:
            self._wheel.cancel(timer)
        self._timers[group.group_id] = self._wheel.add(due_ms, group.group_id)


def _bytes_of(group: ClassicGroup[Ticket]) -> int:
    return group.members.held_bytes + RESERVED_ID_BYTES * len(group.rebalance.reserved_ids)


def _names_in(join: JoinRequest) -> Iterator[str]:
    yield join.instance_id or ""
    yield join.protocol_type
    for name, _ in join.protocols:
        yield name


def _error_without_group(group_id: str) -> ErrorCode:
    """Return the error for a request that names a group without members."""
    return ErrorCode.unknown_member_id if group_id else ErrorCode.invalid_group_id
