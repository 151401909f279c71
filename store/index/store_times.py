"""Steps back: the positions of the log at which store times decrease, because the wall clock was set back.

The store time of a unit is the wall clock's time at its append, but at least the store time of the unit before it. A
clock that is a little behind thus causes no decrease. If the clock was far ahead and was corrected, store times would
be wrong until the clock reaches them. A *step back* is then appended to the log, and store times continue at the
corrected time. Between two steps back lies a *stretch*, within which store times never decrease:

    position      0 ................ P1 ................ P2 ................
    store time    never decreases    continues at T1     continues at T2

All entries before P1 were in fact stored before T1, even if their store times are higher. The *effective time* of an
entry is its store time, but at most the times T of all later steps back. Effective times never decrease in the whole
log, so a search by time bisects one stretch after another.

A step back may itself be wrong: for example, a machine starts with the year 1970, and its clock is corrected an hour
later. When the clock again reaches the store time before the step, the step is marked as *undone*. It then limits the
effective times before it only to that higher store time, so that retention does not remove entries as too old.

The list of all steps back is stored as a whole with each change, in a control entry (CLOCK_STEPS in
`store/log/control.py`), and in checkpoints and snapshots:

    position u64 | since_ms u64 | before_ms u64 | is_undone u8      for each step, big-endian
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from duolog.store.entry import Buffer

# Steps back that are stored; the oldest is removed first. A search by time among entries before a removed step may be
# wrong by as much as the clock was wrong.
STEPS_MAX = 64
_STEP = Struct(">QQQB")


class StepBack(NamedTuple):
    """A position of the log from which store times continue at a lower time."""

    position: int
    since_ms: int  # The store time at which the log continues after `position`.
    before_ms: int  # The last store time before `position`.
    is_undone: bool = False  # Whether the clock has reached `before_ms` again, so that the step was wrong.

    @property
    def bound_ms(self) -> int:
        """The upper limit for the effective times of all entries before `position`."""
        return self.before_ms if self.is_undone else self.since_ms


class Stretch(NamedTuple):
    """A range of positions within which store times never decrease."""

    start: int
    end: int | None  # None for the end of the log.
    bound_ms: int | None  # The upper limit for the effective times in this range; None for no limit.


def stretches(steps: Sequence[StepBack]) -> Iterator[Stretch]:
    """Yield the stretches of the log in the order of their positions."""
    start = 0
    for number, step in enumerate(steps):
        yield Stretch(start, step.position, min(later.bound_ms for later in steps[number:]))
        start = step.position
    yield Stretch(start, None, None)


def with_step(steps: Sequence[StepBack], step: StepBack) -> tuple[StepBack, ...]:
    """Return the steps with one more; beyond STEPS_MAX the oldest is removed."""
    return (*steps, step)[-STEPS_MAX:]


def undone(steps: Sequence[StepBack], now_ms: int) -> tuple[StepBack, ...]:
    """Return the steps, with `is_undone` set for those whose `before_ms` the clock has reached again."""
    return tuple(step._replace(is_undone=step.is_undone or now_ms >= step.before_ms) for step in steps)


def pack_steps(steps: Sequence[StepBack]) -> bytes:
    return b"".join([_STEP.pack(*step) for step in steps])


def read_steps(payload: Buffer) -> tuple[StepBack, ...]:
    return tuple(
        StepBack(position, since_ms, before_ms, bool(is_undone))
        for position, since_ms, before_ms, is_undone in _STEP.iter_unpack(payload)
    )
