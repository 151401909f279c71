"""What `benchmarks/shared.py` reads of a broker that runs: requests, memory, CPU, and how long it waited for a core."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.stores import answer_of
from tests.kit.broker import Broker


def metric(broker: Broker, name: str) -> float:
    """Return the sum of a metric over its labels."""
    lines = answer_of(f"http://{broker.http}/metrics").decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def requests(broker: Broker) -> float:
    """Return how many requests to the store a broker has sent."""
    return metric(broker, "duolog_object_requests_total")


def anonymous_mb(broker: Broker) -> float:
    """Return the anonymous resident memory of a broker."""
    lines = Path(f"/proc/{broker.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024 / 1e6


def used_cpu_s(broker: Broker) -> float:
    """Return the time that a broker has computed, in all its threads."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_for_cores_s(broker: Broker) -> float:
    """Return how long the loop of a broker could run and had no core."""
    return int(Path(f"/proc/{broker.pid}/task/{broker.pid}/schedstat").read_text().split()[1]) / 1e9
