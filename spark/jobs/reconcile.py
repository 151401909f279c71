"""The job reconcile: verifies that an archive and the broker have the same records, queue by queue.

The rows of the archive, up to the offsets that its checkpoint has finished, are compared with the sums of the broker
(GET /api/topics/{name}/sums). For each step of offsets both sides compute the number of records and the sum of their
checksums (`protocol/checksum.py`: offset, timestamp, key, value, headers). If these differ, the step is compared offset
by offset:

    missing     the broker has the record, and the archive does not
    repeated    the archive has the offset more than once
    changed     both have the offset, and the checksums differ
    invented    the archive has the offset, and the broker has no record there

If a file of the archive does not exist any more, its records are missing. Offsets that retention has removed from the
broker, and offsets after the end of the archive, are not compared; the report has their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F

from duolog.spark.broker_api import ApiError, BrokerApi
from duolog.spark.checksums import record_checksum
from duolog.spark.jobs.checkpoints import Progress
from duolog.spark.progress import OnProgress, Summary
from duolog.spark.stopping import Stop, Stopped, cancelling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STEP: Final = 1000
DETAILED_MAX: Final = 50  # Steps of a queue that are compared offset by offset; further ones are only counted.
SHOWN_MAX: Final = 20  # Offsets of each kind and queue in the summary.


@dataclass(slots=True)
class Difference:
    """The offsets of one queue in which the archive and the broker differ."""

    topic: str
    queue: int
    missing: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    invented: list[int] = field(default_factory=list)
    # The number of further steps whose checksums differ, and whose offsets were not compared one by one.
    steps_not_compared: int = 0

    def __bool__(self) -> bool:
        return bool(self.missing or self.repeated or self.changed or self.invented or self.steps_not_compared)


@dataclass(slots=True)
class Report:
    """The result of a comparison."""

    queues: int = 0  # Queues of the archive.
    records: int = 0  # Records that are equal on both sides.
    absent: int = 0  # Offsets of the broker without a record, such as those of transaction markers.
    removed: int = 0  # Archived offsets that retention has removed from the broker.
    behind: int = 0  # Offsets of the broker that are not archived yet.
    files_missing: int = 0  # Files of the archive that do not exist any more.
    queues_left: int = 0  # Queues that were not compared, because the job was stopped.
    differences: list[Difference] = field(default_factory=list)

    def summary(self) -> Summary:
        summary: Summary = {
            "queues": self.queues,
            "records equal": self.records,
            "offsets that are no records": self.absent,
            "offsets removed from the broker": self.removed,
            "offsets not archived yet": self.behind,
        }
        if self.files_missing:
            summary["files missing from the archive"] = self.files_missing
        if self.queues_left:
            summary["queues not compared"] = self.queues_left
        for kind in ("missing", "repeated", "changed", "invented"):
            found = {f"{each.topic}/{each.queue}": getattr(each, kind) for each in self.differences}
            summary[kind] = sum(map(len, found.values()))
            if summary[kind]:
                places = (f"{place}: {_few(offsets)}" for place, offsets in found.items() if offsets)
                summary[f"{kind} at"] = "; ".join(places)
        if unseen := sum(each.steps_not_compared for each in self.differences):
            summary["further steps that differ"] = unseen
        return summary


def _few(offsets: Sequence[int]) -> str:
    shown = " ".join(map(str, offsets[:SHOWN_MAX]))
    return shown if len(offsets) <= SHOWN_MAX else f"{shown} and {len(offsets) - SHOWN_MAX} more"


class Range(NamedTuple):
    """The offsets of one queue that are compared: from `start` up to, but not including, `end`."""

    topic: str
    queue: int
    start: int
    end: int


class Sum(NamedTuple):
    """The number of records in a step of offsets, and the sum of their checksums."""

    records: int
    checksum: int


NOTHING: Final = Sum(0, 0)


def reconcile(
    rows: DataFrame,
    progress: Progress,
    api: BrokerApi,
    on_progress: OnProgress | None = None,
    step: int = STEP,
    stop: Stop | None = None,
) -> Report:
    """Compare the rows of an archive with the broker, queue by queue, until the job is asked to stop.

    Raises ApiError.
    """
    stop = stop or Stop()
    report, asked = Report(), _Asked(api, stop)
    ranges = [_range(queue, progress, api, report) for queue in sorted(progress.ends)]
    in_ranges = _numbered(rows, ranges, step).persist()
    report.queues_left = len(ranges)
    try:
        with cancelling(stop, rows.sparkSession):
            archived = _archived_sums(in_ranges)
            for done, range_ in enumerate(ranges):
                if stop.is_requested:
                    break
                difference = _compare(range_, in_ranges, archived.get(range_[:2], {}), asked, step, report)
                report.queues_left -= 1
                if difference:
                    report.differences.append(difference)
                if on_progress is not None:
                    on_progress(done + 1, len(ranges))
    except Stopped:
        pass  # `Report.queues_left` has the number of queues that were not compared.
    finally:
        in_ranges.unpersist()
    return report


def _range(key: tuple[str, int], progress: Progress, api: BrokerApi, report: Report) -> Range:
    topic, queue = key
    known = next((each for each in api.get("/api/topics", topic)["queues"] if each["queue"] == queue), None)
    if known is None:
        raise ApiError(
            f"the archive has {topic}/{queue}, and the broker's topic {topic} has no such queue: another topic"
        )
    first, end = progress.starts[key], progress.ends[key]
    start = max(first, min(known["start"], end))
    report.queues += 1
    report.removed += start - first
    report.behind += max(0, known["end"] - end)
    return Range(topic, queue, start, end)


def _compare(
    range_: Range, in_ranges: DataFrame, archived: dict[int, Sum], asked: _Asked, step: int, report: Report
) -> Difference:
    stored, absent_count = _stored_sums(range_, asked, step)
    report.absent += absent_count
    report.records += sum(sum_.records for number, sum_ in stored.items() if archived.get(number) == sum_)
    differ = sorted(number for number in archived.keys() | stored.keys() if archived.get(number) != stored.get(number))
    difference = Difference(range_.topic, range_.queue, steps_not_compared=len(differ[DETAILED_MAX:]))
    rows = _rows_of_steps(in_ranges, range_, differ[:DETAILED_MAX]) if differ else {}
    for number in differ[:DETAILED_MAX]:
        start = range_.start + number * step
        part = range_._replace(start=start, end=min(start + step, range_.end))
        _find(difference, _stored_sums(part, asked, 1)[0], start, rows.get(number, []))
    return difference


def _find(difference: Difference, stored: dict[int, Sum], start: int, archived: list[tuple[int, int]]) -> None:
    """Add the offsets of one step that differ to `difference`. The keys of `stored` are distances from `start`."""
    expected = {start + distance: sum_.checksum for distance, sum_ in stored.items()}
    counts = Counter(offset for offset, _ in archived)
    difference.missing += sorted(expected.keys() - counts.keys())
    difference.invented += sorted(counts.keys() - expected.keys())
    difference.repeated += sorted(offset for offset, count in counts.items() if count > 1)
    wrong = {offset for offset, checksum in archived if expected.get(offset, checksum) != checksum}
    difference.changed += sorted(wrong)


# -- The archive's side


def _numbered(rows: DataFrame, ranges: Sequence[Range], step: int) -> DataFrame:
    """Return the rows in the ranges, with their checksum and the number of their step in the range."""
    schema = "topic string, queue int, start bigint, end bigint"
    limits = F.broadcast(rows.sparkSession.createDataFrame(ranges, schema))
    inside = rows.join(limits, ["topic", "queue"]).where("offset >= start and offset < end")
    number = F.floor((F.col("offset") - F.col("start")) / step).cast("bigint").alias("step")
    return inside.select("topic", "queue", "offset", number, record_checksum().alias("checksum"))


def _archived_sums(in_ranges: DataFrame) -> dict[tuple[str, int], dict[int, Sum]]:
    """Compute the sums of the archive in one pass: (topic, queue) -> step number -> sum."""
    sums = in_ranges.groupBy("topic", "queue", "step").agg(
        F.count("*").alias("records"), F.sum("checksum").alias("checksum")
    )
    found: dict[tuple[str, int], dict[int, Sum]] = {}
    for row in sums.toLocalIterator():
        found.setdefault((row.topic, row.queue), {})[row.step] = Sum(row.records, row.checksum)
    return found


def _rows_of_steps(in_ranges: DataFrame, range_: Range, numbers: list[int]) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, checksum) of each row in these steps, by step number."""
    is_here = (F.col("topic") == range_.topic) & (F.col("queue") == range_.queue) & F.col("step").isin(numbers)
    found: dict[int, list[tuple[int, int]]] = {}
    for row in in_ranges.where(is_here).select("step", "offset", "checksum").toLocalIterator():
        found.setdefault(row.step, []).append((row.offset, row.checksum))
    return found


# -- The broker's side


class _Asked(NamedTuple):
    """The HTTP API of the broker, which is called until the job is asked to stop."""

    api: BrokerApi
    stop: Stop

    def sums(self, range_: Range, start: int, end: int, step: int) -> Any:
        """Return one answer with sums. Raises Stopped and ApiError."""
        if self.stop.is_requested:
            raise Stopped
        return self.api.get("/api/topics", range_.topic, "sums", queue=range_.queue, start=start, end=end, step=step)


def _stored_sums(range_: Range, asked: _Asked, step: int) -> tuple[dict[int, Sum], int]:
    """Return (sums of the broker by step number, number of offsets without a record)."""
    sums: dict[int, Sum] = {}
    absent = 0
    at = range_.start
    while at < range_.end:
        # If an answer ends within a step, the next request is for the remaining offsets of that step.
        begun = (at - range_.start) % step
        end = min(at + step - begun, range_.end) if begun else range_.end
        answer = asked.sums(range_, at, end, step)
        for each in answer["sums"]:
            number = (each["start"] - range_.start) // step
            before = sums.get(number, NOTHING)
            if each["records"]:
                sums[number] = Sum(before.records + each["records"], before.checksum + each["checksum"])
        absent += sum(last - first for first, last in answer["absent"])
        if answer["next"] == at:
            break  # The queue of the broker ends here, so later offsets of the archive are invented.
        at = answer["next"]
    return sums, absent
