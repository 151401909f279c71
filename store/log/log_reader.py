"""The class LogReader: reads segment files in another process than the broker's, without opening a Store.

    with LogReader("/var/lib/duolog") as reader:
        for unit in reader.units("log/00000000000000000000.log", first=0, start=0, end=1 << 26):
            for entry in unit.entries(): ...

A LogReader takes no lock and writes nothing. It may only read units below the position up to which the broker has
written the log, and the caller must hold a lease, so that retention does not remove the segment.

Each unit is verified by its CRC and its position. A read may therefore begin anywhere in a segment: it searches for the
first unit from there. A unit belongs to the range that contains its first byte, so the ranges [a, b) and [b, c)
together return each unit of [a, c) once.
"""

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple, Self

from duolog.store.errors import Corruption, StoreError
from duolog.store.log.format import (
    ALIGNMENT,
    MAGIC_BYTES,
    UNIT_HEADER_SIZE,
    BadUnit,
    Entry,
    UnitHeader,
    check_unit,
    entries_of,
    unit_size,
)

BLOCK_BYTES: Final = 4 << 20  # Size of one read, unless a single unit is larger.


class Unit(NamedTuple):
    """One unit of the log. `content` is the whole unit, header included."""

    header: UnitHeader
    content: memoryview

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of the unit, whose frames are slices of `content`."""
        return entries_of(self.content, self.header.position, self.header.entry_count)


class LogReader:
    """Reads the segment files of one data directory; at most one file is open at a time."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = ""
        self._file: int | None = None

    def units(self, path: str, first: int, start: int, end: int) -> Iterator[Unit]:
        """Yield the units that begin in the positions [start, end) of a segment.

        `path` is the path of the segment file below the data directory, `first` the position of its first byte. Raises
        StoreError if the file does not exist, and Corruption if a unit is not followed by a valid unit.
        """
        self._open(path)
        at = start if start == first else self._find_unit(first, start, end)
        while at < end:
            block = memoryview(self._read(at - first, max(UNIT_HEADER_SIZE, min(BLOCK_BYTES, end - at))))
            taken = 0
            for unit in _whole_units(block, at, end, path):
                taken += unit.header.size
                yield unit
            if not taken:
                # The next unit is larger than the block.
                unit = self._read_one(first, at, block)
                taken = unit.header.size
                yield unit
            at += taken

    def _find_unit(self, first: int, start: int, end: int) -> int:
        """Return the position of the first unit that begins in [start, end); `end` if there is none."""
        at = start + -(start - first) % ALIGNMENT
        while at < end:
            block = self._read(at - first, min(BLOCK_BYTES, end - at) + UNIT_HEADER_SIZE)
            found = block.find(MAGIC_BYTES)
            while found >= 0 and at + found < end:
                if found % ALIGNMENT == 0 and self._is_unit(first, at + found):
                    return at + found
                found = block.find(MAGIC_BYTES, found + 1)
            at += BLOCK_BYTES
        return end

    def _is_unit(self, first: int, at: int) -> bool:
        """Return whether a valid unit begins at position `at`. The magic may also be found in the body of a message."""
        try:
            self._read_one(first, at, memoryview(self._read(at - first, UNIT_HEADER_SIZE)))
        except Corruption:
            return False
        return True

    def _read_one(self, first: int, at: int, begun: memoryview) -> Unit:
        try:
            size = unit_size(begun, 0)
            block = memoryview(self._read(at - first, size))
            return Unit(check_unit(block, 0, at), block[:size])
        except BadUnit as reason:
            raise Corruption(f"{self._path} has no valid unit at position {at}: {reason}") from None

    # -- The file

    def _open(self, path: str) -> None:
        self.close()
        try:
            self._file = os.open(f"{self._directory}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StoreError(
                f"{self._directory}/{path} does not exist; retention may have removed it because no lease held it"
            ) from None
        self._path = path

    def _read(self, at: int, size: int) -> bytes:
        assert self._file is not None, "no segment is open"
        parts = []
        while size > 0 and (found := os.pread(self._file, size, at)):
            parts.append(found)
            at, size = at + len(found), size - len(found)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the open file, if any."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _whole_units(block: memoryview, at: int, end: int, path: str) -> Iterator[Unit]:
    """Yield the whole units of a block that begin below `end`. `at` is the position of the block's first byte."""
    place = 0
    while at + place < end and len(block) - place >= UNIT_HEADER_SIZE:
        try:
            size = unit_size(block, place)
            if size > len(block) - place:
                return
            header = check_unit(block, place, at + place)
        except BadUnit as reason:
            raise Corruption(f"{path} has no valid unit at position {at + place}: {reason}") from None
        yield Unit(header, block[place : place + size])
        place += size
