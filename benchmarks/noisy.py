"""Clients that send as fast as their quota lets them, for rows about the latency of other clients beside them.

The quota is one for each client id without a quota of its own, so also for RocketMQ's clients, whose id is empty. The
client whose latency is measured has the id QUIET, and a quota that it does not reach.

Sends are measured in short phases, alternately alone and beside the noisy client, so that what else the machine does
affects both. The p99 is that of the sends of all phases together. How far two phases that follow each other differ says
how much of the ratio may be chance.

The clients share the cores with the broker. Two JVMs and the broker on two cores delay each other, whatever the broker
does, so on such a machine the ratio is not that of the broker only. In rows with `is_apart`, in both measurements, the
broker has the first core for itself, the clients share the others, the broker and the client that is measured have
real-time priority (SCHED_FIFO, which needs the right to it), and the noisy client has the lowest priority (nice 19).
"""

from __future__ import annotations

import json
import os
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Producer

from benchmarks.loads import Loads, repeated

if TYPE_CHECKING:
    from benchmarks.contenders import Contender

QUIET = "quiet"
NOISY_BYTES_PER_S = 2_000_000
QUIET_BYTES_PER_S = 1_000_000_000
PHASE_S = 3.0
PAIRS = 3  # The pairs of phases for each round of other rows.
BURST_S = 3.0  # The time after which a noisy client has used its burst and is limited to its quota.
SETTLING_S = 3.0  # The time in which the measured sender finds its route; messages sent in this time are not counted.
BODY = b"x" * 1024
THREADS = 16
WAIT_S = 60.0


class Phase(NamedTuple):
    """What was measured in a phase."""

    each_ms: list[float]  # The time of each send.
    core_share: float  # The CPU time of the broker, of the time that has passed.


class Phases:
    """Pairs of a phase alone and one beside the noisy client."""

    def __init__(self) -> None:
        self.alone: list[Phase] = []
        self.beside: list[Phase] = []

    def p99_ms(self) -> tuple[float, float]:
        """Return the p99 of all sends alone, and of all sends beside the noisy client."""
        alone, beside = (
            _p99(chain.from_iterable(phase.each_ms for phase in phases)) for phases in (self.alone, self.beside)
        )
        return alone, beside

    def middle_half(self) -> tuple[float, float]:
        """Return the quartiles of the ratios of the pairs: their p99 beside, divided by their p99 alone."""
        pairs = zip(self.alone, self.beside, strict=True)
        lower, _, upper = statistics.quantiles(
            [_p99(beside.each_ms) / _p99(alone.each_ms) for alone, beside in pairs], n=4
        )
        return lower, upper

    def core_shares(self) -> tuple[float, float]:
        """Return the broker's mean share of a core alone, and beside the noisy client."""
        alone, beside = (statistics.fmean(phase.core_share for phase in phases) for phases in (self.alone, self.beside))
        return alone, beside


def _p99(times: Iterable[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


# Makes noise on a topic while its block runs; the number is how many seconds the block takes at least.
Noise = Callable[[Loads, "Contender", str, float], AbstractContextManager[None]]


def limit(http: str) -> None:
    """Set the quotas."""
    for client_id, rate in (("", NOISY_BYTES_PER_S), (QUIET, QUIET_BYTES_PER_S)):
        body = json.dumps({"client_id": client_id, "limits": {"producer_byte_rate": rate}}).encode()
        request = urllib.request.Request(f"http://{http}/api/quotas", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=WAIT_S).close()


def keep_apart(loads: Loads, broker: Contender) -> None:
    """Give the first core to the broker, and the others to the JVMs of the loads; the noisy one comes last on them.

    Raises PermissionError without the right to real-time priority (root, or CAP_SYS_NICE).
    """
    first, *others = sorted(os.sched_getaffinity(0))
    for pid, cores in ((broker.pid, {first}), (loads.java.pid, set(others)), (loads.noise.pid, set(others))):
        for thread in _threads(pid):
            os.sched_setaffinity(thread, cores or {first})
    for pid in (broker.pid, loads.java.pid):
        for thread in _threads(pid):
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
    for thread in _threads(loads.noise.pid):
        os.setpriority(os.PRIO_PROCESS, thread, 19)


def _threads(pid: int) -> list[int]:
    """Return the threads of a process; those that they start have their cores and their priority, too."""
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


@contextmanager
def kafka(loads: Loads, broker: Contender, topic: str, seconds: float) -> Iterator[None]:
    """Send by librdkafka, with as much waiting as its buffer holds."""
    settings: dict[str, str | int] = {
        "bootstrap.servers": broker.kafka,
        "client.id": "noisy",
        "queue.buffering.max.kbytes": 4096,
        "log_level": 4,
    }
    producer = Producer(settings)

    def send() -> None:
        try:
            producer.produce(topic, BODY)
        except BufferError:
            producer.poll(0.005)

    try:
        with repeated(send):
            time.sleep(BURST_S)
            yield
    finally:
        producer.purge()  # The messages that wait would take seconds.
        producer.flush(1)


@contextmanager
def rocketmq(loads: Loads, broker: Contender, topic: str, seconds: float) -> Iterator[None]:
    """Send by threads of Java's client that wait for each answer; a refused send is tried again by the client."""
    call = loads.noise.start(
        "rocketmq_send", namesrv=broker.namesrv, topic=topic, size=len(BODY), threads=THREADS,
        seconds=BURST_S + seconds, limited=True,
    )  # fmt: skip
    time.sleep(BURST_S)
    yield
    call.wait(WAIT_S)
