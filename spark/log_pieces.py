"""Which parts of the log the tasks of the source "duolog-log" read: of the broker's files, or of objects in a store.

The broker plans in both cases: offsets, aborted transactions, and the segments with messages of the topics. Without the
option `shared`, tasks read its files. With it, the positions of these segments are looked up in the object store
(`store/shared/reading.py`). What the broker has not uploaded yet is waited for, so both reads have the same messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from duolog.store.log.log_reader import LogRange
from duolog.store.objects.opening import open_objects
from duolog.store.objects.options import ObjectStoreOptions
from duolog.store.shared.reading import Positions, SharedLogReader, find_ranges

WAIT_MS: Final = 30_000  # For what the broker has not uploaded yet.


class Piece(InputPartition):
    """The input of one task: the units of some ranges of segment files or objects."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(None)
        self.ranges = ranges


def pieces(ranges: Sequence[LogRange], split_bytes: int) -> Iterator[Piece]:
    """Cut ranges into parts of at most `split_bytes`; small ones that follow each other are one piece."""
    together: list[LogRange] = []
    size = 0
    for path, first, start, end in ranges:
        for at in range(start, end, split_bytes):
            part = LogRange(path, first, at, min(at + split_bytes, end))
            if together and size + part.end - part.start > split_bytes:
                yield Piece(together)
                together, size = [], 0
            together.append(part)
            size += part.end - part.start
    if together:
        yield Piece(together)


def file_ranges(segments: Sequence[Mapping[str, Any]]) -> Sequence[LogRange]:
    """Return the ranges of the files that have the segments of a lease."""
    return [LogRange(each["path"], each["start"], each["start"], each["end"]) for each in segments]


def shared_ranges(
    options: ObjectStoreOptions, stream: str, segments: Sequence[Mapping[str, Any]]
) -> Sequence[LogRange]:
    """Return the ranges of objects that have the segments of a lease. Raises ValueError, StoreError."""
    if not stream:
        raise ValueError("duolog-log: the broker has no shared log (--shared): leave out the option shared")
    wanted = [Positions(each["start"], each["end"]) for each in segments]
    return asyncio.run(find_ranges(open_objects(options), options.url, bytes.fromhex(stream), wanted, WAIT_MS))


def shared_reader(options: ObjectStoreOptions) -> SharedLogReader:
    """Return a reader of these ranges."""
    return SharedLogReader(open_objects(options), options.url)
