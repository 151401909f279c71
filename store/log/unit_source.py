"""The class UnitSource: the units of an owner's log that are to be uploaded, from memory or from segment files."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from duolog.store.entry import Buffer
from duolog.store.files import Files
from duolog.store.log.commitlog import CommitLog
from duolog.store.log.segment import Segment
from duolog.store.log.unit_walk import units_of_file
from duolog.store.workers import Executors, Failure


class Cut(NamedTuple):
    """Whole units from a position up to `end`."""

    end: int
    payload: list[Buffer]


class UnitSource:
    """Reads written units of one log."""

    def __init__(self, log: CommitLog, files: Files, executors: Executors) -> None:
        self._log, self._files, self._executors = log, files, executors

    def in_memory(self, first: int, end: int, bytes_max: int) -> Cut | None:
        """Return units from `first` on, up to at most `end`; None if the write buffer no longer holds them.

        They have at most `bytes_max` bytes, unless the first chunk has more. `first` and `end` must be ends of units.
        """
        if first < self._log.write_buffer.floor:
            return None
        # The ends of chunks are ends of units.
        payload: list[Buffer] = []
        size = 0
        for part in self._log.write_buffer.slices(first, end):
            if payload and size + len(part) > bytes_max:
                break
            payload.append(part)
            size += len(part)
        return Cut(first + size, payload)

    def read(self, first: int, end: int, bytes_max: int, done: Callable[[Cut | Failure], None]) -> None:
        """Read the same from the segment files in a thread, and call `done` with it."""
        segment = self._log.segments.find(first)
        self._executors.readers.submit(
            partial(self._read, segment, first, min(end, segment.known_end), bytes_max), done
        )

    def read_range(self, first: int, end: int) -> bytes:
        """Return the written bytes between two positions from the segment files. Blocks; raises OSError.

        The result is shorter if a segment was removed.
        """
        parts: list[bytes] = []
        for segment in self._log.segments.between(first, end):
            if segment.is_gap:
                break
            start, limit = max(first, segment.start), min(end, segment.known_end)
            handle = self._files.open(segment.path)
            try:
                parts.append(self._files.read(handle, limit - start, start - segment.start))
            finally:
                self._files.close(handle)
        return b"".join(parts)

    def _read(self, segment: Segment, first: int, end: int, bytes_max: int) -> Cut:
        """Read whole units of one segment. Blocks; raises OSError and BadUnit."""
        handle = self._files.open(segment.path)
        try:
            payload: list[Buffer] = []  # One part of each block that was read.
            position, last, begin = first, None, 0
            for block, at, start in units_of_file(self._files, handle, segment.start, first, end):
                size = int.from_bytes(block[at + 8 : at + 12], "big")
                if position > first and start + size - first > bytes_max:
                    break
                if block is last:
                    payload.pop()
                else:
                    last, begin = block, at
                payload.append(block[begin : at + size])
                position = start + size
            return Cut(position, payload)
        finally:
            self._files.close(handle)
