"""Simulations find bugs that are planted in the shared log: a checker that sees nothing is noticed here.

`make simulate SIMULATE=--bugs` looks for many more bugs, also in whole brokers.
"""

import pytest

from duolog.store.errors import StoreError
from tests.kit.loop import run
from tests.kit.shared_chaos import chaos
from tests.kit.shared_nodes import World
from tests.simulation import planted_bugs
from tests.simulation.replacing import Bug, replaced

Errors = type[Exception] | tuple[type[Exception], ...]

SEEDS = 25  # Each bug was found by one of the first two seeds.
# By whom the bug is found: by the simulation's own checks, or by the broker, whose log is no log any more.
BUGS = (
    (planted_bugs.acknowledged_before_the_slot_counts, AssertionError),
    (planted_bugs.stale_read_after_a_takeover, AssertionError),
    (planted_bugs.time_out_taken_for_success, StoreError),
    (planted_bugs.time_out_taken_for_a_failure, StoreError),
    (planted_bugs.no_caution_behind_the_fence, AssertionError),
    (planted_bugs.old_epoch_counts, StoreError),
    # An owner that lacks the objects stops; a standby that lacks them has not the owner's state.
    (planted_bugs.wal_objects_deleted_before_a_manifest_names_their_segments, (StoreError, AssertionError)),
)


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "error"), BUGS)
def test_planted_bug_is_found(bug: Bug, error: Errors) -> None:
    with replaced(bug()):
        assert any(_finds(seed, error) for seed in range(SEEDS))


def _finds(seed: int, error: Errors) -> bool:
    world = World(seed)
    try:
        run(chaos(world), world.clock)
    except error:
        return True
    return False
