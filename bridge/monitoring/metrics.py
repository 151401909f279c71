"""Counters for operators. Requests increment plain integers; a scrape of `/metrics` reads them.

Most metrics are not in this module: a scrape reads them from the part that owns them (log positions, connections,
groups). The modules of `bridge/http/metrics/` name all metrics.
"""

import gc
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from duolog.bridge.monitoring.histogram import FSYNC_BOUNDS_S, LATENESS_BOUNDS_S, RPC_BOUNDS_MS, Histogram
from duolog.bridge.monitoring.rates import Totals
from duolog.store.shared.cache.local_segments import CacheCounts

WIRES = ("kafka", "rocketmq", "http")
CLIENT_PROTOCOLS = ("kafka", "rocketmq")
SIZES = 64


class Metrics:
    """The counters. Keys are names from tables of the broker, never texts of clients, so their number is limited.

    The class has more than 15 fields because each is one metric, and they share no invariant that a part could keep.
    """

    def __init__(self) -> None:
        # By (client protocol, name of the API or request code).
        self.requests: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.errors: defaultdict[tuple[str, str], int] = defaultdict(int)  # By (client protocol, error in the answer).
        self.records_in = dict.fromkeys(WIRES, 0)  # Records that were appended, by the protocol of their writer.
        self.bytes_in = dict.fromkeys(WIRES, 0)
        # Records that were appended, by the bit length of their size - 1: up to 2^i bytes at index i. All records of a
        # batch have its mean size.
        self.records_of_size = [0] * SIZES
        # Records that were read, by the protocol of their reader; of a batch that was read, all records.
        self.records_out = dict.fromkeys(WIRES, 0)
        self.bytes_out = dict.fromkeys(WIRES, 0)
        # Records that were read in another client protocol than that of their writer, by the protocol of the reader.
        self.converted_records = dict.fromkeys(CLIENT_PROTOCOLS, 0)
        # One-way commits that were dropped, because the group is active in the other client protocol.
        self.dropped_commits = dict.fromkeys(CLIENT_PROTOCOLS, 0)
        # One-way commits that a full disk or a limit refused.
        self.refused_commits = dict.fromkeys(CLIENT_PROTOCOLS, 0)
        self.retries = 0  # Messages that a RocketMQ group failed to consume and gets again.
        self.dead_letters = 0  # Messages that a RocketMQ group failed to consume and that became dead letters.
        # Delayed messages by event. `delay/tables/tables.py` counts those that were lost by damage.
        self.timers = dict.fromkeys(("accepted", "delivered", "cancelled", "dropped", "recurred"), 0)
        # Seconds from the time at which a delayed message was due to its append to its queue.
        self.timer_lateness_s = Histogram(LATENESS_BOUNDS_S)
        self.fsync_s = Histogram(FSYNC_BOUNDS_S)  # Seconds that the fsyncs of the log took.
        # Milliseconds from the turn that received a RocketMQ request to its answer, by the name of its code.
        self.rpc_ms: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(RPC_BOUNDS_MS))
        self.held_rpc_ms: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(RPC_BOUNDS_MS))  # Long polls.
        # Requests to the object store by operation and outcome, and bytes of objects by operation.
        self.object_requests: Counter[tuple[str, str]] = Counter()
        self.shared_lost_entries = 0  # Entries that the start of a shared broker has cut from the local log.
        self.object_bytes: Counter[str] = Counter()
        self.shared_cache: Callable[[], CacheCounts] = CacheCounts  # A broker of a stream replaces it.
        self.check_backs = CheckCounts()
        self.gc_pauses = GcPauses()

    def totals(self) -> Totals:
        """Return how many records were appended, and how many were read."""
        return Totals(sum(self.records_in.values()), sum(self.records_out.values()))


@dataclass(slots=True)
class CheckCounts:
    """The results of check-backs since the broker started."""

    requests: int = 0  # Check-back requests sent to producers.
    without_producer: int = 0  # Checks that were counted although no producer could be asked.
    given_up: int = 0  # Half messages that were given up without a verdict.


class GcPauses:
    """The number and duration of pauses by Python's garbage collector."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.longest_s = 0.0
        self._started_s = 0.0
        self._clock_s: Callable[[], float] | None = None

    def watch(self, clock_s: Callable[[], float]) -> None:
        """Count from now on; `clock_s` is a monotonic clock with a resolution of microseconds."""
        self._clock_s = clock_s
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Stop counting."""
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
