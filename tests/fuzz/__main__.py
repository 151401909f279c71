"""Runs the fuzz targets under atheris: `python -m tests.fuzz [TARGET ...] [--runs N] [--seconds S]`.

Each target runs in a process of its own, for atheris ends the process at a finding and prints the input that made it.
Inputs are chosen by coverage and thrown away at the end; what was found belongs into a regression test.
"""

import argparse
import logging
import re
import subprocess
import sys
import tempfile

RUNS = 1_000_000
INPUT_BYTES_MAX = 4_096
_DONE = re.compile(r"Done (\d+) ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="all, unless named")
    parser.add_argument("--runs", type=int, default=RUNS, help="inputs for each target")
    parser.add_argument("--seconds", type=int, default=0, help="and no longer than so many seconds each; 0: no limit")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _run_here(options.targets[0], options.runs, options.seconds)
    from tests.fuzz.targets import TARGETS

    total, failed = 0, []
    for name in options.targets or TARGETS:
        ran, status = _run_apart(name, options.runs, options.seconds)
        total += ran
        failed += [name] * (status != 0)
        print(f"{name}: {ran} inputs, {'a finding' if status else 'no finding'}", flush=True)
    print(f"{total} inputs in all; findings in: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _run_apart(name: str, runs: int, seconds: int) -> tuple[int, int]:
    command = [sys.executable, "-m", "tests.fuzz", name, "--one", "--runs", str(runs), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        print(done.stdout[-4_000:], done.stderr[-8_000:], file=sys.stderr)
    counted = _DONE.search(done.stderr)
    return int(counted[1]) if counted else 0, done.returncode


def _run_here(name: str, runs: int, seconds: int) -> None:
    """Fuzz one target until the runs are done; ends the process."""
    import atheris

    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=["duolog"]):
        from tests.fuzz.targets import TARGETS
    limits = [f"-runs={runs}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=10", "-rss_limit_mb=4096"]
    if seconds:
        limits.append(f"-max_total_time={seconds}")
    with tempfile.TemporaryDirectory() as corpus:
        atheris.Setup([name, *limits, corpus], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
