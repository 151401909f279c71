"""How far a job is: the rows of a streaming query, the tasks of a batch. `told(done, total)` is called now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Summary = dict[str, Any]  # what a job did, in the order in which it is shown
Told = Callable[[int, int], None]

EVERY_S: Final = 0.3


def follow(query: StreamingQuery, told: Told | None = None) -> tuple[int, int]:
    """Wait for the end of a query, or for Ctrl-C: (its rows, its batches). Raises the query's exception."""
    rows_of: dict[int, int] = {}
    try:
        while not query.awaitTermination(EVERY_S):  # type: ignore[arg-type]  # Spark takes parts of a second.
            _take(query, rows_of, told)
    except KeyboardInterrupt:
        query.stop()
    _take(query, rows_of, told)
    return sum(rows_of.values()), len(rows_of)


def _take(query: StreamingQuery, rows_of: dict[int, int], told: Told | None) -> None:
    """Note the rows of the batches that are done, and tell how many are behind."""
    behind = 0
    for each in query.recentProgress:
        if each["numInputRows"]:
            rows_of[each["batchId"]] = each["numInputRows"]
        behind = sum(_behind(source) for source in each["sources"])
    if told is not None and rows_of:
        done = sum(rows_of.values())
        told(done, done + behind)


def _behind(source: Any) -> int:
    """Count the offsets between the end of the last batch and the end of the topics."""
    end, latest = source["endOffset"], source["latestOffset"]
    if not (isinstance(end, dict) and isinstance(latest, dict)):
        return 0
    return sum(
        offset - end.get(topic, {}).get(queue, offset) for topic, queues in latest.items() for queue, offset in
        queues.items()
    )  # fmt: skip


@contextmanager
def watched(session: SparkSession, told: Told | None) -> Iterator[None]:
    """Tell about the tasks of whatever runs inside; all of them are done when it ends well."""
    if told is None:
        yield
        return
    done = threading.Event()
    seen: dict[int, tuple[int, int]] = {}  # by stage: tasks that are done, all of them
    watcher = threading.Thread(
        target=_watch, args=(session.sparkContext.statusTracker(), told, seen, done), daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    # Stages come and go between two looks, and a query may leave tasks out: what is done is done.
    total = sum(tasks for _, tasks in seen.values()) or 1
    told(total, total)


def _watch(tracker: StatusTracker, told: Told, seen: dict[int, tuple[int, int]], done: threading.Event) -> None:
    while not done.wait(EVERY_S):
        running = (stage for stage, (completed, tasks) in seen.items() if completed < tasks)
        for stage in {*tracker.getActiveStageIds(), *running}:
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = info.numCompletedTasks, info.numTasks
        if seen:
            told(sum(completed for completed, _ in seen.values()), sum(tasks for _, tasks in seen.values()))
