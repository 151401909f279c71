"""Proves the classic group protocol: histories of requests with their answers, and random histories with their laws.

A history drives the coordinator with tickets that are names, at times that are given. No sockets, no clock.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog.bridge.config import GroupsOptions
from duolog.bridge.kafka.groups.classic_group import NEW_MEMBER_JOIN_TIMEOUT_MS
from duolog.bridge.kafka.groups.coordinator import GroupCoordinator
from duolog.bridge.kafka.groups.group_requests import (
    JoinedMember,
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from duolog.bridge.kafka.groups.rebalance import GroupState
from duolog.bridge.kafka.groups.replies import Reply
from duolog.protocol.kafka.api_messages import ErrorCode

OK = ErrorCode.none
SESSION_MS, REBALANCE_MS = 10_000, 60_000
RANGE = (("range", b"sub"),)


class History:
    """A coordinator, the answers by ticket, and a clock that only the test moves."""

    def __init__(self, limits: dict[str, int] | None = None, **options: int) -> None:
        ids = count(1)
        self.coordinator: GroupCoordinator[str] = GroupCoordinator(
            GroupsOptions(**({"initial_rebalance_delay_ms": 0} | options)),
            new_id=lambda: str(next(ids)),
            **(limits or {}),
        )
        self.now_ms = 0
        self.answers: dict[str, JoinResponse | SyncResponse] = {}

    def take(self, replies: list[Reply[str]]) -> None:
        for ticket, answer in replies:
            assert ticket not in self.answers, f"{ticket} is answered twice"
            self.answers[ticket] = answer

    def join(self, ticket: str, member_id: str = "", **fields: object) -> JoinResponse | None:
        values: dict[str, object] = {
            "group_id": "g", "member_id": member_id, "client_id": "c", "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS, "protocol_type": "consumer",
            "protocols": RANGE, "member_id_required": False,
        }  # fmt: skip
        self.take(self.coordinator.join(JoinRequest(**(values | fields)), ticket, self.now_ms))  # type: ignore[arg-type]
        answer = self.answers.get(ticket)
        assert answer is None or isinstance(answer, JoinResponse)
        return answer

    def sync(
        self, ticket: str, member_id: str, generation: int, /, *, instance_id: str | None = None, **assignments: bytes
    ) -> SyncResponse | None:
        pairs = tuple((name.replace("_", "-"), assignment) for name, assignment in assignments.items())
        sync = SyncRequest("g", member_id, generation, pairs, instance_id)
        self.take(self.coordinator.sync(sync, ticket, self.now_ms))
        answer = self.answers.get(ticket)
        assert answer is None or isinstance(answer, SyncResponse)
        return answer

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        return self.coordinator.heartbeat("g", member_id, instance_id, generation, self.now_ms)

    def commit(self, member_id: str, generation: int) -> ErrorCode:
        return self.coordinator.check_commit("g", member_id, None, generation, self.now_ms)

    def leave(self, *leavers: MemberIdentity) -> list[ErrorCode]:
        errors, replies = self.coordinator.leave("g", leavers, self.now_ms)
        self.take(replies)
        return errors

    def wait(self, ms: int) -> None:
        """Let time pass, stopping at every deadline on the way, as the broker's ticker does."""
        end_ms = self.now_ms + ms
        while (due_ms := self.coordinator.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.coordinator.expire(self.now_ms))
        self.now_ms = end_ms

    @property
    def state(self) -> GroupState | None:
        group = self.coordinator.group("g")
        return group and group.state

    def joined(self, ticket: str) -> JoinResponse:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinResponse)
        return answer

    def synced(self, ticket: str) -> SyncResponse:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncResponse)
        return answer

    def stable_pair(self) -> None:
        """Two members, c-1 (leader) and c-2, stable in generation 2."""
        self.join("j1")
        self.join("j2")
        assert self.heartbeat("c-1", 1) is ErrorCode.rebalance_in_progress
        self.join("j1'", "c-1")
        self.sync("s2", "c-2", 2)
        self.sync("s1", "c-1", 2, c_1=b"a1", c_2=b"a2")
        assert self.state is GroupState.STABLE


# -- Joining


def test_first_member_leads_at_once_when_no_delay_is_set() -> None:
    history = History()
    assert history.join("j") == JoinResponse(
        OK, "c-1", 1, "consumer", "range", "c-1", (JoinedMember("c-1", None, b"sub"),), False
    )
    assert history.sync("s", "c-1", 1, c_1=b"all") == SyncResponse(OK, b"all", "consumer", "range")
    assert history.heartbeat("c-1", 1) is OK


def test_client_that_can_gets_its_member_id_first() -> None:
    history = History()
    assert history.join("j", member_id_required=True) == JoinResponse(ErrorCode.member_id_required, "c-1")
    answer = history.join("j'", "c-1", member_id_required=True)
    assert answer is not None
    assert (answer.error, answer.generation) == (OK, 1)


def test_second_member_waits_until_the_first_has_rejoined() -> None:
    history = History()
    history.join("j1")
    history.sync("s1", "c-1", 1, c_1=b"all")
    assert history.join("j2") is None
    assert history.heartbeat("c-1", 1) is ErrorCode.rebalance_in_progress
    assert history.sync("s1'", "c-1", 1) == SyncResponse(ErrorCode.rebalance_in_progress)
    leader = history.join("j1'", "c-1")
    assert leader is not None
    assert [member.member_id for member in leader.members] == ["c-1", "c-2"]
    assert history.joined("j2") == JoinResponse(OK, "c-2", 2, "consumer", "range", "c-1")
    assert history.heartbeat("c-2", 2) is OK  # CompletingRebalance: it may go on
    assert history.commit("c-2", 2) is ErrorCode.rebalance_in_progress
    assert history.sync("s2", "c-2", 2) is None
    history.sync("s1''", "c-1", 2, c_2=b"half")
    assert history.synced("s2").assignment == b"half"
    assert history.synced("s1''").assignment == b""  # the leader named no assignment for itself
    assert history.commit("c-2", 2) is OK


def test_initial_delay_gathers_members_that_come_together() -> None:
    history = History(initial_rebalance_delay_ms=100)
    assert history.join("j1") is None
    history.wait(90)
    assert history.join("j2") is None
    history.wait(20)
    assert history.join("j3") is None  # the second one extended the delay
    history.wait(200)
    assert [history.joined(ticket).generation for ticket in ("j1", "j2", "j3")] == [1, 1, 1]
    assert len(history.joined("j1").members) == 3


def test_initial_delay_ends_at_the_rebalance_timeout() -> None:
    history = History(initial_rebalance_delay_ms=100)
    for member in range(12):
        history.join(f"j{member}", rebalance_timeout_ms=300)
        if "j0" not in history.answers:
            history.wait(50)
    assert history.joined("j0").generation == 1
    assert len(history.joined("j0").members) < 12


def test_member_that_does_not_rejoin_in_time_is_removed() -> None:
    history = History()
    history.stable_pair()
    history.join("j3")
    history.join("j1''", "c-1")
    for _ in range(REBALANCE_MS // 5_000):
        history.wait(5_000)
        history.heartbeat("c-2", 2)
    assert {member.member_id for member in history.joined("j1''").members} == {"c-1", "c-3"}
    assert history.joined("j3").generation == 3
    assert history.heartbeat("c-2", 2) is ErrorCode.unknown_member_id


def test_unused_member_id_is_waited_for_until_its_session_ends() -> None:
    history = History()
    history.stable_pair()
    history.join("p", member_id_required=True)
    history.join("j1''", "c-1")
    history.join("j2''", "c-2")
    assert "j2''" not in history.answers
    history.wait(SESSION_MS)
    assert history.joined("j2''").generation == 3
    assert history.join("p'", "c-3") == JoinResponse(ErrorCode.unknown_member_id, "c-3")


def test_wait_for_a_new_member_is_limited() -> None:
    history = History()
    history.stable_pair()
    history.join("j3", rebalance_timeout_ms=NEW_MEMBER_JOIN_TIMEOUT_MS * 10)
    history.join("j1''", "c-1")
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        history.heartbeat("c-2", 2)
        history.wait(5_000)
    assert history.joined("j3") == JoinResponse(ErrorCode.unknown_member_id, "c-3")


def test_newer_join_of_a_member_supersedes_the_waiting_one() -> None:
    history = History()
    history.stable_pair()
    history.join("j3")
    history.join("old", "c-2")
    history.join("new", "c-2")
    assert history.joined("old").error is ErrorCode.rebalance_in_progress
    history.join("j1''", "c-1")
    assert history.joined("new").generation == 3


@pytest.mark.parametrize(
    ("rejoining", "protocols", "starts_rebalance"),
    [("c-2", RANGE, False), ("c-2", (("range", b"other"),), True), ("c-1", RANGE, True)],
    ids=["follower unchanged", "follower changed", "leader"],
)
def test_rejoin_in_a_stable_group(
    rejoining: str, protocols: tuple[tuple[str, bytes], ...], starts_rebalance: bool
) -> None:
    history = History()
    history.stable_pair()
    answer = history.join("again", rejoining, protocols=protocols)
    if starts_rebalance:
        assert answer is None
        assert history.state is GroupState.PREPARING
    else:
        assert answer == JoinResponse(OK, "c-2", 2, "consumer", "range", "c-1")


def test_lost_join_answer_is_given_again_while_completing() -> None:
    history = History()
    first = history.join("j1")
    assert history.join("j1'", "c-1") == first
    assert history.state is GroupState.COMPLETING


def test_changed_member_while_completing_starts_a_rebalance_and_answers_waiting_syncs() -> None:
    history = History()
    history.join("j1")
    history.join("j2")
    history.join("j1'", "c-1")
    history.sync("s2", "c-2", 2)
    history.join("j1''", "c-1", protocols=(("range", b"other"),))
    assert history.synced("s2") == SyncResponse(ErrorCode.rebalance_in_progress)
    assert history.state is GroupState.PREPARING


def test_protocol_that_most_members_prefer_among_the_common_ones_wins() -> None:
    history = History(initial_rebalance_delay_ms=10)
    both = (("sticky", b"s"), ("range", b"r"))
    history.join("j1", protocols=(("fancy", b"f"), ("range", b"r"), ("sticky", b"s")))
    history.join("j2", protocols=both)
    history.join("j3", protocols=both)
    history.wait(20)
    assert history.joined("j1").protocol_name == "sticky"
    assert history.joined("j1").members[0].metadata == b"s"


INVALID_JOINS: list[tuple[dict[str, object], ErrorCode]] = [
    ({"group_id": ""}, ErrorCode.invalid_group_id),
    ({"session_timeout_ms": 5_999}, ErrorCode.invalid_session_timeout),
    ({"session_timeout_ms": 1_800_001}, ErrorCode.invalid_session_timeout),
    ({"member_id": "nobody"}, ErrorCode.unknown_member_id),
    ({"member_id": "nobody", "group_id": "absent"}, ErrorCode.unknown_member_id),
    ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
    ({"protocols": (("sticky", b""),)}, ErrorCode.inconsistent_group_protocol),
    ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
    ({"protocol_type": "", "group_id": "fresh"}, ErrorCode.inconsistent_group_protocol),
    ({"member_id": "c-1", "instance_id": "i"}, ErrorCode.unknown_member_id),
]


@pytest.mark.parametrize(("fields", "error"), INVALID_JOINS)
def test_invalid_join_is_refused_and_changes_nothing(fields: dict[str, object], error: ErrorCode) -> None:
    history = History()
    history.stable_pair()
    member_id = str(fields.pop("member_id", ""))
    assert history.join("bad", member_id, **fields) == JoinResponse(error, member_id)
    assert history.state is GroupState.STABLE
    assert [group.group_id for group in history.coordinator.groups()] == ["g"]


def test_limits_of_members_and_bytes_are_kept() -> None:
    history = History(members_max=2)
    history.stable_pair()
    assert history.join("j3") == JoinResponse(ErrorCode.group_max_size_reached, "")

    history = History({"members_max": 1})
    history.join("j1")
    assert history.join("j2", group_id="h") == JoinResponse(ErrorCode.group_max_size_reached, "")
    history.leave(MemberIdentity("c-1"))
    assert history.join("j2'", group_id="h", protocols=RANGE) is not None


@pytest.mark.parametrize("limit", [{"group_bytes_max": 5000}, {"bytes_max": 5000}, {"member_bytes_max": 3000}])
def test_bytes_of_members_are_limited(limit: dict[str, int]) -> None:
    history = History(**limit)
    history.stable_pair()
    large = (("range", bytes(4500)),)
    assert history.join("j3", protocols=large) == JoinResponse(ErrorCode.group_max_size_reached, "")
    assert history.join("j3'", "c-1", protocols=large) == JoinResponse(ErrorCode.group_max_size_reached, "c-1")
    assert history.heartbeat("c-1", 2) is OK, "a refused request changes nothing"
    many = tuple((f"protocol {number}", b"") for number in range(101))
    assert history.join("j4", protocols=many) == JoinResponse(ErrorCode.group_max_size_reached, "")


def test_bytes_of_assignments_are_limited_and_replaced_ones_given_back() -> None:
    history = History(group_bytes_max=5000)
    history.join("j1", protocols=RANGE)
    for generation in range(1, 4):
        assert history.sync(f"s{generation}", "c-1", generation, c_1=bytes(5000)) == SyncResponse(
            ErrorCode.unknown_server_error
        )
        assert history.sync(f"t{generation}", "c-1", generation, c_1=bytes(4000)).error is OK  # type: ignore[union-attr]
        history.join(f"j{generation + 1}", "c-1", protocols=RANGE)
    (group,) = history.coordinator.groups()
    assert group.members.held_bytes == history.coordinator._held_bytes


def test_another_member_leads_whether_the_leader_leaves_last_or_first() -> None:
    for leavers in (["c-1", "c-2"], ["c-2", "c-1"], ["c-1"], ["c-2"]):
        history = History()
        history.stable_pair()
        history.leave(*map(MemberIdentity, leavers))
        left = {"c-1", "c-2"} - {*leavers}
        assert {group.members.leader_id for group in history.coordinator.groups()} == left


# -- Staying and leaving


def test_silent_member_is_removed_when_its_session_ends() -> None:
    history = History()
    history.stable_pair()
    history.wait(SESSION_MS - 1)
    assert history.heartbeat("c-1", 2) is OK
    history.wait(1)
    assert history.state is GroupState.PREPARING
    assert history.heartbeat("c-2", 2) is ErrorCode.unknown_member_id
    rejoined = history.join("again", "c-1")
    assert rejoined is not None
    assert rejoined.generation == 3


def test_session_is_renewed_by_commits_and_does_not_end_while_a_request_waits() -> None:
    history = History()
    history.stable_pair()
    history.wait(SESSION_MS - 1)
    assert history.commit("c-1", 2) is OK
    history.join("j2''", "c-2", protocols=(("range", b"other"),))
    for _ in range(3):
        history.wait(SESSION_MS - 1)
        assert history.heartbeat("c-1", 2) is ErrorCode.rebalance_in_progress
    history.join("j1''", "c-1")
    assert history.joined("j2''").generation == 3


def test_member_that_never_syncs_is_removed_and_the_others_rebalance() -> None:
    history = History()
    history.join("j1")
    history.join("j2")
    history.join("j1'", "c-1")
    history.sync("s1", "c-1", 2, c_1=b"all")
    for _ in range(REBALANCE_MS // 5_000):
        history.wait(5_000)
        history.heartbeat("c-1", 2)
        history.heartbeat("c-2", 2)
    assert history.state is GroupState.PREPARING
    assert history.heartbeat("c-2", 2) is ErrorCode.unknown_member_id


def test_leaving_starts_a_rebalance_and_the_last_one_ends_the_group() -> None:
    history = History()
    history.stable_pair()
    assert history.leave(MemberIdentity("c-2"), MemberIdentity("nobody")) == [OK, ErrorCode.unknown_member_id]
    assert history.heartbeat("c-1", 2) is ErrorCode.rebalance_in_progress
    assert history.leave(MemberIdentity("c-1")) == [OK]
    assert history.state is None
    assert history.coordinator.next_deadline_ms() is None or history.now_ms < 60_000
    assert history.leave(MemberIdentity("c-1")) == [ErrorCode.unknown_member_id]


def test_another_member_leads_after_the_leader_has_left() -> None:
    history = History()
    history.stable_pair()
    history.leave(MemberIdentity("c-1"))
    answer = history.join("j2''", "c-2")
    assert answer is not None
    assert (answer.leader_id, answer.generation) == ("c-2", 3)


def test_leaving_with_an_unused_member_id_starts_no_rebalance() -> None:
    history = History()
    history.stable_pair()
    history.join("p", member_id_required=True)
    assert history.leave(MemberIdentity("c-3")) == [OK]
    assert history.state is GroupState.STABLE


COMMITS = [
    ("c-1", 2, OK),
    ("c-1", 1, ErrorCode.illegal_generation),
    ("nobody", 2, ErrorCode.unknown_member_id),
    ("", -1, ErrorCode.unknown_member_id),
]


@pytest.mark.parametrize(("member_id", "generation", "error"), COMMITS)
def test_only_members_of_the_generation_commit(member_id: str, generation: int, error: ErrorCode) -> None:
    history = History()
    history.stable_pair()
    assert history.commit(member_id, generation) is error


def test_any_client_commits_for_a_group_without_members() -> None:
    history = History()
    assert history.commit("", -1) is OK
    assert history.commit("c-1", 1) is ErrorCode.illegal_generation
    history.join("p", member_id_required=True)
    assert history.commit("", -1) is OK


# -- Static members


def static_history() -> History:
    history = History()
    history.join("j1", instance_id="one")
    history.sync("s1", "one-1", 1, one_1=b"all")
    return history


def test_static_member_takes_its_place_again_without_a_rebalance() -> None:
    history = static_history()
    answer = history.join("again", instance_id="one")
    assert answer == JoinResponse(
        OK, "one-2", 1, "consumer", "range", "one-2", (JoinedMember("one-2", "one", b"sub"),), True
    )
    assert history.sync("s", "one-2", 1, instance_id="one") == SyncResponse(OK, b"all", "consumer", "range")
    assert history.heartbeat("one-1", 1, "one") is ErrorCode.fenced_instance_id
    assert history.join("zombie", "one-1", instance_id="one") == JoinResponse(ErrorCode.fenced_instance_id, "one-1")


def test_older_static_leader_gets_its_old_id_as_the_leader() -> None:
    history = static_history()
    answer = history.join("again", instance_id="one", can_skip_assignment=False)
    assert answer == JoinResponse(OK, "one-2", 1, "consumer", "range", "one-1")


def test_static_member_that_prefers_another_protocol_starts_a_rebalance() -> None:
    history = static_history()
    answer = history.join("again", instance_id="one", protocols=(("sticky", b""), ("range", b"")))
    assert answer is not None
    assert (answer.generation, answer.protocol_name) == (2, "sticky")


def test_static_member_is_named_by_its_instance_when_it_leaves() -> None:
    history = static_history()
    assert history.leave(MemberIdentity("one-9", "one")) == [ErrorCode.fenced_instance_id]
    assert history.leave(MemberIdentity("", "two")) == [ErrorCode.unknown_member_id]
    assert history.leave(MemberIdentity("", "one")) == [OK]
    assert history.state is None


def test_static_member_may_miss_a_rebalance_until_its_session_ends() -> None:
    history = History()
    history.join("j1", instance_id="one", session_timeout_ms=100_000)
    history.sync("s1", "one-1", 1)
    history.join("j2", rebalance_timeout_ms=1_000)
    history.wait(REBALANCE_MS)
    assert history.joined("j2").generation == 2
    assert history.joined("j2").leader_id == "c-2"
    assert {member.member_id for member in history.joined("j2").members} == {"one-1", "c-2"}


# -- Laws of all histories

CLIENTS = st.integers(0, 3)
INSTANCES = st.sampled_from([None, None, "one", "two"])  # Clients are confused, too, about who they are.
STEPS = st.one_of(
    st.tuples(st.just("join"), CLIENTS, INSTANCES, st.sampled_from([b"a", b"b"]), st.booleans()),
    st.tuples(st.just("sync"), CLIENTS, INSTANCES),
    st.tuples(st.just("beat"), CLIENTS, INSTANCES),
    st.tuples(st.just("leave"), CLIENTS, INSTANCES),
    st.tuples(st.just("wait"), st.sampled_from([1, 1_000, 9_000, 30_000, 70_000]), st.none()),
)


def perform(history: History, step: tuple[Any, ...], ids: dict[int, str], tickets: Iterator[int]) -> str | None:
    """Do one step as client number `step[1]`, which remembers the last member id it was given."""
    kind, who, instance_id, *rest = step
    group = history.coordinator.group("g")
    generation = group.rebalance.generation if group else 1
    ticket = f"{kind} {next(tickets)}"
    if kind == "join":
        fields = {"protocols": (("range", rest[0]),), "member_id_required": rest[1], "instance_id": instance_id}
        history.join(ticket, ids.get(who, ""), **fields)
    elif kind == "sync":
        history.sync(ticket, ids.get(who, "?"), generation, instance_id=instance_id)
    else:
        if kind == "beat":
            history.heartbeat(ids.get(who, "?"), generation, instance_id)
        elif kind == "leave":
            history.leave(MemberIdentity(ids.get(who, ""), instance_id))
        else:
            history.wait(who)
        return None
    return ticket


@settings(max_examples=3 * settings().max_examples // 2)
@given(st.lists(STEPS, max_size=40), st.sampled_from([0, 500]))
def test_each_request_is_answered_once_and_silence_ends_the_group(steps: list[tuple[Any, ...]], delay_ms: int) -> None:
    history = History(initial_rebalance_delay_ms=delay_ms)
    ids: dict[int, str] = {}
    tickets, sent = count(), list[tuple[str, int]]()
    for step in steps:
        ticket = perform(history, step, ids, tickets)
        if ticket is not None:
            sent.append((ticket, step[1]))
        for name, who in sent:
            answer = history.answers.get(name)
            if isinstance(answer, JoinResponse) and answer.error in (OK, ErrorCode.member_id_required):
                ids[who] = answer.member_id
            elif answer is not None and answer.error is ErrorCode.unknown_member_id:
                ids.pop(who, None)
    history.wait(2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert {ticket for ticket, _ in sent} == history.answers.keys()
    assert list(history.coordinator.groups()) == []
    assert history.coordinator._member_count == history.coordinator._held_bytes == 0
