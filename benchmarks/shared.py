"""`python -m benchmarks.shared`: what a log in object storage costs, beside the same broker without one.

    python -m benchmarks.shared --quick     some minutes, with all rows
    python -m benchmarks.shared --json shared.json --markdown shared.md

The store is `benchmarks/slow_store.py`, whose every answer takes 5, 50 or 200 ms. Where Go is installed, one row has
versitygw, a real S3 server, with its files on this machine's disk. One run, one table:

- the store alone: what one client without a broker gets out of it;
- producing under `flush.mode=shared`: MB/s of librdkafka, and the time to the answer of one record at a time;
- producing under `flush.mode=sync`, with and without a shared log, in turns; the median of the ratios counts; with the
  SHA-256 of the content that requests over plain HTTP need, and without, as over https; and the time to the answer of
  one record at a time, for which the cores are not busy;
- takeovers: from the kill of the owner to the next acknowledged record of a producer that knows both brokers; and in
  virtual time with as many segment objects as 1 GiB and 100 GiB have (`simulated_history.py`);
- a start on an empty disk, which reads the whole log from the store, and then reading its oldest records;
- reading records that are in segment objects, and no longer on the disk of the broker (`dropped.py`);
- memory, and requests of an idle owner and an idle standby.

Clients, brokers and store share the cores of one machine, and other programs change every figure. So the first rows say
how fast the machine is at the moment, and each load says how much CPU the broker used for 1 GB, and for which part of
the time its loop waited for a core that others had.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console

from benchmarks import dropped, librdkafka, simulated_history
from benchmarks.broker_process import anonymous_mb, requests, used_cpu_s, waited_for_cores_s
from benchmarks.shared_figures import Figure, markdown, table
from benchmarks.stores import WITHIN_S, alone_mb_s, answer_of, slow_store
from duolog.store.objects.opening import UNSIGNED_VARIABLE
from tests.kit.broker import Broker
from tests.kit.command import DUOLOG
from tests.kit.eventually import eventually
from tests.kit.object_servers import versity

LATENCIES_MS = (5, 50, 200)
USUAL_LATENCY_MS = 50  # The latency of rows that are measured with one latency.
TOPIC_NUMBERS = count()
FLUSH_INTERVAL_MS = 100  # The default of `shared.flush_interval_ms`.
BODY_BYTES = 1024
PARTITIONS = 4
HOUR_S = 3600
PRODUCE_MB_S, READ_MB_S = 80, 100  # The goals of a producer, and of readers of the store.
MB = 1e6
PIPED_WIDTH = 120
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}


class Scale(NamedTuple):
    """How long a run takes."""

    seconds: float  # The duration of a load.
    sends: int  # The number of sends, one at a time.
    idle_s: float
    rounds: int  # The rounds of loads that are compared.
    takeovers: int


FULL, QUICK = Scale(10.0, 100, 60.0, 10, 9), Scale(3.0, 20, 15.0, 10, 5)
LOG_BYTES = 1 << 30  # At a takeover, and of a start on an empty disk.
HISTORIES_GIB = (1, 100)  # The sizes of histories, of which only the list of objects exists.


def main() -> int:
    asked = _arguments()
    os.environ.update(ENVIRONMENT)
    found: list[Figure] = []
    loads: list[float] = []
    with tempfile.TemporaryDirectory(prefix="duolog-shared-", ignore_cleanup_errors=True) as folder:
        for figure in run(Path(folder), QUICK if asked.quick else FULL):
            where = f"{figure.store}: " if figure.store else ""
            print(f"... {where}{figure.what}: {figure.value:.4g} {figure.unit}", file=sys.stderr, flush=True)
            found.append(figure)
            loads.append(os.getloadavg()[0])
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    console.print(table(found))
    if asked.json:
        asked.json.write_text(json.dumps([each._asdict() for each in found], indent=1))
    if asked.markdown:
        asked.markdown.write_text(markdown(found, "--quick" if asked.quick else "full", loads))
    return 0


def run(folder: Path, scale: Scale) -> Iterator[Figure]:
    """Measure all figures, one after the other."""
    yield from machine(folder)
    with running(Broker(folder / "plain", {"store.flush": "sync"}, command=DUOLOG)) as plain:
        for latency_ms in LATENCIES_MS:
            with slow_store(latency_ms, forgets=True) as endpoint:
                name = f"store of {latency_ms} ms"
                rows = producing(folder / f"store-{latency_ms}", endpoint, latency_ms, plain, scale)
                yield from _tried(name, rows)
        with slow_store(USUAL_LATENCY_MS, forgets=True) as endpoint:
            yield from _tried("content not signed", not_signed(folder / "not-signed", endpoint, plain, scale))
        if shutil.which("go"):
            with versity() as store:
                store.make_bucket("bench")
                os.environ.update(store.environment)
                yield from _tried("versitygw", a_real_store(folder / "versitygw", store.endpoint, scale))
    with slow_store(USUAL_LATENCY_MS) as endpoint:
        yield from _tried("two brokers", two_brokers(folder / "pair", endpoint, scale))
    with slow_store(LATENCIES_MS[0]) as endpoint:
        yield from _tried("dropped segments", read_back(folder / "small", endpoint))
    for gib in HISTORIES_GIB:
        done = simulated_history.takeover(gib, USUAL_LATENCY_MS)
        what = f"takeover in virtual time with {done.objects} segment objects, as {gib} GiB have"
        yield Figure(what, done.waited_s, "s", "< 5", done.waited_s < 5)
        yield Figure("the same: CPU of both brokers, store and client", done.cpu_s, "s")


def _tried(what: str, rows: Iterator[Figure]) -> Iterator[Figure]:
    """Yield these rows. One that fails does not end the run."""
    try:
        yield from rows
    except (AssertionError, OSError, librdkafka.LoadError) as error:
        yield Figure(f"{what}: failed, {str(error).splitlines()[0][:100]}", math.nan, "", is_met=False)


# -- The machine


def machine(folder: Path) -> Iterator[Figure]:
    """Say how fast this machine is at the moment."""
    begun_s = time.perf_counter()
    total = 0
    for number in range(5_000_000):
        total += number
    yield Figure("machine: 5 million steps of a loop in Python", (time.perf_counter() - begun_s) * 1000, "ms")
    times = []
    with (folder / "synced").open("wb", buffering=0) as file:
        for _ in range(50):
            begun_s = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun_s)
    yield Figure("machine: fdatasync after 4 KiB, median", statistics.median(times) * 1000, "ms")
    yield Figure("machine: write of a new file, not synced", written_mb_s(folder / "written"), "MB/s")
    yield Figure(f"machine: load average, {os.cpu_count()} cores", os.getloadavg()[0], "")


def written_mb_s(path: Path) -> float:
    """Return the rate of writes of a new file to the page cache, which is low if memory is allocated slowly."""
    block, count = bytes(1 << 20), 256
    begun_s = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(block)
    return count * len(block) / MB / (time.perf_counter() - begun_s)


# -- Brokers and the store


@contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    """Start a broker; it is removed at the end."""
    try:
        yield broker.start()
    finally:
        broker.delete()


def shared_broker(data: Path, endpoint: str, settings: Mapping[str, object] | None = None) -> Broker:
    shared = {"store.flush": "shared", "shared.url": "s3://bench/log", "shared.endpoint": endpoint}
    return Broker(data, {**shared, **(settings or {})}, command=DUOLOG)


def status(broker: Broker) -> dict[str, object]:
    found: dict[str, object] = json.loads(answer_of(f"http://{broker.http}/api/status") or "{}")
    return found


def wait_for_role(broker: Broker, role: str) -> None:
    eventually(f"role {role}", lambda: status(broker).get("role"), lambda found: found == role, WITHIN_S)


def create_topic(broker: Broker, topic: str, flush: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.kafka})
    client.create_topics([NewTopic(topic, PARTITIONS, 1, config={"flush.mode": flush})])[topic].result(WITHIN_S)


# -- Producing


class Load(NamedTuple):
    """What librdkafka and a broker did together."""

    mb_s: float
    cpu_s_per_gb: float  # The CPU time of the broker.
    waited_share: float  # The share of the time in which the broker's loop could run but had no core.

    def figures(self, what: str, store: str = "") -> Iterator[Figure]:
        if store:
            is_met = self.mb_s >= PRODUCE_MB_S
            yield Figure(what, self.mb_s, "MB/s", f">= {PRODUCE_MB_S}", is_met, store)
        else:
            yield Figure(what, self.mb_s, "MB/s")
        yield Figure("  CPU of the broker for 1 GB", self.cpu_s_per_gb, "s", store=store)
        yield Figure("  its loop waited for a core, of the time", self.waited_share, "", store=store)


def produced(broker: Broker, topic: str, seconds: float) -> Load:
    """Load a topic. A first short load must have come before."""
    cpu_s, waited_s = used_cpu_s(broker), waited_for_cores_s(broker)
    ran = librdkafka.produce(broker.kafka, topic, BODY_BYTES, seconds=seconds)
    mb = ran.messages * BODY_BYTES / MB
    waited_share = (waited_for_cores_s(broker) - waited_s) / ran.seconds
    return Load(mb / ran.seconds, (used_cpu_s(broker) - cpu_s) * 1000 / mb, waited_share)


def new_topic(broker: Broker, flush: str, scale: Scale) -> str:
    """Return a topic that had a first short load."""
    topic = f"throughput-{flush}-{next(TOPIC_NUMBERS)}"
    create_topic(broker, topic, flush)
    librdkafka.produce(broker.kafka, topic, BODY_BYTES, seconds=scale.seconds / 3)
    return topic


def answer_times_ms(broker: Broker, flush: str, count: int) -> list[float]:
    """Return the time to the answer of each of `count` records, one in flight at a time."""
    topic = f"latency-{flush}-{next(TOPIC_NUMBERS)}"
    create_topic(broker, topic, flush)
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    times = []
    for _ in range(count + 1):  # The first one finds the leader of the partition.
        begun_s = time.perf_counter()
        producer.produce(topic, bytes(BODY_BYTES), partition=0)
        assert producer.flush(WITHIN_S) == 0, "a record was not acknowledged"
        times.append((time.perf_counter() - begun_s) * 1000)
    return times[1:]


def alone(name: str, endpoint: str) -> Iterator[Figure]:
    stored_mb_s, read_mb_s = alone_mb_s(endpoint)
    yield Figure("put, by a client without a broker", stored_mb_s, "MB/s", store=name)
    yield Figure("get, by a client without a broker", read_mb_s, "MB/s", store=name)


def producing(folder: Path, endpoint: str, latency_ms: int, plain: Broker, scale: Scale) -> Iterator[Figure]:
    """Measure one broker with a store of this latency."""
    name = f"store of {latency_ms} ms"
    yield from alone(name, endpoint)
    with running(shared_broker(folder, endpoint)) as broker:
        wait_for_role(broker, "owner")
        times = answer_times_ms(broker, "shared", scale.sends)
        limit_ms = FLUSH_INTERVAL_MS + 1.2 * latency_ms
        p50_ms, p99_ms = statistics.median(times), statistics.quantiles(times, n=100)[98]
        is_met = p50_ms <= limit_ms
        yield Figure("answer under shared, p50", p50_ms, "ms", f"<= {limit_ms:.0f}", is_met, name)
        yield Figure("answer under shared, p99", p99_ms, "ms", store=name)
        topic = new_topic(broker, "shared", scale)
        yield from produced(broker, topic, scale.seconds).figures("librdkafka, shared", name)
        if latency_ms == USUAL_LATENCY_MS:
            yield from compared(plain, broker, scale, "content signed, as over http")
        yield Figure("memory of the owner after that", anonymous_mb(broker), "MB", store=name)


def not_signed(folder: Path, endpoint: str, plain: Broker, scale: Scale) -> Iterator[Figure]:
    """Compare a broker that does not sign the content of requests, as none does over https (decision 51)."""
    os.environ[UNSIGNED_VARIABLE] = "true"
    try:
        with running(shared_broker(folder, endpoint)) as broker:
            wait_for_role(broker, "owner")
            yield from compared(plain, broker, scale, "content not signed, as over https")
    finally:
        del os.environ[UNSIGNED_VARIABLE]


def compared(plain: Broker, shared: Broker, scale: Scale, how: str) -> Iterator[Figure]:
    """Compare synchronous topics of a broker without a shared log with those of one with it, in turns."""
    yield from answers_compared(plain, shared, scale, how)
    topics = new_topic(plain, "sync", scale), new_topic(shared, "sync", scale)
    both = [*zip((plain, shared), topics, strict=True)]
    loads = []
    for number in range(scale.rounds):
        step = -1 if number % 2 else 1  # Whoever runs second meets what the first has left to the disk.
        loads.append([produced(*each, scale.seconds / 2) for each in both[::step]][::step])
    for what, column in (("without", 0), ("with", 1)):
        parts = zip(*(each[column] for each in loads), strict=True)
        yield from Load(*map(statistics.median, parts)).figures(f"produce, sync, {what} a shared log ({how})")
    ratio = statistics.median(shared.mb_s / plain.mb_s for plain, shared in loads)
    yield Figure(f"produce, sync: with / without a shared log ({how})", ratio, "", ">= 0.9", ratio >= 0.9)
    cpu = statistics.median(shared.cpu_s_per_gb / plain.cpu_s_per_gb for plain, shared in loads)
    yield Figure("  the same of the broker's CPU for 1 GB", cpu, "")


def answers_compared(plain: Broker, shared: Broker, scale: Scale, how: str) -> Iterator[Figure]:
    """Compare the times to the answers of synchronous topics, for one record at a time."""
    time.sleep(scale.idle_s / 3)  # What followed the last load is over, such as a compaction.
    times_ms: list[list[float]] = [[], []]
    for _ in range(scale.rounds):
        for found, broker in zip(times_ms, (plain, shared), strict=True):
            found += answer_times_ms(broker, "sync", scale.sends)
    p50_ms, shared_p50_ms = map(statistics.median, times_ms)
    yield Figure(f"answer under sync, p50, without a shared log ({how})", p50_ms, "ms")
    ratio = shared_p50_ms / p50_ms
    yield Figure(f"answer under sync, p50: with / without a shared log ({how})", ratio, "", "<= 1.1", ratio <= 1.1)


def a_real_store(folder: Path, endpoint: str, scale: Scale) -> Iterator[Figure]:
    """Measure one broker with a real S3 server, which has no latency but its own."""
    yield from alone("versitygw", endpoint)
    with running(shared_broker(folder, endpoint)) as broker:
        wait_for_role(broker, "owner")
        ran = produced(broker, new_topic(broker, "shared", scale), scale.seconds)
        yield from ran.figures("librdkafka, shared", "versitygw")


# -- Two brokers


def two_brokers(folder: Path, endpoint: str, scale: Scale) -> Iterator[Figure]:
    """Measure a takeover, idle brokers, and a start on an empty disk."""
    owner, standby = shared_broker(folder / "a", endpoint), shared_broker(folder / "b", endpoint)
    with running(owner):
        wait_for_role(owner, "owner")
        with running(standby):
            create_topic(owner, "filled", "shared")
            ran = librdkafka.produce(owner.kafka, "filled", BODY_BYTES, count=LOG_BYTES // BODY_BYTES)
            filled_mb = ran.messages * BODY_BYTES / MB
            yield Figure("two brokers: produce, shared", filled_mb / ran.seconds, "MB/s")
            yield from idle(owner, standby, scale)
            waited = [takeover_s(owner, standby)]
            while len(waited) < scale.takeovers:
                owner.start()
                owner, standby = standby, owner
                wait_until_equal(standby, owner)
                waited.append(takeover_s(owner, standby))
            waited_s, what = statistics.median(waited), f"takeover with {filled_mb:.0f} MB of log"
            yield Figure(f"{what}, median of {len(waited)}", waited_s, "s", "< 5", waited_s < 5)
            yield Figure("  the lowest of them", min(waited), "s")
            yield Figure("  the highest of them", max(waited), "s")
            owner.delete()
            yield from start_on_empty_disk(owner, standby, filled_mb, ran.messages)


def idle(owner: Broker, standby: Broker, scale: Scale) -> Iterator[Figure]:
    """Count the requests of brokers without clients."""
    time.sleep(scale.idle_s / 3)  # What followed the load is over, such as a compaction.
    before = {"owner": requests(owner), "standby": requests(standby)}
    time.sleep(scale.idle_s)
    for name, broker in (("owner", owner), ("standby", standby)):
        an_hour = (requests(broker) - before[name]) * HOUR_S / scale.idle_s
        yield Figure(f"requests an hour of an idle {name}", an_hour, "", "<= 4000", an_hour <= 4000)
        yield Figure(f"memory of the {name}", anonymous_mb(broker), "MB")


def wait_until_equal(standby: Broker, owner: Broker) -> None:
    """Wait until a standby has the log that its owner has now."""
    end = position(status(owner)["log"])
    eventually("the whole log", lambda: position(status(standby).get("log")), lambda found: found >= end, 600)


def takeover_s(owner: Broker, standby: Broker) -> float:
    """Kill the owner; return how long a producer that knows both brokers waits for its next answer."""
    producer = Producer({"bootstrap.servers": f"{owner.kafka},{standby.kafka}", "log_level": 0})
    producer.produce("filled", b"before")
    assert producer.flush(WITHIN_S) == 0, "a record was not acknowledged"
    owner.kill()
    begun_s = time.monotonic()
    producer.produce("filled", b"after")
    assert producer.flush(WITHIN_S) == 0, "no record was acknowledged after the takeover"
    return time.monotonic() - begun_s


def start_on_empty_disk(empty: Broker, owner: Broker, filled_mb: float, count: int) -> Iterator[Figure]:
    """Start a standby without a disk, let it take over, and read its oldest records."""
    begun_s = time.monotonic()
    empty.start()
    ready_s = time.monotonic()
    wait_until_equal(empty, owner)
    took_s = time.monotonic() - begun_s
    yield Figure(f"start on an empty disk with {filled_mb:.0f} MB of log, until it follows", took_s, "s")
    read_mb_s = filled_mb / (took_s - (ready_s - begun_s))
    yield Figure(
        "the same after the ready line: read from the store and replayed", read_mb_s, "MB/s", ">= 100", read_mb_s >= 100
    )
    yield Figure("memory of this broker after that", anonymous_mb(empty), "MB")
    owner.stop()
    wait_for_role(empty, "owner")
    ran = librdkafka.consume(empty.kafka, "filled", PARTITIONS, count)
    yield Figure("reading the oldest records after that", ran.messages * BODY_BYTES / MB / ran.seconds, "MB/s")
    owner.start()


def read_back(folder: Path, endpoint: str) -> Iterator[Figure]:
    """Read records that one broker has dropped from its disk."""
    with running(shared_broker(folder, endpoint, dropped.SETTINGS)) as broker:
        wait_for_role(broker, "owner")
        create_topic(broker, "dropped", "shared")
        dropped.fill(broker, "dropped", PARTITIONS, BODY_BYTES)
        for each in dropped.readings(broker, endpoint, "dropped", PARTITIONS, BODY_BYTES, LATENCIES_MS):
            name, is_met = f"store of {each.latency_ms} ms", each.mb_s >= READ_MB_S
            what = "reading records that are in the store only"
            yield Figure(what, each.mb_s, "MB/s", f">= {READ_MB_S}", is_met, name)
            yield Figure("  requests for 100 MB of them", each.ranges, "", store=name)
            yield Figure("  CPU of the broker for 1 GB of them", each.cpu_s_per_gb, "s", store=name)
        yield Figure("memory of this broker after that", anonymous_mb(broker), "MB")


def position(log: object) -> int:
    return int(log["next_position"]) if isinstance(log, Mapping) else -1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter loads")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write the tables of docs/benchmarks there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
