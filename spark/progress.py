"""Reports the progress of a job: the rows of a streaming query, or the tasks of a batch.

A function of type OnProgress is called with (done, total) every EVERY_S seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from duolog.spark.stopping import Stop, Stopped

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Summary = dict[str, Any]  # The results of a job, in the order in which they are shown.
OnProgress = Callable[[int, int], None]

EVERY_S: Final = 0.3
COMMIT_WITHIN_S: Final = 10.0  # How long to wait until Spark's checkpoint contains a batch that is done.


class Batches:
    """The function of `foreachBatch`: processes batches one at a time, until it is closed."""

    def __init__(self, append: Callable[[DataFrame, int], None]) -> None:
        self._append = append
        self._lock = threading.Lock()
        self._is_closed = False
        self.turned_away = False  # Whether a batch was refused after `close`.
        self.last = -1  # The number of the last batch that was processed.

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self._lock:
            if self._is_closed:
                self.turned_away = True
                raise Stopped(f"batch {batch_id} is left to the next run")
            self._append(batch, batch_id)
            self.last = batch_id

    def close(self) -> None:
        """Wait for the batch that is being processed, and refuse later batches."""
        with self._lock:
            self._is_closed = True


def follow(
    query: StreamingQuery, batches: Batches, stop: Stop, on_progress: OnProgress | None = None
) -> tuple[int, int]:
    """Wait until a query has ended, or end it when the job is asked to stop; return (rows, batches) of the query.

    Raises the exception of the query.
    """
    rows_of: dict[int, int] = {}
    while not query.awaitTermination(EVERY_S):  # type: ignore[arg-type]  # Spark takes parts of a second.
        _take(query, rows_of, on_progress)
        if stop.is_requested:
            _end(query, batches)
            break
    _take(query, rows_of, on_progress)
    return sum(rows_of.values()), len(rows_of)


def _end(query: StreamingQuery, batches: Batches) -> None:
    """End a query after its present batch, once its checkpoint contains that batch.

    `StreamingQuery.stop` alone would cancel the batch, and Spark would log a stack trace.
    """
    batches.close()
    until = time.perf_counter() + COMMIT_WITHIN_S
    try:
        while not query.awaitTermination(EVERY_S):  # type: ignore[arg-type]
            done = max((each["batchId"] for each in query.recentProgress), default=-1)
            if done >= batches.last or time.perf_counter() > until:
                query.stop()
    except PySparkException:
        if not batches.turned_away:
            raise


def _take(query: StreamingQuery, rows_of: dict[int, int], on_progress: OnProgress | None) -> None:
    """Add the rows of finished batches to `rows_of`, and report the progress."""
    behind = 0
    for each in query.recentProgress:
        if each["numInputRows"]:
            rows_of[each["batchId"]] = each["numInputRows"]
        behind = sum(_behind(source) for source in each["sources"])
    if on_progress is not None and rows_of:
        done = sum(rows_of.values())
        on_progress(done, done + behind)


def _behind(source: Any) -> int:
    """Return the number of offsets between the end of the last batch and the end of the topics."""
    end, latest = source["endOffset"], source["latestOffset"]
    if not (isinstance(end, dict) and isinstance(latest, dict)):
        return 0
    return sum(
        offset - end.get(topic, {}).get(queue, offset) for topic, queues in latest.items() for queue, offset in
        queues.items()
    )  # fmt: skip


@contextmanager
def watched(session: SparkSession, on_progress: OnProgress | None) -> Iterator[None]:
    """Report the progress of the Spark tasks that run in this context. All are reported as done if it ends normally."""
    if on_progress is None:
        yield
        return
    done = threading.Event()
    seen: dict[int, tuple[int, int]] = {}  # Stage -> (finished tasks, all tasks).
    watcher = threading.Thread(
        target=_watch, args=(session.sparkContext.statusTracker(), on_progress, seen, done), daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    # A stage may begin and end between two checks, and a query may skip tasks, so the last report says that all is
    # done.
    total = sum(tasks for _, tasks in seen.values()) or 1
    on_progress(total, total)


def _watch(
    tracker: StatusTracker, on_progress: OnProgress, seen: dict[int, tuple[int, int]], done: threading.Event
) -> None:
    while not done.wait(EVERY_S):
        running = (stage for stage, (completed, tasks) in seen.items() if completed < tasks)
        for stage in {*tracker.getActiveStageIds(), *running}:
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = info.numCompletedTasks, info.numTasks
        if seen:
            on_progress(sum(completed for completed, _ in seen.values()), sum(tasks for _, tasks in seen.values()))
