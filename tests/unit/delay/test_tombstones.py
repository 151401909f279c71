"""Tombstones are in the log: what a replay of their records, or of a snapshot, gives."""

import pytest

from duolog.delay.tables.table_format import TableEntry, first_number, table_path
from duolog.delay.tables.tables import Tables
from duolog.delay.tables.tombstones import TombstoneRow
from duolog.store.errors import Corruption
from tests.kit.disk import CrashDisk
from tests.unit.delay.test_tables import TOPICS, timer, timers_disk, write

TIMERS = [timer(ms, ms, TOPICS[ms % 4]) for ms in range(20)]


def opened(disk: CrashDisk, manifest: tuple[TableEntry, ...], records: list[list[TombstoneRow]]) -> Tables:
    """Open tables after a replay of these records with tombstones."""
    tables = Tables(disk)
    tables.switch(manifest)
    for each in records:
        tables.add_tombstones(each)
    tables.open(first_number(5), may_lose=False)
    return tables


def pending(tables: Tables) -> list[int]:
    return [each.due_ms for each in tables.view().scan((0, 0), 100)]


def tombstones(tables: Tables, *dues_ms: int) -> list[TombstoneRow]:
    """Make a record with tombstones for the timers that are due at these times."""
    refs = tables.view().refs([(due_ms, due_ms) for due_ms in dues_ms])
    return [(ref.table.entry.number, ref.topic, [ref.ordinal]) for ref in refs]


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_tombstones_of_records_and_of_a_snapshot_give_the_same_tables(
    monkeypatch: pytest.MonkeyPatch,
    has_snapshot: bool,
) -> None:
    monkeypatch.setattr("duolog.delay.tables.tables.ROWS_IN_RECORD", 2)
    monkeypatch.setattr("duolog.delay.tables.tables.ORDINALS_IN_ROW", 3)
    disk = timers_disk()
    manifest = tuple(write(disk, number, TIMERS[number::2]).entry for number in (0, 1))
    tables, records = opened(disk, manifest, []), []
    for some in ((1, 2, 3), (4,), (11, 13, 15, 17, 19)):
        records.append(tombstones(tables, *some))
        tables.add_tombstones(records[-1])
    if has_snapshot:
        records = [*tables.all_tombstones()]
        assert [[len(ordinals) for _, _, ordinals in rows] for rows in records] == [[1, 1], [3, 3], [1]]
    again = opened(disk, manifest, records)
    assert pending(again) == pending(tables) == [0, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18]
    assert [*again.all_tombstones()] == [*tables.all_tombstones()]
    for one, other in zip(again.view().tables, tables.view().tables, strict=True):
        assert dict(one.pending_by_topic()) == dict(other.pending_by_topic())


def test_a_tombstone_that_is_added_twice_counts_once() -> None:
    disk = timers_disk()
    tables = opened(disk, (write(disk, 1, TIMERS).entry,), [])
    record = tombstones(tables, 3)
    (ref,) = tables.view().refs([(3, 3)])
    tables.delete(ref)
    tables.add_tombstones(record)
    tables.add_tombstones(record)
    assert [*tables.all_tombstones()] == [record]
    assert dict(next(iter(tables.current)).pending_by_topic()) == {topic: 5 - (topic == 7) for topic in TOPICS}


def test_tombstones_go_with_their_table() -> None:
    disk = timers_disk()
    tables = opened(disk, tuple(write(disk, number, TIMERS[number::2]).entry for number in (0, 1)), [])
    record = tombstones(tables, 3, 4)
    tables.add_tombstones(record)
    tables.switch(tables.manifest[1:])
    tables.add_tombstones(record)
    assert [*tables.all_tombstones()] == [[row for row in record if row[0] == 1]]
    tables.switch(())
    assert [*tables.all_tombstones()] == []


def test_a_table_of_a_stream_that_cannot_be_opened_is_not_set_aside() -> None:
    disk = timers_disk()
    entry = write(disk, 1, TIMERS).entry
    disk.remove(table_path(1))
    with pytest.raises(Corruption, match=table_path(1)):
        opened(disk, (entry,), [])


def test_new_tables_of_two_owners_have_different_numbers() -> None:
    numbers = []
    for epoch in (5, 6):
        disk = timers_disk()
        tables = Tables(disk)
        tables.switch((write(disk, 7, TIMERS).entry,))
        tables.open(first_number(epoch), may_lose=False)
        writer = tables.new_writer()()
        numbers.append(writer.number)
        writer.abandon()
    assert numbers == [first_number(5), first_number(6)]
