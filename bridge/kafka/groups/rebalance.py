"""The rebalances of one classic group: its state, its generation, and the deadlines of its phases and sessions.

    PreparingRebalance      members send JoinGroup; ends when all have, or when the longest rebalance timeout is over
    CompletingRebalance     members send SyncGroup; ends when the leader's has brought the assignments

Members that do not send JoinGroup or SyncGroup in time are removed, and the others go on without them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic

from duolog.bridge.kafka.groups.group_requests import JoinedMember, JoinResponse, SyncRequest, SyncResponse
from duolog.bridge.kafka.groups.members import ClassicMembers, Member
from duolog.bridge.kafka.groups.replies import Replies, Ticket
from duolog.protocol.kafka.api_messages import ErrorCode


class GroupState(Enum):
    """The states of a group. The values are Kafka's names of them, as answers contain them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


# The states that may follow each state, and the event that leads there. There is no state for a dead group, for the
# coordinator drops a group without members.
TRANSITIONS: dict[GroupState, dict[GroupState, str]] = {
    GroupState.EMPTY: {GroupState.PREPARING: "the first member joins"},
    GroupState.PREPARING: {
        GroupState.COMPLETING: "all members have joined, or the time to join is over",
        GroupState.EMPTY: "the last member has left",
    },
    GroupState.COMPLETING: {
        GroupState.STABLE: "the leader has sent the assignments",
        GroupState.PREPARING: "a member joined, left, changed, or did not sync in time",
    },
    GroupState.STABLE: {GroupState.PREPARING: "a member joined, left or changed, or the leader joined again"},
}


@dataclass(slots=True)
class _InitialDelay:
    """The wait of a new group for its first members, which tend to join together.

    It is extended as long as further members join.
    """

    left_ms: int  # The wait may still be extended by so much.
    has_new_member: bool = False  # A member joined since the delay was last extended.


class Rebalance(Generic[Ticket]):
    """Moves a group through its states. Methods that end a phase add replies to the requests that waited for it."""

    __slots__ = (
        "_group_id", "_initial", "_initial_delay_ms", "_members", "_phase_deadline_ms", "_replies", "_unsynced",
        "generation", "next_deadline_ms", "protocol_name", "reserved_ids", "state",
    )  # fmt: skip

    def __init__(self, group_id: str, members: ClassicMembers, replies: Replies[Ticket], initial_delay_ms: int) -> None:
        self._group_id, self._members, self._replies = group_id, members, replies
        self._initial_delay_ms = initial_delay_ms
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_name: str | None = None
        # The member ids that MEMBER_ID_REQUIRED responses gave out and no JoinGroup has used, with their deadlines.
        self.reserved_ids: dict[str, int] = {}
        self.next_deadline_ms: int | None = None  # Invariant: not later than any deadline.
        self._unsynced: set[str] = set()  # The members of this generation that have not sent SyncGroup.
        self._phase_deadline_ms: int | None = None  # The end of the time to join, or to sync.
        self._initial: _InitialDelay | None = None  # Set while a new group waits for its first members.

    # -- The join phase

    def begin(self, now_ms: int) -> None:
        """Start a join phase because a member joined, left or changed; or continue the present phase."""
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all(now_ms)
        elif self.state is GroupState.EMPTY:
            self._begin_first(now_ms)
        else:
            self._cancel_syncs(now_ms)
            self._enter(GroupState.PREPARING)
            self._phase_deadline_ms = self.planned(now_ms + self._members.rebalance_timeout_ms)
            self._complete_join_if_all(now_ms)

    def member_added(self, now_ms: int) -> None:
        """Start or extend a join phase because of a new member."""
        if self._initial is not None:
            self._initial.has_new_member = True
        self.begin(now_ms)

    def _begin_first(self, now_ms: int) -> None:
        self._enter(GroupState.PREPARING)
        delay_ms = self._initial_delay_ms
        self._initial = _InitialDelay(max(self._members.rebalance_timeout_ms - delay_ms, 0))
        self._phase_deadline_ms = self.planned(now_ms + delay_ms)
        if delay_ms == 0:
            self._complete_join(now_ms)

    def _end_join_phase(self, now_ms: int) -> None:
        initial = self._initial
        if initial is not None and initial.has_new_member and initial.left_ms > 0:
            delay_ms = min(self._initial_delay_ms, initial.left_ms)
            initial.has_new_member = False
            initial.left_ms -= delay_ms
            self._phase_deadline_ms = self.planned(now_ms + delay_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join_if_all(self, now_ms: int) -> None:
        have_all_joined = not self.reserved_ids and len(self._replies.joins) == len(self._members)
        if have_all_joined and (self._initial is None or not self._members):
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Start the next generation with the members that have joined, and with static members that have not."""
        members, joins = self._members, self._replies.joins
        for member in [each for each in members if each.member_id not in joins]:
            if member.instance_id is None:
                self.remove(member, ErrorCode.unknown_member_id)
        if len(members) and not joins:
            # All members are static, and none has joined: the ends of their sessions decide, not this phase.
            self._phase_deadline_ms = self.planned(now_ms + members.rebalance_timeout_ms)
            return
        self._initial = None
        self.generation += 1
        if not len(members):
            self._enter(GroupState.EMPTY)
            self.protocol_name = members.leader_id = self._phase_deadline_ms = None
            return
        if members.leader_id not in joins:
            members.leader_id = next(member.member_id for member in members if member.member_id in joins)
        self.protocol_name = members.choose_protocol()
        self._enter(GroupState.COMPLETING)
        self._unsynced = {member.member_id for member in members}
        self._phase_deadline_ms = self.planned(now_ms + members.rebalance_timeout_ms)
        joins = self._replies.take_joins()
        for member in members:
            if member.member_id in joins:
                self._replies.add(joins[member.member_id], self.join_response(member))
            member.is_new = False
            self.renew_session(member, now_ms)

    def join_response(
        self,
        member: Member,
        *,
        leader_id: str | None = None,
        described: tuple[JoinedMember, ...] | None = None,
        skip_assignment: bool = False,
    ) -> JoinResponse:
        """Make the response that tells a member of this generation. By default, the leader's describes all members."""
        members = self._members
        if described is None:
            described = members.describe(self.protocol_name) if member.member_id == members.leader_id else ()
        return JoinResponse(
            ErrorCode.none, member.member_id, self.generation, members.protocol_type, self.protocol_name,
            leader_id or members.leader_id or "", described, skip_assignment,
        )  # fmt: skip

    # -- The sync phase

    def member_synced(self, sync: SyncRequest, ticket: Ticket, now_ms: int) -> None:
        """Let a SyncGroup request wait for the assignments, which the leader's request contains."""
        members = self._members
        self._replies.syncs[sync.member_id], members[sync.member_id].deadline_ms = ticket, None
        self._unsynced.discard(sync.member_id)
        if self.state is GroupState.COMPLETING and sync.member_id == members.leader_id:
            members.assign(dict(sync.assignments))
            self._enter(GroupState.STABLE)
        if self.state is GroupState.STABLE:
            self._answer_syncs(now_ms)

    def _answer_syncs(self, now_ms: int) -> None:
        for member_id, ticket in self._replies.take_syncs().items():
            member = self._members[member_id]
            answer = SyncResponse(ErrorCode.none, member.assignment, self._members.protocol_type, self.protocol_name)
            self._replies.add(ticket, answer)
            self.renew_session(member, now_ms)
        if not self._unsynced:
            self._phase_deadline_ms = None

    def _cancel_syncs(self, now_ms: int) -> None:
        self._unsynced.clear()
        for member_id, ticket in self._replies.take_syncs().items():
            self._replies.add(ticket, SyncResponse(ErrorCode.rebalance_in_progress))
            self.renew_session(self._members[member_id], now_ms)

    # -- Members that leave, or return under another id

    def remove(self, member: Member, error: ErrorCode) -> None:
        """Remove a member, and reply to its waiting requests with an error; `after_removals` must follow."""
        self._replies.refuse(member.member_id, error)
        self._members.remove(member)
        self._unsynced.discard(member.member_id)

    def after_removals(self, now_ms: int, *, has_removed_members: bool = True) -> None:
        """Choose another leader if necessary, and continue without the removed members or reserved ids."""
        members = self._members
        if members.leader_id is None:
            members.leader_id = next((member.member_id for member in members), None)
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all(now_ms)
        elif self.state is not GroupState.EMPTY and has_removed_members:
            self.begin(now_ms)

    def change_id(self, member: Member, member_id: str) -> None:
        """Change the member id of a static member that was started again; requests under the old id are fenced."""
        self._replies.refuse(member.member_id, ErrorCode.fenced_instance_id)
        if member.member_id in self._unsynced:
            self._unsynced.remove(member.member_id)
            self._unsynced.add(member_id)
        self._members.change_id(member, member_id)

    # -- Time

    def renew_session(self, member: Member, now_ms: int) -> None:
        """Restart the session of a member, unless a request of the member waits."""
        if member.member_id not in self._replies.joins and member.member_id not in self._replies.syncs:
            member.deadline_ms = self.planned(now_ms + member.session_timeout_ms)

    def expire(self, now_ms: int) -> None:
        """Remove members and reserved member ids whose time is over, and end a phase whose time is over."""
        expired = [each for each in self._members if each.deadline_ms is not None and each.deadline_ms <= now_ms]
        unused = [member_id for member_id, deadline_ms in self.reserved_ids.items() if deadline_ms <= now_ms]
        for member in expired:
            self.remove(member, ErrorCode.unknown_member_id)
        for member_id in unused:
            del self.reserved_ids[member_id]
        if expired or unused:
            self.after_removals(now_ms, has_removed_members=bool(expired))
        if self._phase_deadline_ms is not None and self._phase_deadline_ms <= now_ms:
            self._end_phase(now_ms)
        self.next_deadline_ms = min(self._deadlines(), default=None)

    def _end_phase(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING:
            self._end_join_phase(now_ms)
            return
        for member_id in sorted(self._unsynced):
            self.remove(self._members[member_id], ErrorCode.unknown_member_id)
        self.begin(now_ms)

    def _deadlines(self) -> Iterable[int]:
        yield from (each.deadline_ms for each in self._members if each.deadline_ms is not None)
        yield from self.reserved_ids.values()
        if self._phase_deadline_ms is not None:
            yield self._phase_deadline_ms

    def planned(self, deadline_ms: int) -> int:
        """Note a deadline of a phase, a member or a reserved id, and return it.

        A deadline that moves to a later time is not corrected here but when the earliest known one comes.
        """
        if self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms
        return deadline_ms

    def _enter(self, state: GroupState) -> None:
        assert state in TRANSITIONS[self.state], f"group {self._group_id}: {self.state.value} to {state.value}"
        self.state = state
