"""Computes the log start of a queue from its retention limits by age, by bytes and by number of records."""

from typing import NamedTuple

from duolog.store.index.queue import Queue

NO_LIMIT = -1


class RetentionLimits(NamedTuple):
    """The retention limits of a queue; a negative value means that there is no limit.

    Records beyond any of the limits are removed. Only whole entries are removed, so somewhat more records than a limit
    allows may remain, but never fewer.
    """

    keep_ms: int  # The age of an entry in milliseconds, by its store time.
    keep_bytes: int  # The number of bytes in frames.
    keep_records: int  # The number of records.


def log_start_within(queue: Queue, limits: RetentionLimits, now_ms: int, *, block: bool) -> int | None:
    """Return the log start according to the limits, at least the present log start and at most the visible end.

    Returns None if index rows would have to be read from the disk; with `block=True` the function reads them.
    """
    index = queue.index
    start_offset = queue.start_offset
    for number in _first_rows_kept(queue, limits, now_ms, block=block):
        if number is None:
            return None
        if number == index.end_row:
            start_offset = queue.visible_end
            continue
        rows = index.rows(number, block=block)
        if rows is None:
            return None
        if rows:
            start_offset = max(start_offset, rows[0][0])
    return min(start_offset, queue.visible_end)


def _first_rows_kept(queue: Queue, limits: RetentionLimits, now_ms: int, *, block: bool) -> list[int | None]:
    index = queue.index
    found: list[int | None] = []
    if limits.keep_ms >= 0:
        found.append(index.find_stored(now_ms - limits.keep_ms, block=block))
    if limits.keep_bytes == 0 or limits.keep_records == 0:
        found.append(index.end_row)
    if 0 < limits.keep_bytes < queue.size_bytes:
        # `above` is the first row such that fewer than `keep_bytes` bytes remain from it on. So the row before it is
        # the first one to remain.
        above = index.find_bytes_before(index.total_bytes - limits.keep_bytes + 1, block=block)
        found.append(None if above is None else max(index.first_row, above - 1))
    if 0 < limits.keep_records < queue.visible_end - queue.start_offset:
        found.append(index.find_offset(queue.visible_end - limits.keep_records, block=block))
    return found
