"""Proves tables of far timers against a sorted list: every look, and every change with the power cut at each step.

Blocks hold three timers, so that a few dozen timers have blocks, edges of blocks and topics that miss some of them.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from duolog.delay.rows import ENTITIES_MAX, TimerKey
from duolog.delay.tables.compaction import COMPACTION_WIDTH, compact, results_max, tables_to_compact
from duolog.delay.tables.sorted_table import Found, SortedTable
from duolog.delay.tables.table_files import check_files
from duolog.delay.tables.table_format import (
    FOOTER_SIZE,
    TIMERS_DIRECTORY,
    TableTimer,
    files_of,
    table_path,
    tombstones_path,
)
from duolog.delay.tables.table_writer import TableWriter
from duolog.delay.tables.tables import TableManifest, Tables
from duolog.delay.tables.tables_view import TablesView
from duolog.delay.tables.tombstones import TombstoneRow
from duolog.store.errors import Corruption
from tests.kit.disk import CrashDisk, PowerCut

TOPICS = (1, 2, 3, 7)
NAMES = (b"", b"", b"order-16", b"order-17")
DUE_MAX_MS = 60
BLOCK_TIMERS = 3

Timers = dict[TimerKey, TableTimer]


def timers_disk() -> CrashDisk:
    disk = CrashDisk()
    disk.make_directory(TIMERS_DIRECTORY)
    return disk


def write(disk: CrashDisk, number: int, timers: Iterable[TableTimer]) -> SortedTable:
    writer = TableWriter(disk, number, block_timers_max=BLOCK_TIMERS)
    for timer in sorted(timers):
        writer.add(timer)
    return writer.finish()


def timer(due_ms: int, address: int, topic: int = 1, name: bytes = b"", size: int = 20) -> TableTimer:
    queue_key, frame = topic << 16 | address % 4, address.to_bytes(8, "big") * size
    return TableTimer(
        due_ms, address, queue_key, 2 + address % 2, name, frame, entity=address * 37 % (ENTITIES_MAX + 1)
    )


timers = st.builds(
    timer, st.integers(0, DUE_MAX_MS), st.integers(0, 1000), st.sampled_from(TOPICS), st.sampled_from(NAMES),
    st.integers(0, 9),
)  # fmt: skip
some_timers = st.lists(timers, min_size=1, max_size=60, unique_by=lambda timer: timer.key)
moments = st.integers(-0, DUE_MAX_MS + 2)


# -- Looks


@given(some_timers, st.data())
def test_every_look_finds_what_a_sorted_list_has(all_timers: list[TableTimer], data: st.DataObject) -> None:
    disk = timers_disk()
    parts = [part for part in (all_timers[number::3] for number in range(3)) if part]
    tables = Tables(disk)
    tables.open()
    tables.switch(tables.added([write(disk, number, part) for number, part in enumerate(parts, 1)]))
    view = tables.view()
    deleted = data.draw(st.sets(st.sampled_from(all_timers)))
    for victim in deleted:
        found = find(view, victim.key)
        assert found is not None
        tables.delete(found.ref)
    pending = sorted(set(all_timers) - deleted)

    for one in all_timers:
        found = find(view, one.key)
        assert found is not None
        assert (found.timer, found.ref.is_deleted) == (one, one in deleted)
        assert find(view, (one.due_ms, one.address + 1001)) is None
    start, until_ms = (data.draw(moments), data.draw(st.integers(0, 1000))), data.draw(moments)
    window = [one for one in pending if start <= one.key and one.due_ms < until_ms]
    assert list(view.scan(start, until_ms)) == window
    assert count(view, start, until_ms) == len(window)
    by_topic = Counter()
    for table in view.tables:
        by_topic.update(dict(table.pending_by_topic()))
    assert +by_topic == Counter(one.topic for one in pending)
    for topic in TOPICS:
        assert list(view.scan(start, until_ms, topic)) == [one for one in window if one.topic == topic]
        assert count(view, start, until_ms, topic) == sum(one.topic == topic for one in window)
        for name in NAMES[2:]:
            with_name = [one for one in all_timers if (one.topic, one.name) == (topic, name)]
            assert sorted(found.timer for found in view.named(topic, name)) == sorted(with_name)
    edges = sorted(data.draw(st.sets(moments, min_size=2)))
    for wanted in (None, *TOPICS):
        of_topic = [one for one in pending if wanted in (None, one.topic)]
        assert view.histogram(edges, wanted) == [
            sum(first <= one.due_ms < last for one in of_topic) for first, last in pairwise(edges)
        ]


def test_a_finished_start_counts_no_more_and_a_finished_bucket_goes() -> None:
    disk = timers_disk()
    tables = Tables(disk)
    tables.open()
    early, late = [timer(ms, ms) for ms in range(8)], [timer(ms, ms) for ms in range(5, 15)]
    late = [one._replace(address=one.address + 100) for one in late]
    tables.switch(tables.added([write(disk, 1, early), write(disk, 2, late)]))
    view = tables.view()
    before = tables.manifest
    tables.switch(tables.with_deletions(view.lower((8, 0))))
    assert [entry.number for entry in tables.manifest] == [2]
    assert count(tables.view(), (0, 0), 1 << 40) == 7
    found = find(view, late[0].key)
    assert found is not None
    assert found.ref.is_deleted
    tables.remove(before[:1])
    assert list(view.scan((0, 0), 8)) == sorted([*early, *late[:0]]), "a view keeps what it began with"
    view.close()
    assert disk.paths() == [table_path(2)]


def test_buckets_of_one_size_are_merged_and_what_is_half_dead_is_written_anew() -> None:
    disk = timers_disk()
    tables = Tables(disk)
    tables.open()
    for number in range(COMPACTION_WIDTH):
        assert tables_to_compact(tables.current) == []
        writer = tables.new_writer()()
        for one in sorted(timer(ms, ms * 10 + number) for ms in range(4)):
            writer.add(one)
        tables.switch(tables.added([writer.finish()]))
    inputs, results = tables_to_compact(tables.current), list[SortedTable]()
    compact(tables.view(inputs), tables.new_writer(results_max(inputs)), results)
    tables.switch(tables.added(results, inputs))
    assert [entry.count for entry in tables.manifest] == [4 * COMPACTION_WIDTH]
    view = tables.view()
    for one in list(view.scan((0, 0), 2)):
        found = find(view, one.key)
        assert found is not None
        tables.delete(found.ref)
    assert tables_to_compact(tables.current) == []
    found = find(view, (2, 20))
    assert found is not None
    tables.delete(found.ref)
    assert [table.entry for table in tables_to_compact(tables.current)] == list(tables.manifest)


# -- Damage


@pytest.mark.slow
def test_a_damaged_byte_is_reported_wherever_it_lies_and_costs_what_it_held(caplog: pytest.LogCaptureFixture) -> None:
    """Many bytes of the file in turn: who reads all of it hears of the damage, nobody gets another timer."""
    disk = timers_disk()
    all_timers = [timer(ms, ms, TOPICS[ms % 4], NAMES[2] if ms % 5 == 0 else b"") for ms in range(20)]
    manifest = (write(disk, 1, all_timers).entry,)
    assert read_all(disk, manifest) == (all_timers, [ms for ms in range(20) if ms % 5 == 0])
    lost: set[int] = set()
    for path, content in disk.contents().items():
        for at in range(0, len(content), 13):
            damaged = disk.after_kill()
            damaged.flip(path, at)
            caplog.clear()
            found = scanned(damaged, manifest)
            said = ""
            try:
                read_all(damaged, manifest)
            except Corruption as error:
                said = str(error)
            assert path in said + caplog.text, f"a flipped byte at {at} of {path} was not reported"
            assert [each for each in all_timers if each in found] == found, "in order, and no other"
            lost.add(len(all_timers) - len(found))
    assert lost == {0, BLOCK_TIMERS - 1, BLOCK_TIMERS, len(all_timers)}, "nothing, a block, or all"


def test_lost_counts_the_pending_timers_of_each_damaged_block_once_and_after_its_table_is_gone() -> None:
    disk = timers_disk()
    table = write(disk, 1, [timer(ms, ms) for ms in range(20)])
    disk.flip(table.path, 0)
    tables = Tables(disk)
    tables.switch((table.entry,))
    tables.add_tombstones([(1, 1, [1])])
    tables.open()
    assert tables.lost == 0, "no read has found the damage yet"
    for _ in range(2):
        list(tables.view().scan((0, 0), 100))
        assert tables.lost == BLOCK_TIMERS - 1, "one timer of the block is deleted"
    tables.switch(())
    assert tables.lost == BLOCK_TIMERS - 1


@pytest.mark.slow
def test_check_reads_the_whole_table_and_finds_a_damaged_byte_anywhere_before_the_footer() -> None:
    disk = timers_disk()
    table = write(disk, 1, [timer(ms, ms, TOPICS[ms % 4], NAMES[2] if ms % 5 == 0 else b"") for ms in range(20)])
    end = len(disk.contents()[table.path]) - FOOTER_SIZE
    assert [*table.check()] == [(size, "") for size, _ in table.check()]
    assert sum(size for size, _ in table.check()) == end
    for at in range(0, end, 13):
        damaged = disk.after_kill()
        damaged.flip(table.path, at)
        found = [text for _, text in SortedTable(damaged, table.entry).check() if text]
        assert found, at
        assert all(table.path in text for text in found)


def scanned(disk: CrashDisk, manifest: TableManifest) -> list[TableTimer]:
    """Give what will be delivered."""
    tables = Tables(disk)
    tables.switch(manifest)
    tables.open()
    return list(tables.view().scan((0, 0), 100))


def find(view: TablesView, key: TimerKey) -> Found | None:
    return next(view.find(key), None)


def count(view: TablesView, start: TimerKey, until_ms: int, topic: int | None = None) -> int:
    return sum(
        table.pending_before((until_ms, 0), topic) - table.pending_before(start, topic)
        for table in view.tables
        if start < (until_ms, 0)
    )


def read_all(disk: CrashDisk, manifest: TableManifest) -> tuple[list[TableTimer], list[int]]:
    """Use every table and block."""
    tables = Tables(disk)
    tables.switch(manifest)
    tables.open()
    view = tables.view()
    for topic in TOPICS:
        count(view, (0, 0), 100, topic)
    found = list(view.scan((0, 0), 100))
    return found, sorted(found.timer.due_ms for topic in TOPICS for found in view.named(topic, NAMES[2]))


def test_a_missing_bucket_costs_what_it_held_and_the_next_manifest_says_so(caplog: pytest.LogCaptureFixture) -> None:
    disk = timers_disk()
    manifest = (write(disk, 1, [timer(ms, ms) for ms in range(3)]).entry, write(disk, 2, [timer(7, 7)]).entry)
    disk.remove(table_path(1))
    tables = Tables(disk)
    tables.switch(manifest)
    tables.add_tombstones([(1, 1, [0])])
    tables.open()
    assert list(tables.view().scan((0, 0), 100)) == [timer(7, 7)]
    assert table_path(1) in caplog.text
    assert tables.is_repaired
    assert tables.lost == 3
    tables.switch(tables.manifest)
    again = Tables(disk)
    again.switch(tables.manifest)
    again.open()
    assert not again.is_repaired
    assert list(again.view().scan((0, 0), 100)) == [timer(7, 7)]


def test_another_bucket_under_the_name_is_reported() -> None:
    disk = timers_disk()
    entry = write(disk, 1, [timer(1, 1)]).entry
    disk.remove(table_path(1))
    write(disk, 1, [timer(1, 2)])
    with pytest.raises(Corruption, match=table_path(1)):
        SortedTable(disk, entry)


# -- Power cuts


class Committed(NamedTuple):
    """A manifest in the log, and the timers that are pending by it."""

    manifest: TableManifest
    pending: Timers


class History:
    """Random changes to tables. The log is a list of manifests, each durable at once; the model is a dict.

    Cancels are in the model's log as well, and tombstones: what no manifest counted is done again after a start.
    """

    def __init__(self, seed: int, disk: CrashDisk) -> None:
        self.random, self.disk = Random(seed), disk
        self.pending: Timers = {}
        self.committed = Committed((), {})
        self.uncounted: set[TimerKey] = set()  # by the log, since the manifest that counted the last
        self.tombstones: list[TombstoneRow] = []  # in the log
        self.address = 0
        self.horizon_ms = 0  # what is due before is finished
        self.tables = Tables(disk)

    def run(self, steps: int) -> None:
        self.tables.open()
        actions: list[tuple[Callable[[], None], int]] = [
            (self.add, 10), (self.cancel, 20), (self.count, 6), (self.finish, 4), (self.merge, 5), (self.restart, 1),
        ]  # fmt: skip
        for _ in range(steps):
            self.random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()

    def add(self) -> None:
        new: Timers = {}
        for _ in range(self.random.randrange(1, 12)):
            self.address += 1
            one = timer(self.horizon_ms + self.random.randrange(1, 100), self.address, self.random.choice(TOPICS))
            new[one.key] = one
        writer = self.tables.new_writer()()
        for one in sorted(new.values()):
            writer.add(one)
        table = writer.finish()
        self.pending |= new
        self.commit(self.tables.added([table]))

    def cancel(self) -> None:
        if not self.pending:
            return
        key = self.random.choice(sorted(self.pending))
        self.uncounted.add(key)
        self.delete_in_tables(key)
        del self.pending[key]

    def delete_in_tables(self, key: TimerKey) -> None:
        view = self.tables.view()
        found = find(view, key)
        if found is not None:  # a merge may have left it out
            self.tables.delete(found.ref)
        view.close()

    def count(self) -> None:
        counted = sorted(self.uncounted)
        self.cancel()  # one that comes while the others are searched
        view = self.tables.view()
        self.tombstones += [(ref.table.entry.number, ref.topic, [ref.ordinal]) for ref in view.refs(counted)]
        view.close()
        self.uncounted.difference_update(counted)
        self.commit(self.tables.with_deletions({}))

    def finish(self) -> None:
        self.horizon_ms += self.random.randrange(30)
        view = self.tables.view()
        starts = view.lower((self.horizon_ms, 0))
        view.close()
        self.pending = {key: one for key, one in self.pending.items() if key >= (self.horizon_ms, 0)}
        self.commit(self.tables.with_deletions(starts))

    def merge(self) -> None:
        view = self.tables.view()
        inputs = self.random.sample(view.tables, self.random.randrange(len(view.tables) + 1))
        view.close()
        if not inputs:
            return
        view, new_writer, results = self.tables.view(inputs), self.tables.new_writer(results_max(inputs)), []
        deleted: dict[TimerKey, None] = {}
        for table in inputs:
            table.deleted_meanwhile = deleted
        self.cancel()
        compact(view, new_writer, results)
        self.cancel()
        # The log keeps what was deleted meanwhile, because the results have no tombstones for that.
        self.uncounted.update(deleted)
        self.commit(self.tables.added(results, inputs), deleted)
        view.close()

    def commit(self, manifest: TableManifest, deleted: Iterable[TimerKey] = ()) -> None:
        numbers = {entry.number for entry in manifest}
        retired = [entry for entry in self.tables.manifest if entry.number not in numbers]
        self.tables.switch(manifest)
        for key in deleted:
            self.delete_in_tables(key)
        self.committed = Committed(manifest, self.pending | {})
        self.tables.remove(retired)
        self.check(self.tables)

    def restart(self) -> None:
        self.tables.close()
        self.tables = self.opened(self.disk)

    def opened(self, disk: CrashDisk) -> Tables:
        """What the next start makes of the disk, the manifest, the tombstones and the uncounted cancels."""
        tables = Tables(disk)
        tables.switch(self.committed.manifest)
        tables.add_tombstones(self.tombstones)
        tables.open()
        view = tables.view()
        for key in self.uncounted:
            if found := find(view, key):
                tables.delete(found.ref)
        view.close()
        return tables

    def check(self, tables: Tables) -> None:
        view = tables.view()
        expected = sorted(self.pending.values())
        assert list(view.scan((self.horizon_ms, 0), 1 << 40)) == expected
        assert [len(list(view.scan((self.horizon_ms, 0), 1 << 40, topic))) for topic in TOPICS] == [
            count(view, (self.horizon_ms, 0), 1 << 40, topic) for topic in TOPICS
        ]
        view.close()


STEPS = 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_at_any_operation_leaves_what_the_last_manifest_names(seed: int) -> None:
    whole = CrashDisk()
    History(seed, whole).run(STEPS)
    for cut_at in range(1, whole.operations + 1):
        disk = CrashDisk(cut_at=cut_at)
        history = History(seed, disk)
        with pytest.raises(PowerCut):
            history.run(STEPS)
        for found in (disk.after_power_cut(seed=cut_at), disk.after_kill()):
            history.check(history.opened(found))
            left_over = set(found.paths()) - set(named(history.committed.manifest))
            assert not left_over


def named(manifest: TableManifest) -> Iterator[str]:
    for entry in manifest:
        yield table_path(entry.number)


def test_tombstones_in_the_file_of_an_earlier_version_move_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    disk = timers_disk()
    entry = write(disk, 1, [timer(ms, ms) for ms in range(3)]).entry
    batches = b""
    for ordinal in (0, 2):
        body = struct.pack(">IIQ", 1, ordinal, 1)
        batches += crc32c(body, crc32c(struct.pack(">QQ", 1, len(batches)))).to_bytes(4, "big") + body
    file = disk.open(tombstones_path(1), create=True)
    disk.write(file, [batches[:-1] + b"\xff"], 0)
    old = (entry._replace(tombstone_bytes=len(batches)),)
    tables = Tables(disk)
    tables.switch(old)
    tables.open()
    assert list(tables.view().scan((0, 0), 100)) == [timer(1, 1), timer(2, 2)], "the second batch is damaged"
    assert f"{tombstones_path(1)} is damaged, or missing, from byte 20 of 40 on" in caplog.text
    with pytest.raises(Corruption, match=r"0000000001\.tombstones: damaged, or missing, from byte 20 of 40 on"):
        check_files(disk, old[0])
    disk.write(file, [batches], 0)
    check_files(disk, old[0])
    assert [file.path for file in files_of(old[0])] == [table_path(1), tombstones_path(1)]
    tables = Tables(disk)
    tables.switch(old)
    tables.open()
    assert list(tables.view().scan((0, 0), 100)) == [timer(1, 1)]
    assert tables.is_repaired
    assert list(tables.all_tombstones()) == [[(1, 1, [0, 2])]]
    again = Tables(disk)
    again.switch((entry,))
    again.add_tombstones([(1, 1, [0, 2])])
    again.open()
    assert list(again.view().scan((0, 0), 100)) == [timer(1, 1)]
    assert not again.is_repaired
    assert disk.list(TIMERS_DIRECTORY) == ["0000000001.table"]
    with pytest.raises(Corruption, match="damaged, or missing, from byte 0 of 40 on"):
        check_files(disk, old[0])
