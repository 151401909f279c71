"""`python -m benchmarks`: the hot paths in process, then stock clients against Duolog and the Apache brokers.

    python -m benchmarks --list
    python -m benchmarks --only paths
    python -m benchmarks --only kafka-java-produce --only rocketmq-send-64 --rounds 3
    python -m benchmarks --flush sync --json sync.json
    python -m benchmarks --checkout ../before --quick

A name is a row's, the beginning of several rows' (`kafka`), or `paths`. Each load has a fixed length, and all
brokers end with the run. With --checkout the peer is the broker of another checkout of Duolog, whose .venv `make setup`
has made: so a change shows what it costs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import end_to_end, paths, report
from benchmarks.end_to_end import FULL, QUICK, ROWS, Row

PATHS = "paths"
PIPED_WIDTH = 140  # The width of tables if the output is no terminal.


def main() -> int:
    asked = _arguments()
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    if asked.list:
        console.print(*(f"{row.name:32} {row.title}" for row in ROWS), sep="\n")
        return 0
    scale = QUICK if asked.quick else FULL
    if asked.rounds:
        scale = scale._replace(rounds=asked.rounds)
    if asked.cold_gib:
        scale = scale._replace(cold_bytes=asked.cold_gib << 30)
    measured: list[paths.Measured] = []
    if PATHS in asked.only or not (asked.only or asked.checkout):
        measured = paths.run(quick=asked.quick)
        console.print(report.paths_table(measured))
    rows = _rows(asked.only)
    lacking = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if rows and lacking:
        console.print(f"left out, for want of {' and '.join(lacking)}: all rows end to end")
        rows = []
    outcomes = []
    title = f"End to end, flush = {asked.flush}, median of {scale.rounds} interleaved rounds"
    for outcome in end_to_end.run(rows, scale, asked.flush, _say, asked.checkout):
        outcomes.append(outcome)
        if asked.each:
            console.print(report.rows_table([outcome], ""))
    if outcomes:
        console.print(report.rows_table(outcomes, title))
    if asked.json:
        asked.json.write_text(json.dumps(report.as_values(measured, outcomes), indent=1))
    return 0


def _rows(only: list[str]) -> list[Row]:
    names = [name for name in only if name != PATHS]
    unknown = [name for name in names if not any(row.name.startswith(name) for row in ROWS)]
    if unknown:
        sys.exit(f"no such row: {', '.join(unknown)}; --list names them")
    if only and not names:
        return []
    return [row for row in ROWS if not names or any(row.name.startswith(name) for name in names)]


def _say(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a row, or `paths`; repeatable")
    parser.add_argument("--list", action="store_true", help="list the rows and leave")
    parser.add_argument("--quick", action="store_true", help="shorter and fewer rounds, less data")
    parser.add_argument("--rounds", type=int, help="rounds of each row (5; quick: 2)")
    parser.add_argument("--flush", choices=("async", "sync"), default="async", help="when brokers answer")
    parser.add_argument("--checkout", type=Path, help="compare with the broker of another checkout of Duolog")
    parser.add_argument("--cold-gib", type=int, metavar="N", help="data that is read cold (8; quick: 1)")
    parser.add_argument("--each", action="store_true", help="print each row when it is done, too")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures of all rounds there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
