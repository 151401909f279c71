"""The tombstones of a stream's tables are in the log: what a replay of the records, or of a snapshot, gives."""

import pytest

from duolog.delay.tables.table_files import check_files
from duolog.delay.tables.table_format import TableEntry, first_number, table_path
from duolog.delay.tables.tables import Tables
from duolog.delay.tables.tombstones import TombstoneWrite, tombstones_path
from duolog.store.errors import Corruption
from tests.kit.disk import CrashDisk
from tests.unit.delay.test_tables import TOPICS, delete, find, timer, timers_disk, write

TIMERS = [timer(ms, ms, TOPICS[ms % 4]) for ms in range(20)]


def opened(disk: CrashDisk, manifest: tuple[TableEntry, ...], records: list[bytes]) -> Tables:
    """Open tables after a replay of these records with tombstones."""
    tables = Tables(disk)
    tables.switch(manifest)
    for each in records:
        tables.log_tombstones(each)
    tables.open(first_number(5), may_lose=False)
    return tables


def pending(tables: Tables) -> list[int]:
    return [each.due_ms for each in tables.view().scan((0, 0), 100)]


def delete_due(tables: Tables, due_ms: int) -> None:
    found = find(tables.view(), (due_ms, due_ms))
    assert found is not None
    delete(tables, found)


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_tombstones_of_records_and_of_a_snapshot_give_the_same_tables(
    monkeypatch: pytest.MonkeyPatch,
    has_snapshot: bool,
) -> None:
    monkeypatch.setattr("duolog.delay.tables.logged_tombstones.ROWS_IN_RECORD", 3)
    disk = timers_disk()
    manifest = tuple(write(disk, number, TIMERS[number::2]).entry for number in (0, 1))
    tables, records = opened(disk, manifest, []), []
    for some in ((1, 2, 3), (4,), (11, 13, 15, 17, 19)):
        for due_ms in some:
            delete_due(tables, due_ms)
        records.append(tables.unlogged_tombstones())
        tables.log_tombstones(records[-1])
        assert tables.unlogged_tombstones() == b""
    if has_snapshot:
        records = [*tables.logged.snapshot()]
        assert len(records) == 4, "three tombstones at most in each"
    again = opened(disk, manifest, records)
    assert pending(again) == pending(tables) == [0, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18]
    assert again.unlogged_tombstones() == b""
    assert [*again.logged.snapshot()] == [*tables.logged.snapshot()]
    for one, other in zip(again.view().tables, tables.view().tables, strict=True):
        assert dict(one.pending_by_topic()) == dict(other.pending_by_topic())


def test_a_tombstone_that_was_added_meanwhile_is_logged_next() -> None:
    disk = timers_disk()
    tables = opened(disk, (write(disk, 1, TIMERS).entry,), [])
    delete_due(tables, 3)
    first = tables.unlogged_tombstones()
    delete_due(tables, 4)
    tables.log_tombstones(first)
    tables.log_tombstones(tables.unlogged_tombstones())
    assert tables.unlogged_tombstones() == b""
    again = opened(disk, tables.manifest, [*tables.logged.snapshot()])
    assert pending(again) == pending(tables)


def test_tombstones_go_with_their_table() -> None:
    disk = timers_disk()
    tables = opened(disk, tuple(write(disk, number, TIMERS[number::2]).entry for number in (0, 1)), [])
    delete_due(tables, 3)
    delete_due(tables, 4)
    logged = tables.unlogged_tombstones()
    tables.switch(tables.manifest[1:])
    tables.log_tombstones(logged)
    assert len([*tables.logged.snapshot()]) == 1
    tables.switch(())
    assert [*tables.logged.snapshot()] == []


def test_tombstones_of_the_log_are_added_to_those_of_a_file() -> None:
    disk = timers_disk()
    table = write(disk, 1, TIMERS)
    table.tombstones.add(3, 1)
    flush = TombstoneWrite(disk, table.tombstones, 0)
    flush.run()
    entry = table.entry._replace(tombstone_bytes=flush.end)
    check_files(disk, entry)
    tables = opened(disk, (entry,), [])
    delete_due(tables, 4)
    tables.log_tombstones(tables.unlogged_tombstones())
    again = opened(disk, (entry,), [*tables.logged.snapshot()])
    assert pending(again) == [due_ms for due_ms in range(20) if due_ms not in (3, 4)]
    disk.remove(tombstones_path(1))
    with pytest.raises(Corruption, match=tombstones_path(1)):
        check_files(disk, entry)


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
