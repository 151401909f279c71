"""Proves the scan by tags against a plain list of rows: read after read, each wanted entry is found once, in order."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.store.index import scan
from duolog.store.index.index_files import IndexFiles
from duolog.store.index.queue_index import QueueIndex
from duolog.store.index.rows import Row
from duolog.store.index.scan import TagScan
from tests.kit.disk import CrashDisk

FORM, OTHER_FORM = 3, 2
WANTED = {1, 2}
ALL = 1 << 40


class Shape(NamedTuple):
    tags: int
    form: int
    count: int
    size: int


shapes = st.builds(
    Shape, st.integers(0, 4), st.sampled_from((FORM, FORM, OTHER_FORM)), st.integers(1, 3), st.integers(1, 40)
)


def index_of(shapes: list[Shape], disk: CrashDisk | None = None) -> QueueIndex:
    index = QueueIndex(IndexFiles(disk or CrashDisk()), 1, 0)
    for number, shape in enumerate(shapes):
        index.append(index.end_offset, number * 100, shape.size, shape.count, -1, number, shape.tags, shape.form)
    return index


def is_wanted(row: Row) -> bool:
    return row[7] != FORM or row[6] in WANTED


def all_rows(index: QueueIndex) -> list[Row]:
    return index.rows(0, index.end_row or 1) or []


@given(st.lists(shapes, max_size=60), st.integers(1, 20), st.integers(1, 200), st.data())
def test_reads_one_after_the_other_find_each_wanted_entry_once(
    shapes: list[Shape], max_rows: int, max_bytes: int, data: st.DataObject
) -> None:
    index = index_of(shapes)
    until = data.draw(st.sampled_from([row[0] + row[3] for row in all_rows(index)] or [0]), label="until")
    offset = data.draw(st.integers(0, until), label="offset")
    expected = [row for row in all_rows(index) if offset < row[0] + row[3] <= until and is_wanted(row)]
    found: list[Row] = []
    while offset < until:
        tag_scan = TagScan(FORM, WANTED)
        rows = tag_scan.rows(index, offset, max_rows, max_bytes, until)
        assert rows is not None
        assert tag_scan.count == len(rows)
        sure = [row for row in rows if row[7] == FORM]
        assert len(sure) <= max_rows
        assert len(sure) <= 1 or sum(row[2] for row in sure) <= max_bytes
        assert offset < tag_scan.next_offset <= until
        found += rows
        offset = tag_scan.next_offset
    assert found == expected


@pytest.mark.parametrize(
    ("count", "shape", "next_offset", "found"),
    [
        (scan.ROWS_MAX + 10, Shape(0, FORM, 1, 10), scan.ROWS_MAX, 0),  # A read without a result ends all the same.
        (scan.UNSURE_ROWS_MAX + 10, Shape(0, OTHER_FORM, 1, 10), scan.UNSURE_ROWS_MAX, scan.UNSURE_ROWS_MAX),
        (5, Shape(0, OTHER_FORM, 1, scan.UNSURE_BYTES_MAX // 2), 2, 2),
        (5, Shape(0, OTHER_FORM, 1, 2 * scan.UNSURE_BYTES_MAX), 1, 1),  # The first comes whatever its size.
    ],
)
def test_one_read_is_bounded(count: int, shape: Shape, next_offset: int, found: int) -> None:
    index = index_of([shape] * count)
    tag_scan = TagScan(FORM, WANTED)
    rows = tag_scan.rows(index, 0, 1, 100, ALL)
    assert rows is not None
    assert (len(rows), tag_scan.next_offset) == (found, next_offset)


def test_scan_does_not_wait_for_rows_that_are_not_in_memory() -> None:
    disk = CrashDisk()
    index = index_of([Shape(number % 5, FORM, 1, 10) for number in range(2000)], disk)
    index.flush()
    index.flush()  # An idle queue keeps no rows in memory.
    disk.cached = False
    assert TagScan(FORM, WANTED).rows(index, 0, 1000, ALL, 2000) is None
    rows = TagScan(FORM, WANTED).rows(index, 0, 1000, ALL, 2000, block=True)
    assert rows is not None
    assert [row[0] for row in rows] == [at for at in range(2000) if at % 5 in WANTED]
