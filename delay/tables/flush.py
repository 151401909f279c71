"""`flush_rows`: reads the messages of frozen rows and writes them to a sorted table, in a worker."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Final

from duolog.delay.entry_extra import HASH_AT
from duolog.delay.rows import KEY_SIZE, NAME_SIZE, ROW, entity_of, rows_of
from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tables.table_format import TableTimer
from duolog.delay.tables.table_writer import TableWriter, write_tables
from duolog.store.entry import EntryLocation, Stored

READ_AT_ONCE: Final = 4_096  # Messages in one read. After each read the thread must wait for the interpreter lock.

Read = Callable[[Sequence[EntryLocation]], list[Stored]]  # May block; raises OSError and StoreError.


def flush_rows(
    blocks: Sequence[bytes], read: Read, new_writer: Callable[[], TableWriter], results: list[SortedTable]
) -> bytes:
    """Write the timers of these blocks of rows, which are in due order, to a table; return their packed keys.

    The table is durable then, and is added to `results`. Blocks; raises OSError and StoreError.
    """
    found = _read_all(blocks, read)
    write_tables(_timers(blocks, found), new_writer, results)
    return b"".join([row[:KEY_SIZE] for block in blocks for row in rows_of(block)])


def _timers(blocks: Iterable[bytes], found: Mapping[int, tuple[bytes, bytes]]) -> Iterator[TableTimer]:
    for block in blocks:
        for due_ms, address, queue_key, _, marks, form in ROW.iter_unpack(block):
            name, frame = found[address]  # Two rows may have one address, if a timer was rescheduled.
            yield TableTimer(due_ms, address, queue_key, form, name, frame, entity_of(marks))


def _read_all(blocks: Sequence[bytes], read: Read) -> dict[int, tuple[bytes, bytes]]:
    """Read all messages in the order of their positions in the log; return (name, frame) of each by its address."""
    found: dict[int, tuple[bytes, bytes]] = {}
    rows = merge(*[sorted(ROW.iter_unpack(block), key=_address_of) for block in blocks], key=_address_of)
    while some := [*islice(rows, READ_AT_ONCE)]:
        places = [
            EntryLocation(address, size + (HASH_AT + NAME_SIZE if marks & NAME_SIZE else 0), form)
            for _, address, _, size, marks, form in some
        ]
        for (_, address, _, size, marks, _), stored in zip(some, read(places), strict=True):
            name = bytes(stored.frame[size + HASH_AT :]) if marks & NAME_SIZE else b""
            found[address] = (name, bytes(stored.frame[:size]))
    return found


def _address_of(row: tuple[int, ...]) -> int:
    return row[1]
