"""The requests that a classic group handles, and its responses to them, free of any version of their wire format."""

from dataclasses import dataclass
from typing import NamedTuple

from duolog.protocol.kafka.api_messages import ErrorCode

Protocols = tuple[tuple[str, bytes], ...]
"""The names of a member's protocols, each with its metadata, the preferred one first."""

MEMBER_BYTES = 500  # The memory of a member, in addition to its names, metadata and assignment.
PROTOCOL_BYTES = 150  # The memory of a protocol of a member, in addition to its name and metadata.


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """JoinGroup. Version 0 has no rebalance timeout: its session timeout serves as both."""

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    instance_id: str | None = None
    member_id_required: bool = True  # From version 4 on, the client handles MEMBER_ID_REQUIRED.
    can_skip_assignment: bool = True  # From version 9 on, an answer can make the leader skip the assignment.

    @property
    def held_bytes(self) -> int:
        """The memory that the member takes without its assignment. Each name counts as if the group kept a copy."""
        names = (self.group_id, self.client_id, self.client_id, self.instance_id or "", self.protocol_type)
        of_protocols = sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in self.protocols)
        return MEMBER_BYTES + of_protocols + sum(map(len, names))


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """SyncGroup. Only the leader's request has assignments, as pairs of a member id and the member's assignment."""

    group_id: str
    member_id: str
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


class MemberIdentity(NamedTuple):
    """One member that a LeaveGroup request names. A static member may be named by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    """One member as the JoinGroup response describes it to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """The response to JoinGroup. Only the leader's has `members`."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """The response to SyncGroup."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None
