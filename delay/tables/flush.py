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
    write_tables(_timers(blocks, *_read_all(blocks, read)), new_writer, results)
    return b"".join([row[:KEY_SIZE] for block in blocks for row in rows_of(block)])


def _timers(blocks: Iterable[bytes], starts: Mapping[int, int], messages: bytearray) -> Iterator[TableTimer]:
    view = memoryview(messages)
    for block in blocks:
        for due_ms, address, queue_key, size, marks, form in ROW.iter_unpack(block):
            start = starts[address]  # Two rows may have one address, if a timer was rescheduled.
            end = start + size
            name = bytes(view[end + HASH_AT : end + HASH_AT + (marks & NAME_SIZE)])
            yield TableTimer(due_ms, address, queue_key, form, name, bytes(view[start:end]), entity_of(marks))


def _read_all(blocks: Iterable[bytes], read: Read) -> tuple[dict[int, int], bytearray]:
    """Read all messages in the order of their positions in the log.

    Return the byte of `messages` at which each begins, by its address, and `messages`, which has all of them. An object
    for each would leave 30 MB of fragmented memory to the process.
    """
    starts: dict[int, int] = {}
    messages = bytearray()
    rows = merge(*map(_in_log_order, blocks), key=_address_of)
    while some := [*islice(rows, READ_AT_ONCE)]:
        places = [
            EntryLocation(address, size + (HASH_AT + NAME_SIZE if marks & NAME_SIZE else 0), form)
            for _, address, _, size, marks, form in some
        ]
        for place, stored in zip(places, read(places), strict=True):
            starts[place.position] = len(messages)
            messages += stored.frame
    return starts, messages


def _in_log_order(block: bytes) -> Iterator[tuple[int, ...]]:
    rows = sorted(rows_of(block), key=lambda row: row[8:KEY_SIZE])  # By the packed address.
    return ROW.iter_unpack(b"".join(rows))


def _address_of(row: tuple[int, ...]) -> int:
    return row[1]
