"""Tombstone files, which earlier versions wrote next to their tables. Their tombstones move to the log at a start.

    timers/0000000007.tombstones       batch ...
    batch                              crc u32 | count u32 | (ordinal u32 | topic u64) ...

The entry of such a table in the manifest says how many bytes of its file are valid (`TableEntry.tombstone_bytes`). The
CRC-32C also covers the table's number and the position of the batch in the file. The next start removes the files.
"""

from struct import Struct
from typing import Final

from crc32c import crc32c

from duolog.delay.tables.table_format import TableEntry, tombstones_path
from duolog.store.files import ReadableFiles, read_whole

_HEADER: Final = Struct(">II")
_ROW: Final = Struct(">IQ")
_PLACE: Final = Struct(">QQ")  # Table number, byte in the file.


def read_tombstones(files: ReadableFiles, entry: TableEntry) -> tuple[list[tuple[int, int]], int]:
    """Return (ordinal, topic number) for each tombstone up to the first damaged batch, and the size of what was read.

    A missing file has none. Blocks; raises OSError.
    """
    rows: list[tuple[int, int]] = []
    at = 0
    data = _content(files, entry) if entry.tombstone_bytes else b""
    while len(data) - at >= _HEADER.size:
        crc, count = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + count * _ROW.size
        if end > len(data) or crc != crc32c(data[at + 4 : end], crc32c(_PLACE.pack(entry.number, at))):
            break
        rows += _ROW.iter_unpack(data[at + _HEADER.size : end])
        at = end
    return rows, at


def _content(files: ReadableFiles, entry: TableEntry) -> bytes:
    try:
        return read_whole(files, tombstones_path(entry.number))[: entry.tombstone_bytes]
    except FileNotFoundError:
        return b""
