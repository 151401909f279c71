"""The class LogReader: reads segment files in another process than the broker's, without opening a Store.

    with LogReader("/var/lib/duolog") as reader:
        for unit in reader.units(LogRange("log/00000000000000000000.log", first=0, start=0, end=1 << 26)):
            for entry in unit.entries(): ...

A LogReader takes no lock and writes nothing. It may only read units below the position up to which the broker has
written the log, and the caller must hold a lease, so that retention does not remove the segment.

Each unit is verified by its CRC and its position. A read may therefore begin anywhere in a segment: it searches for the
first unit from there. A unit belongs to the range that contains its first byte, so the ranges [a, b) and [b, c)
together return each unit of [a, c) once.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

from duolog.store.errors import Corruption, StoreError
from duolog.store.files import ReadableFiles, ReadOnlyFiles
from duolog.store.log.format import ALIGNMENT, UNIT_HEADER_SIZE, BadUnit, check_unit, unit_size
from duolog.store.log.unit_walk import BLOCK_BYTES, Unit, read_unit, search_units


class LogRange(NamedTuple):
    """The units of a file that begin in the positions [start, end). `first` is the position of its first byte."""

    path: str
    first: int
    start: int
    end: int


class LogReader:
    """Reads the segment files of one data directory; at most one file is open at a time."""

    def __init__(self, directory: str, files: ReadableFiles | None = None) -> None:
        """`files` are those of the directory, if they are not read from the disk."""
        self._directory, self._files = directory, files or ReadOnlyFiles(directory)
        self._file: int | None = None

    def units(self, range_: LogRange) -> Iterator[Unit]:
        """Yield the units of a range, whose path is that of a segment file below the data directory.

        Raises StoreError if the file does not exist, and Corruption if a unit is not followed by a valid unit.
        """
        path, first, start, end = range_
        file = self._open(path)
        at = start if start == first else self._find_unit(file, first, start, end)
        while at < end:
            size = max(UNIT_HEADER_SIZE, min(BLOCK_BYTES, end - at))
            block = memoryview(self._files.read(file, size, at - first))
            taken = 0
            for unit in _whole_units(block, at, end, path):
                taken += unit.header.size
                yield unit
            if not taken:
                # The next unit is larger than the block.
                unit = self._read_one(file, path, first, at)
                taken = unit.header.size
                yield unit
            at += taken

    def _find_unit(self, file: int, first: int, start: int, end: int) -> int:
        """Return the position of the first unit that begins in [start, end); `end` if there is none."""
        file_end = first + self._files.size(file)
        for at in range(start + -(start - first) % ALIGNMENT, end, BLOCK_BYTES):
            block = self._files.read(file, min(BLOCK_BYTES, end - at) + UNIT_HEADER_SIZE, at - first)
            for header in search_units(self._files, file, first, block, at, file_end):
                return min(header.position, end)
        return end

    def _read_one(self, file: int, path: str, first: int, at: int) -> Unit:
        try:
            return read_unit(self._files, file, first, at, first + self._files.size(file))
        except BadUnit as reason:
            raise Corruption(f"{path} has no valid unit at position {at}: {reason}") from None

    # -- The file

    def _open(self, path: str) -> int:
        self.close()
        try:
            self._file = self._files.open(path)
        except FileNotFoundError:
            raise StoreError(
                f"{self._directory}/{path} does not exist; retention may have removed it because no lease held it, "
                "or only the object store has it, from which Spark reads with the option shared"
            ) from None
        return self._file

    def close(self) -> None:
        """Close the open file, if any."""
        if self._file is not None:
            self._files.close(self._file)
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
