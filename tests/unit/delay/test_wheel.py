"""Proves the timing wheel against a sorted list: random histories with cancels, late timers, a clock that steps.

Times are drawn from a few magnitudes, so that timers meet in slots, move down, and fall on the edges of digits.
"""

from bisect import insort

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duolog.delay.wheel import Wheel, WheelTimer

YEAR_MS = 365 * 24 * 3_600_000

# Distances from now: within a millisecond's slot, in the next slots of each level, at their edges, years.
distances = st.one_of(
    st.integers(-3, 3),
    st.integers(-300, 300),
    st.builds(
        lambda level, slots, by: (slots << 8 * level) + by, st.integers(1, 4), st.integers(0, 3), st.integers(-1, 1)
    ),
    st.integers(0, 10 * YEAR_MS),
)


class WheelHistory(RuleBasedStateMachine):
    """The model: (deadline, order of adding) of every pending timer, sorted. Items are the order of adding."""

    def __init__(self) -> None:
        super().__init__()
        self.clock_ms = 1_700_000_000_000
        self.wheel: Wheel[int] = Wheel(self.clock_ms)
        self.pending: list[tuple[int, int]] = []
        self.timers: dict[int, WheelTimer[int]] = {}

    @rule(by_ms=distances, count=st.integers(1, 20))
    def add(self, by_ms: int, count: int) -> None:
        for _ in range(count):
            self.add_at(max(0, self.clock_ms + by_ms))

    @precondition(lambda self: self.pending)
    @rule(at=st.floats(0, 1, exclude_max=True), by_ms=st.integers(-1, 1), count=st.integers(1, 20))
    def add_beside_another(self, at: float, by_ms: int, count: int) -> None:
        deadline_ms = self.pending[int(at * len(self.pending))][0]
        for _ in range(count):
            self.add_at(max(0, deadline_ms + by_ms))

    def add_at(self, deadline_ms: int) -> None:
        number = len(self.timers)
        self.timers[number] = self.wheel.add(deadline_ms, number)
        insort(self.pending, (deadline_ms, number))

    @precondition(lambda self: self.timers)
    @rule(at=st.floats(0, 1, exclude_max=True))
    def cancel(self, at: float) -> None:
        number = int(at * len(self.timers))
        entry = (self.timers[number].deadline_ms, number)
        assert self.timers[number].is_pending == (entry in self.pending)
        assert self.wheel.cancel(self.timers[number]) == (entry in self.pending)
        self.pending = [other for other in self.pending if other != entry]

    @rule(by_ms=distances)
    def advance(self, by_ms: int) -> None:
        """By whatever the clock says: forward, far forward, back."""
        self.clock_ms = max(0, self.clock_ms + by_ms)
        due = [number for deadline_ms, number in self.pending if deadline_ms <= self.clock_ms]
        assert self.wheel.advance(self.clock_ms) == due
        del self.pending[: len(due)]

    @rule(by_ms=distances, moves_max=st.integers(1, 15))
    def advance_a_little(self, by_ms: int, moves_max: int) -> None:
        self.clock_ms = max(0, self.clock_ms + by_ms)
        self.take_some(moves_max)

    @precondition(lambda self: self.pending)
    @rule(moves_max=st.integers(1, 15), times=st.integers(1, 3))
    def advance_to_the_next_a_little(self, moves_max: int, times: int) -> None:
        self.clock_ms = max(self.clock_ms, self.pending[0][0])
        for _ in range(times):
            self.take_some(moves_max)

    def take_some(self, moves_max: int) -> None:
        due = self.wheel.advance(self.clock_ms, moves_max)
        assert due == [number for deadline_ms, number in self.pending if deadline_ms <= self.clock_ms][: len(due)]
        del self.pending[: len(due)]

    @rule(until_ms=st.integers(1, 100_000))
    def follow_its_deadlines(self, until_ms: int) -> None:
        """As the ticker does: sleep until the deadline that it names, and no longer. Nothing is then late."""
        until_ms += self.clock_ms
        steps_left = 10 * len(self.pending) + 10
        while (next_ms := self.wheel.next_deadline_ms()) is not None and next_ms <= until_ms:
            self.clock_ms = max(self.clock_ms, next_ms)
            for number in self.wheel.advance(self.clock_ms):
                assert (self.clock_ms, number) >= self.pending[0]
                assert self.pending.pop(0)[1] == number
            steps_left -= 1
            assert steps_left, "next_deadline_ms() does not move on"
        assert all(deadline_ms > until_ms for deadline_ms, _ in self.pending)

    @invariant()
    def no_deadline_is_named_too_late(self) -> None:
        assert len(self.wheel) == len(self.pending)
        next_ms = self.wheel.next_deadline_ms()
        assert next_ms is None if not self.pending else next_ms is not None and next_ms <= self.pending[0][0]


TestWheelHistory = WheelHistory.TestCase
TestWheelHistory.settings = settings(stateful_step_count=40, deadline=None)


def test_the_story_that_the_docstring_draws() -> None:
    """With 256 slots instead of 4, so in base 16 two digits make one."""
    wheel: Wheel[str] = Wheel()
    for item, deadline_ms in {"A": 0x000002, "B": 0x000103, "C": 0x010101}.items():
        wheel.add(deadline_ms, item)
    wheel.add(0x000103, "D")
    assert wheel.next_deadline_ms() == 2
    assert wheel.advance(0x000100) == ["A"]
    assert wheel.next_deadline_ms() == 0x000103
    assert wheel.advance(0x010000) == ["B", "D"]
    assert wheel.next_deadline_ms() == 0x010100, "the slot; its timers are moved when it begins"
    assert wheel.advance(0x010100) == []
    assert wheel.next_deadline_ms() == 0x010101
    assert wheel.advance(0x010101) == ["C"]
    assert wheel.next_deadline_ms() is None


def test_a_timer_that_is_added_when_its_time_has_come_is_due_after_older_ones_of_this_time() -> None:
    """The older ones have moved down, which was all that `advance` was allowed to do."""
    wheel: Wheel[str] = Wheel()
    for item in "AB":
        wheel.add(0x0100, item)
    assert wheel.advance(0x0100, moves_max=2) == []
    wheel.add(0x0100, "C")
    assert wheel.advance(0x0100) == ["A", "B", "C"]
