"""What it costs that a broker is observed: `python -m benchmarks.observed`.

    share     the CPU time of one scrape and of one view of the console's overview, measured while nothing else runs,
              divided by their interval: the share of the one core that the broker's event loop has. It is printed for
              each number of queues (`--queues`) and each of INTERVALS_S. The scrape is one of a running broker; the
              page is made in this process, by a broker whose history has the whole hour that the page shows
    rounds    full load by librdkafka, in pairs of a round without and a round with observation, in changing order;
              the median of the pairs' ratios, and the range of their middle half: a cost that is smaller than this
              range cannot be told from the differences between rounds of the same load. The ratios are those of the
              messages per second, and per second of the broker's CPU time, which other processes change less

Observation is a Prometheus that scrapes `/metrics`, and a browser that shows the console's overview, each at an
interval. The broker has topics of QUEUES queues, and a group with an offset in all of them.
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
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from benchmarks import librdkafka
from benchmarks.broker_process import used_cpu_s
from benchmarks.contenders import Duolog, admin, create_topic, settle
from duolog.bridge.monitoring.history import INTERVAL_MS, INTERVALS_MAX
from duolog.bridge.monitoring.metrics import WIRES
from duolog.bridge.records.groups import CommittedOffset
from tests.kit.http import HEADERS, HttpBench, encoded

QUEUES = 10  # Of a topic.
# Prometheus scrapes every minute by default, most installations every 15 s, and few more often than every 5 s. The
# console's overview loads itself again every 10 s; here, as often as a scrape, so that all rounds have as many of both.
INTERVALS_S = (5, 15)
GROUP = "readers"
GOAL = 0.02
MESSAGE_BYTES = 1024
SINGLE_REQUESTS = 40  # The requests of each kind whose CPU time is measured.


def main() -> int:
    asked = _arguments()
    for queues in asked.queues:
        with _broker(queues) as broker:
            scrape_bytes = len(_get(broker, "/metrics"))
            print(f"{queues} queues, and a scrape of {scrape_bytes / 1e6:.1f} MB", flush=True)
            _show_shares(_scrape_s(broker), _page_s(queues))
            pairs = _rounds(broker, asked.rounds, asked.seconds) if queues == asked.queues[0] else []
        if pairs:
            print(f"observed / not observed, {len(pairs)} pairs with {queues} queues:")
            _show("messages per second", [observed.per_s / plain.per_s for plain, observed in pairs])
            _show(
                "messages per second of CPU time", [observed.per_cpu_s / plain.per_cpu_s for plain, observed in pairs]
            )
    return 0


def _show_shares(scrape_s: float, page_s: float) -> None:
    print(f"  CPU time: {scrape_s * 1000:.1f} ms for a scrape, {page_s * 1000:.1f} ms for the overview")
    for interval_s in INTERVALS_S:
        share = (scrape_s + page_s) / interval_s
        verdict = "yes" if share < GOAL else "no"
        print(f"  both every {interval_s:2} s: {share:6.2%} of a core   goal < {GOAL:.0%}: {verdict}", flush=True)


def _show(what: str, ratios: list[float]) -> None:
    low, median, high = statistics.quantiles(ratios, method="inclusive")
    print(f"{what:20} median {median:.3f}, half of the pairs from {low:.3f} to {high:.3f}")


# -- The share of a core


@contextmanager
def _broker(queues: int) -> Iterator[Duolog]:
    """Run a broker with so many queues, and a group with an offset in each of them."""
    with tempfile.TemporaryDirectory() as folder:
        broker = Duolog(Path(folder), "async")
        broker.start()
        try:
            names = _topics(queues)
            client = admin(broker)  # Its topics are made only as long as it exists.
            for made in client.create_topics([NewTopic(name, QUEUES, 1) for name in names]).values():
                made.result(60)
            group = Consumer({"bootstrap.servers": broker.kafka, "group.id": GROUP})
            places = [TopicPartition(name, queue, 0) for name in names for queue in range(QUEUES)]
            group.commit(offsets=places, asynchronous=False)
            group.close()
            settle(broker)
            yield broker
        finally:
            broker.end()


def _topics(queues: int) -> list[str]:
    return [f"topic-{number}" for number in range(queues // QUEUES)]


def _scrape_s(broker: Duolog) -> float:
    """Return the broker's CPU time of one scrape."""
    before_s = used_cpu_s(broker)
    for _ in range(SINGLE_REQUESTS):
        _get(broker, "/metrics")
    return (used_cpu_s(broker) - before_s) / SINGLE_REQUESTS


def _page_s(queues: int) -> float:
    """Return the CPU time of the overview, made by a broker in this process that has served for an hour."""
    bench = HttpBench()
    core = bench.core
    topics = [core.topic(name, QUEUES) for name in _topics(queues)]
    places = [CommittedOffset(queue.key, 0) for topic in topics for queue in topic.queues]
    core.group_offsets.commit(GROUP, places, core.clock.now_ms())
    for number in range(INTERVALS_MAX + 1):
        for wire in WIRES:
            core.metrics.records_in[wire] += 10_000 + number
            core.metrics.records_out[wire] += 9_000 + number
            core.metrics.bytes_in[wire] += 10_000_000 + number
            core.metrics.bytes_out[wire] += 9_000_000 + number
        core.metrics.timer_lateness_s.add(0.001 * number)
        core.metrics.fsync_s.add(0.002)
        core.clock.pass_ms(INTERVAL_MS)
        core.history.sample(core.clock.mono_ms(), core.clock.now_ms())
    request = encoded("GET", "/", b"", HEADERS)
    bench.send(request)
    before_s = time.process_time()
    for _ in range(SINGLE_REQUESTS):
        status, _, body = bench.send(request)
        assert status == HTTPStatus.OK, body
    return (time.process_time() - before_s) / SINGLE_REQUESTS


# -- Rounds of full load


class _Rate(NamedTuple):
    """What a round reached: messages per second, and per second of the broker's CPU time."""

    per_s: float
    per_cpu_s: float

    def __str__(self) -> str:
        return f"{self.per_s:9,.0f}/s {self.per_cpu_s:9,.0f}/s of CPU time"


def _rounds(broker: Duolog, count: int, seconds: float) -> list[tuple[_Rate, _Rate]]:
    """Return the pairs of rounds, each without and with observation."""
    if not count:
        return []
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
    before_s = used_cpu_s(broker)
    ran = librdkafka.produce(broker.kafka, topic, MESSAGE_BYTES, seconds=seconds)
    return _Rate(ran.messages / ran.seconds, ran.messages / (used_cpu_s(broker) - before_s))


@contextmanager
def _observed(broker: Duolog) -> Iterator[None]:
    """Scrape and show the console until the block ends; each begins at once."""
    ended = threading.Event()
    threads = [
        threading.Thread(target=_repeat, args=(broker, path, INTERVALS_S[0], ended)) for path in ("/metrics", "/")
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


def _get(broker: Duolog, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=60) as answer:
        body: bytes = answer.read()
    return body


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--queues", type=int, nargs="+", default=[1_000, 10_000], metavar="N",
        help="numbers of queues; the rounds have the first one [1000 10000]",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="pairs of rounds: none, or at least 2 [6]")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="length of a round [5]")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
