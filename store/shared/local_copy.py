"""Compares the files of a local log with the shared log, before a store opens them, and cuts them where they differ.

All functions block.
"""

from typing import NamedTuple

from duolog.store.errors import Corruption
from duolog.store.files import Files
from duolog.store.log.format import BadUnit, check_unit
from duolog.store.log.segment import LOG_DIRECTORY, Segment, read_chain
from duolog.store.log.unit_walk import units_of_file
from duolog.store.recovery.checkpoint import CHECKPOINT_PATH, read_checkpoint, remove_checkpoint, snapshot_positions

REMEDY = "remove the data directory, and the start downloads the log again; what was not uploaded is lost"


class CannotCut(Corruption):
    """A local log has removed segments beyond the position at which it must be cut."""


class Surplus(NamedTuple):
    """The size of a local log beyond a position."""

    bytes_count: int
    units: int
    entries: int


def remove_log(files: Files) -> None:
    """Remove all segments, snapshots and the checkpoint of a data directory."""
    if CHECKPOINT_PATH in files.list("."):
        remove_checkpoint(files)
    for name in files.list(LOG_DIRECTORY):
        files.remove(f"{LOG_DIRECTORY}/{name}")
    if files.list("."):
        files.sync_directory(".")


class LocalCopy:
    """The segment files of one data directory, whose lock the caller holds or is about to take."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._chain, _ = read_chain(files.list(LOG_DIRECTORY))

    @property
    def is_empty(self) -> bool:
        return not self._chain

    def has(self, position: int, content: memoryview) -> bool:
        """Return whether the log has these bytes at this position.

        Segments that retention has removed count as equal, because they are only removed below a snapshot, and a
        snapshot is only written for positions that the store has.
        """
        end = position + len(content)
        if self._chain and position < self._chain[0].start:
            content, position = content[self._chain[0].start - position :], min(end, self._chain[0].start)
        for segment in self._chain:
            if segment.known_end <= position or position >= end:
                continue
            if segment.start > position:
                return False
            size = min(end, segment.known_end) - position
            if not segment.is_gap and self._read(segment, position, size) != content[:size]:
                return False
            content, position = content[size:], position + size
        return position == end

    def surplus(self, position: int) -> Surplus:
        """Return the numbers of bytes, units and entries of the log from a position on."""
        first, units, entries = position, 0, 0
        for segment in self._between(position, 1 << 62):
            handle = self._files.open(segment.path)
            try:
                end = segment.start + self._files.size(handle)
                for block, at, start in units_of_file(self._files, handle, segment.start, position, end):
                    header = check_unit(block, at, start)
                    position = start + header.size
                    units, entries = units + 1, entries + header.entry_count
            except BadUnit:
                break  # This is the end of the written units.
            finally:
                self._files.close(handle)
        return Surplus(position - first, units, entries)

    def cut(self, position: int) -> None:
        """Truncate the log at a position, and remove a later checkpoint. Raises CannotCut and OSError."""
        checkpoint = read_checkpoint(self._files)
        later = [found for found in snapshot_positions(self._files) if found > position]
        if later or any(segment.is_gap and segment.known_end > position for segment in self._chain):
            raise CannotCut(
                f"it was continued beyond position {position}, where it differs from the shared log, and segments "
                "before it were removed"
            )
        if checkpoint is not None and checkpoint.position > position:
            self._files.remove(CHECKPOINT_PATH)
            self._files.sync_directory(".")
        for segment in reversed(self._chain):
            # If all segments below the position were removed, one that begins there stays: a snapshot needs a segment.
            is_first = segment is self._chain[0]
            if segment.start > position or (segment.start == position and not is_first):
                self._files.remove(segment.path)
                self._files.sync_directory(LOG_DIRECTORY)
            else:
                self._truncate(segment, position - segment.start)
                break
        self._chain, _ = read_chain(self._files.list(LOG_DIRECTORY))

    def _truncate(self, segment: Segment, size: int) -> None:
        handle = self._files.open(segment.path)
        try:
            if self._files.size(handle) > size:
                self._files.truncate(handle, size)
                self._files.sync(handle)
        finally:
            self._files.close(handle)

    def _between(self, start: int, end: int) -> list[Segment]:
        return [each for each in self._chain if not each.is_gap and each.start < end and each.known_end > start]

    def _read(self, segment: Segment, position: int, size: int) -> bytes:
        handle = self._files.open(segment.path)
        try:
            return self._files.read(handle, size, position - segment.start)
        finally:
            self._files.close(handle)
