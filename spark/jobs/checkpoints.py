"""Reads the checkpoint of a Spark streaming query: the id of the query and the offsets that it has finished.

    metadata             {"id": "..."}
    sources/0/0          the offsets at which the query began
    offsets/<batch>      the offsets at which a batch ends; written before the batch runs
    commits/<batch>      written after the batch has finished

The last line of a file with offsets is JSON: {"topic": {"queue": offset}}.
Source: Spark's `OffsetSeqLog.scala`, `KafkaSourceInitialOffsetWriter.scala`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from duolog.spark.files import TableFiles

Offsets = dict[tuple[str, int], int]  # (topic, queue) -> offset


class Progress(NamedTuple):
    """The ranges that a query has finished: from `starts` up to, not including, `ends`."""

    starts: Offsets
    ends: Offsets


def query_of(checkpoint: TableFiles) -> str:
    """Return the id of the query."""
    text = checkpoint.read_text("metadata")
    assert text is not None, "the checkpoint of a running query has no metadata"
    return str(json.loads(text)["id"])


def progress_of(checkpoint: TableFiles) -> Progress | None:
    """Return the ranges of offsets that the query has finished; None if it has finished no batch."""
    batches = [int(name) for name in (file.path.rpartition("/")[2] for file in checkpoint.list("commits")) if
               name.isdecimal()]  # fmt: skip
    if not batches:
        return None
    ends = _offsets(checkpoint.read_text(f"offsets/{max(batches)}"))
    starts = _offsets(checkpoint.read_text("sources/0/0"))
    # A queue that was added later is read from offset 0.
    return Progress({queue: starts.get(queue, 0) for queue in ends}, ends)


def _offsets(text: str | None) -> Offsets:
    assert text is not None, "the checkpoint lacks the offsets of a finished batch"
    topics = json.loads(text.strip().splitlines()[-1])
    return {(topic, int(queue)): offset for topic, queues in topics.items() for queue, offset in queues.items()}
