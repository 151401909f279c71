"""A streaming job ends after its present batch: the query is stopped once its checkpoint contains the batch.

Batches come from the test, the query is a fake that notes what was asked of it. Signals: tests/wire/test_pipeline.py.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.errors import PySparkException

from duolog.spark.progress import Batches, follow
from duolog.spark.stopping import Stop, Stopped

BATCH: Any = None


class Query:
    """Like Spark's: `awaitTermination` is where time passes, one step of `steps` a call."""

    def __init__(self, *steps: Any) -> None:
        self._steps = list(steps)
        self.recentProgress: list[dict[str, Any]] = []
        self.stops = 0

    def awaitTermination(self, _: float) -> bool:
        if self.stops:
            return True
        ended = self._steps.pop(0)()
        return bool(ended)

    def commit(self, batch_id: int, rows: int) -> None:
        self.recentProgress.append({"batchId": batch_id, "numInputRows": rows, "sources": []})

    def stop(self) -> None:
        self.stops += 1


def test_query_is_stopped_when_its_batch_is_committed() -> None:
    stop, taken = Stop(), list[int]()
    batches = Batches(lambda _, batch_id: taken.append(batch_id))

    def ask() -> None:
        batches(BATCH, 7)
        query.commit(7, 40)
        batches(BATCH, 8)
        stop.request(2)

    query: Any = Query(ask, lambda: None, lambda: query.commit(8, 30))
    assert follow(query, batches, stop) == (70, 2)
    assert (taken, query.stops, stop.exit_status, stop.reason) == ([7, 8], 1, 130, "stopped by SIGINT")


def test_batch_behind_the_stop_is_left_to_the_next_run() -> None:
    stop, taken = Stop(), list[int]()
    batches = Batches(lambda _, batch_id: taken.append(batch_id))

    def next_batch() -> None:
        with pytest.raises(Stopped):
            batches(BATCH, 1)
        raise PySparkException("the query failed, for its batch was turned away")

    query: Any = Query(lambda: batches(BATCH, 0) or query.commit(0, 5) or stop.request(15), next_batch)  # type: ignore[func-returns-value]
    assert follow(query, batches, stop) == (5, 1)
    assert taken == [0]


def test_failure_of_the_last_batch_is_raised() -> None:
    stop = Stop()

    def fail() -> None:
        raise PySparkException("the disk is full")

    query: Any = Query(lambda: stop.request(2), fail)
    with pytest.raises(PySparkException, match="the disk is full"):
        follow(query, Batches(lambda _, __: None), stop)


def test_close_waits_for_the_batch_that_is_taken() -> None:
    begun, may_end, order = threading.Event(), threading.Event(), list[str]()

    def append(_: Any, __: int) -> None:
        begun.set()
        assert may_end.wait(10)
        order.append("batch")

    def close() -> None:
        closing.set()
        batches.close()
        order.append("closed")

    batches, closing = Batches(append), threading.Event()
    threads = [threading.Thread(target=batches, args=(BATCH, 0)), threading.Thread(target=close)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    assert closing.wait(10)
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert order == ["batch", "closed"]
