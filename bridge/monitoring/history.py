"""Figures of the last hour: rates and lateness between each two samples of the counters, taken every INTERVAL_MS.

INTERVALS_MAX intervals are kept, which take less than 1 MiB.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from duolog.bridge.monitoring.metrics import WIRES, Metrics
from duolog.bridge.monitoring.watchdog import Watchdog

INTERVAL_MS: Final = 10_000
INTERVALS_MAX: Final = 360  # One hour.


class Sample(NamedTuple):
    """Counters since the start, at one time. Counters by protocol are in the order of WIRES."""

    at_ms: int
    mono_ms: int
    records_in: tuple[int, ...]
    bytes_in: tuple[int, ...]
    records_out: tuple[int, ...]
    bytes_out: tuple[int, ...]
    lateness: tuple[int, ...]  # The number of deliveries up to each bound of the histogram.
    lateness_bounds: tuple[str, ...]
    fsync_count: int
    fsync_s: float
    long_turns: int
    dead_letters: int
    given_up: int


class Interval(NamedTuple):
    """What happened between two samples. Rates are numbers in a second, by protocol."""

    at_ms: int  # Its end.
    records_in: dict[str, float]
    bytes_in: dict[str, float]
    records_out: dict[str, float]
    bytes_out: dict[str, float]
    delivered: int  # Delayed messages.
    # The least bound of the histogram that half, or 99 % of them, were not later than; None: none was delivered.
    late_p50_ms: float | None
    late_p99_ms: float | None
    fsync_ms: float | None  # The mean; None: there was no fsync.
    long_turns: int
    dead_letters: int
    given_up: int


class History:
    """The intervals of the last hour, the oldest first."""

    def __init__(self, metrics: Metrics, watchdog: Watchdog) -> None:
        self._metrics, self._watchdog = metrics, watchdog
        self._last: Sample | None = None
        self._intervals: deque[Interval] = deque(maxlen=INTERVALS_MAX)

    def next_deadline_ms(self) -> int:
        """Return the monotonic time of the next sample."""
        return 0 if self._last is None else self._last.mono_ms + INTERVAL_MS

    def sample(self, mono_ms: int, now_ms: int) -> None:
        """Take a sample, and keep what happened since the last one."""
        before, self._last = self._last, self._counters(mono_ms, now_ms)
        if before is not None:
            self._intervals.append(_between(before, self._last))

    def _counters(self, mono_ms: int, now_ms: int) -> Sample:
        metrics = self._metrics
        late, fsyncs = metrics.timer_lateness_s.buckets(), metrics.fsync_s
        return Sample(
            at_ms=now_ms,
            mono_ms=mono_ms,
            records_in=_of_wires(metrics.records_in),
            bytes_in=_of_wires(metrics.bytes_in),
            records_out=_of_wires(metrics.records_out),
            bytes_out=_of_wires(metrics.bytes_out),
            lateness=tuple(count for _, count in late),
            lateness_bounds=tuple(bound for bound, _ in late),
            fsync_count=fsyncs.buckets()[-1][1],
            fsync_s=fsyncs.total,
            long_turns=sum(self._watchdog.long.values()),
            dead_letters=metrics.dead_letters,
            given_up=metrics.check_backs.given_up,
        )

    def intervals(self) -> Sequence[Interval]:
        """Return the intervals of the last hour, the oldest first. Later samples do not change the answer."""
        return list(self._intervals)


def _of_wires(counts: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(counts[wire] for wire in WIRES)


def _between(before: Sample, after: Sample) -> Interval:
    seconds = max(1, after.mono_ms - before.mono_ms) / 1000

    def rates(one: tuple[int, ...], other: tuple[int, ...]) -> dict[str, float]:
        return {wire: round((end - start) / seconds, 1) for wire, start, end in zip(WIRES, one, other, strict=True)}

    late = [end - start for start, end in zip(before.lateness, after.lateness, strict=True)]
    fsyncs = after.fsync_count - before.fsync_count
    return Interval(
        after.at_ms,
        rates(before.records_in, after.records_in),
        rates(before.bytes_in, after.bytes_in),
        rates(before.records_out, after.records_out),
        rates(before.bytes_out, after.bytes_out),
        late[-1],
        _quantile_ms(late, after.lateness_bounds, 0.5),
        _quantile_ms(late, after.lateness_bounds, 0.99),
        round(1000 * (after.fsync_s - before.fsync_s) / fsyncs, 3) if fsyncs else None,
        after.long_turns - before.long_turns,
        after.dead_letters - before.dead_letters,
        after.given_up - before.given_up,
    )


def _quantile_ms(below: list[int], bounds: tuple[str, ...], part: float) -> float | None:
    """Return the least bound that this part of the values does not exceed; above all bounds, the greatest bound."""
    if not below[-1]:
        return None
    finite = [1000 * float(bound) for bound in bounds[:-1]]
    return next((bound for bound, count in zip(finite, below, strict=False) if count >= part * below[-1]), finite[-1])
