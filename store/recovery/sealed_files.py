"""Checks files that never change again, piece by piece, while a store is open: sealed segments and full index files.

    segment       the CRC of each unit
    index file    that rows are in order and that their entries have the sizes they say; rows have no checksum

Each generator yields after every piece, so that a caller decides how fast files are read. A file that retention removes
meanwhile ends its check. Everything blocks, and is called by a worker.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from duolog.store.files import ReadableFiles
from duolog.store.index.index_files import INDEX_DIRECTORY, ROW_SIZE, ROWS_PER_FILE
from duolog.store.index.rows import ROW
from duolog.store.log.segment import Segment
from duolog.store.recovery.damage import BadRange, scan_segment

ROWS_AT_ONCE: Final = 1024


class CheckedPiece(NamedTuple):
    """A part of a file that was read. `damage` says where and how it is damaged; empty: it is not."""

    size: int
    damage: str = ""


def check_segment(files: ReadableFiles, start: int, end: int) -> Iterator[CheckedPiece]:
    """Check the units of a sealed segment with these positions. Raises OSError."""
    segment = Segment(start, end)
    try:
        for found in scan_segment(files, segment, end):
            if isinstance(found, BadRange):
                place = f"{found.path} positions {found.start}..{found.end}"
                yield CheckedPiece(found.end - found.start, f"{place}: {found.reason}")
            else:
                yield CheckedPiece(found.header.size)
    except FileNotFoundError:
        return


def full_index_files(files: ReadableFiles) -> Iterator[str]:
    """Yield the paths of the index files to which no row is added any more: all but the last one of each queue."""
    for topic in files.list(INDEX_DIRECTORY):
        for queue in files.list(f"{INDEX_DIRECTORY}/{topic}"):
            directory = f"{INDEX_DIRECTORY}/{topic}/{queue}"
            yield from (f"{directory}/{name}" for name in sorted(files.list(directory))[:-1])


def check_index_file(files: ReadableFiles, path: str) -> Iterator[CheckedPiece]:
    """Check the rows of an index file. Raises OSError."""
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return
    try:
        size = files.size(handle)
        if size < ROWS_PER_FILE * ROW_SIZE:
            yield CheckedPiece(0, f"{path}: {size} bytes, and a full file has {ROWS_PER_FILE * ROW_SIZE}")
        before: tuple[int, ...] | None = None
        for at in range(0, size - size % ROW_SIZE, ROWS_AT_ONCE * ROW_SIZE):
            rows = files.read(handle, min(ROWS_AT_ONCE * ROW_SIZE, size - size % ROW_SIZE - at), at)
            damage = ""
            for number, row in enumerate(ROW.iter_unpack(rows), at // ROW_SIZE):
                if before is not None and not _follows(row, before):
                    damage = damage or f"{path}: row {number} does not follow the row before it"
                before = row
            yield CheckedPiece(len(rows), damage)
    finally:
        files.close(handle)


def _follows(row: tuple[int, ...], before: tuple[int, ...]) -> bool:
    """Return whether a row of an index may follow another one."""
    base_offset, position, size, count, latest_ms, _, _, _, bytes_before = row
    return (
        base_offset >= before[0] + before[3]
        and position > before[1]
        and size > 0
        and count > 0
        and latest_ms >= before[4]
        and bytes_before == before[8] + before[2]
    )
