"""`python -m benchmarks.delay`: how late delayed messages are, beside Apache RocketMQ in the same run.

    python -m benchmarks.delay --quick
    python -m benchmarks.delay --only burst-100k --json delay.json
    python -m benchmarks.delay --pending 1000000 --only pending

Each row is one load of RocketMQ's Java client against each contender in turn: Duolog async, Duolog sync, Apache
RocketMQ async. Late is what a message was after its due time, by the broker's store time and by its receipt, in
milliseconds; early is how many came before it. "Within" is the last one after the last due time. `--pending` fills
Duolog through Kafka batches first; then the row shows memory, and how long a restart takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import Contender, Duolog, RocketMQ, anonymous_mb, create_topic, settle
from benchmarks.loads import Loads

PIPED_WIDTH = 150
DAY_MS = 86_400_000
BODY_BYTES = 200
PERCENTILES = ("p50", "p99", "p999", "max")
BURST_LEAD_MS_A_THOUSAND = 400  # Sends before the first is due, also by the slowest of the three.


class Row(NamedTuple):
    name: str
    title: str
    goal: str
    arguments: dict[str, int]
    topics: int = 1
    is_quick: bool = False


def burst(
    name: str, title: str, goal: str, count: int, spread_ms: int, topics: int = 1, *, is_quick: bool = False
) -> Row:
    lead_ms = 5_000 + count * BURST_LEAD_MS_A_THOUSAND // 1_000
    return Row(name, title, goal, {"count": count, "spread_ms": spread_ms, "lead_ms": lead_ms}, topics, is_quick)


def rate(name: str, per_s: int, seconds: int, goal: str, *, is_quick: bool = False) -> Row:
    arguments = {"count": per_s * seconds, "rate": per_s, "delay_from_ms": 2_000, "delay_to_ms": 20_000}
    return Row(name, f"{per_s:,}/s for {seconds} s, delays of 2 to 20 s", goal, arguments, 1, is_quick)


P99_5 = "p50 < 2, p99 < 5"
ROWS = (
    rate("rate-1k", 1_000, 30, P99_5),
    rate("rate-5k", 5_000, 30, P99_5),
    rate("rate-quick", 1_000, 5, P99_5, is_quick=True),
    burst("burst-20k-second", "20,000 in one second", "within 100", 20_000, 1_000),
    burst("burst-20k-moment", "20,000 at one moment", "within 400", 20_000, 0, is_quick=True),
    burst("burst-100k-second", "100,000 in one second", "within 600", 100_000, 1_000),
    burst("burst-100k-second-20", "100,000 in one second, 20 topics", "within 600", 100_000, 1_000, 20),
    burst("burst-100k-moment", "100,000 at one moment", "within 1500", 100_000, 0),
    burst("burst-100k-moment-20", "100,000 at one moment, 20 topics", "within 1500", 100_000, 0, 20),
    burst("burst-500k-moment", "500,000 at one moment", "stored 4000, received 6000", 500_000, 0),
    Row("level-3", "delay level 3, 100,000", "p99 < 50", {"count": 100_000, "level": 3, "level_ms": 10_000}),
)
PENDING_ROW = rate("pending", 1_000, 20, "p99 < 10; < 400 MB; restart < 10 s")


class Measured(NamedTuple):
    row: str
    contender: str
    found: dict[str, Any]


def main() -> int:
    asked = _arguments()
    rows = [row for row in ROWS if not asked.only or any(row.name.startswith(name) for name in asked.only)]
    rows = [row for row in rows if row.is_quick or not asked.quick]
    if not asked.quick and not asked.only:
        rows = [row for row in rows if row.name != "rate-quick"]
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    measured = []
    with tempfile.TemporaryDirectory(prefix="duolog-delay-", ignore_cleanup_errors=True) as name:
        loads = Loads(Path(name))
        try:
            for each in run(rows, asked.pending, Path(name), loads):
                measured.append(each)
                print(f"... {each.row} {each.contender}: {json.dumps(each.found)}", file=sys.stderr, flush=True)
        finally:
            loads.close()
    console.print(table([*rows, PENDING_ROW], measured))
    if asked.json:
        asked.json.write_text(json.dumps([each._asdict() for each in measured], indent=1))
    return 0


# -- Running


def run(rows: list[Row], pending: list[int], folder: Path, loads: Loads) -> Iterator[Measured]:
    """Run each row against each contender, which is alone meanwhile."""
    contenders: list[tuple[str, type[Duolog] | type[RocketMQ], str]] = [
        ("duolog", Duolog, "async"), ("duolog sync", Duolog, "sync"), ("rocketmq", RocketMQ, "async"),
    ]  # fmt: skip
    for name, make, flush in contenders if rows else ():
        broker = make(folder, flush)
        broker.start()
        try:
            load(broker, loads, Row("warm", "", "", {"count": 2_000, "lead_ms": 4_000}))
            for row in rows:
                yield Measured(row.name, name, load(broker, loads, row))
        finally:
            broker.end()
    for count in pending:
        yield Measured(PENDING_ROW.name, f"duolog, {count:,} pending", beside_pending(folder, loads, count))


def load(broker: Contender, loads: Loads, row: Row) -> dict[str, Any]:
    settle(broker)
    names = [create_topic(broker, f"{row.name}-{time.monotonic_ns()}-{number}") for number in range(row.topics)]
    found: dict[str, Any] = loads.call(
        "rocketmq_delays", broker, names[0], topics=names, size=BODY_BYTES, **row.arguments
    )
    return found


def beside_pending(folder: Path, loads: Loads, count: int) -> dict[str, Any]:
    """The load at 1,000 a second beside so many that are due tomorrow; then memory and restart."""
    broker = Duolog(folder, "async")
    broker.start()
    try:
        fill(broker.kafka, create_topic(broker, "pending"), count)
        settle(broker)
        found = load(broker, loads, PENDING_ROW)
        found["memory_mb"] = round(anonymous_mb(broker))
        broker.kill()
        start = time.monotonic()
        broker.start()
        found["restart_s"] = round(time.monotonic() - start, 1)
        return found
    finally:
        broker.end()


def fill(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    body, due_ms = bytes(BODY_BYTES), int(time.time() * 1000) + DAY_MS
    for number in range(count):
        headers = [("TIMER_DELIVER_MS", str(due_ms + number % DAY_MS).encode())]
        while True:
            try:
                producer.produce(topic, body, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(600)
    if left:
        raise RuntimeError(f"{left} of {count} messages were not taken")


# -- Showing


def table(rows: list[Row], measured: list[Measured]) -> Table:
    shown = Table(title="Lateness in ms: p50 / p99 / p99.9 / max", title_justify="left")
    for heading in ("load", "contender", "by store time", "by receipt", "within", "early", "to reach"):
        shown.add_column(heading, justify="left" if heading in ("load", "contender", "to reach") else "right")
    for row in rows:
        for number, each in enumerate(each for each in measured if each.row == row.name):
            found = each.found
            within = f"{found['stored_within_ms']}, {found['received_within_ms']}"
            within += "" if found["sent_in_time"] else " *"
            missing = row.arguments["count"] - found["messages"]
            early = f"{found['early']}, {missing} missing" if missing else str(found["early"])
            goal = "" if number else row.goal
            if "memory_mb" in found:
                goal = f"{found['memory_mb']} MB, restart {found['restart_s']} s; {row.goal}"
            late = _four(found["stored"]), _four(found["received"])
            shown.add_row("" if number else row.title, each.contender, *late, within, early, goal)
        shown.add_section()
    shown.caption = (
        "within: the last one stored, received, after the last due time. *: some were sent when others were due"
    )
    return shown


def _four(late: dict[str, int]) -> str:
    return " / ".join(str(late.get(name, "-")) for name in PERCENTILES)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a row, or how several begin")
    parser.add_argument("--quick", action="store_true", help="two short rows")
    parser.add_argument("--pending", action="append", type=int, default=[], metavar="N", help="fill so many first")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
