"""One classic consumer group: who is in it, which generation runs, who holds which assignment.

A pure state machine. A request that must wait is *parked*: its ticket (anything the caller likes) stays in the member,
and comes back later among the replies of whatever completed it. Every method that can complete parked requests returns
these replies; none does I/O or asks the time (`now_ms` is monotonic milliseconds throughout).

A member's way through one rebalance, in two steps:

    JoinGroup  parked until all members have joined ->  generation, protocol; the leader also gets everybody's metadata
    SyncGroup  parked until the leader brought it   ->  this member's assignment

What the states answer (error names as in Kafka; "-" is success):

    state       JoinGroup                          SyncGroup              Heartbeat           OffsetCommit by a member
    Empty       new member: parked                 unknown member         unknown member      unknown member
    Preparing   parked                             rebalance in progress  rebalance in pr.    -
    Completing  unchanged: this generation again   parked until leader's  -                   rebalance in progress
                changed: new rebalance
    Stable      follower unchanged: the same       the assignment         -                   -
                leader or changed: new rebalance

Source: KIP-62, KIP-345 (static members), KIP-394 (member id required), KIP-814 (skip assignment), and Kafka's
GroupMetadataManager.java (`classicGroupJoin...`), whose order of checks is kept.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from duolog.bridge.config import GroupsOptions
from duolog.protocol.kafka.api_messages import ErrorCode

Ticket = TypeVar("Ticket")


class State(Enum):
    """The values are Kafka's words on the wire."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


# From each state, where a group may go, and what takes it there. A group without members is forgotten by its
# coordinator, so there is no state for the dead.
TRANSITIONS: dict[State, dict[State, str]] = {
    State.EMPTY: {State.PREPARING: "the first member joins"},
    State.PREPARING: {
        State.COMPLETING: "everybody has joined, or the time for it is up",
        State.EMPTY: "the last member is gone",
    },
    State.COMPLETING: {
        State.STABLE: "the leader's assignment came",
        State.PREPARING: "a member came, went, changed, or did not sync in time",
    },
    State.STABLE: {State.PREPARING: "a member came, went or changed, or the leader joined again"},
}

MEMBER_BYTES = 500  # what a member takes in memory besides names, metadata and assignment
PROTOCOL_BYTES = 150  # and a protocol

# A new member waits in JoinGroup for others to rejoin; its client may be gone by then (Kafka's own constant).
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


# -- Requests and responses


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup. `rebalance_timeout_ms` of version 0 is its session timeout."""

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # name and metadata, most wanted first
    instance_id: str | None = None
    member_id_required: bool = True  # version 4 on: the client can handle MEMBER_ID_REQUIRED
    can_skip_assignment: bool = True  # version 9 on

    @property
    def held_bytes(self) -> int:
        """What the member takes in memory, its assignment aside; names are counted once, as if it kept all of them."""
        names = (self.group_id, self.client_id, self.client_id, self.instance_id or "", self.protocol_type)
        return MEMBER_BYTES + _bytes_of(self.protocols) + sum(map(len, names))


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup. `assignments` is empty for followers."""

    group_id: str
    member_id: str
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


class Leaver(NamedTuple):
    """One member of a LeaveGroup; a static one may be named by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    """What the leader learns of each member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to JoinGroup; `members` is for the leader only."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to SyncGroup."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class Reply(NamedTuple, Generic[Ticket]):
    """A parked or just handled request that has its answer now."""

    ticket: Ticket
    answer: Joined | Synced


def _bytes_of(protocols: tuple[tuple[str, bytes], ...]) -> int:
    return sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


@dataclass(slots=True)
class Member:
    """A member, as its last JoinGroup described it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = True  # has not seen a generation yet
    deadline_ms: int | None = None  # of the session; None while a request of a known member is parked: it is alive

    protocol_bytes: int = 0  # What it takes in memory, its assignment aside; as its last JoinGroup says.

    @property
    def held_bytes(self) -> int:
        return len(self.assignment) + self.protocol_bytes

    def metadata_of(self, protocol_name: str | None) -> bytes:
        return dict(self.protocols).get(protocol_name or "", b"")


@dataclass(slots=True)
class Group(Generic[Ticket]):
    """The state machine. Public methods take `now_ms`; those that can complete parked requests return replies."""

    group_id: str
    options: GroupsOptions
    new_id: Callable[[], str]
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)  # member ids given but not used yet -> their deadline
    held_bytes: int = 0  # Invariant: the sum over members.
    next_deadline_ms: int | None = None  # Not later than the first moment at which `expire` would do something.
    _joins: dict[str, Ticket] = field(default_factory=dict)  # parked JoinGroups by member id
    _syncs: dict[str, Ticket] = field(default_factory=dict)  # parked SyncGroups; a member has one of both kinds at most
    _speakers: Counter[str] = field(default_factory=Counter)  # how many members know each protocol
    _instances: dict[str, str] = field(default_factory=dict)  # static members: instance id -> member id
    _unsynced: set[str] = field(default_factory=set)  # members of this generation that have not sent SyncGroup
    _phase_deadline_ms: int | None = None  # end of the join phase, or of the time to send SyncGroup
    _is_initial: bool = False  # this join phase is a fresh group's: it waits the initial delay
    _initial_left_ms: int = 0  # by how much the initial delay may still be extended
    _newcomer: bool = False  # a member was added during this initial delay
    _replies: list[Reply[Ticket]] = field(default_factory=list)

    # -- Joining

    def join(self, join: Join, ticket: Ticket, now_ms: int) -> list[Reply[Ticket]]:
        """Handle JoinGroup; `ticket` comes back with its answer now or from a later call."""
        error = self._join(join, ticket, now_ms)
        if error is not ErrorCode.none:
            self._replies.append(Reply(ticket, Joined(error, join.member_id)))
        return self._take_replies()

    def _join(self, join: Join, ticket: Ticket, now_ms: int) -> ErrorCode:
        if not self._has_room_for(join.member_id):
            if join.member_id:
                self._leave(Leaver(join.member_id))
                self._after_departure(now_ms)
            return ErrorCode.group_max_size_reached
        if not self._can_speak(join):
            return ErrorCode.inconsistent_group_protocol
        if not join.member_id:
            return self._join_as_new(join, ticket, now_ms)
        if join.member_id in self.pending and join.instance_id is None:  # Static members never get an id in advance.
            self._add(join, join.member_id, ticket, now_ms)
            return ErrorCode.none
        error = self._check_identity(join.member_id, join.instance_id)
        if error is ErrorCode.none:
            self._rejoin(self.members[join.member_id], join, ticket, now_ms)
        return error

    def _join_as_new(self, join: Join, ticket: Ticket, now_ms: int) -> ErrorCode:
        member_id = f"{join.instance_id or join.client_id}-{self.new_id()}"
        if join.instance_id is not None and join.instance_id in self._instances:
            self._replace(self._instances[join.instance_id], member_id, join, ticket, now_ms)
        elif join.instance_id is None and join.member_id_required:
            # KIP-394: the client must come back with this id, so that a lost answer leaves no ghost in the group.
            if len(self.pending) >= self.options.members_max:
                return ErrorCode.group_max_size_reached
            self.pending[member_id] = self._planned(now_ms + join.session_timeout_ms)
            self._replies.append(Reply(ticket, Joined(ErrorCode.member_id_required, member_id)))
        else:
            self._add(join, member_id, ticket, now_ms)
        return ErrorCode.none

    def _add(self, join: Join, member_id: str, ticket: Ticket, now_ms: int) -> None:
        self.pending.pop(member_id, None)
        if not self.members:
            self.protocol_type = join.protocol_type
            self.leader_id = member_id
        member = Member(
            member_id, join.instance_id, join.client_id, join.client_host, join.session_timeout_ms,
            join.rebalance_timeout_ms, (),
        )  # fmt: skip
        self.members[member_id] = member
        self._learn(member, join)
        self._joins[member_id] = ticket
        member.deadline_ms = self._planned(now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        if join.instance_id is not None:
            self._instances[join.instance_id] = member_id
        self._newcomer = True
        self._rebalance(now_ms)

    def _rejoin(self, member: Member, join: Join, ticket: Ticket, now_ms: int) -> None:
        unchanged = member.protocols == join.protocols
        is_leader = member.member_id == self.leader_id
        if (self.state is State.COMPLETING and unchanged) or (
            self.state is State.STABLE and unchanged and not is_leader
        ):
            # The answer to its last JoinGroup was lost, or it wants to know whether it still belongs.
            self._replies.append(Reply(ticket, self._joined(member)))
            self._renew(member, now_ms)
            return
        self._update(member, join, ticket)
        self._rebalance(now_ms)

    def _replace(self, old_id: str, member_id: str, join: Join, ticket: Ticket, now_ms: int) -> None:
        """A static member started again: it takes over the place, assignment included, of its former self."""
        former_leader_id = self.leader_id
        member = self.members.pop(old_id)
        self._answer_parked(member, ErrorCode.fenced_instance_id)
        member.member_id = member_id
        self.members[member_id] = member
        self._instances[join.instance_id or ""] = member_id
        if self.leader_id == old_id:
            self.leader_id = member_id
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(member_id)
        self._update(member, join, ticket)
        if self.state is not State.STABLE or self._vote() != self.protocol_name:
            self._rebalance(now_ms)
            return
        is_leader = self.leader_id == member_id
        if is_leader and not join.can_skip_assignment:
            # KIP-814: an older client that is told it leads would assign again; so it is told that its old self does.
            answer = self._joined(member, leader_id=former_leader_id, members=())
        else:
            answer = self._joined(member, skip_assignment=is_leader)
        del self._joins[member_id]
        self._replies.append(Reply(ticket, answer))
        self._renew(member, now_ms)

    def _update(self, member: Member, join: Join, ticket: Ticket) -> None:
        # A request that this one supersedes is answered, or its connection would wait for ever.
        self._answer_parked(member, ErrorCode.rebalance_in_progress)
        self._learn(member, join)
        member.client_id, member.client_host = join.client_id, join.client_host
        member.session_timeout_ms, member.rebalance_timeout_ms = join.session_timeout_ms, join.rebalance_timeout_ms
        self._joins[member.member_id] = ticket
        if not member.is_new:
            member.deadline_ms = None

    def _learn(self, member: Member, join: Join) -> None:
        self._unlearn(member)
        member.protocols, member.protocol_bytes = join.protocols, join.held_bytes
        for name in {name for name, _ in join.protocols}:
            self._speakers[name] += 1
        self.held_bytes += member.held_bytes

    def _unlearn(self, member: Member) -> None:
        self.held_bytes -= member.held_bytes
        for name in {name for name, _ in member.protocols}:
            self._speakers[name] -= 1
            if not self._speakers[name]:
                del self._speakers[name]

    def _has_room_for(self, member_id: str) -> bool:
        if self.state is State.EMPTY:
            return True
        if self.state is State.PREPARING:
            return member_id in self._joins or len(self._joins) < self.options.members_max
        return member_id in self.members or len(self.members) < self.options.members_max

    def _can_speak(self, join: Join) -> bool:
        """Whether there is a protocol that this member and all others have in common."""
        if not self.members:
            return bool(join.protocol_type and join.protocols)
        if join.protocol_type != self.protocol_type:
            return False
        return not self._common_protocols().isdisjoint(name for name, _ in join.protocols)

    # -- The join phase

    def _rebalance(self, now_ms: int) -> None:
        """A member came, went or changed: start a join phase, or go on with the one that runs."""
        if self.state is State.PREPARING:
            self._complete_join_if_all(now_ms)
        elif self.state is State.EMPTY:
            self._start_initial_join(now_ms)
        else:
            self._cancel_syncs(now_ms)
            self._enter(State.PREPARING)
            self._start_phase(now_ms + self.rebalance_timeout_ms)
            self._complete_join_if_all(now_ms)

    def _start_initial_join(self, now_ms: int) -> None:
        delay_ms = self.options.initial_rebalance_delay_ms
        self._enter(State.PREPARING)
        self._is_initial, self._newcomer = True, False
        self._initial_left_ms = max(self.rebalance_timeout_ms - delay_ms, 0)
        self._start_phase(now_ms + delay_ms)
        if delay_ms == 0:
            self._complete_join(now_ms)

    def _end_join_phase(self, now_ms: int) -> None:
        if self._is_initial and self._newcomer and self._initial_left_ms > 0:
            # Members of a fresh group tend to come together: as long as they do, wait for more.
            delay_ms = min(self.options.initial_rebalance_delay_ms, self._initial_left_ms)
            self._newcomer = False
            self._initial_left_ms -= delay_ms
            self._start_phase(now_ms + delay_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join_if_all(self, now_ms: int) -> None:
        everybody = not self.pending and len(self._joins) == len(self.members)
        if everybody and (not self._is_initial or not self.members):
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        late = [member for member in self.members.values() if member.member_id not in self._joins]
        for member in late:
            if member.instance_id is None:
                self._remove(member, ErrorCode.unknown_member_id)
        if self.members and not self._joins:
            # Only static members, all of them away: their sessions decide, not this phase.
            self._start_phase(now_ms + self.rebalance_timeout_ms)
            return
        self._is_initial = False
        self.generation += 1
        if not self.members:
            self._enter(State.EMPTY)
            self.protocol_name = self.leader_id = self._phase_deadline_ms = None
            return
        if self.leader_id not in self._joins:
            self.leader_id = next(member_id for member_id in self.members if member_id in self._joins)
        self.protocol_name = self._vote()
        self._enter(State.COMPLETING)
        self._unsynced = set(self.members)
        self._start_phase(now_ms + self.rebalance_timeout_ms)
        joins, self._joins = self._joins, {}
        for member in self.members.values():
            if member.member_id in joins:
                self._replies.append(Reply(joins[member.member_id], self._joined(member)))
            member.is_new = False
            self._renew(member, now_ms)

    def _joined(
        self,
        member: Member,
        *,
        leader_id: str | None = None,
        members: tuple[JoinedMember, ...] | None = None,
        skip_assignment: bool = False,
    ) -> Joined:
        if members is None:
            members = self._everybody() if member.member_id == self.leader_id else ()
        return Joined(
            ErrorCode.none, member.member_id, self.generation, self.protocol_type, self.protocol_name,
            leader_id or self.leader_id or "", members, skip_assignment,
        )  # fmt: skip

    def _everybody(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(m.member_id, m.instance_id, m.metadata_of(self.protocol_name)) for m in self.members.values()
        )

    def _common_protocols(self) -> set[str]:
        return {name for name, count in self._speakers.items() if count == len(self.members)}

    def _vote(self) -> str:
        """Each member votes for the first of its protocols that all have; the first of the most wanted wins."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    # -- The sync phase

    def sync(self, sync: Sync, ticket: Ticket, now_ms: int) -> list[Reply[Ticket]]:
        """Handle SyncGroup; the leader's completes everybody's."""
        error = self._sync(sync, ticket, now_ms)
        if error is not ErrorCode.none:
            self._replies.append(Reply(ticket, Synced(error)))
        return self._take_replies()

    def _sync(self, sync: Sync, ticket: Ticket, now_ms: int) -> ErrorCode:
        error = self._check_member(sync.member_id, sync.instance_id, sync.generation)
        if error is not ErrorCode.none:
            return error
        if sync.protocol_type not in (None, self.protocol_type) or sync.protocol_name not in (None, self.protocol_name):
            return ErrorCode.inconsistent_group_protocol
        if self.state is State.PREPARING:
            return ErrorCode.rebalance_in_progress
        member = self.members[sync.member_id]
        self._answer_parked(member, ErrorCode.rebalance_in_progress)
        self._syncs[sync.member_id], member.deadline_ms = ticket, None
        self._unsynced.discard(sync.member_id)
        if self.state is State.COMPLETING and sync.member_id == self.leader_id:
            self._assign(dict(sync.assignments))
        if self.state is State.STABLE:
            self._hand_out(now_ms)
        return ErrorCode.none

    def assigned_bytes(self, sync: Sync) -> int:
        """By how much the group grows if these assignments take the place of the present ones."""
        new_bytes = sum(len(assignment) for member_id, assignment in sync.assignments if member_id in self.members)
        return new_bytes - sum(len(member.assignment) for member in self.members.values())

    def _assign(self, assignments: dict[str, bytes]) -> None:
        for member in self.members.values():
            self.held_bytes -= member.held_bytes
            member.assignment = assignments.get(member.member_id, b"")
            self.held_bytes += member.held_bytes
        self._enter(State.STABLE)

    def _hand_out(self, now_ms: int) -> None:
        syncs, self._syncs = self._syncs, {}
        for member_id, ticket in syncs.items():
            member = self.members[member_id]
            answer = Synced(ErrorCode.none, member.assignment, self.protocol_type, self.protocol_name)
            self._replies.append(Reply(ticket, answer))
            self._renew(member, now_ms)
        if not self._unsynced:
            self._phase_deadline_ms = None

    def _cancel_syncs(self, now_ms: int) -> None:
        self._unsynced.clear()
        syncs, self._syncs = self._syncs, {}
        for member_id, ticket in syncs.items():
            self._replies.append(Reply(ticket, Synced(ErrorCode.rebalance_in_progress)))
            self._renew(self.members[member_id], now_ms)

    # -- Staying and leaving

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Say whether this member of this generation may go on, and renew its session, also when it must rejoin."""
        error = self._check_member(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
        self._renew(self.members[member_id], now_ms)
        return ErrorCode.rebalance_in_progress if self.state is State.PREPARING else ErrorCode.none

    def leave(self, leavers: Sequence[Leaver], now_ms: int) -> tuple[list[ErrorCode], list[Reply[Ticket]]]:
        """Handle LeaveGroup: one error per leaver, and the replies of those who were waiting for them."""
        member_count = len(self.members)
        errors = [self._leave(leaver) for leaver in leavers]
        self._after_departure(now_ms, somebody_left=len(self.members) < member_count)
        return errors, self._take_replies()

    def _leave(self, leaver: Leaver) -> ErrorCode:
        member_id = leaver.member_id
        if leaver.instance_id is None and self.pending.pop(member_id, None) is not None:
            return ErrorCode.none
        if not member_id and leaver.instance_id is not None:
            member_id = self._instances.get(leaver.instance_id, "")
        error = self._check_identity(member_id, leaver.instance_id)
        if error is ErrorCode.none:
            self._remove(self.members[member_id], ErrorCode.unknown_member_id)
        return error

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Say whether OffsetCommit is allowed: to members of this generation, or to anybody while there are none."""
        if generation < 0 and not self.members:
            return ErrorCode.none
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.unknown_member_id
        error = self._check_member(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
        if self.state is State.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self._renew(self.members[member_id], now_ms)
        return ErrorCode.none

    def _check_identity(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            owner = self._instances.get(instance_id)
            if owner is not None and owner != member_id:
                return ErrorCode.fenced_instance_id
            if owner is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def _check_member(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self._check_identity(member_id, instance_id)
        if error is ErrorCode.none and generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _renew(self, member: Member, now_ms: int) -> None:
        if member.member_id not in self._joins and member.member_id not in self._syncs:
            member.deadline_ms = self._planned(now_ms + member.session_timeout_ms)

    def _remove(self, member: Member, error: ErrorCode) -> None:
        self._answer_parked(member, error)
        self._unlearn(member)
        del self.members[member.member_id]
        self._unsynced.discard(member.member_id)
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = None  # Until all who go are gone: to name another one for each takes quadratic time.

    def _after_departure(self, now_ms: int, *, somebody_left: bool = True) -> None:
        """Go on without those who are gone; only unused member ids went, unless `somebody_left`."""
        if self.leader_id is None:
            self.leader_id = next(iter(self.members), None)
        if self.state is State.PREPARING:
            self._complete_join_if_all(now_ms)
        elif self.state is not State.EMPTY and somebody_left:
            self._rebalance(now_ms)

    def _answer_parked(self, member: Member, error: ErrorCode) -> None:
        member_id = member.member_id
        if member_id in self._joins:
            self._replies.append(Reply(self._joins.pop(member_id), Joined(error, member_id)))
        if member_id in self._syncs:
            self._replies.append(Reply(self._syncs.pop(member_id), Synced(error)))

    # -- Time

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long members have to rejoin: the longest that any of them asked for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def expire(self, now_ms: int) -> list[Reply[Ticket]]:
        """Let go of members and member ids whose time is up, and end a phase whose time is up."""
        gone = [m for m in self.members.values() if m.deadline_ms is not None and m.deadline_ms <= now_ms]
        unused = [member_id for member_id, deadline_ms in self.pending.items() if deadline_ms <= now_ms]
        for member in gone:
            self._remove(member, ErrorCode.unknown_member_id)
        for member_id in unused:
            del self.pending[member_id]
        if gone or unused:
            self._after_departure(now_ms, somebody_left=bool(gone))
        if self._phase_deadline_ms is not None and self._phase_deadline_ms <= now_ms:
            self._end_phase(now_ms)
        self.next_deadline_ms = min(self._deadlines(), default=None)
        return self._take_replies()

    def _end_phase(self, now_ms: int) -> None:
        if self.state is State.PREPARING:
            self._end_join_phase(now_ms)
            return
        for member_id in sorted(self._unsynced):
            self._remove(self.members[member_id], ErrorCode.unknown_member_id)
        self._rebalance(now_ms)

    def _deadlines(self) -> Iterable[int]:
        yield from (m.deadline_ms for m in self.members.values() if m.deadline_ms is not None)
        yield from self.pending.values()
        if self._phase_deadline_ms is not None:
            yield self._phase_deadline_ms

    def _start_phase(self, until_ms: int) -> None:
        self._phase_deadline_ms = self._planned(until_ms)

    def _planned(self, deadline_ms: int) -> int:
        # Deadlines that move later are not corrected here but when the earliest known one comes.
        if self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms
        return deadline_ms

    # -- Inside

    def _enter(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"group {self.group_id}: {self.state.value} to {state.value}"
        self.state = state

    def _take_replies(self) -> list[Reply[Ticket]]:
        replies, self._replies = self._replies, []
        return replies
