"""The class SortedTable: reads one sorted table, whose format is in `delay/tables/table_format.py`."""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.delay.names import name_hash
from duolog.delay.rows import (
    KEY,
    NAME_SIZE,
    ROW,
    ROW_SIZE,
    TOPIC_AT,
    TOPIC_END,
    TOPIC_SHIFT,
    TimerKey,
    entity_of,
    lower,
)
from duolog.delay.tables.paged_index import PAGE_SIZE, PagedIndex
from duolog.delay.tables.table_format import (
    BLOCK,
    FOOTER,
    FOOTER_SIZE,
    MAGIC,
    NAME,
    TOPIC,
    TOPIC_BLOCK,
    VERSION,
    BlockEntry,
    TableEntry,
    TableTimer,
    table_path,
)
from duolog.delay.tables.tombstones import Tombstones
from duolog.store.entry import new_tuple
from duolog.store.errors import Corruption
from duolog.store.files import ReadableFiles

FOREVER_MS: Final = (1 << 64) - 1

log = logging.getLogger("delay")


class RowRef(NamedTuple):
    """The ordinal of a timer in a table, without its message."""

    table: "SortedTable"
    ordinal: int
    key: TimerKey
    topic: int

    @property
    def is_deleted(self) -> bool:
        """Whether the timer is deleted now. The loop must check this again before it uses what a worker has found."""
        return self.table.is_deleted(self.ordinal)


class Found(NamedTuple):
    """A timer of a table, with its message."""

    ref: RowRef
    timer: TableTimer


class SortedTable:
    """One table, open for reading. The loop sets its tombstones. Reads may block and raise Corruption.

    Threads may read while the loop adds tombstones, so a read may return a timer that is deleted during the read. The
    class has more than 20 methods because reads by key, by topic, by name and in due order use the same open file.
    """

    def __init__(self, files: ReadableFiles, entry: TableEntry) -> None:
        """Open the table of a manifest's entry, and check its footer. Raises Corruption and OSError."""
        self.entry = entry
        self.path = table_path(entry.number)
        self.tombstones = Tombstones(entry.count)
        self.deleted_meanwhile: dict[TimerKey, None] | None = None  # That of the compaction which reads this table.
        self._files = files
        # The damaged blocks that were found: by number, the timers that were pending then. Workers add to it, too.
        self._damaged: dict[int, int] = {}
        try:
            self._file = files.open(self.path)
        except FileNotFoundError as error:
            raise Corruption(f"{self.path}: named by the manifest, and not there") from error
        try:
            self._read_footer()
        except BaseException:
            files.close(self._file)
            raise

    def _read_footer(self) -> None:
        entry, size = self.entry, self._files.size(self._file)
        if size != entry.size:
            raise Corruption(f"{self.path}: {size} bytes where the manifest says {entry.size}")
        footer = self._read(FOOTER_SIZE, size - FOOTER_SIZE)
        check = crc32c(footer[:-4])
        if check != entry.check or check != int.from_bytes(footer[-4:], "big"):
            raise Corruption(f"{self.path}: footer with CRC {check:#010x} where the manifest says {entry.check:#010x}")
        magic, version, number, count, first_ms, first, last_ms, last, *places = FOOTER.unpack_from(footer)
        if (magic, version, number, count) != (MAGIC, VERSION, entry.number, entry.count):
            raise Corruption(f"{self.path}: version {version} of table {number} with {count} timers")
        self.first: TimerKey = (first_ms, first)
        self.last: TimerKey = (last_ms, last)
        self._blocks = PagedIndex(self._read, f"{self.path} blocks", places[0], BLOCK.size, places[1])
        self._topics = PagedIndex(self._read, f"{self.path} topics", places[2], TOPIC.size, places[3])
        self._names = PagedIndex(self._read, f"{self.path} names", places[4], NAME.size, places[5])

    def close(self) -> None:
        self._files.close(self._file)

    def check_indexes(self) -> None:
        """Read and check the block index and the topic index, which scans need. Raises Corruption."""
        for index in (self._blocks, self._topics):
            for page in range(index.page_count):
                index.check_page(page)

    @property
    def lost(self) -> int:
        """The number of pending timers in the damaged blocks that reads have found."""
        return sum([*self._damaged.values()])  # A copy, because a worker may add a block meanwhile.

    def check(self) -> Iterator[tuple[int, str]]:
        """Read and check the table piece by piece; yield the size of each piece and what is damaged, or "".

        The pending timers of damaged blocks are reported and counted, as by a scan.
        """
        for index in (self._blocks, self._topics, self._names):
            for page in range(index.page_count):
                yield PAGE_SIZE, _error_of(partial(index.check_page, page))
        for number in range(self._blocks.count):
            try:
                block = self._block(number)
            except Corruption:
                continue  # The page of the index was reported.
            damage = _error_of(partial(self._load, number, block))
            if damage:
                self._report(number, block, Corruption(damage))
            yield block.count * ROW_SIZE + block.payload_size, damage

    def is_deleted(self, ordinal: int) -> bool:
        return ordinal < self.entry.start or self.tombstones.has(ordinal)

    # -- Ordinals

    def lower(self, due_ms: int, address: int = 0) -> int:
        """Return the ordinal of the first timer with this key or a greater one; `count` if there is none.

        If the key is in a damaged block, the result is the first ordinal of the block.
        """
        if (due_ms, address) <= self.first:
            return 0
        if (due_ms, address) > self.last:
            return self.entry.count
        packed = KEY.pack(due_ms, address)
        number = self._blocks.lower(packed) - 1
        block = self._block(number)
        return block.ordinal + lower(self._rows(number, block), packed) // ROW_SIZE

    def find(self, key: TimerKey) -> Found | None:
        """Return the timer of this key, deleted or not."""
        if not self.first <= key <= self.last:
            return None
        packed = KEY.pack(*key)
        number = self._block_with(packed)
        block = self._block(number)
        rows, payload = self._load(number, block)
        at = lower(rows, packed)
        if not rows.startswith(packed, at):
            return None
        within = at // ROW_SIZE
        timer = next(_timers(rows, payload, within, within + 1))
        return Found(RowRef(self, block.ordinal + within, key, timer.topic), timer)

    def refs(self, keys: Iterable[TimerKey]) -> Iterator[RowRef]:
        """Yield a RowRef for each of these ascending keys that the table has, deleted or not. Reads no messages."""
        rows, ordinal = b"", 0
        first_missing: bytes = b""  # The first key that is not in `rows`.
        for key in keys:
            if not self.first <= key <= self.last:
                continue
            packed = KEY.pack(*key)
            if packed >= first_missing:
                number = self._block_with(packed)
                block = self._block(number)
                rows, ordinal = self._rows(number, block), block.ordinal
                is_last = number + 1 == self._blocks.count
                first_missing = b"\xff" * (KEY.size + 1) if is_last else self._blocks.row(number + 1)[: KEY.size]
            at = lower(rows, packed)
            if rows.startswith(packed, at):
                topic = int.from_bytes(rows[at + TOPIC_AT : at + TOPIC_END], "big")
                yield RowRef(self, ordinal + at // ROW_SIZE, key, topic)

    # -- Timers in due order

    def scan(
        self, start: TimerKey, until_ms: int, topic: int | None = None, without: frozenset[int] = frozenset()
    ) -> Iterator[TableTimer]:
        """Yield the pending timers from the key `start` on that are due before `until_ms`.

        They are those of `topic`, or of all topics except those in `without`. Of blocks that have only timers of
        `without`, the rows are read and the messages are not.
        """
        ordinal, until = max(self.lower(*start), self.entry.start), self.lower(until_ms)
        if ordinal >= until:
            return
        first, end = self._block_of(ordinal), self._block_of(until - 1) + 1
        for number in range(first, end) if topic is None else self._blocks_of_topic(topic, first, end):
            if topic is not None:
                yield from (timer for timer in self._scan_block(number, ordinal, until) if timer.topic == topic)
            elif not without:
                yield from self._scan_block(number, ordinal, until)
            elif any(
                row[2] >> TOPIC_SHIFT not in without for row in ROW.iter_unpack(self._rows(number, self._block(number)))
            ):
                yield from (timer for timer in self._scan_block(number, ordinal, until) if timer.topic not in without)

    def _blocks_of_topic(self, topic: int, first: int, end: int) -> Iterator[int]:
        """Yield the numbers of the blocks in [first, end) that have timers of a topic."""
        for row in range(self._topics.lower(TOPIC_BLOCK.pack(topic, first)), self._topics.count):
            of, number, _ = TOPIC.unpack(self._topics.row(row))
            if of != topic or number >= end:
                return
            yield number

    def named(self, topic: int, name: bytes) -> Iterator[Found]:
        """Yield all timers with this topic and name in due order, deleted or not."""
        hashed = name_hash(topic, name).to_bytes(8, "big")
        row = self._names.lower_of_hash(hashed)
        while row < self._names.count and (found := self._names.row(row)).startswith(hashed):
            ordinal = int.from_bytes(found[8:12], "big")
            timer = self._timer(ordinal)
            if timer.name == name and timer.topic == topic:
                yield Found(RowRef(self, ordinal, timer.key, topic), timer)
            row += 1

    # -- Numbers

    def pending_by_topic(self) -> Iterator[tuple[int, int]]:
        """Yield (topic, number of pending timers) for each topic that has timers in this table."""
        start, count = self.entry.start, self.entry.count
        row = 0
        while row < self._topics.count:
            topic = TOPIC.unpack(self._topics.row(row))[0]
            last = self._topics.lower(TOPIC_BLOCK.pack(topic, self._blocks.count))
            total = TOPIC.unpack(self._topics.row(last))[2]
            finished = self._of_topic_before(topic, start) if start else 0
            yield topic, total - finished - self.tombstones.count(start, count, topic)
            row = last + 1

    def pending_before(self, key: TimerKey, topic: int | None = None) -> int:
        """Return the number of pending timers before this key, plus a number that is the same for all keys.

        So callers use only differences of results. The number comes from timers below `entry.start` without tombstones.
        """
        ordinal = max(self.lower(*key), self.entry.start)
        before = ordinal if topic is None else self._of_topic_before(topic, ordinal)
        return before - self.tombstones.count(0, ordinal, topic)

    def _of_topic_before(self, topic: int, ordinal: int) -> int:
        """Return the number of timers of a topic below this ordinal, deleted or not."""
        number = self._block_of(ordinal)
        row = self._topics.lower(TOPIC_BLOCK.pack(topic, number))
        if row == self._topics.count:
            return 0
        of, found, before = TOPIC.unpack(self._topics.row(row))
        if of != topic:
            return 0  # A topic with timers in this table has a row after the last block, so this topic has none.
        if found == number < self._blocks.count:
            block = self._block(number)
            rows = self._rows(number, block)[: (ordinal - block.ordinal) * ROW_SIZE]
            before += sum(key >> TOPIC_SHIFT == topic for _, _, key, _, _, _ in ROW.iter_unpack(rows))
        return int(before)

    # -- Blocks

    def _scan_block(self, number: int, ordinal: int, until: int) -> Iterator[TableTimer]:
        """Return the pending timers of a block in [ordinal, until); none if the block is damaged."""
        block = self._block(number)
        try:
            rows, payload = self._load(number, block)
        except Corruption as error:
            self._report(number, block, error)
            return iter(())
        first, end = max(0, ordinal - block.ordinal), min(block.count, until - block.ordinal)
        timers = _timers(rows, payload, first, end)
        flags = self.tombstones.flags(block.ordinal + first, block.ordinal + end)
        return timers if flags is None else (timer for timer, flag in zip(timers, flags, strict=True) if not flag)

    def _timer(self, ordinal: int) -> TableTimer:
        number = self._block_of(ordinal)
        block = self._block(number)
        rows, payload = self._load(number, block)
        within = ordinal - block.ordinal
        return next(_timers(rows, payload, within, within + 1))

    def _block_of(self, ordinal: int) -> int:
        """Return the number of the block with this ordinal; the number of blocks if no timer has it."""
        if ordinal >= self.entry.count:
            return self._blocks.count
        numbers = range(self._blocks.count)
        return bisect_right(numbers, ordinal, key=lambda number: self._block(number).ordinal) - 1

    def _block_with(self, key: bytes) -> int:
        """Return the number of the block in which a timer of this key is, if the table has one."""
        number = self._blocks.lower(key)
        return number if number < self._blocks.count and self._blocks.row(number).startswith(key) else number - 1

    def _block(self, number: int) -> BlockEntry:
        return BlockEntry._make(BLOCK.unpack(self._blocks.row(number)))

    def _rows(self, number: int, block: BlockEntry) -> bytes:
        """Return the rows of a block; empty if they are damaged. Damage is reported once."""
        try:
            rows = self._read(block.count * ROW_SIZE, block.at)
            self._check(number, rows, block.rows_crc)
        except Corruption as error:
            self._report(number, block, error)
            return b""
        return rows

    def _report(self, number: int, block: BlockEntry, error: Corruption) -> None:
        """Count and log a damaged block, when the first read finds it."""
        first, end = max(block.ordinal, self.entry.start), block.ordinal + block.count
        pending = max(0, end - first - self.tombstones.count(first, end))
        if number not in self._damaged:
            self._damaged[number] = pending
            log.error("delayed messages are lost: %s timers=%d first_due_ms=%d", error, pending, block.due_ms)

    def _load(self, number: int, block: BlockEntry) -> tuple[bytes, bytes]:
        size = block.count * ROW_SIZE
        found = self._read(size + block.payload_size, block.at)
        rows, payload = found[:size], found[size:]
        self._check(number, rows, block.rows_crc)
        self._check(number, payload, block.payload_crc)
        return rows, payload

    def _check(self, number: int, data: bytes, expected: int) -> None:
        actual = crc32c(data)
        if actual != expected:
            raise Corruption(
                f"{self.path}: block {number} has CRC {actual:#010x} where its index says {expected:#010x}"
            )

    def _read(self, size: int, at: int) -> bytes:
        found = self._files.read(self._file, size, at)
        if len(found) != size:
            raise Corruption(f"{self.path}: {len(found)} of {size} bytes at {at}")
        return found


def _error_of(read: Callable[[], object]) -> str:
    """Return the text of the Corruption that a read raises; "" if it raises none."""
    try:
        read()
    except Corruption as error:
        return str(error)
    return ""


def _timers(rows: bytes, payload: bytes, first: int, end: int) -> Iterator[TableTimer]:
    """Yield the timers of a block by their numbers in it, in [first, end)."""
    at = 0
    for _, _, _, frame_size, marks, _ in ROW.iter_unpack(rows[: first * ROW_SIZE]):
        at += frame_size + (marks & NAME_SIZE)
    for due_ms, address, key, frame_size, marks, form in ROW.iter_unpack(rows[first * ROW_SIZE : end * ROW_SIZE]):
        frame_at = at + (marks & NAME_SIZE)
        name, at = payload[at:frame_at], frame_at + frame_size
        yield new_tuple(TableTimer, (due_ms, address, key, form, name, payload[frame_at:at], entity_of(marks)))
