"""What it costs that a broker is observed: `python -m benchmarks.observed`.

    share     the broker's CPU time of one scrape and one view of the console, measured while nothing else runs,
              divided by their interval: the share of the one core that the broker's event loop has
    rounds    full load by librdkafka, in pairs of a round without and a round with observation, in changing order;
              the median of the pairs' ratios, and the range of their middle half: a cost that is smaller than this
              range cannot be told from the differences between rounds of the same load. The ratios are those of the
              messages per second, and per second of the broker's CPU time, which other processes change less

Observation is a Prometheus that scrapes `/metrics`, and a browser that shows the console's overview, each at its
interval. The broker has TOPICS topics of QUEUES queues, and a group that reads all of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from benchmarks import librdkafka
from benchmarks.contenders import Duolog, admin, cpu_s, create_topic, settle

TOPICS, QUEUES = 100, 10
# Prometheus scrapes every minute by default, most installations every 15 s, and few more often than every 5 s. The
# console's overview loads itself again every 10 s; here, as often as a scrape, so that all rounds have as many of both.
SCRAPE_S, PAGE_S = 5.0, 5.0
GOAL = 0.02
MESSAGE_BYTES = 1024
SINGLE_REQUESTS = 40  # Of each kind, to measure the CPU time of one.


def main() -> int:
    asked = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        broker = Duolog(Path(folder), "async")
        broker.start()
        try:
            _fill(broker)
            costs = {path: _cost_s(broker, path) for path in ("/metrics", "/")}
            share = costs["/metrics"] / SCRAPE_S + costs["/"] / PAGE_S
            for path, cost in costs.items():
                print(f"GET {path:10} {cost * 1000:6.1f} ms of CPU time each")
            print(f"share of a core {share:6.2%}   goal < {GOAL:.0%}: {'yes' if share < GOAL else 'no'}")
            pairs = _rounds(broker, asked.rounds, asked.seconds)
        finally:
            broker.end()
    print(f"observed / not observed, {len(pairs)} pairs:")
    _show("messages per second", [observed.per_s / plain.per_s for plain, observed in pairs])
    _show("messages per second of CPU time", [observed.per_cpu_s / plain.per_cpu_s for plain, observed in pairs])
    return 0


def _show(what: str, ratios: list[float]) -> None:
    low, median, high = statistics.quantiles(ratios, method="inclusive")
    print(f"{what:32} median {median:.3f}, half of the pairs from {low:.3f} to {high:.3f}")


def _fill(broker: Duolog) -> None:
    """Make the topics, and a group with an offset in each of their queues."""
    names = [f"topic-{number}" for number in range(TOPICS)]
    client = admin(broker)  # Its topics are made only as long as it exists.
    for made in client.create_topics([NewTopic(name, QUEUES, 1) for name in names]).values():
        made.result(60)
    group = Consumer({"bootstrap.servers": broker.kafka, "group.id": "readers"})
    places = [TopicPartition(name, queue, 0) for name in names for queue in range(QUEUES)]
    group.commit(offsets=places, asynchronous=False)
    group.close()
    settle(broker)


def _cost_s(broker: Duolog, path: str) -> float:
    """Return the broker's CPU time of one request."""
    _get(broker, path)
    before_s = cpu_s(broker)
    for _ in range(SINGLE_REQUESTS):
        _get(broker, path)
    return (cpu_s(broker) - before_s) / SINGLE_REQUESTS


class _Rate(NamedTuple):
    """What a round reached: messages per second, and per second of the broker's CPU time."""

    per_s: float
    per_cpu_s: float

    def __str__(self) -> str:
        return f"{self.per_s:9,.0f}/s {self.per_cpu_s:9,.0f}/s of CPU time"


def _rounds(broker: Duolog, count: int, seconds: float) -> list[tuple[_Rate, _Rate]]:
    """Return the pairs of rounds, each without and with observation."""
    topic = create_topic(broker, "load")
    librdkafka.produce(broker.kafka, topic, MESSAGE_BYTES, seconds=seconds)
    pairs = []
    for number in range(count):
        rates = {}
        for is_observed in (False, True) if number % 2 else (True, False):
            with _observed(broker) if is_observed else nullcontext():
                rates[is_observed] = _loaded(broker, topic, seconds)
        pairs.append((rates[False], rates[True]))
        print(f"not observed {rates[False]}   observed {rates[True]}", flush=True)
    return pairs


def _loaded(broker: Duolog, topic: str, seconds: float) -> _Rate:
    before_s = cpu_s(broker)
    ran = librdkafka.produce(broker.kafka, topic, MESSAGE_BYTES, seconds=seconds)
    return _Rate(ran.messages / ran.seconds, ran.messages / (cpu_s(broker) - before_s))


@contextmanager
def _observed(broker: Duolog) -> Iterator[None]:
    """Scrape and show the console until the block ends; each begins at once."""
    ended = threading.Event()
    threads = [
        threading.Thread(target=_repeat, args=(broker, path, interval_s, ended))
        for path, interval_s in (("/metrics", SCRAPE_S), ("/", PAGE_S))
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _repeat(broker: Duolog, path: str, interval_s: float, ended: threading.Event) -> None:
    next_s = time.monotonic()
    while not ended.wait(max(0.0, next_s - time.monotonic())):
        _get(broker, path)
        next_s += interval_s


def _get(broker: Duolog, path: str) -> None:
    with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=60) as answer:
        answer.read()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="pairs of rounds, at least 2 [6]")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="length of a round [5]")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
