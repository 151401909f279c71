"""What the decision costs that a request is allowed, in instructions: `python -m benchmarks.instructions`.

Times of a machine that has other work differ by more than the decision costs. The instructions that Valgrind's
Callgrind counts differ by less than a percent from run to run; those of all threads of the process count, and the
system's do not. Valgrind is a package of Linux distributions; without it, nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.paths import AUTHORISED_MOST, SHARED, authorised_pairs

DUMPS_AT = "getpgrp"  # A function of libc that a broker does not call: Callgrind dumps its count when it is called.
SAMPLES = 6
REQUESTS = 16 * SHARED
WARM_UP = 16 * SHARED  # CPython specialises its code during the first requests.


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--dumps", type=Path, metavar="PATH", help="this process runs in Callgrind, which dumps there")
    parser.add_argument("--only", default="", metavar="TEXT", help="only requests whose names have this text")
    asked = parser.parse_args()
    if asked.dumps is not None:
        _count(asked.dumps, asked.only)
        return 0
    if shutil.which("valgrind") is None:
        print("nothing was measured: the command valgrind was not found")
        return 0
    return _in_callgrind(asked.only)


def _in_callgrind(only: str) -> int:
    """Run this module in Callgrind, and return its exit status."""
    with tempfile.TemporaryDirectory(prefix="duolog-callgrind-") as folder:
        dumps = Path(folder) / "counts"
        callgrind = ["valgrind", "-q", "--tool=callgrind", f"--dump-before={DUMPS_AT}", f"--callgrind-out-file={dumps}"]
        module = [sys.executable, "-m", "benchmarks.instructions", "--dumps", str(dumps), "--only", only]
        return subprocess.run([*callgrind, *module], check=False).returncode


# -- In Callgrind


def _count(dumps: Path, only: str) -> None:
    """Print a line for each pair of requests."""
    counter = Counter(dumps)
    print(f"instructions for a request, {SHARED} in each turn of the loop; the goal is {AUTHORISED_MOST - 1:+.0%}")
    with authorised_pairs() as pairs:
        for pair in (each for each in pairs if only in each.title):
            without, authorised = (counter.per_request(task) for task in (pair.without, pair.authorised))
            print(f"{pair.title:52} {without:10,.0f} {authorised:10,.0f} {authorised / without - 1:+7.1%}", flush=True)


class Counter:
    """Counts the instructions of this process, which Callgrind dumps to files."""

    def __init__(self, dumps: Path) -> None:
        self._dumps = dumps
        self._dumps_made = 0

    def per_request(self, task: Callable[[int], None]) -> float:
        """Return the instructions that each request of a task takes, in its best sample."""
        task(WARM_UP)
        return min(self._sample(task) for _ in range(SAMPLES)) / REQUESTS

    def _sample(self, task: Callable[[int], None]) -> int:
        self._dump()
        task(REQUESTS)
        counted = self._dump().read_text()
        found = re.search(r"^totals: (\d+)$", counted, re.MULTILINE)
        assert found is not None, "the dump has no total"
        return int(found[1])

    def _dump(self) -> Path:
        """Let Callgrind dump its count, which begins again from zero."""
        os.getpgrp()
        self._dumps_made += 1
        return self._dumps.with_name(f"{self._dumps.name}.{self._dumps_made}")


if __name__ == "__main__":
    sys.exit(main())
