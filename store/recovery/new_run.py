"""Appends the first unit of a run to the log of a data directory that no broker uses.

The run is empty, so the next start begins a leader epoch in all queues (`Store.is_last_run_empty`).
"""

from duolog.store.files import Files
from duolog.store.log.format import OPENED_FLAG, UNIT_HEADER_SIZE, seal_unit
from duolog.store.log.segment import LOG_DIRECTORY, Segment


def append_run(files: Files, position: int, epoch: int, stored_ms: int) -> int:
    """Append the first unit of the run with this epoch, durably, to a log that ends at `position`.

    `stored_ms` is the store time of the last unit. Return the new end of the log. Blocks; raises OSError.
    """
    unit = bytearray(UNIT_HEADER_SIZE)
    seal_unit(memoryview(unit), epoch, position, position, stored_ms, 0, OPENED_FLAG)
    path = Segment(position).path
    is_there = path.rpartition("/")[2] in files.list(LOG_DIRECTORY)  # A segment that has no unit yet.
    handle = files.open(path, create=not is_there)
    try:
        files.write(handle, [unit], 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.sync_directory(LOG_DIRECTORY)
    return position + len(unit)
