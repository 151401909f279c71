"""Proves the log start for retention limits against a plain list: neither too high nor too low."""

from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.store.entry import SYNCED
from duolog.store.index.index_files import IndexFiles
from duolog.store.index.queue import Queue
from duolog.store.index.queue_index import QueueIndex
from duolog.store.retention.log_start import NO_LIMIT, RetentionLimits, log_start_within
from tests.kit.disk import CrashDisk

FORM = 2


class Entry(NamedTuple):
    base_offset: int
    count: int
    size: int
    stored_ms: int


Shape = list[tuple[int, int, int]]  # (count, size, milliseconds since the entry before) of each entry

shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50), st.integers(0, 20)), max_size=30)
limit = st.just(NO_LIMIT) | st.just(0)
limits = st.builds(
    RetentionLimits, limit | st.integers(0, 400), limit | st.integers(0, 900), limit | st.integers(0, 80)
)


def entries_of(shape: Shape) -> list[Entry]:
    offsets = accumulate((count for count, _, _ in shape), initial=0)
    times = accumulate(gap for _, _, gap in shape)
    return [Entry(at, count, size, ms) for at, (count, size, _), ms in zip(offsets, shape, times, strict=False)]


def queue_of(entries: list[Entry], disk: CrashDisk, *, hidden: int = 0, start_offset: int = 0) -> Queue:
    """A queue of these entries, the last `hidden` of which are not visible."""
    index = QueueIndex(IndexFiles(disk), 1, 0)
    for number, entry in enumerate(entries):
        index.append(entry.base_offset, number * 100, entry.size, entry.count, -1, entry.stored_ms, 0, FORM)
    queue = Queue(1 << 16, index, level=SYNCED)
    queue.end_offset = index.end_offset
    seen = entries[: len(entries) - hidden]
    queue.visible_end = seen[-1].base_offset + seen[-1].count if seen else 0
    queue.move_start(start_offset)
    queue.bytes_below_start = queue.bytes_below_blocking(start_offset)
    return queue


def expected(entries: list[Entry], queue: Queue, limits: RetentionLimits, now_ms: int) -> int:
    """The greatest boundary between entries that no limit forbids; each limit alone may move the log start."""
    boundaries = [entry.base_offset for entry in entries] + [queue.end_offset]
    found = [queue.start_offset]
    if limits.keep_ms >= 0:
        young = [entry.base_offset for entry in entries if entry.stored_ms >= now_ms - limits.keep_ms]
        found.append(young[0] if young else queue.end_offset)
    if limits.keep_bytes >= 0:
        left = {at: sum(entry.size for entry in entries if entry.base_offset >= at) for at in boundaries}
        found.append(max((at for at in boundaries if left[at] >= limits.keep_bytes), default=0))
    if limits.keep_records >= 0:
        found.append(max((at for at in boundaries if queue.visible_end - at >= limits.keep_records), default=0))
    return min(max(found), queue.visible_end)


@given(shapes, limits, st.integers(0, 300), st.integers(0, 3), st.data())
def test_log_start_is_the_greatest_that_the_limits_allow(
    shape: Shape, limits: RetentionLimits, now_ms: int, hidden: int, data: st.DataObject
) -> None:
    entries = entries_of(shape)
    queue = queue_of(entries, CrashDisk(), hidden=min(hidden, len(entries)))
    queue.move_start(data.draw(st.integers(0, queue.visible_end), label="start_offset"))
    queue.bytes_below_start = queue.bytes_below_blocking(queue.start_offset)
    found = log_start_within(queue, limits, now_ms, block=True)
    assert found == expected(entries, queue, limits, now_ms)
    assert found is not None
    assert queue.start_offset <= found <= queue.visible_end


@pytest.mark.parametrize(
    ("limits", "now_ms", "log_start"),
    [
        ((NO_LIMIT, NO_LIMIT, NO_LIMIT), 1 << 40, 0),  # Without limits everything is kept.
        ((10, NO_LIMIT, NO_LIMIT), 40, 6),  # An entry exactly as old as the limit is kept.
        ((10, NO_LIMIT, NO_LIMIT), 41, 8),
        ((0, NO_LIMIT, NO_LIMIT), 41, 8),  # Everything is older than now.
        ((NO_LIMIT, 200, NO_LIMIT), 0, 4),  # Exactly the limit is left.
        ((NO_LIMIT, 199, NO_LIMIT), 0, 4),  # A whole entry is kept rather than less than the limit.
        ((NO_LIMIT, 201, NO_LIMIT), 0, 2),
        ((NO_LIMIT, NO_LIMIT, 3), 0, 4),  # The entry that covers the limit is kept whole.
        ((NO_LIMIT, NO_LIMIT, 0), 0, 8),
        ((NO_LIMIT, 300, 2), 0, 6),  # The limit that removes most decides.
    ],
)
def test_limits_at_their_edges(limits: tuple[int, int, int], now_ms: int, log_start: int) -> None:
    queue = queue_of(entries_of([(2, 100, 0), (2, 100, 10), (2, 100, 10), (2, 100, 10)]), CrashDisk())
    assert log_start_within(queue, RetentionLimits(*limits), now_ms, block=True) == log_start


def test_log_start_is_not_known_while_the_index_is_not_in_memory() -> None:
    disk = CrashDisk()
    queue = queue_of(entries_of([(1, 100, 10)] * 2000), disk)
    queue.index.flush()
    queue.index.flush()  # An idle queue keeps no rows in memory.
    disk.cached = False
    limits = RetentionLimits(10_000, NO_LIMIT, NO_LIMIT)
    assert log_start_within(queue, limits, 20_000, block=False) is None
    assert log_start_within(queue, limits, 20_000, block=True) == 999
