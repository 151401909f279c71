"""The members of a group keep their invariants through random histories, compared with sums over all members."""

from hypothesis import given
from hypothesis import strategies as st

from duolog.bridge.kafka.groups.group_requests import JoinRequest
from duolog.bridge.kafka.groups.members import ClassicMembers
from duolog.protocol.kafka.api_messages import ErrorCode

NAMES = ("range", "roundrobin", "sticky")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add static", "update", "restart", "remove", "assign"]),
        st.integers(0, 5),
        st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
        st.binary(max_size=20),
    ),
    max_size=30,
)


def request(number: int, names: list[str], metadata: bytes, *, is_static: bool) -> JoinRequest:
    protocols = tuple((name, metadata) for name in names)
    instance_id = f"instance-{number}" if is_static else None
    return JoinRequest("g", "", f"c{number}", "/1", 10_000, 1000 * number, "consumer", protocols, instance_id)


@given(STEPS)
def test_sums_ids_and_protocols_follow_the_members(steps: list[tuple[str, int, list[str], bytes]]) -> None:
    members = ClassicMembers()
    for at, (step, number, names, metadata) in enumerate(steps):
        join = request(number, names, metadata, is_static=step == "add static")
        chosen = [*members][number % len(members)] if len(members) else None
        if step.startswith("add"):
            if not join.instance_id or not members.id_of_instance(join.instance_id):
                members.add(f"m{at}", join)
        elif chosen is None:
            continue
        elif step == "update":
            members.update(chosen, join)
        elif step == "restart":
            if chosen.instance_id is not None:
                old_id, was_leader = chosen.member_id, members.leader_id == chosen.member_id
                members.change_id(chosen, f"m{at}")
                assert (members.leader_id == f"m{at}") is was_leader
                assert members.check_identity(old_id, chosen.instance_id) is ErrorCode.fenced_instance_id
        elif step == "remove":
            members.remove(chosen)
            assert members.check_identity(chosen.member_id, None) is ErrorCode.unknown_member_id
        else:
            members.assign({chosen.member_id: metadata})
            assert {member.assignment for member in members if member is not chosen} <= {b""}
        check(members)


def check(members: ClassicMembers) -> None:
    assert members.held_bytes == sum(member.held_bytes for member in members)
    assert members.leader_id is None or members.leader_id in members
    for member in members:
        assert members.get(member.member_id) is member
        if member.instance_id is not None:
            assert members.id_of_instance(member.instance_id) == member.member_id
    common = {name for name in NAMES if all(name in dict(member.protocols) for member in members)}
    for name in NAMES if len(members) else ():
        assert members.share_protocol_with(request(0, [name], b"", is_static=False)) is (name in common)
    if len(members) and common:
        assert members.choose_protocol() in common
    assert members.rebalance_timeout_ms == max((member.rebalance_timeout_ms for member in members), default=0)
