"""Runs seeds: `python -m tests.simulation logs --seeds 1000`, or `--bugs` to look for each planted bug.

`logs` simulates the shared log alone, `brokers` whole brokers with clients. A seed that fails is printed with its
error; it fails again by `--first SEED --seeds 1`, because the order of sets of texts is the same in all runs, too.
`--jobs` is the number of processes, among which the seeds are divided.
"""

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from tests.kit.loop import run
from tests.kit.shared_chaos import chaos
from tests.kit.shared_nodes import World
from tests.simulation.planted_bugs import FENCE_BUGS, LOG_BUGS, RELEASE_BUGS
from tests.simulation.planted_client_bugs import CLIENT_BUGS
from tests.simulation.planted_file_bugs import ORPHAN_BUGS, TABLE_BUGS
from tests.simulation.replacing import replaced
from tests.simulation.whole_brokers import simulate as simulate_brokers


def simulate_logs(seed: int) -> None:
    world = World(seed)
    run(chaos(world), world.clock)


SIMULATIONS: Final[dict[str, Callable[[int], None]]] = {"logs": simulate_logs, "brokers": simulate_brokers}

# The bugs that each simulation must find; `--bug` looks for any other one, too.
BUGS: Final = {
    "logs": LOG_BUGS | FENCE_BUGS | RELEASE_BUGS | ORPHAN_BUGS,
    "brokers": LOG_BUGS | ORPHAN_BUGS | TABLE_BUGS | CLIENT_BUGS,
}
ALL_BUGS: Final = BUGS["logs"] | BUGS["brokers"]


def fails(simulate: Callable[[int], None], seed: int) -> str:
    """Run one seed; return why it fails, or an empty text."""
    try:
        simulate(seed)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} ({last.filename.rpartition('/')[2]}:{last.lineno})"
    return ""


def failures(what: str, seeds: Sequence[int], jobs: int) -> Iterator[tuple[int, str]]:
    """Run seeds in so many processes; yield those that fail, in their order, and why."""
    run_one = partial(fails, SIMULATIONS[what])
    with multiprocessing.get_context("fork").Pool(jobs) as pool:  # Forked processes have the bugs that are planted.
        yield from ((seed, reason) for seed, reason in zip(seeds, pool.imap(run_one, seeds), strict=True) if reason)


def find(what: str, bug: str, seeds: Sequence[int], jobs: int) -> bool:
    """Look for a planted bug, and print the first seed that finds it."""
    with replaced(ALL_BUGS[bug]()):
        for seed, reason in failures(what, seeds, jobs):
            print(f"{bug}: found by seed {seed}: {reason}", flush=True)
            return True
    print(f"{bug}: NOT FOUND by {len(seeds)} seeds", flush=True)
    return False


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=SIMULATIONS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--bugs", action="store_true")
    parser.add_argument("--bug", choices=ALL_BUGS)
    asked = parser.parse_args()
    logging.disable()
    gc.freeze()  # Modules are not searched for garbage again and again.
    seeds = range(asked.first, asked.first + asked.seeds)
    if asked.bug or asked.bugs:
        found = [find(asked.what, bug, seeds, asked.jobs) for bug in ([asked.bug] if asked.bug else BUGS[asked.what])]
        return 0 if all(found) else 1
    begun_s, failed = time.perf_counter(), 0
    for seed, reason in failures(asked.what, seeds, asked.jobs):
        failed += 1
        print(f"seed {seed}: {reason}", flush=True)
    print(f"{asked.what}: {len(seeds)} seeds, {failed} failed, {time.perf_counter() - begun_s:.0f} s")
    return 1 if failed else 0


sys.exit(main())
