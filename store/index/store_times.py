"""Where in the log store times fall: what keeps them searchable although a clock was wrong.

Store times are the wall clock's, and within a stretch of the log they never fall: a clock that is a little behind the
last unit is waited for. A clock that was far ahead and is right again is not, or store times would stay ahead for ever.
Then the log says that they begin again, at a *step back*:

    positions     0 ............. P1 ............. P2 ..........
    store times   rise            rise from T1     rise from T2         T1 was below what lay before P1, T2 before P2

What lies before P1 was in truth stored before T1, whatever its own time says. So its *effective* time is its own, but
no later than T1 and T2: that never falls from the first entry to the last, and a search bisects stretch by stretch.

A step back may be wrong itself: a machine starts in 1970, and hears of the time an hour later. When the clock goes on
from where it was before the step, the step is *undone*: the stretch stays, but it does not make what lies before it any
older. Retention can then not take for old what was stored by a right clock before a wrong one.

The list is kept in the log (`store/log/control.py`, CLOCK_STEPS), each time as a whole, and in checkpoints and
snapshots.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from duolog.store.entry import Buffer

STEPS_MAX = 64  # Beyond, the oldest goes: a look-up among what is older then may be wrong by as much as that clock was.
_STEP = Struct(">QQQB")


class StepBack(NamedTuple):
    """From this position of the log on store times begin anew."""

    position: int
    since_ms: int  # the first store time behind it
    before_ms: int  # the last one before it
    is_undone: bool = False

    @property
    def bound_ms(self) -> int:
        """The latest time at which anything before it can have been stored."""
        return self.before_ms if self.is_undone else self.since_ms


class Stretch(NamedTuple):
    """A range of positions within which store times never fall."""

    start: int
    end: int | None  # None: the end of the log
    bound_ms: int | None  # nothing in it was stored later than this, whatever it says; None: no bound


def stretches(steps: Sequence[StepBack]) -> Iterator[Stretch]:
    """Yield the stretches of the log, the first one first."""
    start = 0
    for number, step in enumerate(steps):
        yield Stretch(start, step.position, min(later.bound_ms for later in steps[number:]))
        start = step.position
    yield Stretch(start, None, None)


def with_step(steps: Sequence[StepBack], step: StepBack) -> tuple[StepBack, ...]:
    return (*steps, step)[-STEPS_MAX:]


def undone(steps: Sequence[StepBack], now_ms: int) -> tuple[StepBack, ...]:
    """Undo the steps back that the clock has turned out to be wrong about: it is where it was before them."""
    return tuple(step._replace(is_undone=step.is_undone or now_ms >= step.before_ms) for step in steps)


def pack_steps(steps: Sequence[StepBack]) -> bytes:
    return b"".join([_STEP.pack(*step) for step in steps])


def read_steps(payload: Buffer) -> tuple[StepBack, ...]:
    return tuple(
        StepBack(position, since_ms, before_ms, bool(is_undone))
        for position, since_ms, before_ms, is_undone in _STEP.iter_unpack(payload)
    )
