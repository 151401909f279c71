"""Computes the log start of a queue from its retention limits: by age, by bytes, by records."""

from typing import NamedTuple

from duolog.store.index.queue import Queue

NO_LIMIT = -1


class RetentionLimits(NamedTuple):
    """How much of a queue is kept at least; a negative value is no limit.

    Only whole entries are removed, so somewhat more than the limit may be kept, never less.
    """

    keep_ms: int  # Age since the append, by the broker's clock.
    keep_bytes: int  # Bytes of frames.
    keep_records: int


def log_start_within(queue: Queue, limits: RetentionLimits, now_ms: int, *, block: bool) -> int | None:
    """Return the log start that the limits ask for, at least the present one and at most the visible end.

    None if the rows of the index are not in memory; with `block=True` the function waits for the disk instead.
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
        # Without the rows before `above` less than the limit would be left, so the row before it is kept.
        above = index.find_bytes_before(index.total_bytes - limits.keep_bytes + 1, block=block)
        found.append(None if above is None else max(index.first_row, above - 1))
    if 0 < limits.keep_records < queue.visible_end - queue.start_offset:
        found.append(index.find_offset(queue.visible_end - limits.keep_records, block=block))
    return found
