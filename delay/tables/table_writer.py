"""`write_tables` and the class TableWriter: write sorted tables, in the format of `delay/tables/table_format.py`."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from crc32c import crc32c

from duolog.delay.names import name_hash
from duolog.delay.rows import KEY, NAME_SIZE, ROW, ROW_SIZE, TOPIC_SHIFT, TimerKey, marks_of
from duolog.delay.tables.paged_index import pages_of, rows_per_page
from duolog.delay.tables.sorted_table import SortedTable
from duolog.delay.tables.table_format import (
    BLOCK,
    BLOCK_BYTES,
    BLOCK_TIMERS_MAX,
    FOOTER,
    MAGIC,
    NAME,
    TABLE_TIMERS_MAX,
    TIMERS_DIRECTORY,
    TOPIC,
    VERSION,
    TableEntry,
    TableTimer,
    table_path,
)
from duolog.store.files import Files

WRITE_BYTES: Final = 512 << 10  # Bytes in one call, because a thread waits for the interpreter lock after each call.
# Rows of the name index are sorted in 2**10 parts, because sorting them at once would hold the lock for long.
_NAME_PARTS_BITS: Final = 10


def write_tables(
    timers: Iterator[TableTimer],
    new_writer: Callable[[], "TableWriter"],
    results: list[SortedTable],
    table_bytes: int = sys.maxsize,
) -> None:
    """Write timers, which come in due order, to tables of about `table_bytes`, which are durable then.

    Each complete table is added to `results`, also if another one fails. Blocks.
    """
    for first in timers:
        writer = new_writer()
        try:
            for timer in chain([first], timers):
                writer.add(timer)
                if writer.size >= table_bytes:
                    break
            results.append(writer.finish())
        except BaseException:
            writer.abandon()
            raise


class TableWriter:
    """Writes one table, timer by timer in due order. `add` may block at the end of a block; `finish` blocks for long.

    The class has more than 15 fields because the blocks and all three indexes of a table are written in one pass.
    """

    def __init__(
        self,
        files: Files,
        number: int,
        *,
        block_timers_max: int = BLOCK_TIMERS_MAX,
        pause: Callable[[], object] | None = None,
    ) -> None:
        self.number, self.count, self.size = number, 0, 0
        self._pause = pause  # Called after each block.
        self.last: TimerKey = (-1, -1)
        self._files, self._block_timers_max = files, block_timers_max
        self._path = table_path(number)
        self._file = files.open(self._path, create=True)
        self._is_open = True
        self._unwritten: list[bytes] = []  # Bytes that `size` counts and the file does not have yet.
        self._written = 0
        self._rows: list[bytes] = []
        self._payload: list[bytes] = []
        self._payload_size = 0
        self._blocks = bytearray()
        self._postings: dict[int, bytearray] = {}  # Topic -> its rows of the topic index.
        self._totals: dict[int, int] = {}
        self._names: list[list[bytes]] = [[] for _ in range(1 << _NAME_PARTS_BITS)]

    def add(self, timer: TableTimer) -> None:
        """Add the next timer, whose key must be greater than that of the timer before it."""
        due_ms, address, queue_key, form, name, frame, entity = timer
        key = (due_ms, address)
        assert key > self.last, f"timer {key} comes after {self.last}"
        assert not name or len(name) == NAME_SIZE, f"a name of {len(name)} bytes"
        self.last = key
        self._rows.append(ROW.pack(due_ms, address, queue_key, len(frame), marks_of(entity, len(name)), form))
        if name:
            self._payload.append(name)
            hashed = name_hash(queue_key >> TOPIC_SHIFT, name)
            part = self._names[hashed >> 64 - _NAME_PARTS_BITS]
            part.append(NAME.pack(hashed, self.count + len(self._rows) - 1))
        self._payload.append(frame)
        self._payload_size += len(name) + len(frame)
        if self._payload_size + len(self._rows) * ROW_SIZE >= BLOCK_BYTES or len(self._rows) >= self._block_timers_max:
            self._end_block()

    def finish(self) -> SortedTable:
        """Write the indexes, make the file and its name durable, and open the table for reading."""
        if self._rows:
            self._end_block()
        assert 0 < self.count <= TABLE_TIMERS_MAX, f"a table of {self.count} timers"
        indexes = [
            self._write_index(BLOCK.size, [self._blocks]),
            self._write_index(TOPIC.size, self._topic_rows()),
            self._write_index(NAME.size, (b"".join(sorted(part)) for part in self._names)),
        ]
        places = [value for index in indexes for value in index]
        first = KEY.unpack_from(self._blocks)
        footer = FOOTER.pack(MAGIC, VERSION, self.number, self.count, *first, *self.last, *places)
        check = crc32c(footer)
        self._write([footer, check.to_bytes(4, "big")])
        self._write_out()
        self._files.sync(self._file)
        self._close()
        self._files.sync_directory(TIMERS_DIRECTORY)
        return SortedTable(self._files, TableEntry(self.number, self.size, check, self.count))

    def abandon(self) -> None:
        """Close and remove the file after a failure of `add` or `finish`. The next start would remove it otherwise."""
        self._close()
        self._files.remove(self._path)

    def _close(self) -> None:
        """Close the file, but only once, because another file may have its file descriptor since then."""
        if self._is_open:
            self._is_open = False
            self._files.close(self._file)

    def _end_block(self) -> None:
        rows, payload = b"".join(self._rows), b"".join(self._payload)
        number, count = len(self._blocks) // BLOCK.size, len(self._rows)
        self._blocks += BLOCK.pack(
            *KEY.unpack_from(rows), self.size, self.count, count, len(payload), crc32c(rows), crc32c(payload)
        )
        topics = Counter([queue_key >> TOPIC_SHIFT for _, _, queue_key, _, _, _ in ROW.iter_unpack(rows)])
        for topic, in_block in topics.items():
            before = self._totals.get(topic, 0)
            self._postings.setdefault(topic, bytearray()).extend(TOPIC.pack(topic, number, before))
            self._totals[topic] = before + in_block
        self._write([rows, payload])
        self.count += count
        self._rows, self._payload, self._payload_size = [], [], 0
        if self._pause is not None:
            self._pause()

    def _topic_rows(self) -> Iterator[bytes]:
        block_count = len(self._blocks) // BLOCK.size
        for topic in sorted(self._postings):
            yield bytes(self._postings[topic]) + TOPIC.pack(topic, block_count, self._totals[topic])

    def _write_index(self, row_size: int, chunks: Iterable[bytes | bytearray]) -> tuple[int, int]:
        """Write an index from chunks of sorted rows; return (the byte at which it begins, the number of its rows)."""
        at, count = self.size, 0
        page_rows = rows_per_page(row_size) * row_size
        rest = bytearray()
        for chunk in chunks:
            rest += chunk
            count += len(chunk) // row_size
            if len(rest) >= WRITE_BYTES:
                whole = len(rest) // page_rows * page_rows
                self._write(list(pages_of(rest[:whole], row_size)))
                del rest[:whole]
        self._write(list(pages_of(rest, row_size)))
        return at, count

    def _write(self, buffers: Sequence[bytes]) -> None:
        self._unwritten += buffers
        self.size += sum(map(len, buffers))
        if self.size - self._written >= WRITE_BYTES:
            self._write_out()

    def _write_out(self) -> None:
        self._files.write(self._file, self._unwritten, self._written)
        self._unwritten, self._written = [], self.size
