"""Counters for operators. The hot path adds to plain integers; a scrape of `/metrics` collects them.

Most metrics are not counted here: a scrape reads them from the part that owns them (log positions, connections,
groups). The list of metrics is in `bridge/http/api/metrics.py`.
"""

import gc
from collections import defaultdict
from collections.abc import Callable

from duolog.bridge.monitoring.rates import Totals

WIRES = ("kafka", "rocketmq")


class Metrics:
    """The counters. Keys are few by construction: names from dispatch and error tables, never a client's text."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str], int] = defaultdict(int)  # by (wire, name of the API or code)
        self.errors: defaultdict[tuple[str, str], int] = defaultdict(int)  # by (wire, error answered)
        self.records_in = dict.fromkeys(WIRES, 0)  # appended, by the writer's wire
        self.bytes_in = dict.fromkeys(WIRES, 0)
        self.frames_out = dict.fromkeys(WIRES, 0)  # entries read, by the reader's wire
        self.bytes_out = dict.fromkeys(WIRES, 0)
        self.converted_records = dict.fromkeys(WIRES, 0)  # read in that wire's form, written in the other's
        self.dropped_commits = dict.fromkeys(
            WIRES, 0
        )  # One-way commits of a group that is active in the other client protocol.
        self.refused_commits = dict.fromkeys(WIRES, 0)  # One-way commits that a full disk or a limit refused.
        self.retries = 0  # messages that a RocketMQ group failed to consume and will get again
        self.dead_letters = 0  # and those that it will not
        self.timers = dict.fromkeys(
            ("parked", "delivered", "cancelled", "dropped", "recurred", "lost"), 0
        )  # delayed messages
        self.gc_pauses = GcPauses()

    def totals(self) -> Totals:
        """How many messages came in, and how many entries were read."""
        return Totals(sum(self.records_in.values()), sum(self.frames_out.values()))


class GcPauses:
    """How often and how long Python's garbage collector stopped the loop."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.longest_s = 0.0
        self._started_s = 0.0
        self._clock_s: Callable[[], float] | None = None

    def watch(self, clock_s: Callable[[], float]) -> None:
        """Count from now on; `clock_s` is a fine monotonic clock."""
        self._clock_s = clock_s
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        if self._clock_s is not None:
            gc.callbacks.remove(self._on_collection)
            self._clock_s = None

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        assert self._clock_s is not None
        if phase == "start":
            self._started_s = self._clock_s()
            return
        pause_s = self._clock_s() - self._started_s
        self.count += 1
        self.total_s += pause_s
        self.longest_s = max(self.longest_s, pause_s)
