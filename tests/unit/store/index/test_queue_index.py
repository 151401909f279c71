"""Proves the queue index against a plain list of rows: histories of appends, flushes, drops, cuts and power cuts.

Every question is asked three ways: in memory and page cache, with a cold page cache, and waiting for the disk.
"""

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duolog.store.entry import Buffer
from duolog.store.errors import Corruption
from duolog.store.index.queue_index import (
    ROW_SIZE,
    TAIL_BYTES_KEPT,
    TAIL_BYTES_MAX,
    IndexFiles,
    QueueIndex,
    Row,
    RowsToWrite,
)
from tests.kit.disk import CrashDisk, FailingDisk

ROWS_PER_FILE = 128
ANY = 1 << 62


@dataclass
class Entries:
    """What a queue was given: makes rows with counts, gaps, times and sizes that vary, and remembers them."""

    index: QueueIndex
    rows: list[Row] = field(default_factory=list)

    def append(self, count: int = 1, gap: int = 0, timestamp_ms: int = -1, later_ms: int = 1, size: int = 100) -> bool:
        number, last = len(self.rows), self.rows[-1] if self.rows else (0, 0, 0, 0, -1, 0, 0, 0, 0)
        base_offset, stored_ms = last[0] + last[3] + gap, last[5] + later_ms
        latest_ms, bytes_before = max(last[4], timestamp_ms), last[8] + last[2]
        self.rows.append((base_offset, number * 1_000, size, count, latest_ms, stored_ms, -number, 2, bytes_before))
        return self.index.append(base_offset, number * 1_000, size, count, timestamp_ms, stored_ms, -number, 2)

    def end_offset(self) -> int:
        return self.rows[-1][0] + self.rows[-1][3] if self.rows else 0


class QueueIndexHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashDisk()
        self.files = self.new_files()
        self.entries = Entries(QueueIndex(self.files, 7, 1))
        self.counted = 0  # rows that a checkpoint has counted
        self.flushes: list[RowsToWrite] = []  # begun, and not ended
        self.read_to = 0  # The offset after the last row of the last answer.

    def new_files(self) -> IndexFiles:
        return IndexFiles(self.disk, rows_per_file=ROWS_PER_FILE, open_max=2)

    @property
    def index(self) -> QueueIndex:
        return self.entries.index

    # -- Changes

    @rule(repeat=st.integers(1, 200), count=st.integers(1, 5), gap=st.integers(0, 3))
    def append_alike(self, repeat: int, count: int, gap: int) -> None:
        for _ in range(repeat):
            self.entries.append(count, gap, len(self.entries.rows))

    @rule(
        rows=st.lists(
            st.tuples(
                st.integers(1, 1_000), st.integers(0, 50), st.integers(-1, 500), st.integers(0, 9), st.integers(0, 999)
            ),
            max_size=50,
        )
    )
    def append_unlike(self, rows: list[tuple[int, int, int, int, int]]) -> None:
        for row in rows:
            self.entries.append(*row)

    @rule()
    def begin_flush(self) -> None:
        rows = self.index.begin_flush()
        if rows is not None:
            self.flushes.append(rows)

    @precondition(lambda self: self.flushes)
    @rule(is_written=st.sampled_from([True, True, False]))
    def end_flush(self, is_written: bool) -> None:
        rows = self.flushes.pop(0)
        if is_written:
            rows.write(self.files)
        self.index.end_flush(rows.first_row, rows.end_row, is_written=is_written)

    @rule()
    def flush(self) -> None:
        while self.flushes:
            self.end_flush(True)
        self.index.flush()

    @rule(at=st.floats(0, 1))
    def drop(self, at: float) -> None:
        drop_before(self.index, self.files, int(at * self.entries.end_offset()))

    @rule()
    def checkpoint(self) -> None:
        self.files.take_unsynced().run()
        self.counted = self.index.written_row

    @rule()
    def abandon_checkpoint(self) -> None:
        self.files.take_unsynced()

    @rule()
    def be_killed(self) -> None:
        """The next process opens what is counted, or makes the index anew if nothing is."""
        if self.index.first_row > self.counted:
            return  # a checkpoint precedes the removal of what it counts
        self.disk, self.flushes = self.disk.after_kill(), []
        self.files = self.new_files()
        if self.counted:
            index = QueueIndex.open(self.files, 7, 1, self.counted)
        else:
            index = QueueIndex(self.files, 7, 1)
        self.entries = Entries(index, self.entries.rows[: self.counted])

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        """After a cut only counted rows are asked for; recovery would append the others again."""
        first_row = self.index.first_row
        if first_row > self.counted:
            return  # a checkpoint precedes the removal of what it counts
        self.disk, self.flushes = self.disk.after_power_cut(seed), []
        self.files = self.new_files()
        self.entries = Entries(QueueIndex.open(self.files, 7, 1, self.counted), self.entries.rows[: self.counted])
        assert self.index.first_row <= first_row, "removed files may come back, kept ones must not go"

    # -- Questions

    @rule(at=st.floats(0, 1), max_rows=st.integers(1, 300), max_bytes=st.integers(0, 20_000), until=st.floats(0, 1))
    def ask_rows(self, at: float, max_rows: int, max_bytes: int, until: float) -> None:
        self.ask_rows_from(int(at * self.entries.end_offset()), max_rows, max_bytes, until)

    @rule(max_rows=st.integers(1, 300), max_bytes=st.integers(0, 20_000), until=st.floats(0, 1))
    def read_on(self, max_rows: int, max_bytes: int, until: float) -> None:
        self.ask_rows_from(min(self.read_to, self.entries.end_offset()), max_rows, max_bytes, until)

    def ask_rows_from(self, offset: int, max_rows: int, max_bytes: int, until: float) -> None:
        rows, until_offset = self.entries.rows, int(until * self.entries.end_offset())
        number = max(bisect_right(rows, offset, key=lambda row: row[0]) - 1, 0)
        if rows and rows[number][0] + rows[number][3] <= offset:
            number += 1
        expected: list[Row] = []
        for row in rows[max(number, self.index.first_row) :][:max_rows]:
            if row[0] + row[3] > until_offset or (expected and sum(r[2] for r in expected) + row[2] > max_bytes):
                break
            expected.append(row)
        self.ask(lambda block: self.index.rows_from(offset, max_rows, max_bytes, until_offset, block=block), expected)
        if expected:
            self.read_to = expected[-1][0] + expected[-1][3]

    @rule(at=st.floats(0, 1.1), column=st.sampled_from([4, 5, 8]))
    def ask_first(self, at: float, column: int) -> None:
        rows = self.entries.rows
        value = int(at * rows[-1][column]) if rows else 0
        number = max(bisect_left(rows, value, key=lambda row: row[column]), self.index.first_row)
        find = {4: self.index.find_latest, 5: self.index.find_stored, 8: self.index.find_bytes_before}[column]
        self.ask(lambda block: find(value, block=block), number)

    def ask(self, question: Callable[[bool], object], expected: object) -> None:
        assert question(False) == expected
        assert question(True) == expected
        self.disk.cached = False
        assert question(False) in (expected, None)
        self.disk.cached = True

    @invariant()
    def the_ends_are_known(self) -> None:
        index, rows = self.index, self.entries.rows
        assert (index.end_row, index.end_offset) == (len(rows), self.entries.end_offset())
        assert index.first_row % ROWS_PER_FILE == 0
        if rows:
            assert (index.first_offset, index.latest_ms) == (rows[index.first_row][0], rows[-1][4])
            assert index.rows(index.first_row, ANY) == rows[index.first_row :]


TestQueueIndexHistory = QueueIndexHistory.TestCase
TestQueueIndexHistory.settings = settings(stateful_step_count=25, deadline=None)


def test_an_idle_queue_holds_no_rows_and_a_busy_one_its_newest() -> None:
    entries = Entries(QueueIndex(IndexFiles(CrashDisk()), 7, 1))
    while not entries.append():
        pass
    index = entries.index
    assert TAIL_BYTES_MAX <= index.memory_bytes < TAIL_BYTES_MAX + ROW_SIZE
    index.flush()
    assert TAIL_BYTES_KEPT - ROW_SIZE < index.memory_bytes <= TAIL_BYTES_KEPT
    index.flush()
    assert index.memory_bytes == 0
    assert index.rows(0, ANY) == entries.rows


def test_a_client_that_reads_on_needs_no_search() -> None:
    class CountingFiles(IndexFiles):
        reads = 0

        def read_cached(self, directory: str, row: int, until: int) -> Buffer:
            self.reads += 1
            return super().read_cached(directory, row, until)

    files = CountingFiles(CrashDisk())
    entries = Entries(QueueIndex(files, 7, 1))
    for number in range(3_000):
        entries.append(count=1 + number % 7 * (number % 3))
    entries.index.flush()
    entries.index.flush()  # The queue is idle, so no row is in memory.
    found: list[Row] = []
    offset, steps = 0, 0
    while more := entries.index.rows_from(offset, 8, ANY, ANY):
        found += more
        offset, steps = more[-1][0] + more[-1][3], steps + 1
    assert found == entries.rows
    assert files.reads <= steps + 2, "one read for each answer, and two for the search before the first"


def test_a_failed_flush_loses_no_row_and_is_repeated_whole() -> None:
    disk = FailingDisk("write", 2, errno.ENOSPC)
    entries = Entries(QueueIndex(IndexFiles(disk, rows_per_file=ROWS_PER_FILE), 7, 1))
    for _ in range(300):
        entries.append()
    with pytest.raises(OSError, match="No space left"):
        entries.index.flush()
    assert entries.index.rows(0, ANY) == entries.rows
    for _ in range(2):
        entries.index.flush()
    assert entries.index.rows(0, ANY) == entries.rows


def test_rows_that_a_checkpoint_counted_and_no_file_has_are_corruption() -> None:
    disk = CrashDisk()
    entries = Entries(QueueIndex(IndexFiles(disk), 7, 1))
    entries.append()
    entries.index.flush()
    with pytest.raises(Corruption, match=f"{ROW_SIZE} bytes; according to the checkpoint it has {2 * ROW_SIZE} bytes"):
        QueueIndex.open(IndexFiles(disk), 7, 1, end_row=2)
    with pytest.raises(Corruption, match="missing"):
        QueueIndex.open(IndexFiles(disk), 7, 2, end_row=1)


def test_what_an_abandoned_round_should_have_synced_is_part_of_the_next() -> None:
    disk = CrashDisk()
    files = IndexFiles(disk)
    entries = Entries(QueueIndex(files, 7, 1))
    entries.append()
    entries.index.flush()
    files.take_unsynced()
    files.take_unsynced().run()
    for seed in range(20):
        assert QueueIndex.open(IndexFiles(disk.after_power_cut(seed)), 7, 1, end_row=1).rows(0) == entries.rows


def test_a_removed_index_leaves_no_file_and_no_directory() -> None:
    disk = CrashDisk()
    files = IndexFiles(disk, rows_per_file=ROWS_PER_FILE)
    queues = [Entries(QueueIndex(files, 7, queue_id)) for queue_id in range(3)]
    for entries in queues[:2]:
        for _ in range(300):
            entries.append()
        entries.index.flush()
    for entries in queues:
        entries.index.remove()
    assert disk.paths() == []
    assert disk.list("index") == []
    files.take_unsynced().run()


def test_a_reader_thread_that_was_overtaken_by_a_drop_finds_what_is_left() -> None:
    disk = OvertakenDisk()
    files = IndexFiles(disk, rows_per_file=ROWS_PER_FILE)
    entries = Entries(QueueIndex(files, 7, 1))
    for number in range(300):
        entries.append(timestamp_ms=number)
    for _ in range(2):
        entries.index.flush()
    disk.before_next_open = lambda: drop_before(entries.index, files, 299)
    assert entries.index.find_latest(10, block=True) == 2 * ROWS_PER_FILE
    assert entries.index.rows(0, block=True) == []


def drop_before(index: QueueIndex, files: IndexFiles, offset: int) -> None:
    """Remove the files of rows below an offset, in the three steps of `store/index/index_maintenance.py`."""
    found = index.first_needed(offset)
    if found is not None:
        files.remove(index.directory, index.drop_before(*found))


class OvertakenDisk(CrashDisk):
    """Does something else first when a file is opened, as another thread might."""

    def __init__(self) -> None:
        super().__init__()
        self.before_next_open: Callable[[], None] | None = None

    def open(self, path: str, *, create: bool = False) -> int:
        if self.before_next_open is not None:
            act, self.before_next_open = self.before_next_open, None
            act()
        return super().open(path, create=create)
