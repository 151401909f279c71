"""What the benchmarks read of a broker that runs: requests, memory, CPU, and how long it waited for a core."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Protocol

from benchmarks.stores import answer_of
from tests.kit.broker import Broker

_CPUCLOCK_SCHED: Final = 2  # The kind of CPU clock that counts the time of all threads, in nanoseconds.


class Process(Protocol):
    """A broker that runs, Duolog or another one."""

    @property
    def pid(self) -> int: ...


def metric(broker: Broker, name: str) -> float:
    """Return the sum of a metric over its labels."""
    lines = answer_of(f"http://{broker.http}/metrics").decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def requests(broker: Broker) -> float:
    """Return how many requests to the store a broker has sent."""
    return metric(broker, "duolog_object_requests_total")


def anonymous_mb(process: Process) -> float:
    """Return the anonymous resident memory of a process, in MB, which excludes mapped files."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024 / 1e6


def used_cpu_s(process: Process) -> float:
    """Return the user and system time of all threads of a process, in nanoseconds' resolution.

    The files in /proc have it in ticks of 10 ms only. The number of a process's CPU clock is made as in Linux's
    include/linux/posix-timers_types.h.
    """
    return time.clock_gettime(~process.pid << 3 | _CPUCLOCK_SCHED)


def waited_for_cores_s(broker: Broker) -> float:
    """Return how long the loop of a broker could run and had no core."""
    return int(Path(f"/proc/{broker.pid}/task/{broker.pid}/schedstat").read_text().split()[1]) / 1e9
