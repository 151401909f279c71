"""Proves that a held request ends exactly once and leaves nothing behind: random histories, then re-entry."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from duolog.bridge.net.purgatory import (
    HELD_QUEUE_BYTES,
    HELD_REQUEST_BYTES,
    NOTIFIED_AT_ONCE,
    Held,
    Purgatory,
)

KEYS = range(5)
HELD_MAX, CONNECTION_MAX = 14 * HELD_REQUEST_BYTES, 8 * HELD_REQUEST_BYTES


class HoldingConnection:
    """A connection, as the purgatory sees it."""

    held_bytes = 0


@dataclass(eq=False)
class Poll:
    """A request that wants `wanted` records in sum over its queues, and records how it ended."""

    visible: dict[int, int]
    keys: frozenset[int]
    wanted: int = 1
    endings: list[str] = field(default_factory=list)

    def is_enough(self) -> bool:
        return sum(self.visible[key] for key in self.keys) >= self.wanted

    def try_complete(self) -> bool:
        assert not self.endings, "asked after its end"
        if self.is_enough():
            self.endings.append("completed")
        return self.is_enough()

    def expire(self) -> None:
        assert not self.endings, "the request ended twice"
        self.endings.append("expired")

    def deleted(self) -> None:
        assert not self.endings, "the request ended twice"
        self.endings.append("deleted")

    def fail(self, error: Exception) -> None:
        raise error


def _cost(keys: frozenset[int]) -> int:
    return HELD_REQUEST_BYTES + len(keys) * HELD_QUEUE_BYTES


class PurgatoryHistory(RuleBasedStateMachine):
    """The model: which requests wait, and until when."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.mono_ms = 1_000
        self.purgatory = Purgatory(HELD_MAX, CONNECTION_MAX)
        self.connections = [HoldingConnection(), HoldingConnection(), HoldingConnection()]
        self.visible = dict.fromkeys(KEYS, 0)
        self.waiting: dict[Held, tuple[Poll, int]] = {}

    @rule(
        target=held,
        keys=st.frozensets(st.sampled_from(KEYS)),
        wanted=st.integers(1, 9),
        ms=st.integers(0, 600),
        of=st.integers(0, 2),
    )
    def hold(self, keys: frozenset[int], wanted: int, ms: int, of: int) -> object:
        connection = self.connections[of]
        poll = Poll(self.visible, keys, wanted)
        held = None if poll.is_enough() else self.purgatory.hold(poll, [*keys, *keys], self.mono_ms + ms, connection)
        if held is None:
            cost = _cost(keys)
            is_full = self._watched() + cost > HELD_MAX or self._watched(connection) + cost > CONNECTION_MAX
            assert poll.is_enough() or is_full
            return multiple()
        self.waiting[held] = poll, self.mono_ms + ms
        return held

    def _watched(self, connection: HoldingConnection | None = None) -> int:
        costs = ((held.connection, _cost(poll.keys)) for held, (poll, _) in self.waiting.items())
        return sum(cost for of, cost in costs if connection in (None, of))

    @invariant()
    def bytes_are_those_of_who_waits(self) -> None:
        assert self.purgatory.held_bytes == self._watched() <= HELD_MAX
        for connection in self.connections:
            assert connection.held_bytes == self._watched(connection) <= CONNECTION_MAX

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1))
    def become_visible(self, keys: list[int]) -> None:
        for key in keys:
            self.visible[key] += 1
        self.purgatory.check(keys)
        self.end({held for held, (poll, _) in self.waiting.items() if poll.is_enough()}, "completed")

    @rule(ms=st.integers(0, 700))
    def advance(self, ms: int) -> None:
        self.mono_ms += ms
        self.purgatory.advance(self.mono_ms)
        self.end({held for held, (_, until_ms) in self.waiting.items() if until_ms <= self.mono_ms}, "expired")

    @rule(held=held)
    def release(self, held: Held) -> None:
        self.purgatory.release(held)
        self.waiting.pop(held, None)

    @rule()
    def trim(self) -> None:
        """A queue that loses records wakes no request."""
        self.visible.update(dict.fromkeys(KEYS, 0))
        self.purgatory.check(KEYS)

    def end(self, ended: set[Held], how: str) -> None:
        for held in ended:
            poll, _ = self.waiting.pop(held)
            assert poll.endings == [how]

    @invariant()
    def the_others_wait(self) -> None:
        assert len(self.purgatory) == len(self.waiting)
        assert not any(poll.endings for poll, _ in self.waiting.values())
        next_ms = self.purgatory.next_deadline_ms()
        if self.waiting:
            assert next_ms is not None
            assert next_ms <= min(until_ms for _, until_ms in self.waiting.values())


TestPurgatoryHistory = PurgatoryHistory.TestCase
TestPurgatoryHistory.settings = settings(stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("how", ["completed", "expired", "released"])
def test_an_ended_request_is_not_kept_alive_by_any_queue_or_timer(how: str) -> None:
    purgatory, visible = Purgatory(), dict.fromkeys(KEYS, 0)
    poll = Poll(visible, frozenset(KEYS))
    held = purgatory.hold(poll, KEYS, 500, HoldingConnection())
    assert held is not None
    visible[3] = 1
    match how:
        case "completed":
            purgatory.check([3])
        case "expired":
            purgatory.advance(500)
        case "released":
            purgatory.release(held)
    left = weakref.ref(poll)
    del poll, held
    assert left() is None
    assert purgatory.next_deadline_ms() is None


@dataclass(eq=False)
class Acting:
    """Calls `act` when the purgatory retries or ends the request; a retry completes it."""

    act: Callable[[], object]
    ended: int = 0
    faults: list[Exception] = field(default_factory=list)

    def try_complete(self) -> bool:
        self.ended += 1
        self.act()
        return True

    def expire(self) -> None:
        self.ended += 1
        self.act()

    def deleted(self) -> None:
        self.ended += 1

    def fail(self, error: Exception) -> None:
        self.faults.append(error)
        raise RuntimeError("while it fails")


@pytest.mark.parametrize("move", [lambda purgatory: purgatory.check([1]), lambda purgatory: purgatory.advance(500)])
def test_a_request_may_end_the_others_that_are_notified_with_it(move: Callable[[Purgatory], None]) -> None:
    purgatory = Purgatory()
    first, second = Acting(lambda: purgatory.release(other)), Acting(lambda: None)
    purgatory.hold(first, [1], 500, HoldingConnection())
    held = purgatory.hold(second, [1], 500, HoldingConnection())
    assert held is not None
    other: Held = held
    move(purgatory)
    assert (first.ended, second.ended, len(purgatory)) == (1, 0, 0)


@pytest.mark.parametrize("move", [lambda purgatory: purgatory.check([1]), lambda purgatory: purgatory.advance(500)])
def test_a_request_may_be_held_again_while_it_is_notified(move: Callable[[Purgatory], None]) -> None:
    purgatory = Purgatory()
    poll = Acting(lambda: purgatory.hold(poll, [1], 400, HoldingConnection()))
    purgatory.hold(poll, [1], 500, HoldingConnection())
    move(purgatory)
    assert (poll.ended, len(purgatory)) == (1, 1)


@pytest.mark.parametrize("move", [lambda purgatory: purgatory.check([1]), lambda purgatory: purgatory.advance(500)])
def test_one_that_raises_is_failed_and_does_not_take_the_others_along(move: Callable[[Purgatory], None]) -> None:
    def fail() -> None:
        raise OSError("no disk")

    reported: list[Exception] = []
    purgatory = Purgatory(contain=reported.append)
    polls = [Acting(lambda: None), Acting(fail), Acting(lambda: None)]
    for poll in polls:
        purgatory.hold(poll, [1], 500, HoldingConnection())
    move(purgatory)
    assert [poll.ended for poll in polls] == [1, 1, 1]
    assert [str(error) for error in polls[1].faults] == ["no disk"]
    assert (len(purgatory), [*map(str, reported)]) == (0, ["while it fails"])


@pytest.mark.parametrize(
    "move",
    [
        lambda purgatory: purgatory.check([1]),
        lambda purgatory: purgatory.on_deleted([1]),
        lambda purgatory: purgatory.advance(500),
    ],
)
@pytest.mark.parametrize(("queues", "at_once"), [(2, NOTIFIED_AT_ONCE), (1000, NOTIFIED_AT_ONCE // 40 + 1)])
def test_a_turn_tells_so_many_and_later_turns_the_others(
    move: Callable[[Purgatory], None], queues: int, at_once: int
) -> None:
    purgatory = Purgatory()
    polls = [Acting(lambda: None) for _ in range(5 * at_once)]
    for number, poll in enumerate(polls):
        purgatory.hold(poll, [1, *range(2 + number, 1 + number + queues)], 500, HoldingConnection())
    ended = 0
    move(purgatory)
    while ended < len(polls):
        now_ended = sum(poll.ended for poll in polls)
        assert now_ended - ended <= at_once
        ended = now_ended
        deadline_ms = purgatory.next_deadline_ms()
        assert ended == len(polls) or (deadline_ms is not None and deadline_ms <= 500)
        purgatory.advance(500)
    assert [poll.ended for poll in polls] == [1] * len(polls)
    purgatory.advance(500)  # Takes those out of the wheel that have ended.
    assert (len(purgatory), purgatory.next_deadline_ms()) == (0, None)


def test_a_queue_that_changes_while_its_requests_are_asked_is_gone_through_once_more() -> None:
    purgatory, visible = Purgatory(), {1: 0}
    polls = [Poll(visible, frozenset([1]), wanted=2) for _ in range(3 * NOTIFIED_AT_ONCE)]
    for poll in polls:
        purgatory.hold(poll, [1], 500, HoldingConnection())
    visible[1] = 1
    purgatory.check([1])
    purgatory.advance(0)  # These have asked for more than there was.
    visible[1] = 2
    purgatory.check([1])
    for _ in range(8):
        purgatory.advance(0)
    assert {*(poll.endings[0] for poll in polls)} == {"completed"}
    assert purgatory.next_deadline_ms() is None
