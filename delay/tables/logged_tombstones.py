"""The class LoggedTombstones: the tombstones of sorted tables that the log has, and no tombstone file.

    row      table number u64 | ordinal u32 | topic u64                                  20 bytes, big-endian

A tombstone file grows, and an object of a stream never changes. So the tombstones of a stream's tables are in state
records: a record has those that the owner adds at a time, and a snapshot has all of them. They are kept in memory, too,
in 12 bytes each, because a snapshot of a standby has them although its tables are not open. A table of which more than
half is deleted is written anew (`tables_to_compact`), and then its tombstones are dropped.
"""

from collections.abc import Container, Iterable, Iterator
from struct import Struct
from typing import Final

from duolog.delay.tables.tombstones import ROW as TOMBSTONE
from duolog.delay.tables.tombstones import Row

ROW: Final = Struct(">QIQ")
ROWS_IN_RECORD: Final = 10_000


def pack_rows(number: int, rows: Iterable[Row]) -> bytes:
    """Pack tombstones of one table."""
    return b"".join([ROW.pack(number, ordinal, topic) for ordinal, topic in rows])


class LoggedTombstones:
    """The tombstones by table; used in the loop only."""

    def __init__(self) -> None:
        self._rows: dict[int, bytearray] = {}

    def add(self, packed: bytes, numbers: Container[int]) -> dict[int, int]:
        """Add the tombstones of these tables, and ignore those of others; return how many were added to each."""
        added: dict[int, int] = {}
        for number, ordinal, topic in ROW.iter_unpack(packed):
            if number in numbers:
                self._rows.setdefault(number, bytearray()).extend(TOMBSTONE.pack(ordinal, topic))
                added[number] = added.get(number, 0) + 1
        return added

    def keep(self, numbers: Container[int]) -> None:
        """Drop the tombstones of all other tables."""
        self._rows = {number: rows for number, rows in self._rows.items() if number in numbers}

    def of(self, number: int) -> Iterator[Row]:
        return TOMBSTONE.iter_unpack(bytes(self._rows.get(number, b"")))

    def snapshot(self) -> Iterator[bytes]:
        """Return the tombstones of this moment, packed, ROWS_IN_RECORD at a time."""
        tables, size = [(number, bytes(rows)) for number, rows in self._rows.items()], ROWS_IN_RECORD * TOMBSTONE.size
        return (
            pack_rows(number, TOMBSTONE.iter_unpack(rows[at : at + size]))
            for number, rows in tables
            for at in range(0, len(rows), size)
        )
