"""Proves that groups of as many members as the settings allow are rebalanced, and expire, within the budget of a turn.

Work is counted in calls of functions: of the state machine and of what is made of its replies in that turn.
"""

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from duolog.bridge.config import GroupsOptions
from duolog.bridge.kafka.groups import coordinator
from duolog.bridge.kafka.groups.coordinator import GroupCoordinator
from duolog.bridge.kafka.groups.group_requests import JoinRequest, JoinResponse, SyncRequest
from duolog.bridge.kafka.groups.rebalance import GroupState
from duolog.bridge.kafka.groups.replies import Reply
from tests.unit.adversary.budget import UNITS_MAX, counted

MOST: int = get_type_hints(GroupsOptions, include_extras=True)["members_max"].__metadata__[0].le
SESSION_MS, DELAY_MS = 45_000, 3000
SHARE = 4  # The rest of the turn encodes and sends; the state machine has a quarter of it.


class Groups:
    """A coordinator, and the most work that one call of it has taken."""

    def __init__(self, members_max: int) -> None:
        options = GroupsOptions(members_max=members_max, initial_rebalance_delay_ms=DELAY_MS)
        self.coordinator: GroupCoordinator[int] = GroupCoordinator(options)
        self.now_ms, self.units_most, self.calls = 0, 0, 0

    def call(self, work: Callable[[], Any]) -> Any:
        with counted(calls=True) as found:
            result = work()
        self.units_most, self.calls = max(self.units_most, found.units), self.calls + 1
        return result

    def fill(self, group_id: str, count: int) -> None:
        for number in range(count):
            protocols = (("range", b"x" * 100), ("sticky", b"x" * 100))
            join = JoinRequest(
                group_id, "", f"c{number}", "/1", SESSION_MS, 300_000, "consumer", protocols, None, False
            )
            assert self.call(lambda join=join, number=number: self.coordinator.join(join, number, self.now_ms)) == []

    def pass_ms(self, ms: int) -> list[Reply[int]]:
        self.now_ms += ms
        replies: list[Reply[int]] = []
        while (due_ms := self.coordinator.next_deadline_ms()) is not None and due_ms <= self.now_ms:
            replies += self.call(lambda: self.coordinator.expire(self.now_ms))
        return replies


@pytest.mark.slow
def test_rebalance_of_the_largest_group_keeps_the_budget() -> None:
    groups = Groups(MOST)
    groups.fill("g", MOST)
    replies = groups.pass_ms(DELAY_MS) + groups.pass_ms(DELAY_MS) + groups.pass_ms(DELAY_MS)
    assert len(replies) == MOST
    ids = [reply.answer.member_id for reply in replies if isinstance(reply.answer, JoinResponse)]
    group = groups.coordinator.group("g")
    assert group is not None
    synced: list[Reply[int]] = []
    # The leader's SyncGroup, which completes those of all members, is the last one.
    for member_id in sorted(ids, key=lambda each: each == group.members.leader_id):
        parts = tuple((each, b"y" * 100) for each in ids) if member_id == group.members.leader_id else ()
        sync = SyncRequest("g", member_id, 1, parts)
        synced += groups.call(lambda sync=sync: groups.coordinator.sync(sync, 0, groups.now_ms))
    assert (group.state, len(synced)) == (GroupState.STABLE, MOST)
    groups.pass_ms(SESSION_MS)
    assert groups.coordinator.group("g") is None
    assert groups.units_most < UNITS_MAX // SHARE


def test_groups_that_are_due_at_once_expire_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MEMBERS_AT_ONCE", 100)
    groups = Groups(MOST)
    for number in range(20):
        groups.fill(f"g{number}", 50)
    groups.units_most = groups.calls = 0
    assert len(groups.pass_ms(DELAY_MS) + groups.pass_ms(DELAY_MS) + groups.pass_ms(DELAY_MS)) == 20 * 50
    assert groups.calls >= 20 * 50 // 100
    groups.pass_ms(300_000)
    assert not [*groups.coordinator.groups()]
    assert groups.units_most < 100 * 40
