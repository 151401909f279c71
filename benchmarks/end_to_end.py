"""Stock clients against Duolog and against an Apache broker, in the same run.

    for each row
        start Duolog and the row's peer on empty directories
        prepare both; one round unmeasured; then rounds  D P  P D  D P ...
        show the medians, and the median ratio of the rounds

If the peer is another checkout of Duolog, both brokers are started again before each round. Some processes of the same
commit are a tenth faster than others, for as long as they live, which is more than what such a run looks for.

A row is one line of `ROWS`: who is the peer, what is prepared once, what runs in each round, and the goals of the
figures that a round gives. The broker's CPU per message is the user and system time of its process during the round,
divided by the round's messages: on two cores the clients are often the brake, so that figure decides.

Each row has brokers of its own, so it gives the same whether it runs alone or after the others: brokers on a JVM get
faster for minutes, three times in places, and what an earlier row left behind costs all of them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from benchmarks import halves, librdkafka, noisy
from benchmarks.broker_process import anonymous_mb, used_cpu_s
from benchmarks.contenders import (
    OTHER_CHECKOUT,
    OURS,
    PARTITIONS,
    Contender,
    Duolog,
    Kafka,
    RocketMQ,
    Tls,
    admin,
    create_topic,
    drop_page_cache,
    settle,
)
from benchmarks.goals import NONE, Goal, above, at_least, at_most, below
from benchmarks.librdkafka import Ran
from benchmarks.loads import Loads, repeated
from tests.kit.certificates import Authority

KIB, GIB = 1 << 10, 1 << 30
RATE, CPU = "messages/s", "broker CPU us/message"
COMMITS, COMMIT_CPU = "commits/s", "broker CPU us/commit"
MEAN, P99, SECONDS = "mean ms", "p99 ms", "seconds"
P99_ALONE, P99_BESIDE, OF_ALONE = "p99 ms alone", "p99 ms beside", "beside, of alone"
CORE_ALONE, CORE_BESIDE = "broker's share of a core alone", "broker's share of a core beside"
LOWER, UPPER = "of alone, a quarter of the pairs below", "of alone, a quarter of the pairs above"
IDLE_MB, LOADED_MB = "idle MB", "MB after the messages"
SEND_LOADS = 3
UNDECIDED_MB, SENDS_KEPT, CHECKS_KEPT = "MB with all of them", "sends/s, of those before", "checks/s, of those before"
AS_EVER = (IDLE_MB, LOADED_MB, UNDECIDED_MB, OF_ALONE)  # Figures that are equal under sync and async flush.
WITHIN_S = 60
# Other rows have so many times more messages: each message that is retried takes a request of its own.
RETRIED_PART = 100
K, R = "kafka", "rocketmq"
PACED_PER_S = 500  # Sends beside a cold reader: the load of a broker that is not saturated.

NOBODY = ""
PEERS: dict[str, Callable[[Path, str, Tls | None], Contender]] = {"kafka": Kafka, "rocketmq": RocketMQ}


class Scale(NamedTuple):
    """The sizes of all loads."""

    rounds: int
    seconds: float  # The time of one load that sends.
    messages: int  # The messages of one load that reads.
    latency_messages: int
    cold_bytes: int
    memory_messages: int
    undecided: int  # Half messages without a verdict.
    checked: int  # Half messages that are checked, to measure the rate of check-backs.


FULL = Scale(5, 3.0, 1_000_000, 2_000, 8 * GIB, 5_000_000, 1_000_000, 20_000)
QUICK = Scale(2, 1.5, 300_000, 500, GIB, 1_000_000, 100_000, 5_000)

Figures = dict[str, float]


class Ground(NamedTuple):
    """The clients and the broker of a row."""

    broker: Contender
    loads: Loads
    scale: Scale

    def topic(self) -> str:
        return create_topic(self.broker, new_topic())


@dataclass(frozen=True)
class Row:
    """One row of the table. `run` gets the result of `prepare` in each round, and returns the figures of the round."""

    name: str
    title: str
    peer: str  # Empty if no other broker can run the row.
    goals: dict[str, Goal]
    prepare: Callable[[Ground], Any]
    run: Callable[[Ground, Any], Figures]
    # None: the number of the scale. 1: the row takes too long to repeat, and needs no warm-up.
    rounds: int | None = None
    has_tls: bool = False
    has_login: bool = False


@dataclass
class Outcome:
    """All rounds of one row, by broker and figure; `goals` are the row's under this flush."""

    row: Row
    goals: dict[str, Goal]
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    error: str = ""

    def note(self, who: str, found: Figures) -> None:
        for name, value in found.items():
            self.figures.setdefault(who, {}).setdefault(name, []).append(value)

    def median(self, who: str, figure: str) -> float | None:
        values = self.figures.get(who, {}).get(figure)
        return statistics.median(values) if values else None

    def ratio(self, figure: str) -> float | None:
        """Return the median over the rounds of Duolog's figure divided by the peer's."""
        ours = self.figures.get(OURS, {}).get(figure)
        theirs = self.figures.get(self.row.peer, {}).get(figure)
        if not ours or not theirs:
            return None
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=False) if b)


def against_checkout(row: Row) -> Row:
    """Return the row with the broker of another checkout as the peer, and the goal to be as good in each figure."""
    more = (RATE, COMMITS, SENDS_KEPT, CHECKS_KEPT)
    as_good = {name: at_least(1) if name in more else at_most(1) for name in row.goals}
    return replace(row, peer=OTHER_CHECKOUT, goals=as_good)


def goals(row: Row, flush: str) -> dict[str, Goal]:
    """Return the goals under sync, where the disk limits both brokers: Duolog must be ahead of the peer."""
    if flush != "sync":
        return row.goals
    ahead = {RATE: at_least(1), COMMITS: at_least(1), MEAN: at_most(1), P99: at_most(1), SECONDS: at_most(1)}
    return {name: goal if name in AS_EVER else ahead.get(name, NONE) for name, goal in row.goals.items()}


# -- Throughput: messages a second, and what each cost the broker


def throughput(
    name: str,
    title: str,
    peer: str,
    prepare: Callable[[Ground], Any],
    load: Callable[[Ground, Any], Ran],
    rate: Goal,
    cpu: Goal = NONE,
    figures: tuple[str, str] = (RATE, CPU),
) -> Row:
    def run(ground: Ground, prepared: Any) -> Figures:
        before_s = used_cpu_s(ground.broker)
        ran = load(ground, prepared)
        spent_s = used_cpu_s(ground.broker) - before_s
        return dict(zip(figures, (ran.messages / ran.seconds, spent_s * 1e6 / ran.messages), strict=True))

    return Row(name, title, peer, dict(zip(figures, (rate, cpu), strict=True)), prepare, run)


def with_tls(row: Row) -> Row:
    """Return the row with brokers that have a port for Kafka clients with TLS."""
    return replace(row, has_tls=True)


def with_login(row: Row) -> Row:
    """Return the row with clients that log in over TLS, and rules that say what they may do."""
    return replace(row, has_tls=True, has_login=True)


def nothing(ground: Ground) -> None:
    """Prepare nothing: each round of the row creates its own topic."""


def sending(op: str, **arguments: Any) -> Callable[[Ground, Any], Ran]:
    def load(ground: Ground, _: Any) -> Ran:
        with a_topic(ground) as topic:
            return ground.loads.run(op, ground.broker, topic, seconds=ground.scale.seconds, **arguments)

    return load


def produce_librdkafka(size: int) -> Callable[[Ground, Any], Ran]:
    def load(ground: Ground, _: Any) -> Ran:
        with a_topic(ground) as topic:
            return librdkafka.produce(ground.broker.kafka, topic, size, seconds=ground.scale.seconds)

    return load


def produce_with_tls(size: int) -> Callable[[Ground, Any], Ran]:
    def load(ground: Ground, _: Any) -> Ran:
        with a_topic(ground) as topic:
            return librdkafka.produce(
                ground.broker.kafka_tls, topic, size, seconds=ground.scale.seconds, security=ground.broker.tls
            )

    return load


def commit_librdkafka(records: int) -> Callable[[Ground, Any], Ran]:
    def load(ground: Ground, _: Any) -> Ran:
        with a_topic(ground) as topic:
            return commit(ground.broker.kafka, topic, records, ground.scale.seconds)

    return load


def commit(bootstrap: str, topic: str, records: int, seconds: float) -> Ran:
    """Commit transactions of so many records, one after the other; gives how many transactions.

    One millisecond of each is librdkafka's own: it gathers partitions before it adds them to the transaction.
    """
    settings: dict[str, str | int] = {
        "bootstrap.servers": bootstrap,
        "transactional.id": topic,
        "linger.ms": 0,  # A commit waits for the last record.
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.init_transactions(WITHIN_S)
    body, count = bytes(KIB), 0
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        producer.begin_transaction()
        for number in range(records):
            producer.produce(topic, body, partition=(count + number) % PARTITIONS)
        producer.commit_transaction(WITHIN_S)
        count += 1
    return Ran(count, time.perf_counter() - start)


class Filled(NamedTuple):
    topic: str
    messages: int


def filled_by_kafka(size: int, codec: str = "none", *, times: int = 1) -> Callable[[Ground], Filled]:
    def prepare(ground: Ground) -> Filled:
        topic = ground.topic()
        count = ground.loads.fill_by_kafka(ground.broker, topic, size, ground.scale.messages * times, codec)
        return Filled(topic, count)

    return prepare


def filled_by_rocketmq(size: int, *, part: int = 1, labelled: bool = False) -> Callable[[Ground], Filled]:
    def prepare(ground: Ground) -> Filled:
        topic, count = ground.topic(), ground.scale.messages // part
        return Filled(topic, ground.loads.fill_by_rocketmq(ground.broker, topic, size, count, labelled=labelled))

    return prepare


def consume_librdkafka(ground: Ground, filled: Filled) -> Ran:
    return librdkafka.consume(ground.broker.kafka, filled.topic, PARTITIONS, filled.messages)


def consume_with_tls(ground: Ground, filled: Filled) -> Ran:
    return librdkafka.consume(
        ground.broker.kafka_tls, filled.topic, PARTITIONS, filled.messages, security=ground.broker.tls
    )


def consume_java(ground: Ground, filled: Filled) -> Ran:
    return ground.loads.run("kafka_consume", ground.broker, filled.topic, count=filled.messages)


def consume_push(ground: Ground, filled: Filled) -> Ran:
    return ground.loads.run("rocketmq_push", ground.broker, filled.topic, count=filled.messages)


def consuming(**arguments: Any) -> Callable[[Ground, Filled], Ran]:
    """A push consumer of all messages, in one of the ways to consume."""

    def load(ground: Ground, filled: Filled) -> Ran:
        return ground.loads.run("rocketmq_push", ground.broker, filled.topic, count=filled.messages, **arguments)

    return load


def filtering(**condition: str) -> Callable[[Ground, Filled], Ran]:
    """A push consumer whose filter selects an eighth of the messages; the figure counts all messages."""

    def load(ground: Ground, filled: Filled) -> Ran:
        wanted = (filled.messages - 1) // 8
        ran = ground.loads.run("rocketmq_push", ground.broker, filled.topic, count=wanted, **condition)
        return ran._replace(messages=filled.messages)

    return load


def spark_read(ground: Ground, filled: Filled) -> Ran:
    return ground.loads.spark_read(ground.broker, filled.topic, filled.messages)


def spark_direct(ground: Ground, filled: Filled) -> Ran:
    return ground.loads.spark_direct(ground.broker, filled.topic, filled.messages)


def spark_stream(ground: Ground, filled: Filled) -> Ran:
    return ground.loads.spark_stream(ground.broker, filled.topic, filled.messages)


def spark_sink(ground: Ground, _: Any) -> Ran:
    with a_topic(ground) as topic:
        return ground.loads.spark_sink(ground.broker, topic, ground.scale.messages // 3)


def retried(name: str, title: str, peer: str) -> Row:
    """Messages that are retried after a second. A peer's client finds its retry topic before the time starts."""

    def run(ground: Ground, _: Any) -> Figures:
        count = ground.scale.messages // RETRIED_PART
        with a_topic(ground) as topic:
            ground.loads.call("rocketmq_failing_start", ground.broker, topic, size=128)
            before_s = used_cpu_s(ground.broker)
            ran = ground.loads.run(
                "rocketmq_failing_run", ground.broker, topic, size=128, count=count, threads=8, batch=32
            )
            spent_s = used_cpu_s(ground.broker) - before_s
        return {RATE: ran.messages / ran.seconds, CPU: spent_s * 1e6 / ran.messages}

    return Row(
        name, title, peer, {RATE: at_least(1), CPU: at_most(1)}, filled_by_rocketmq(128, part=1000), run, rounds=3
    )


# -- Latency


def latency(name: str, title: str, peer: str, sends: str, receives: str) -> Row:
    def run(ground: Ground, _: Any) -> Figures:
        count = ground.scale.latency_messages
        with a_topic(ground) as topic:
            found = ground.loads.call(
                "one_in_flight", ground.broker, topic, **{"from": sends, "to": receives}, count=count, warmup=count // 2
            )
        return {MEAN: found["mean_ms"], P99: found["p99_ms"]}

    return Row(name, title, peer, {MEAN: below(0.6), P99: below(3)}, nothing, run)


def beside_cold_reader(name: str, title: str, protocol: str) -> Row:
    """Paced sends to one topic, while a consumer reads another topic that is not in the page cache."""

    def prepare(ground: Ground) -> Filled:
        topic, count = ground.topic(), ground.scale.cold_bytes // KIB
        if protocol == "kafka":
            return Filled(topic, ground.loads.fill_by_kafka(ground.broker, topic, KIB, count))
        return Filled(topic, ground.loads.fill_by_rocketmq(ground.broker, topic, KIB, count))

    def run(ground: Ground, filled: Filled) -> Figures:
        read = consume_librdkafka if protocol == "kafka" else consume_push
        sends = {"from": protocol, "rate": PACED_PER_S, "seconds": 8}
        with a_topic(ground) as topic:
            ground.loads.call("paced_sends", ground.broker, topic, **sends)  # The sender's JVM compiles.
            drop_page_cache(ground.broker)
            with repeated(lambda: read(ground, filled)):
                found = ground.loads.call("paced_sends", ground.broker, topic, **sends)
        return {P99: found["p99_ms"]}

    return Row(name, title, protocol, {P99: below(10)}, prepare, run, rounds=1)


def beside_noisy(name: str, title: str, noise: noisy.Noise, *, is_apart: bool = False) -> Row:
    """Paced sends alone, and beside a client that sends as fast as its quota lets it; `is_apart`: on other cores."""

    def prepare(ground: Ground) -> None:
        noisy.limit(ground.broker.http)
        if is_apart:
            noisy.keep_apart(ground.loads, ground.broker)

    def run(ground: Ground, _: Any) -> Figures:
        sends = {"from": K, "rate": PACED_PER_S, "seconds": noisy.PHASE_S, "client_id": noisy.QUIET, "each": True}
        phases = noisy.Phases()
        with a_topic(ground) as quiet, a_topic(ground) as loud:

            def phase() -> noisy.Phase:
                cpu_before_s, begun_s = used_cpu_s(ground.broker), time.monotonic()
                each_ms = ground.loads.call("paced_sends", ground.broker, quiet, **sends)["each_ms"]
                share = (used_cpu_s(ground.broker) - cpu_before_s) / (time.monotonic() - begun_s)
                return noisy.Phase(each_ms, share)

            phase()  # The JVM and the broker's caches are cold.
            for _ in range(noisy.PAIRS * ground.scale.rounds):
                phases.alone.append(phase())
                with noise(ground.loads, ground.broker, loud, noisy.PHASE_S + noisy.SETTLING_S):
                    phases.beside.append(phase())
        alone, beside = phases.p99_ms()
        lower, upper = phases.middle_half()
        core_alone, core_beside = phases.core_shares()
        return {
            P99_ALONE: alone,
            P99_BESIDE: beside,
            OF_ALONE: beside / alone,
            LOWER: lower,
            UPPER: upper,
            CORE_ALONE: core_alone,
            CORE_BESIDE: core_beside,
        }

    goals = dict.fromkeys((P99_ALONE, P99_BESIDE, OF_ALONE, LOWER, UPPER, CORE_ALONE, CORE_BESIDE), NONE)
    goals[OF_ALONE] = below(1.5)
    return Row(name, title, NOBODY, goals, prepare, run, rounds=1)


# -- Starting


def starting(name: str, title: str, protocol: str, bytes_before: int, bound_s: float) -> Row:
    """The time from the start of the process to the first stored message; after kill -9, if there is data."""

    def run(ground: Ground, _: Any) -> Figures:
        broker, topic = ground.broker, ground.topic()
        count = max(1, bytes_before // KIB)
        if protocol == "kafka":
            ground.loads.fill_by_kafka(broker, topic, KIB, count)
        else:
            ground.loads.fill_by_rocketmq(broker, topic, KIB, count)
        if bytes_before:
            broker.kill()
        else:
            broker.stop()
        start = time.monotonic()
        thread = threading.Thread(target=broker.start)
        thread.start()
        stored = first_produce(broker, topic) if protocol == "kafka" else first_send(ground, topic)
        thread.join()
        return {SECONDS: stored - start}

    return Row(name, title, protocol, {SECONDS: below(bound_s)}, nothing, run, rounds=1)


def first_produce(broker: Contender, topic: str) -> float:
    """Return the monotonic time at which a message was acknowledged."""
    times: list[float] = []

    def delivered(error: KafkaError | None, _: Message[bytes, bytes]) -> None:
        if error is None:
            times.append(time.monotonic())

    settings: dict[str, str | int] = {
        "bootstrap.servers": broker.kafka,
        "reconnect.backoff.ms": 5,
        "reconnect.backoff.max.ms": 20,
        "retry.backoff.ms": 5,
        "linger.ms": 0,
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.produce(topic, b"first", on_delivery=delivered)
    producer.flush(120)
    if not times:
        raise librdkafka.LoadError("the first message was not acknowledged within 120 s")
    return times[0]


def first_send(ground: Ground, topic: str) -> float:
    return float(ground.loads.call("rocketmq_first_send", ground.broker, topic))


# -- Memory


def memory(name: str, title: str, protocol: str) -> Row:
    def run(ground: Ground, _: Any) -> Figures:
        settle(ground.broker)
        idle = anonymous_mb(ground.broker)
        count = ground.scale.memory_messages
        topic = ground.topic()
        if protocol == "kafka":
            ground.loads.fill_by_kafka(ground.broker, topic, 100, count)
            librdkafka.consume(ground.broker.kafka, topic, PARTITIONS, count)
        else:
            stored = ground.loads.fill_by_rocketmq(ground.broker, topic, 100, count)
            consume_push(ground, Filled(topic, stored))
        return {IDLE_MB: idle, LOADED_MB: anonymous_mb(ground.broker)}

    goals = {IDLE_MB: below(100), LOADED_MB: below(250)}
    return Row(name, title, protocol, goals, nothing, run, rounds=1)


# -- Half messages without a verdict


def undecided(name: str, title: str) -> Row:
    """Half messages without a verdict, on a broker of their own: see `halves.py`."""

    def run(ground: Ground, _: Any) -> Figures:
        broker, scale = ground.broker, ground.scale

        def sends_per_s() -> float:
            """Return the best of some loads, because other work on the machine slows single loads."""
            return max(ran.messages / ran.seconds for ran in (load(ground, None) for _ in range(SEND_LOADS)))

        load = sending("rocketmq_send", size=KIB, threads=8, transactional=True)
        load(ground, None)  # The client's JVM compiles.
        topic = ground.topic()
        asked = halves.Asked(broker, topic)
        sends, checks = sends_per_s(), asked.checks_per_s(scale.checked)
        asked.send(scale.undecided, halves.IMMUNITY_S)
        found = {
            SENDS_KEPT: sends_per_s() / sends,
            CHECKS_KEPT: asked.checks_per_s(scale.checked) / checks,
            UNDECIDED_MB: anonymous_mb(broker),
        }
        asked.close()
        broker.kill()
        start = time.monotonic()
        broker.start()
        return found | {SECONDS: first_send(ground, topic) - start}

    goals = {SENDS_KEPT: above(0.9), CHECKS_KEPT: above(0.9), UNDECIDED_MB: below(400), SECONDS: below(10)}
    return Row(name, title, NOBODY, goals, nothing, run, rounds=1)


# -- The rows

# fmt: off
ROWS: Sequence[Row] = (
    throughput("kafka-java-produce", "Kafka produce, Java client as shipped, 1 KiB", K,
               nothing, sending("kafka_produce", size=KIB), at_least(1), at_most(2 / 3)),
    throughput("kafka-librdkafka-produce-1k", "Kafka produce, librdkafka, 1 KiB", K,
               nothing, produce_librdkafka(KIB), at_least(1), at_most(1.2)),
    throughput("kafka-librdkafka-produce-100", "Kafka produce, librdkafka, 100 B", K,
               nothing, produce_librdkafka(100), at_least(1), at_most(1.2)),
    throughput("kafka-transactions-1", "Kafka transactions of 1 record of 1 KiB, librdkafka", K,
               nothing, commit_librdkafka(1), at_least(4), figures=(COMMITS, COMMIT_CPU)),
    throughput("kafka-transactions-100", "Kafka transactions of 100 records of 1 KiB, librdkafka", K,
               nothing, commit_librdkafka(100), at_least(4), figures=(COMMITS, COMMIT_CPU)),
    throughput("kafka-transactions-java", "Kafka produce, Java client, 1 KiB, a commit each 10 ms", K,
               nothing, sending("kafka_transactions", size=KIB, commit_ms=10), at_least(1)),
    throughput("kafka-librdkafka-consume", "Kafka consume, librdkafka, 1 KiB", K,
               filled_by_kafka(KIB, times=4), consume_librdkafka, at_least(1), at_most(1.2)),
    throughput("kafka-java-consume", "Kafka consume, Java client, 1 KiB", K,
               filled_by_kafka(KIB, times=4), consume_java, at_least(1), at_most(1.2)),
    with_tls(throughput("kafka-tls-produce", "Kafka produce, librdkafka, 1 KiB, TLS 1.3", K,
                        nothing, produce_with_tls(KIB), at_least(1), at_most(1.2))),
    with_login(throughput("kafka-scram-produce", "Kafka produce, librdkafka, 1 KiB, TLS 1.3, SCRAM-SHA-512, rules", K,
                          nothing, produce_with_tls(KIB), at_least(1), at_most(1.2))),
    with_tls(throughput("kafka-tls-consume", "Kafka consume, librdkafka, 1 KiB, TLS 1.3", K,
                        filled_by_kafka(KIB, times=4), consume_with_tls, at_least(1), at_most(1.2))),
    latency("kafka-latency", "one message in flight, Kafka to Kafka", K, sends=K, receives=K),
    throughput("spark-batch", "Spark batch read, 1 KiB", K, filled_by_kafka(KIB), spark_read, at_least(1)),
    throughput("spark-stream", "Spark streaming read, 1 KiB", K, filled_by_kafka(KIB), spark_stream, at_least(1)),
    throughput("spark-sink", "Spark sink, 1 KiB", K, nothing, spark_sink, at_least(1)),
    throughput("spark-direct", "Spark read of the log's files, 1 KiB; peer: batch", K,
               filled_by_kafka(KIB), spark_direct, at_least(1), below(0.2)),
    beside_cold_reader("kafka-cold", "Kafka sends beside a reader of cold data", K),
    starting("kafka-start", "first Kafka produce after start", K, 0, 1),
    starting("kafka-restart", "first Kafka produce after kill -9 with 1 GiB", K, GIB, 3),
    memory("kafka-memory", "memory, Kafka clients", K),

    throughput("rocketmq-send-64", "RocketMQ sync send, 64 threads, 128 B", R,
               nothing, sending("rocketmq_send", size=128, threads=64), at_least(1.2), at_most(0.5)),
    throughput("rocketmq-send-8", "RocketMQ sync send, 8 threads, 128 B", R,
               nothing, sending("rocketmq_send", size=128, threads=8), at_least(1.2), at_most(0.5)),
    throughput("rocketmq-batch-16", "RocketMQ batch of 16, 64 threads, 128 B", R,
               nothing, sending("rocketmq_send", size=128, threads=64, batch=16), at_least(1), at_most(1)),
    throughput("rocketmq-transactions-8", "RocketMQ transactional send, 8 threads, 1 KiB", R,
               nothing, sending("rocketmq_send", size=KIB, threads=8, transactional=True), at_least(1.3), at_most(0.5)),
    throughput("rocketmq-transactions-32", "RocketMQ transactional send, 32 threads, 1 KiB", R, nothing,
               sending("rocketmq_send", size=KIB, threads=32, transactional=True), at_least(1.3), at_most(0.5)),
    undecided("rocketmq-halves", "a million undecided half messages"),
    throughput("rocketmq-push-128", "RocketMQ push consumer, 128 B", R,
               filled_by_rocketmq(128), consume_push, at_least(1), at_most(1)),
    throughput("rocketmq-push-1k", "RocketMQ push consumer, 1 KiB", R,
               filled_by_rocketmq(KIB), consume_push, at_least(1), at_most(1)),
    throughput("rocketmq-orderly", "RocketMQ orderly consumer, 128 B", R,
               filled_by_rocketmq(128), consuming(orderly=True), at_least(1), at_most(1)),
    throughput("rocketmq-tag", "RocketMQ consumer of one tag of eight, 128 B", R,
               filled_by_rocketmq(128, labelled=True), filtering(tag="t3"), at_least(1), at_most(1)),
    throughput("rocketmq-sql", "RocketMQ consumer of an eighth by SQL92, 128 B", R,
               filled_by_rocketmq(128, labelled=True), filtering(sql="a > 2 AND a < 4"), at_least(1), at_most(1)),
    retried("rocketmq-retried", "RocketMQ consumer that fails each message once, 128 B", R),
    throughput("rocketmq-pop", "RocketMQ consumer by POP, 128 B", R,
               filled_by_rocketmq(128, part=10), consuming(pop=True), at_least(1), at_most(1)),
    latency("rocketmq-latency", "one message in flight, RocketMQ to RocketMQ", R, sends=R, receives=R),
    beside_cold_reader("rocketmq-cold", "RocketMQ sends beside a reader of cold data", R),
    starting("rocketmq-start", "first RocketMQ send after start", R, 0, 1),
    starting("rocketmq-restart", "first RocketMQ send after kill -9 with 1 GiB", R, GIB, 3),
    memory("rocketmq-memory", "memory, RocketMQ clients", R),

    throughput("kafka-from-rocketmq", "Kafka consumer (librdkafka) on RocketMQ-written 1 KiB", NOBODY,
               filled_by_rocketmq(KIB), consume_librdkafka, above(80_000), below(8)),
    throughput("spark-from-rocketmq", "Spark batch read of RocketMQ-written 1 KiB", NOBODY,
               filled_by_rocketmq(KIB), spark_read, above(80_000), below(8)),
    throughput("spark-direct-from-rocketmq", "Spark read of the log's files, RocketMQ-written 1 KiB", NOBODY,
               filled_by_rocketmq(KIB), spark_direct, above(120_000), below(0.2)),
    throughput("rocketmq-from-kafka", "RocketMQ push consumer on Kafka-written 1 KiB", NOBODY,
               filled_by_kafka(KIB), consume_push, above(80_000), below(8)),
    throughput("rocketmq-from-kafka-zstd", "RocketMQ push consumer on Kafka-written 1 KiB, zstd", NOBODY,
               filled_by_kafka(KIB, "zstd"), consume_push, above(80_000), below(8)),
    beside_noisy("noisy-kafka", "Kafka sends beside a Kafka client at its quota, librdkafka", noisy.kafka),
    beside_noisy("noisy-rocketmq", "Kafka sends beside a RocketMQ client at its quota, 16 threads", noisy.rocketmq),
    beside_noisy("noisy-rocketmq-apart", "the same, the broker and who is measured at real-time priority",
                 noisy.rocketmq, is_apart=True),
    latency("kafka-rocketmq-latency", "one message in flight, Kafka to RocketMQ", NOBODY, sends=K, receives=R),
    latency("rocketmq-kafka-latency", "one message in flight, RocketMQ to Kafka", NOBODY, sends=R, receives=K),
)
# fmt: on


# -- Running them


def run(
    rows: Iterable[Row], scale: Scale, flush: str, say: Callable[[str], None], checkout: Path | None = None
) -> Iterator[Outcome]:
    """Run the rows, and yield each outcome. A row that fails does not end the run.

    With `checkout`, the peer of all rows is the broker of that checkout, which has a `.venv`.
    """
    if checkout is not None:
        rows = [against_checkout(row) for row in rows]
    with tempfile.TemporaryDirectory(prefix="duolog-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        loads = Loads(folder)
        try:
            for row in rows:
                say(row.name)
                outcome = Outcome(row, goals(row, flush))
                try:
                    _run_row(outcome, folder, loads, scale, flush, checkout)
                except Exception as error:  # noqa: BLE001  # Shown in the table, beside the rows that ran.
                    outcome.error = " ".join([type(error).__name__, *getattr(error, "__notes__", ()), str(error)])
                    say(f"{row.name}: {outcome.error}")
                yield outcome
        finally:
            loads.close()


def _run_row(outcome: Outcome, folder: Path, loads: Loads, scale: Scale, flush: str, checkout: Path | None) -> None:
    row = outcome.row
    tls = Tls(Authority(folder / "ca"), row.has_login) if row.has_tls else None
    brokers: list[Contender] = [Duolog(folder, flush, tls)]
    if checkout is not None:
        brokers.append(Duolog(folder, flush, tls, OTHER_CHECKOUT, (str(checkout / ".venv/bin/duolog"),)))
    elif row.peer:
        brokers.append(PEERS[row.peer](folder, flush, tls))
    try:
        for broker in brokers:
            broker.start()
        grounds = [Ground(broker, loads, scale) for broker in brokers]
        _run_rounds(outcome, grounds, scale, is_restarted=checkout is not None)
    finally:
        for broker in brokers:
            broker.end()


def _run_rounds(outcome: Outcome, grounds: list[Ground], scale: Scale, *, is_restarted: bool) -> None:
    row = outcome.row
    prepared = [row.prepare(ground) for ground in grounds]
    rounds = row.rounds or scale.rounds
    if rounds > 1:
        _run_round(row, grounds, prepared, Outcome(row, {}))  # JVMs on both ends compile what the row needs.
    for number in range(rounds):
        for ground in grounds if is_restarted and rounds > 1 else ():
            ground.broker.stop()
            ground.broker.start()
        # Whoever runs second meets what the first has left to the disk and the caches, so they take turns.
        step = -1 if number % 2 else 1
        _run_round(row, grounds[::step], prepared[::step], outcome)


def _run_round(row: Row, grounds: list[Ground], prepared: list[Any], outcome: Outcome) -> None:
    for ground, what in zip(grounds, prepared, strict=True):
        broker, others = ground.broker, [each.broker for each in grounds if each is not ground]
        try:
            for other in others:
                settle(other)
                other.rest()
            settle(broker)
            outcome.note(broker.name, row.run(ground, what))
        except Exception as error:
            error.add_note(f"against {broker.name}")
            raise
        finally:
            for other in others:
                other.wake()


# -- Topics

_serial = iter(range(1_000_000))


def new_topic() -> str:
    return f"bench-{os.getpid()}-{next(_serial)}"


@contextmanager
def a_topic(ground: Ground) -> Iterator[str]:
    """Create a topic for one round."""
    topic = ground.topic()
    yield topic
    delete_topic(ground.broker, topic)


def delete_topic(broker: Contender, topic: str) -> None:
    """Delete the topic, so that rounds do not fill the disk. Apache RocketMQ keeps its data, which is little."""
    if broker.kafka:
        with suppress(KafkaException):
            client = admin(broker)
            for gone in client.delete_topics([topic]).values():
                gone.result(30)
