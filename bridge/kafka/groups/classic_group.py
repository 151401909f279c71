"""One classic consumer group: how it answers JoinGroup, SyncGroup, Heartbeat, LeaveGroup and OffsetCommit.

The group is a pure state machine: it does no I/O and asks no clock (`now_ms` is monotonic milliseconds throughout). A
request that must wait is held by its ticket, any value that the caller chooses. The ticket comes back among the replies
of the call that completes the request, so every method that may complete waiting requests returns replies.

    members.py     the members, their protocols, the leader
    rebalance.py   the states, the generation, the deadlines
    replies.py     the requests that wait, and the replies

A member passes one rebalance in two steps:

    JoinGroup  waits until all members have joined         ->  generation and protocol; the leader gets all metadata
    SyncGroup  waits until the leader's brings assignments ->  this member's assignment

The group answers by its state (with error names as in Kafka; "-" is success):

    state       JoinGroup                            SyncGroup               Heartbeat            member's OffsetCommit
    Empty       waits, for a new member              unknown member          unknown member       unknown member
    Preparing   waits                                rebalance in progress   rebalance in progr.  -
    Completing  unchanged member: this generation    waits for the leader's  -                    rebalance in progress
                changed member: a new rebalance
    Stable      unchanged follower: this generation  the assignment          -                    -
                leader, changed: a new rebalance

Source: KIP-62, KIP-345 (static members), KIP-394 (member id required), KIP-814 (skip assignment), and Kafka's
GroupMetadataManager.java (`classicGroupJoin...`), whose order of checks is kept.
"""

from collections.abc import Callable, Sequence
from typing import Generic

from duolog.bridge.config import GroupsOptions
from duolog.bridge.kafka.groups.group_requests import (
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from duolog.bridge.kafka.groups.members import ClassicMembers, Member
from duolog.bridge.kafka.groups.rebalance import GroupState, Rebalance
from duolog.bridge.kafka.groups.replies import Replies, Reply, Ticket
from duolog.protocol.kafka.api_messages import ErrorCode

# A new member waits in JoinGroup for the others to rejoin; its client may have disconnected by then (Kafka's constant).
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


class ClassicGroup(Generic[Ticket]):
    """Checks the requests of one group, and passes them to its members and rebalances."""

    __slots__ = ("_new_id", "_options", "_replies", "group_id", "members", "rebalance")

    def __init__(self, group_id: str, options: GroupsOptions, new_id: Callable[[], str]) -> None:
        """`new_id` returns a text that was never used before, as a part of a member id."""
        self.group_id, self._options, self._new_id = group_id, options, new_id
        self.members = ClassicMembers()
        self._replies: Replies[Ticket] = Replies()
        self.rebalance = Rebalance(group_id, self.members, self._replies, options.initial_rebalance_delay_ms)

    @property
    def state(self) -> GroupState:
        return self.rebalance.state

    @property
    def protocol_type(self) -> str | None:
        return self.members.protocol_type

    @property
    def protocol_name(self) -> str | None:
        return self.rebalance.protocol_name

    # -- Joining

    def join(self, join: JoinRequest, ticket: Ticket, now_ms: int) -> list[Reply[Ticket]]:
        """Handle JoinGroup. The ticket comes back with its response among these replies or those of a later call."""
        error = self._join(join, ticket, now_ms)
        if error is not ErrorCode.none:
            self._replies.add(ticket, JoinResponse(error, join.member_id))
        return self._replies.take()

    def _join(self, join: JoinRequest, ticket: Ticket, now_ms: int) -> ErrorCode:
        if not self._has_room_for(join.member_id):
            if join.member_id:
                self._leave(MemberIdentity(join.member_id))
                self.rebalance.after_removals(now_ms)
            return ErrorCode.group_max_size_reached
        if not self.members.share_protocol_with(join):
            return ErrorCode.inconsistent_group_protocol
        if not join.member_id:
            return self._join_as_new(join, ticket, now_ms)
        # Static members never get an id in advance.
        if join.member_id in self.rebalance.reserved_ids and join.instance_id is None:
            self._add(join, join.member_id, ticket, now_ms)
            return ErrorCode.none
        error = self.members.check_identity(join.member_id, join.instance_id)
        if error is ErrorCode.none:
            self._rejoin(self.members[join.member_id], join, ticket, now_ms)
        return error

    def _has_room_for(self, member_id: str) -> bool:
        if self.state is GroupState.EMPTY:
            return True
        if self.state is GroupState.PREPARING:
            joins = self._replies.joins
            return member_id in joins or len(joins) < self._options.members_max
        return member_id in self.members or len(self.members) < self._options.members_max

    def _join_as_new(self, join: JoinRequest, ticket: Ticket, now_ms: int) -> ErrorCode:
        member_id = f"{join.instance_id or join.client_id}-{self._new_id()}"
        old_id = "" if join.instance_id is None else self.members.id_of_instance(join.instance_id)
        if old_id:
            self._replace(self.members[old_id], member_id, join, ticket, now_ms)
        elif join.instance_id is None and join.member_id_required:
            # KIP-394: the client must come back with this id, so that a lost response leaves no member behind.
            reserved_ids = self.rebalance.reserved_ids
            if len(reserved_ids) >= self._options.members_max:
                return ErrorCode.group_max_size_reached
            reserved_ids[member_id] = self.rebalance.planned(now_ms + join.session_timeout_ms)
            self._replies.add(ticket, JoinResponse(ErrorCode.member_id_required, member_id))
        else:
            self._add(join, member_id, ticket, now_ms)
        return ErrorCode.none

    def _add(self, join: JoinRequest, member_id: str, ticket: Ticket, now_ms: int) -> None:
        self.rebalance.reserved_ids.pop(member_id, None)
        member = self.members.add(member_id, join)
        self._replies.joins[member_id] = ticket
        member.deadline_ms = self.rebalance.planned(now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.rebalance.member_added(now_ms)

    def _rejoin(self, member: Member, join: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        is_unchanged = member.protocols == join.protocols
        is_leader = member.member_id == self.members.leader_id
        if is_unchanged and (
            self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and not is_leader)
        ):
            # The response to the member's last JoinGroup was lost, or the member asks whether it still belongs.
            self._replies.add(ticket, self.rebalance.join_response(member))
            self.rebalance.renew_session(member, now_ms)
            return
        self._update(member, join, ticket)
        self.rebalance.begin(now_ms)

    def _replace(self, member: Member, member_id: str, join: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        """Handle the JoinGroup of a static member that was started again: it keeps its place and its assignment."""
        members, rebalance = self.members, self.rebalance
        old_leader_id = members.leader_id
        rebalance.change_id(member, member_id)
        self._update(member, join, ticket)
        if self.state is not GroupState.STABLE or members.choose_protocol() != self.protocol_name:
            rebalance.begin(now_ms)
            return
        is_leader = members.leader_id == member_id
        if is_leader and not join.can_skip_assignment:
            # KIP-814: an older client that learns that it leads would assign again, so the response names its old id.
            answer = rebalance.join_response(member, leader_id=old_leader_id, described=())
        else:
            answer = rebalance.join_response(member, skip_assignment=is_leader)
        del self._replies.joins[member_id]
        self._replies.add(ticket, answer)
        rebalance.renew_session(member, now_ms)

    def _update(self, member: Member, join: JoinRequest, ticket: Ticket) -> None:
        # A request that this one supersedes gets a reply, or its connection would wait for ever.
        self._replies.refuse(member.member_id, ErrorCode.rebalance_in_progress)
        self.members.update(member, join)
        self._replies.joins[member.member_id] = ticket
        if not member.is_new:
            member.deadline_ms = None

    # -- Syncing

    def sync(self, sync: SyncRequest, ticket: Ticket, now_ms: int) -> list[Reply[Ticket]]:
        """Handle SyncGroup. The leader's request completes those of all members."""
        error = self._sync(sync, ticket, now_ms)
        if error is not ErrorCode.none:
            self._replies.add(ticket, SyncResponse(error))
        return self._replies.take()

    def _sync(self, sync: SyncRequest, ticket: Ticket, now_ms: int) -> ErrorCode:
        error = self._check_member(sync.member_id, sync.instance_id, sync.generation)
        if error is not ErrorCode.none:
            return error
        if sync.protocol_type not in (None, self.protocol_type) or sync.protocol_name not in (None, self.protocol_name):
            return ErrorCode.inconsistent_group_protocol
        if self.state is GroupState.PREPARING:
            return ErrorCode.rebalance_in_progress
        self._replies.refuse(sync.member_id, ErrorCode.rebalance_in_progress)
        self.rebalance.member_synced(sync, ticket, now_ms)
        return ErrorCode.none

    # -- Staying and leaving

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Handle Heartbeat: renew the member's session, also if the answer makes the member rejoin."""
        error = self._check_member(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
        self.rebalance.renew_session(self.members[member_id], now_ms)
        return ErrorCode.rebalance_in_progress if self.state is GroupState.PREPARING else ErrorCode.none

    def leave(self, leaving: Sequence[MemberIdentity], now_ms: int) -> tuple[list[ErrorCode], list[Reply[Ticket]]]:
        """Handle LeaveGroup: return an error for each member, and the replies to requests that waited for them."""
        member_count = len(self.members)
        errors = [self._leave(identity) for identity in leaving]
        self.rebalance.after_removals(now_ms, has_removed_members=len(self.members) < member_count)
        return errors, self._replies.take()

    def _leave(self, identity: MemberIdentity) -> ErrorCode:
        member_id, instance_id = identity
        if instance_id is None and self.rebalance.reserved_ids.pop(member_id, None) is not None:
            return ErrorCode.none
        if not member_id and instance_id is not None:
            member_id = self.members.id_of_instance(instance_id)
        error = self.members.check_identity(member_id, instance_id)
        if error is ErrorCode.none:
            self.rebalance.remove(self.members[member_id], ErrorCode.unknown_member_id)
        return error

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Check an OffsetCommit: members of this generation may commit, and any client while there are no members."""
        if generation < 0 and not self.members:
            return ErrorCode.none
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.unknown_member_id
        error = self._check_member(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
        if self.state is GroupState.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self.rebalance.renew_session(self.members[member_id], now_ms)
        return ErrorCode.none

    def _check_member(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self.members.check_identity(member_id, instance_id)
        if error is ErrorCode.none and generation != self.rebalance.generation:
            return ErrorCode.illegal_generation
        return error

    def expire(self, now_ms: int) -> list[Reply[Ticket]]:
        """Remove members and reserved member ids whose time is over, and end a phase whose time is over."""
        self.rebalance.expire(now_ms)
        return self._replies.take()
