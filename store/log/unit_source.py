"""The class UnitSource: the units of an owner's log that are to be uploaded, from memory or from segment files."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.store.entry import Buffer
from duolog.store.errors import Corruption
from duolog.store.files import Files
from duolog.store.log.commitlog import CommitLog
from duolog.store.log.format import BadUnit, check_unit
from duolog.store.log.segment import Segment
from duolog.store.log.unit_walk import units_of_file
from duolog.store.workers import Executors, Failure

# A thread computes the checksum of a larger payload, because the loop would need more than 0.1 ms for it. The checksum
# of 1 GB that is in no cache of the processor takes 0.1 s, and the extension module releases Python's lock meanwhile.
LOOP_CHECKSUM_BYTES: Final = 1 << 20


class Cut(NamedTuple):
    """Whole units from a position up to `end`."""

    end: int
    payload: Sequence[Buffer]
    crc: int  # CRC-32C of the payload.

    @classmethod
    def of(cls, end: int, payload: Sequence[Buffer]) -> "Cut":
        return cls(end, payload, checksum(payload))


def checksum(payload: Sequence[Buffer]) -> int:
    """Return the CRC-32C of all parts."""
    crc = 0
    for part in payload:
        crc = crc32c(part, crc)
    return crc


class UnitSource:
    """Reads written units of one log."""

    def __init__(self, log: CommitLog, files: Files, executors: Executors) -> None:
        self._log, self._files, self._executors = log, files, executors

    def cut(self, first: int, end: int, bytes_max: int, done: Callable[[Cut | Failure], None]) -> Cut | None:
        """Return units from `first` on, up to at most `end`; or None, and call `done` with them later.

        They have at most `bytes_max` bytes, unless the first chunk has more. `first` and `end` must be ends of units.
        A thread does what takes long: it reads units that the write buffer no longer holds from the segment files, and
        computes the checksum of many units. Another call may come after `done` only.
        """
        if first < self._log.write_buffer.floor:
            segment = self._log.segments.find(first)
            self._executors.uploads.submit(
                partial(self._read, segment, first, min(end, segment.known_end), bytes_max), done
            )
            return None
        # The ends of chunks are ends of units.
        payload: list[Buffer] = []
        size = 0
        for part in self._log.write_buffer.slices(first, end):
            if payload and size + len(part) > bytes_max:
                break
            payload.append(part)
            size += len(part)
        if size <= LOOP_CHECKSUM_BYTES:
            return Cut.of(first + size, payload)
        self._executors.uploads.submit(partial(Cut.of, first + size, payload), done)
        return None

    def keep_from(self, position: int, bytes_max: int) -> None:
        """Keep the units from `position` on, which is written, in memory (`WriteBuffer.keep_from`)."""
        self._log.write_buffer.keep_from(position, bytes_max)

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
        """Read and verify whole units of one segment. Blocks; raises OSError and Corruption."""
        handle = self._files.open(segment.path)
        payload: list[Buffer] = []  # One part of each block that was read.
        position, last, begin = first, None, 0
        try:
            for block, at, start in units_of_file(self._files, handle, segment.start, first, end):
                size = check_unit(block, at, start).size
                if position > first and start + size - first > bytes_max:
                    break
                if block is last:
                    payload.pop()
                else:
                    last, begin = block, at
                payload.append(block[begin : at + size])
                position = start + size
        except BadUnit as error:
            raise Corruption(f"{segment.path} is damaged at position {position}: {error}") from None
        finally:
            self._files.close(handle)
        return Cut.of(position, payload)
