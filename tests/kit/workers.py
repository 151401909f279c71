"""Two workers (pytest-xdist) share a run's tests: who gets what, and when one of them has the machine for itself.

A worker takes whole files, for what lasts as long as a module is made once then; and of the files with a Spark session
all, for the session is made once, too. They come first, being the longest; the unit tests come last and fill the end.

    with turn(folder, alone=True):      # waits for the other worker's test to end, and keeps it from the next one
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
SPARK = "tests.wire.clients.spark import"


class WholeFiles(LoadScopeScheduling):
    """Hands out files in the order of their first tests."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """Tests of one scope have one worker."""
    file = nodeid.partition("::")[0]
    return "Spark" if has_spark(file) else file


def rank(nodeid: str) -> int:
    """Tests of a lower rank are handed out first."""
    file = nodeid.partition("::")[0]
    return 0 if has_spark(file) else 1 if file.startswith("tests/wire/") else 2


@cache
def has_spark(file: str) -> bool:
    return SPARK in (ROOT / file).read_text()


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Run one test: beside others, or alone. `folder` is the same for all workers of the run.

    Whoever wants to be alone waits in the door, so that no other test slips past him.
    """
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
