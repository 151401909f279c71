"""Tombstone files, which earlier versions wrote next to their tables. Their tombstones move to the log at a start.

    timers/0000000007.tombstones       batch ...
    batch                              crc u32 | count u32 | (ordinal u32 | topic u64) ...

The entry of such a table in the manifest says how many bytes of its file are valid (`TableEntry.tombstone_bytes`). The
CRC-32C also covers the table's number and the position of the batch in the file.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from crc32c import crc32c

from duolog.delay.tables.table_format import TIMERS_DIRECTORY, TableEntry
from duolog.store.files import ReadableFiles, read_whole

_HEADER: Final = Struct(">II")
_ROW: Final = Struct(">IQ")
_PLACE: Final = Struct(">QQ")  # Table number, byte in the file.


def tombstones_path(number: int) -> str:
    return f"{TIMERS_DIRECTORY}/{number:010d}.tombstones"


def read_tombstones(files: ReadableFiles, entry: TableEntry) -> Iterator[tuple[int, int]]:
    """Yield (ordinal, topic number) for each tombstone up to the first damaged batch. Blocks; raises OSError."""
    if not entry.tombstone_bytes:
        return
    data, at = read_whole(files, tombstones_path(entry.number))[: entry.tombstone_bytes], 0
    while len(data) - at >= _HEADER.size:
        crc, count = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + count * _ROW.size
        if end > len(data) or crc != crc32c(data[at + 4 : end], crc32c(_PLACE.pack(entry.number, at))):
            return
        yield from _ROW.iter_unpack(data[at + _HEADER.size : end])
        at = end
