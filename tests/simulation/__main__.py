"""Runs seeds: `python -m tests.simulation --seeds 1000`, or `--bugs` to look for each planted bug.

A seed that fails is printed with its error; it fails again by `--first SEED --seeds 1`.
"""

import argparse
import logging
import sys
import time
import traceback

from tests.kit.loop import run
from tests.kit.shared_chaos import chaos
from tests.kit.shared_nodes import World
from tests.simulation.planted_bugs import BUGS, planted


def fails(seed: int) -> str:
    """Run one seed; return why it fails, or an empty text."""
    world = World(seed)
    try:
        run(chaos(world), world.clock)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} ({last.filename.rpartition('/')[2]}:{last.lineno})"
    return ""


def find(bug: str, seeds: range) -> bool:
    """Look for a planted bug, and print the first seed that finds it."""
    with planted(bug):
        for seed in seeds:
            if reason := fails(seed):
                print(f"{bug}: found by seed {seed}: {reason}", flush=True)
                return True
    print(f"{bug}: NOT FOUND by {len(seeds)} seeds", flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--bugs", action="store_true")
    parser.add_argument("--bug", choices=BUGS)
    asked = parser.parse_args()
    logging.disable()
    seeds = range(asked.first, asked.first + asked.seeds)
    if asked.bug or asked.bugs:
        found = [find(bug, seeds) for bug in ([asked.bug] if asked.bug else BUGS)]
        return 0 if all(found) else 1
    begun_s, failed = time.perf_counter(), 0
    for seed in seeds:
        if reason := fails(seed):
            failed += 1
            print(f"seed {seed}: {reason}", flush=True)
    print(f"{len(seeds)} seeds, {failed} failed, {time.perf_counter() - begun_s:.0f} s")
    return 1 if failed else 0


sys.exit(main())
