"""The class Flush: reads the messages of frozen rows from the log, and writes them to a sorted table, in a worker.

The rows come in sorted runs, as the memtable has frozen them. The messages of a run are mostly near each other in the
log, and are read in the order of their positions. Then the runs are merged into the rows of the table.
"""

from collections.abc import Callable, Sequence
from heapq import merge as in_order
from typing import Final

from duolog.delay.entry_extra import HASH_AT
from duolog.delay.rows import KEY_SIZE, ROW, rows_of
from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tables.table_format import TableTimer
from duolog.delay.tables.table_writer import TableWriter
from duolog.store.entry import EntryLocation, Stored

READ_AT_ONCE: Final = 4_096  # Messages in one read. After each read the thread must wait for the interpreter lock.

Read = Callable[[Sequence[EntryLocation]], list[Stored]]  # May block; raises OSError and StoreError.


class Flush:
    """One flush. It is made in the loop, and a worker calls `run`."""

    def __init__(self, runs: Sequence[bytes], read: Read, begin: Callable[[], TableWriter]) -> None:
        self.table: SortedTable | None = None
        self.keys = b""  # The packed keys of all timers in the table, in order.
        self._runs, self._read, self._begin = runs, read, begin

    def run(self) -> None:
        """Write the table and make it durable. Blocks; raises OSError and StoreError, and then leaves no file."""
        frames: dict[int, tuple[bytes, bytes]] = {}
        for run in self._runs:
            self._read_run(run, frames)
        writer = self._begin()
        try:
            keys = bytearray()
            for row in in_order(*map(rows_of, self._runs)):
                due_ms, address, queue_key, _, _, form = ROW.unpack(row)
                name, frame = frames[address]  # Two rows may have one address, if a timer was rescheduled.
                writer.add(TableTimer(due_ms, address, queue_key, form, name, frame))
                keys += row[:KEY_SIZE]
            self.table = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        self.keys = bytes(keys)

    def _read_run(self, run: bytes, frames: dict[int, tuple[bytes, bytes]]) -> None:
        """Read the messages of a run, and add (name, frame) of each to `frames` by its address."""
        rows = sorted(ROW.iter_unpack(run), key=_address_of)
        for first in range(0, len(rows), READ_AT_ONCE):
            some = rows[first : first + READ_AT_ONCE]
            places = [
                EntryLocation(address, size + (HASH_AT + name_size if name_size else 0), form)
                for _, address, _, size, name_size, form in some
            ]
            for (_, address, _, size, name_size, _), stored in zip(some, self._read(places), strict=True):
                name = bytes(stored.frame[size + HASH_AT :]) if name_size else b""
                frames[address] = (name, bytes(stored.frame[:size]))


def _address_of(row: tuple[int, ...]) -> int:
    return row[1]
