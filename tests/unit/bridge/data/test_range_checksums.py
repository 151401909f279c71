"""Sums of a range are those of its records, whatever the batches, steps and limits of one answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duolog.bridge.data.range_checksums import (
    ABSENT_MAX,
    SUMS_MAX,
    RangeChecksums,
    add_batch,
)
from duolog.protocol.checksum import record_checksum
from duolog.protocol.kafka.batch_builder import build
from duolog.protocol.kafka.record_batch import Record
from duolog.protocol.kafka.record_reader import open_batch


def records(offsets: list[int]) -> list[Record]:
    return [Record(offset, 1000 + offset, b"k", b"v%d" % offset, [("h", None)]) for offset in offsets]


def add_up(sums: RangeChecksums, batches: list[list[Record]]) -> None:
    for batch in batches:
        for _ in add_batch(sums, open_batch(build(batch, batch[0].offset, 0), 1 << 20)):
            pass


@given(
    offsets=st.sets(st.integers(0, 60), min_size=1).map(sorted),
    cuts=st.sets(st.integers(1, 60)),
    start=st.integers(0, 70),
    length=st.integers(0, 70),
    step=st.integers(1, 20),
)
def test_sums_are_those_of_the_records(offsets: list[int], cuts: set[int], start: int, length: int, step: int) -> None:
    end = start + length
    batches: list[list[Record]] = []
    for number, record in enumerate(records(offsets)):
        if number in cuts or not batches:
            batches.append([])
        batches[-1].append(record)
    sums = RangeChecksums(start, end, step)
    add_up(sums, batches)
    answer = sums.answer()
    inside = [record for record in records(offsets) if start <= record.offset < answer["next"]]
    assert sum(each["records"] for each in answer["sums"]) == len(inside)
    assert sum(each["checksum"] for each in answer["sums"]) == sum(map(record_checksum, inside))
    absent = {offset for first, last in answer["absent"] for offset in range(first, last)}
    assert absent == set(range(start, answer["next"])) - set(offsets)
    assert all(each["end"] - each["start"] <= step for each in answer["sums"])
    assert answer["next"] == max(start, min(end, offsets[-1] + 1))


def test_answer_is_bounded() -> None:
    sparse = RangeChecksums(0, 1 << 40, 1 << 40)
    add_up(sparse, [records(list(range(0, 4 * ABSENT_MAX, 2)))])
    assert sparse.is_done
    dense = RangeChecksums(0, 1 << 40, 1)
    add_up(dense, [records(list(range(SUMS_MAX)))])
    assert dense.is_done


def test_each_part_of_a_record_counts() -> None:
    record = Record(7, 1000, b"k", b"v", [("h", b"x")])
    others = [
        record._replace(offset=8),
        record._replace(timestamp_ms=1001),
        record._replace(key=None),
        record._replace(key=b""),
        record._replace(value=b"w"),
        record._replace(value=None),
        record._replace(key=b"kv", value=b""),
        record._replace(headers=[("h", None)]),
        record._replace(headers=[("hx", b"")]),
        record._replace(headers=[]),
    ]
    assert len({record_checksum(each) for each in [record, *others]}) == len(others) + 1
