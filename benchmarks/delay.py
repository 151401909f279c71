"""`python -m benchmarks.delay`: how late delayed messages are, beside Apache RocketMQ in the same run.

    python -m benchmarks.delay --quick
    python -m benchmarks.delay --only burst-100k --only level --json delay.json
    python -m benchmarks.delay --only pending-1m --alone
    python -m benchmarks.delay --quick --rounds 6 --checkout ../before
    python -m benchmarks.delay --show delay.json --plot docs/benchmarks/lateness.svg

Each row is one load of RocketMQ's Java client against each contender in turn: Duolog async, Duolog sync, Apache
RocketMQ async. Late is what a message was after its due time, by the broker's store time and by its receipt; early is
how many came before it, by either. "Within" is the last one after the last due time. CPU is the broker's, for storing,
delivering and sending a message to its consumer.

The row with ordinary sends has a sender of its own at a steady rate, from half a second before the burst is due until
all of it was received. The rows with pending messages are Duolog's alone: they fill it through Kafka batches with
messages that are due tomorrow, then show the same load beside them, what the broker takes while nothing is due, its
memory, and how long it takes to answer after a kill.

With --checkout the contenders are this broker and that of another checkout of Duolog, whose .venv `make setup` has
made. They run in turns, and each is started again before each round.

The whole of it takes three quarters of an hour; `--quick` three minutes. What was measured is written as it comes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from rich.console import Console

from benchmarks import lateness
from benchmarks.broker_process import anonymous_mb, used_cpu_s
from benchmarks.contenders import OTHER_CHECKOUT, OURS, Contender, Duolog, RocketMQ, create_topic, settle
from benchmarks.lateness import Measured, Row
from benchmarks.loads import Loads

PIPED_WIDTH = 190
DAY_MS = 86_400_000
BODY_BYTES = 200
LEAD_MS = 5_000
# The time for 1000 sends before the first message is due; the slowest of the three brokers needs it.
LEAD_MS_A_THOUSAND = 250
IDLE_S = 5.0
BESIDE_PER_S = 500  # Ordinary sends: the load of a broker that is not saturated.


# -- Rows


def burst(name: str, title: str, count: int, spread_ms: int, *, topics: int = 1, **options: Any) -> Row:
    lead_ms = LEAD_MS + count * LEAD_MS_A_THOUSAND // 1_000
    arguments = {"count": count, "spread_ms": spread_ms, "lead_ms": lead_ms, **options.pop("arguments", {})}
    return Row(name, title, arguments, topics=topics, **options)


def rate(name: str, per_s: int, seconds: int, delays_s: tuple[int, int], **options: Any) -> Row:
    first_s, last_s = delays_s
    title = f"{per_s:,}/s for {seconds} s, delays of {first_s} to {last_s} s"
    arguments = {
        "count": per_s * seconds, "rate": per_s, "delay_from_ms": first_s * 1000, "delay_to_ms": last_s * 1000
    }  # fmt: skip
    return Row(name, options.pop("title", title), arguments, **options)


def pending(name: str, count: int, *, seconds: int = 20, is_quick: bool = False) -> Row:
    goals = (("received.p99", 10), ("memory_mb", 400), ("restart_s", 10)) if count else (("received.p99", 10),)
    title = f"{count:,} pending, 1,000/s due"
    return rate(name, 1_000, seconds, (2, 4), title=title, goals=goals, pending=count, is_quick=is_quick)


AT_RATE = (("received.p50", 2), ("received.p99", 5))
BESIDE: dict[str, Any] = {"arguments": {"beside_rate": BESIDE_PER_S}, "goals": (("beside.p99", 20),)}
ROWS = (
    rate("rate-1k", 1_000, 30, (2, 20), goals=AT_RATE),
    rate("rate-5k", 5_000, 30, (2, 20), goals=AT_RATE),
    rate("rate-quick", 1_000, 5, (2, 6), goals=AT_RATE, is_quick=True),
    burst("burst-20k-second", "20,000 in one second", 20_000, 1_000, goals=(("received_within_ms", 100),)),
    burst(
        "burst-20k-moment", "20,000 at one moment", 20_000, 0, goals=(("received_within_ms", 400),), is_quick=True
    ),
    burst("burst-100k-second", "100,000 in one second", 100_000, 1_000, goals=(("received_within_ms", 600),)),
    burst(
        "burst-100k-second-20", "100,000 in one second, 20 topics", 100_000, 1_000, topics=20,
        goals=(("received_within_ms", 600),),
    ),
    burst("burst-100k-moment", "100,000 at one moment", 100_000, 0, goals=(("received_within_ms", 1_500),)),
    burst(
        "burst-100k-moment-20", "100,000 at one moment, 20 topics", 100_000, 0, topics=20,
        goals=(("received_within_ms", 1_500),),
    ),
    burst(
        "burst-500k-moment", "500,000 at one moment", 500_000, 0,
        goals=(("stored_within_ms", 4_000), ("received_within_ms", 6_000)),
    ),
    burst("beside", f"100,000 at one moment, beside {BESIDE_PER_S} ordinary sends/s", 100_000, 0, **BESIDE),
    burst(
        "beside-quick", f"20,000 at one moment, beside {BESIDE_PER_S} ordinary sends/s", 20_000, 0, is_quick=True,
        **BESIDE,
    ),
    Row(
        "level-3", "delay level 3, 100,000", {"count": 100_000, "level": 3, "level_ms": 10_000},
        goals=(("received.p99", 50),),
    ),
    pending("pending-0", 0),
    pending("pending-1m", 1_000_000),
    pending("pending-10m", 10_000_000),
    pending("pending-quick-0", 0, seconds=5, is_quick=True),
    pending("pending-quick-100k", 100_000, seconds=5, is_quick=True),
)  # fmt: skip
WARM_UP = burst("warm", "", 2_000, 0)
CONTENDERS: tuple[tuple[str, type[Duolog] | type[RocketMQ], str], ...] = (
    (OURS, Duolog, "async"), ("duolog sync", Duolog, "sync"), ("rocketmq", RocketMQ, "async"),
)  # fmt: skip


def main() -> int:
    asked = _arguments()
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    if asked.show:
        measured = [Measured(**each) for each in json.loads(asked.show.read_text())]
    else:
        measured = _measured(asked)
    console.print(lateness.table(ROWS, measured))
    if asked.plot:
        lateness.plot(ROWS, measured, asked.plot)
    return 0 if all(each.found for each in measured) else 1


def _measured(asked: argparse.Namespace) -> list[Measured]:
    """Run the selected rows; write the results after each row."""
    rows = _rows(asked.only) if asked.only else [row for row in ROWS if row.is_quick == asked.quick]
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="duolog-delay-", ignore_cleanup_errors=True) as name:
        loads = Loads(Path(name))
        try:
            if asked.checkout:
                found = compare(rows, asked.rounds, Path(name), loads, asked.checkout)
            else:
                found = run(rows, asked.rounds, Path(name), loads, is_alone=asked.alone)
            for each in found:
                measured.append(each)
                print(f"... {each.row} {each.contender}: {each.shown}", file=sys.stderr, flush=True)
                if asked.json:
                    asked.json.write_text(json.dumps([each._asdict() for each in measured], indent=1))
        finally:
            loads.close()
    return measured


def _rows(names: list[str]) -> list[Row]:
    """Return the rows of these names; a name that no row has selects all rows whose names begin with it."""
    exact = {row.name for row in ROWS}
    return [
        row for row in ROWS if any(row.name == name if name in exact else row.name.startswith(name) for name in names)
    ]


# -- Running


def run(rows: list[Row], rounds: int, folder: Path, loads: Loads, *, is_alone: bool) -> Iterator[Measured]:
    """Run each row against each contender, one at a time; rows with pending messages run against Duolog alone."""
    beside = [row for row in rows if row.pending is None]
    for name, make, flush in CONTENDERS if beside else ():
        if is_alone and make is not Duolog:
            continue
        with running(make(folder, flush), loads) as broker:
            for row in beside:
                yield from _rounds(row, rounds, {name: partial(load, broker, loads, row)})
    for row in rows:
        if row.pending is not None:
            yield from _rounds(row, rounds, {OURS: partial(beside_pending, Duolog(folder, "async"), loads, row)})


def compare(rows: list[Row], rounds: int, folder: Path, loads: Loads, checkout: Path) -> Iterator[Measured]:
    """Run each row against the broker of this checkout and against that of another one, in turns."""
    brokers = (
        Duolog(folder, "async"),
        Duolog(folder, "async", name=OTHER_CHECKOUT, command=(str(checkout / ".venv/bin/duolog"),)),
    )
    for row in rows:
        once = load_anew if row.pending is None else beside_pending
        yield from _rounds(row, rounds, {broker.name: partial(once, broker, loads, row) for broker in brokers})


def _rounds(row: Row, rounds: int, contenders: Mapping[str, Callable[[], dict[str, Any]]]) -> Iterator[Measured]:
    """Run the rounds of a row, and yield the medians of each contender. A row that fails does not end the run."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    errors: dict[str, str] = {}
    for number in range(rounds):
        for name in [name for name in contenders if name not in errors][:: -1 if number % 2 else 1]:
            try:
                found[name].append(contenders[name]())
            except (AssertionError, RuntimeError, OSError) as error:
                errors[name] = f"{type(error).__name__}: {error}"[:300]
    for name, each in found.items():
        yield Measured(row.name, name, {} if name in errors else lateness.medians(each), errors.get(name, ""))


@contextmanager
def running(broker: Contender, loads: Loads) -> Iterator[Contender]:
    """Start a broker, with a first short load; it is removed at the end."""
    broker.start()
    try:
        load(broker, loads, WARM_UP)
        yield broker
    finally:
        broker.end()


def load_anew(broker: Contender, loads: Loads, row: Row) -> dict[str, Any]:
    """Start a broker for one load."""
    with running(broker, loads):
        return load(broker, loads, row)


def load(broker: Contender, loads: Loads, row: Row) -> dict[str, Any]:
    settle(broker)
    run_number = time.monotonic_ns()
    names = [create_topic(broker, f"{row.name}-{run_number}-{number}") for number in range(row.topics)]
    beside = create_topic(broker, f"{row.name}-{run_number}-beside")
    before_s = used_cpu_s(broker)
    found: dict[str, Any] = loads.call(
        "rocketmq_delays", broker, names[0], topics=names, beside=beside, size=BODY_BYTES, **row.arguments
    )
    found["cpu_us"] = round((used_cpu_s(broker) - before_s) / row.arguments["count"] * 1e6, 1)
    return found


def beside_pending(broker: Contender, loads: Loads, row: Row) -> dict[str, Any]:
    """Run the load beside `pending` messages that are due tomorrow; then measure memory and restart."""
    assert row.pending is not None
    with running(broker, loads):
        fill(broker.kafka, create_topic(broker, "pending"), row.pending)
        settle(broker)
        before_s = used_cpu_s(broker)
        time.sleep(IDLE_S)
        idle_ms_a_s = (used_cpu_s(broker) - before_s) / IDLE_S * 1000
        found = load(broker, loads, row)
        found["idle_ms_a_s"] = round(idle_ms_a_s, 1)
        found["memory_mb"] = round(anonymous_mb(broker))
        broker.kill()
        start = time.monotonic()
        broker.start()
        found["restart_s"] = round(time.monotonic() - start, 2)
        return found


def fill(bootstrap: str, topic: str, count: int) -> None:
    """Send messages that are due within the day after tomorrow."""
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
        headers: list[tuple[str, str | bytes | None]] = [
            ("TIMER_DELIVER_MS", str(due_ms + number * 7919 % DAY_MS).encode())
        ]
        while True:
            try:
                producer.produce(topic, body, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(600)
    if left:
        raise RuntimeError(f"{left} of {count} messages were not taken")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay", description=(__doc__ or "").splitlines()[0])
    names = ", ".join(row.name for row in ROWS)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=f"how rows begin, of {names}")
    parser.add_argument("--quick", action="store_true", help="a few short rows")
    parser.add_argument("--alone", action="store_true", help="without Apache RocketMQ")
    parser.add_argument("--checkout", type=Path, help="compare with the broker of another checkout of Duolog")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="of each row; the medians count")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there, as they come")
    parser.add_argument("--show", type=Path, metavar="PATH", help="show what --json wrote, and run nothing")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw the lateness curves into this SVG file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
