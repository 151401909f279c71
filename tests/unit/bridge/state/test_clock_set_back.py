"""Proves that a clock that is set forward and back costs no turn of the loop more, however large the tables are.

A core gets pops, half messages and open transactions in several slices while its clock is ahead; then the clock is set
right. Work is counted in calls of functions, turn by turn, and at the end nothing waits for a time that is far off.
"""

import pytest

from duolog.bridge.records.pop import PopTaken
from duolog.bridge.records.transactions import TransactionalIdSettled, TransactionGrew
from duolog.bridge.state.deleted_topics import CHECKED_IN_SLICE
from duolog.txn.coordinator import State
from duolog.txn.half_verdicts import HalfVerdict
from tests.kit.core import ManualCore
from tests.unit.adversary.budget import counted

NOW = 1_700_000_000_000
AHEAD_MS = 365 * 86_400_000
COUNT = 3 * CHECKED_IN_SLICE
UNITS_MAX = 24 * CHECKED_IN_SLICE  # Some twenty calls for each pop; a whole table is three times that.
INVISIBLE_MS = 60_000
TIMEOUT_MS = 60_000


def filled(core: ManualCore) -> None:
    now_ms = core.clock.now_ms()
    core.state_log.commit(
        [PopTaken("g", 1 << 16, n, now_ms, [0], now_ms + INVISIBLE_MS, 1) for n in range(COUNT)], now_ms
    )
    for number in range(COUNT):
        core.halves.state.prepared(number, "target", now_ms)
    settled = [TransactionalIdSettled(f"id{n}", n, 0, TIMEOUT_MS, State.EMPTY, now_ms) for n in range(COUNT)]
    core.state_log.commit(settled, now_ms)
    core.state_log.commit([TransactionGrew(number, now_ms) for number in range(COUNT)], now_ms)


def units_of_jump(core: ManualCore, by_ms: int) -> int:
    """Set the clock, and give the work of the turn that notices it."""
    core.clock.set_now_ms(core.clock.now_ms() + by_ms)
    with counted(calls=True) as work:
        core.wall_time.observe(core.clock.now_ms(), core.clock.mono_ms())
    return work.units


@pytest.mark.slow
def test_clock_set_forward_and_back_goes_through_large_tables_in_slices() -> None:
    core = ManualCore(now_ms=NOW)
    core.topic()
    assert units_of_jump(core, AHEAD_MS) < UNITS_MAX
    filled(core)
    core.settle()
    assert units_of_jump(core, -AHEAD_MS) < UNITS_MAX
    slices = 0
    while core.clock_set_back.next_deadline_mono_ms() is not None:
        with counted(calls=True) as work:
            core.clock_set_back.run()
        assert work.units < UNITS_MAX
        slices += 1
    assert slices >= 3 * COUNT // CHECKED_IN_SLICE
    due_ms = core.rocketmq_context.pop.checkpoints.next_deadline_ms()
    assert due_ms is not None
    assert due_ms <= core.clock.now_ms() + INVISIBLE_MS
    assert max(half.due_ms for half in core.halves.state.open()) < NOW + AHEAD_MS
    assert {each.started_ms for each in core.transactions.coordinator.open} == {core.clock.now_ms()}
    assert core.transactions.next_deadline_ms() == core.clock.now_ms() + TIMEOUT_MS


@pytest.mark.slow
def test_jump_of_the_clock_moves_all_open_transactions_without_looking_at_them() -> None:
    core = ManualCore(now_ms=NOW)
    filled(core)
    assert units_of_jump(core, AHEAD_MS) < 1000
    assert core.transactions.next_deadline_ms() == NOW + AHEAD_MS + TIMEOUT_MS


def test_pages_of_half_messages_that_are_joined_between_two_slices_are_not_missed() -> None:
    core = ManualCore(now_ms=NOW + AHEAD_MS)
    state, page = core.halves.state, 1024
    for number in range(3 * page):
        state.prepared(number, "target", NOW + AHEAD_MS)
    sweep = state.clock_was_set_back(NOW)
    next(sweep)
    for number in range(2 * page):
        if number % page >= 100:
            state.decided(number, HalfVerdict.COMMITTED)  # The first two pages become one, half of which was processed.
    assert len(state._pages) == 2
    list(sweep)
    assert max(half.due_ms for half in state.open()) < NOW + AHEAD_MS
