"""The members of a classic group, the protocols that they support, and the memory that they take."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from duolog.bridge.kafka.groups.group_requests import JoinedMember, JoinRequest, Protocols, SyncRequest
from duolog.protocol.kafka.api_messages import ErrorCode


@dataclass(slots=True)
class Member:
    """A member, as its last JoinGroup request described it."""

    member_id: str
    instance_id: str | None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    protocols: Protocols = ()
    protocol_bytes: int = 0  # The memory that the member takes without its assignment.
    assignment: bytes = b""
    is_new: bool = True  # The member has not been part of a generation yet.
    deadline_ms: int | None = None  # The end of its session. None: its request waits, which shows that it is alive.

    @property
    def held_bytes(self) -> int:
        return len(self.assignment) + self.protocol_bytes

    def metadata_of(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not support the protocol."""
        return dict(self.protocols).get(protocol_name or "", b"")


class ClassicMembers:
    """The members by id, in the order in which they joined.

    Invariants: each static member's instance id leads to its member id; `_protocol_counts` counts the members that
    support each protocol; `held_bytes` is the sum over the members; `leader_id` names a member, or is None while
    members are being removed.
    """

    __slots__ = ("_by_id", "_ids_by_instance", "_protocol_counts", "held_bytes", "leader_id", "protocol_type")

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._ids_by_instance: dict[str, str] = {}
        self._protocol_counts: Counter[str] = Counter()
        self.protocol_type: str | None = None
        self.leader_id: str | None = None
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    # -- Changing them

    def add(self, member_id: str, join: JoinRequest) -> Member:
        """Add a member. The first one leads the group and decides its protocol type."""
        if not self._by_id:
            self.protocol_type, self.leader_id = join.protocol_type, member_id
        member = self._by_id[member_id] = Member(member_id, join.instance_id)
        if join.instance_id is not None:
            self._ids_by_instance[join.instance_id] = member_id
        self.update(member, join)
        return member

    def update(self, member: Member, join: JoinRequest) -> None:
        """Replace the description of a member by that of its new JoinGroup request."""
        self._uncount(member)
        member.client_id, member.client_host = join.client_id, join.client_host
        member.session_timeout_ms, member.rebalance_timeout_ms = join.session_timeout_ms, join.rebalance_timeout_ms
        member.protocols, member.protocol_bytes = join.protocols, join.held_bytes
        for name in {name for name, _ in join.protocols}:
            self._protocol_counts[name] += 1
        self.held_bytes += member.held_bytes

    def change_id(self, member: Member, member_id: str) -> None:
        """Change the member id of a static member; a leader leads under the new id."""
        del self._by_id[member.member_id]
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        member.member_id = member_id
        self._by_id[member_id] = member
        self._ids_by_instance[member.instance_id or ""] = member_id

    def remove(self, member: Member) -> None:
        """Remove a member. The caller names another leader once all members that go are removed.

        Naming one for each removed member would take quadratic time.
        """
        self._uncount(member)
        del self._by_id[member.member_id]
        if member.instance_id is not None:
            del self._ids_by_instance[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = None

    def _uncount(self, member: Member) -> None:
        self.held_bytes -= member.held_bytes
        for name in {name for name, _ in member.protocols}:
            self._protocol_counts[name] -= 1
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]

    def assign(self, assignments: dict[str, bytes]) -> None:
        """Set each member's assignment; a member that the leader left out gets an empty one."""
        for member in self._by_id.values():
            self.held_bytes -= member.held_bytes
            member.assignment = assignments.get(member.member_id, b"")
            self.held_bytes += member.held_bytes

    # -- Looking at them

    def id_of_instance(self, instance_id: str) -> str:
        """Return the member id of a static member; empty: no member has that instance id."""
        return self._ids_by_instance.get(instance_id, "")

    def check_identity(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return an error if there is no such member, or if its instance id belongs to another member now."""
        if instance_id is not None:
            owner = self._ids_by_instance.get(instance_id)
            if owner is not None and owner != member_id:
                return ErrorCode.fenced_instance_id
            if owner is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self._by_id else ErrorCode.unknown_member_id

    def share_protocol_with(self, join: JoinRequest) -> bool:
        """Whether a protocol of this request is supported by all members."""
        if not self._by_id:
            return bool(join.protocol_type and join.protocols)
        if join.protocol_type != self.protocol_type:
            return False
        return not self._common_protocols().isdisjoint(name for name, _ in join.protocols)

    def choose_protocol(self) -> str:
        """Return the protocol with most votes.

        Each member votes for the first of its protocols that all members support.
        """
        common = self._common_protocols()
        votes = Counter(next(name for name, _ in member.protocols if name in common) for member in self._by_id.values())
        return votes.most_common(1)[0][0]

    def _common_protocols(self) -> set[str]:
        return {name for name, count in self._protocol_counts.items() if count == len(self._by_id)}

    def describe(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """Describe all members to the leader."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_of(protocol_name))
            for member in self._by_id.values()
        )

    @property
    def rebalance_timeout_ms(self) -> int:
        """The time that members have to rejoin: the longest that one of them asked for."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)

    def assignment_growth_bytes(self, sync: SyncRequest) -> int:
        """Return by how much the group grows if these assignments replace the present ones."""
        new_bytes = sum(len(assignment) for member_id, assignment in sync.assignments if member_id in self._by_id)
        return new_bytes - sum(len(member.assignment) for member in self._by_id.values())
