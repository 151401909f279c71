"""Verifies the files of a log without opening a Store: which units are whole, and where data is damaged or missing.

`scan_segment` reads a segment file unit by unit. After bytes that are no valid unit it searches for the next one: an
aligned magic, whose header has the position at which it stands, and whose CRC is valid. So the segment is divided into
units and *bad ranges*.

A bad range is damage if the log was durable beyond its start, according to a later unit, the checkpoint or a snapshot.
Otherwise it begins the torn end, which the next start of a broker truncates. Recovery applies the same rule
(`store/recovery/recovery.py`), but reads only the log above the checkpoint.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from duolog.store.entry import STATE_FORM
from duolog.store.errors import Corruption
from duolog.store.files import ReadableFiles
from duolog.store.log.format import ALIGNMENT, BadUnit, check_unit
from duolog.store.log.segment import LOG_DIRECTORY, Segment, is_complete, read_chain
from duolog.store.log.unit_walk import BLOCK_BYTES, Unit, search_units, size_without_zeros, units_of_file
from duolog.store.recovery.checkpoint import NO_SNAPSHOT, Checkpoint, read_checkpoint, read_snapshot


class BadRange(NamedTuple):
    """The positions from `start` to `end` contain no valid unit."""

    path: str  # The path of the segment file that has these positions, or should have them.
    start: int
    end: int
    reason: str


# -- One segment


def scan_segment(files: ReadableFiles, segment: Segment, end: int) -> Iterator[Unit | BadRange]:
    """Yield the units and the bad ranges of a segment, up to position `end`.

    If the file is shorter than `end`, the last bad range ends at `end`. Raises OSError.
    """
    handle = files.open(segment.path)
    try:
        first = position = segment.start
        file_end = min(end, first + files.size(handle))
        while position < end:
            reason = f"the file ends at position {file_end}"
            try:
                for block, at, start in units_of_file(files, handle, first, position, file_end):
                    header = check_unit(block, at, start)
                    yield Unit(header, block[at : at + header.size])
                    position = start + header.size
            except BadUnit as error:
                reason = str(error)
            if position < end:
                after = _next_unit(files, handle, first, position + ALIGNMENT, file_end)
                after = end if after >= file_end else after
                yield BadRange(segment.path, position, after, reason)
                position = after
    finally:
        files.close(handle)


def _next_unit(files: ReadableFiles, handle: int, first: int, position: int, end: int) -> int:
    """Return the position of the first valid unit at or above `position`; `end` if there is none."""
    for start in range(position, end, BLOCK_BYTES):
        block = files.read(handle, min(BLOCK_BYTES, end - start), start - first)
        for header in search_units(files, handle, first, block, start, end):
            return header.position
    return end


# -- The whole log


@dataclass(slots=True)
class LogReport:
    """What a verification has found."""

    segments: int = 0
    units: int = 0
    entries: int = 0
    read_bytes: int = 0
    end: int = 0  # The position after the last unit that the next start keeps, damage below it included.
    epoch: int = 0  # The epoch of the last unit.
    stored_ms: int = 0  # The store time of the last unit.
    torn_bytes: int = 0  # Bytes from `end` to the last byte that is not zero; the next start truncates them.
    damage: list[BadRange] = field(default_factory=list)
    missing_state: str = ""  # Why the state in segments that were removed is lost; empty if it is not.
    checkpoint_position: int = -1  # -1: there is no valid checkpoint, and a start reads the whole log.

    @property
    def is_intact(self) -> bool:
        return not self.damage and not self.missing_state


class Verification:
    """Reads and verifies the log of one data directory.

    With `is_served`, a broker is using the directory: only sealed segments are read, and a segment that retention
    removes meanwhile is left out. Otherwise the caller must hold the lock of the directory. `expected_end` is the end
    of a copy, up to which the log must be whole. Segments that only the object store has are left out, and counted in
    `remote_count`. `note_state` gets the state records of the newest checkpoint, and those above it, in their order.
    """

    def __init__(
        self,
        files: ReadableFiles,
        *,
        is_served: bool,
        expected_end: int = 0,
        note_state: Callable[[bytes], None] | None = None,
    ) -> None:
        self._files, self._is_served = files, is_served
        chain, _ = read_chain(files.list(LOG_DIRECTORY))
        read = chain[:-1] if is_served else chain
        self.segments = [each for each in read if not each.is_gap and not each.is_remote]
        self.remote_count = sum(each.is_remote for each in read)
        self.checkpoint = read_checkpoint(files)
        self._snapshot, self._snapshot_damage = _read_snapshot(files)
        self._is_complete = is_complete(chain)
        found = self.state
        # The log was durable up to this position, according to what was read so far.
        self.proven = max(expected_end, 0 if found is None or is_served else found.position)
        self._report = LogReport(checkpoint_position=-1 if self.checkpoint is None else self.checkpoint.position)
        self._bad: list[BadRange] = []
        self._note_state = note_state
        if found is not None and note_state is not None:
            for payload in found.records:
                note_state(payload)
        self._state_from = 0 if found is None else found.position

    @property
    def state(self) -> Checkpoint | None:
        """The state of the newest checkpoint or, without one, of the newest snapshot."""
        return self.checkpoint or self._snapshot

    @property
    def total_bytes(self) -> int:
        """The number of bytes that `run` will read, reserved blocks included."""
        return sum(self._file_size(segment) for segment in self.segments)

    def run(self, note_bytes: Callable[[int], None] = lambda _: None) -> LogReport:
        """Read the log. `note_bytes` is called with the number of bytes that were read since the last call."""
        report = self._report
        for segment in self.segments:
            size = self._file_size(segment)
            noted = 0
            try:
                for found in scan_segment(self._files, segment, self.end_of(segment)):
                    noted += self._take(found, noted, size, note_bytes)
            except FileNotFoundError:
                if not self._is_served:
                    raise
                continue
            report.segments += 1
            report.read_bytes += size
            note_bytes(max(0, size - noted))
        self._judge()
        return report

    def end_of(self, segment: Segment) -> int:
        """Return the position up to which the segment should have units, as far as it is known."""
        if segment.end is not None:
            return segment.end
        return max(segment.start + self._file_size(segment), self.proven)

    def _take(self, found: Unit | BadRange, noted: int, size: int, note_bytes: Callable[[int], None]) -> int:
        if isinstance(found, BadRange):
            self._bad.append(found)
            count = min(found.end - found.start, size - noted)
        else:
            header = found.header
            self._report.units += 1
            self._report.entries += header.entry_count
            self._report.end = header.position + header.size
            self._report.epoch, self._report.stored_ms = header.epoch, header.stored_ms
            self.proven = max(self.proven, header.durable)
            count = header.size
            if self._note_state is not None and header.position >= self._state_from:
                for entry in found.entries():
                    if entry.form == STATE_FORM:
                        self._note_state(bytes(entry.frame))
        if count:
            note_bytes(count)
        return count

    def _judge(self) -> None:
        """Divide the bad ranges into damage and the torn end."""
        report = self._report
        for bad in self._bad:
            if self._is_served or bad.start < self.proven:
                # Units that were written after the last proof may follow; nothing shows that bytes did.
                is_last = bad is self._bad[-1] and bad.start >= report.end
                report.damage.append(bad._replace(end=self.proven) if is_last and not self._is_served else bad)
                report.end = max(report.end, report.damage[-1].end)
        torn = next((bad for bad in self._bad if bad.start >= self.proven and not self._is_served), None)
        if torn is not None:
            report.end = torn.start
            report.torn_bytes = self.last_byte_from(torn.start) - torn.start
        if not self._is_complete and self._snapshot is None:
            report.missing_state = self._snapshot_damage or NO_SNAPSHOT

    def last_byte_from(self, position: int) -> int:
        """Return the position after the last byte of the log that is not zero; at least `position`."""
        last = position
        for segment in self.segments:
            if segment.end is not None and segment.end <= position:
                continue
            handle = self._files.open(segment.path)
            try:
                size = self._files.size(handle)
                for at in range(max(0, position - segment.start), size, BLOCK_BYTES):
                    block = self._files.read(handle, min(BLOCK_BYTES, size - at), at)
                    if written := size_without_zeros(block):
                        last = segment.start + at + written
            finally:
                self._files.close(handle)
        return last

    def _file_size(self, segment: Segment) -> int:
        try:
            handle = self._files.open(segment.path)
        except FileNotFoundError:
            return 0
        try:
            return self._files.size(handle)
        finally:
            self._files.close(handle)


def _read_snapshot(files: ReadableFiles) -> tuple[Checkpoint | None, str]:
    """Return the newest whole snapshot, or None and why there is none that is whole; "" if there is none at all."""
    try:
        return read_snapshot(files), ""
    except Corruption as error:
        return None, str(error)
