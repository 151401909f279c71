"""The class TailWriter and `append_run`: append units to the log of a data directory that no broker uses."""

from typing import Final

from duolog.store.entry import Buffer
from duolog.store.files import Files
from duolog.store.log.format import OPENED_FLAG, UNIT_HEADER_SIZE, seal_unit
from duolog.store.log.segment import LOG_DIRECTORY, Segment

SEGMENT_BYTES: Final = 256 << 20  # The size of a segment file after which units are written to the next one.


class TailWriter:
    """Appends units to a log that ends at `position`, in new segment files. The caller must sync the directory."""

    def __init__(self, files: Files, position: int) -> None:
        self._files, self._start, self._position = files, position, position
        self._handle: int | None = None

    def write(self, units: Buffer) -> None:
        """Append whole units. Blocks; raises OSError."""
        if not len(units):
            return
        if self._handle is not None and self._position - self._start >= SEGMENT_BYTES:
            self.close()
            self._start = self._position
        if self._handle is None:
            path = Segment(self._start).path
            is_there = path.rpartition("/")[2] in self._files.list(LOG_DIRECTORY)
            self._handle = self._files.open(path, create=not is_there)
        self._files.write(self._handle, [units], self._position - self._start)
        self._position += len(units)

    def close(self) -> None:
        """Sync and close the file. Blocks; raises OSError."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                self._files.sync(handle)
            finally:
                self._files.close(handle)


def append_run(files: Files, position: int, epoch: int, stored_ms: int) -> int:
    """Append the first unit of the run with this epoch to a log that ends at `position`; return its new end.

    `stored_ms` is the store time of the last unit. The run is empty, so the next start begins a leader epoch in all
    queues (`Store.is_last_run_empty`). Blocks; raises OSError.
    """
    unit = bytearray(UNIT_HEADER_SIZE)
    seal_unit(memoryview(unit), epoch, position, position, stored_ms, 0, OPENED_FLAG)
    tail = TailWriter(files, position)
    try:
        tail.write(unit)
    finally:
        tail.close()
    return position + len(unit)
