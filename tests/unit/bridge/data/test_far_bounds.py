"""The reads and memory of far timers when very many are due at once."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from duolog.delay.tables.compaction import compact
from duolog.delay.tables.flush import flush_rows
from duolog.delay.tables.table_format import table_path
from duolog.delay.tables.tombstones import TombstoneRow
from duolog.delay.tree import tombstone_job
from duolog.delay.tree.cursors import Cursors, Read
from duolog.delay.tree.lookups import TooManyNamed
from duolog.delay.tree.prefetch import Prefetch
from duolog.store.workers import Inline
from tests.kit.disk import CrashDisk
from tests.unit.bridge.batches import batch
from tests.unit.bridge.data.test_far_timers import NEAR_MS, Bench

MANY = 3_000
IN_BATCH = 20


class CountingDisk(CrashDisk):
    read_bytes = 0

    def read(self, file: int, size: int, at: int) -> bytes:
        self.read_bytes += size
        return super().read(file, size, at)


def with_many(disk: CrashDisk, first_ms: int, step_ms: int) -> Bench:
    """Return a bench with many far timers, the first due in `first_ms`, each further batch `step_ms` later."""
    bench = Bench(disk)
    topic, start_ms = bench.core.topic("orders", 1), bench.now_ms()
    for at in range(0, MANY, IN_BATCH):
        due_ms = start_ms + first_ms + at // IN_BATCH * step_ms
        one = batch([bytes(500)] * IN_BATCH, headers=[("TIMER_DELIVER_MS", b"%d" % due_ms)])
        bench.core.publisher.publish_batch(topic, 0, one, start_ms)
        bench.turn()
    bench.turn_until_idle()
    assert len(bench.tree) == MANY
    return bench


def test_messages_that_are_due_before_a_table_is_kept_wait_for_it_without_work() -> None:
    """The first table may take long to reach the object store. What is due after its messages waits for them."""
    bench, kept = Bench(), list[Callable[[None], None]]()
    bench.tree.context.table_copies.copy = lambda files, done: kept.append(done)  # type: ignore[method-assign]

    def send(body: bytes, due_ms: int) -> None:
        one = batch([body], headers=[("TIMER_DELIVER_MS", b"%d" % due_ms)])
        bench.core.publisher.publish_batch(bench.core.topic("orders", 1), 0, one, bench.now_ms())
        bench.turn_until_idle()

    due_ms = bench.now_ms() + 3 * NEAR_MS
    send(b"far", due_ms)
    assert len(kept) == 1
    bench.core.clock.set_now_ms(due_ms - NEAR_MS // 2)
    send(b"near", due_ms + 1)
    bench.core.clock.set_now_ms(due_ms + 1)
    for _ in range(100):
        bench.turn()
        if bench.tree.next_deadline_ms() > bench.core.clock.mono_ms():
            break
    else:
        raise AssertionError("the tree is called again at once")
    bench.turn_until_idle()
    assert bench.bodies("orders") == []
    kept.pop()(None)
    bench.turn_until_idle()
    assert bench.bodies("orders") == [b"far", b"near"]


@pytest.mark.slow
def test_a_burst_that_memory_does_not_hold_is_read_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are due in the same millisecond: each slice reads its own messages, not all that are left."""
    monkeypatch.setattr("duolog.delay.tree.cursors.PREFETCH_BYTES", 0)
    disk = CountingDisk()
    bench = with_many(disk, 100 * NEAR_MS, 0)
    bench.core.clock.pass_ms(100 * NEAR_MS - NEAR_MS // 2)
    bench.turn_until_idle()
    size = sum(len(content) for path, content in disk.contents().items() if path.endswith(".table"))
    disk.read_bytes = 0
    bench.core.clock.pass_ms(NEAR_MS)
    for _ in range(MANY):
        bench.turn()
        if not len(bench.core.delays.timers):
            break
    assert bench.core.topic("orders", 1).queues[0].visible_end == MANY
    assert disk.read_bytes < 3 * size


@pytest.mark.slow
def test_what_memory_does_not_hold_is_read_a_few_times_though_little_is_due_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each read of a table reads a block, in which those lie that are due next."""
    monkeypatch.setattr("duolog.delay.tree.cursors.PREFETCH_BYTES", 500_000)
    disk = CountingDisk()
    bench = with_many(disk, 100 * NEAR_MS, NEAR_MS // 1000)
    bench.core.clock.pass_ms(100 * NEAR_MS - NEAR_MS // 2)
    bench.turn_until_idle()
    size = sum(len(content) for path, content in disk.contents().items() if path.endswith(".table"))
    disk.read_bytes = 0
    bench.core.clock.pass_ms(NEAR_MS // 2)
    for _ in range(MANY // IN_BATCH):
        for _ in range(3):
            bench.turn()
        bench.core.clock.pass_ms(NEAR_MS // 1000)
    assert bench.core.topic("orders", 1).queues[0].visible_end == MANY
    assert disk.read_bytes < 3 * size


@pytest.mark.slow
def test_a_long_load_stops_to_have_the_dead_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a day without the broker, say: all are late, and delivered as fast as they come."""
    monkeypatch.setattr("duolog.delay.tree.cursors.READ_ROWS", 256)
    monkeypatch.setattr("duolog.delay.tree.read_job.DELETIONS_MAX", 512)
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.TOMBSTONES_MIN", 256)
    bench = with_many(CrashDisk(), 100 * NEAR_MS, 100)
    queue = bench.core.topic("orders", 1).queues[0]
    bench.core.clock.pass_ms(1_000 * NEAR_MS)
    uncounted = [0]
    while queue.visible_end < MANY and len(uncounted) < MANY:
        bench.turn(NEAR_MS // 10)
        uncounted.append(len(bench.tree.deletions))
    assert queue.visible_end == MANY
    assert max(uncounted) < 1_100
    bench.turn_until_idle()
    assert not len(bench.core.delays.timers)


def test_verbs_about_more_of_one_key_than_the_loop_may_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.delay.tree.lookups.NAMED_MAX", 3)
    bench = Bench()
    wanted = {"topic": "orders", "key": "k", "value": "v", "at_ms": bench.now_ms() + 100 * NEAR_MS}
    bench.core.topic("orders", 1)
    for _ in range(4):
        bench.call("_add", wanted)
    bench.turn_until_idle()
    with pytest.raises(TooManyNamed, match="more than 3"):
        bench.call("_cancel_named", topic="orders", key="k")
    with pytest.raises(TooManyNamed, match="more than 3"):
        bench.call("_add", wanted | {"replace": True})
    assert len(bench.core.delays.timers) == len(bench.tree) == 4


class HeldTasks(Inline):
    """Runs tasks at once, but holds the results of one kind of task until the test takes them."""

    def __init__(self, held: Callable[..., Any]) -> None:
        super().__init__()
        self.held = held
        self.ended: list[Callable[[], None]] = []

    def submit(self, run: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if isinstance(run, partial) and run.func is self.held:
            outcome = run()
            self.ended.append(lambda: done(outcome))
            return
        super().submit(run, done)

    def end(self) -> None:
        for ended in self.ended:
            ended()
        self.ended.clear()


@pytest.mark.slow
def test_what_died_in_a_long_merge_is_dead_in_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.delay.tables.compaction.COMPACTION_WIDTH", 1_000)
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.TOMBSTONES_MIN", 64)
    bench = with_many(CrashDisk(), 100 * NEAR_MS, 100)
    monkeypatch.setattr("duolog.delay.tables.compaction.COMPACTION_WIDTH", 2)
    workers = bench.tree.context.executor = HeldTasks(compact)
    bench.turn(NEAR_MS)
    assert workers.ended
    bench.core.clock.pass_ms(105 * NEAR_MS)
    for _ in range(100):
        bench.turn(NEAR_MS // 2)
    queue = bench.core.topic("orders", 1).queues[0]
    delivered = queue.visible_end
    assert delivered > 256
    assert len(bench.tree.deletions.meanwhile) > 256
    workers.end()
    assert not bench.tree.deletions.meanwhile
    bench.core.settle()
    files = {path for path in bench.core.disk.paths() if path.endswith(".table")}
    assert files == {table_path(entry.number) for entry in bench.tree.context.tables.manifest}
    for each in (bench.restarted(), bench):
        assert len(each.core.delays.timers) == MANY - delivered
        each.core.clock.pass_ms(1_000 * NEAR_MS)
        for _ in range(MANY):
            each.turn(NEAR_MS // 10)
            if not len(each.core.delays.timers):
                break
        assert each.core.topic("orders", 1).queues[0].visible_end == MANY


def test_what_moves_back_to_a_key_that_a_compaction_has_deleted_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is deleted in a table, moves back, and waits for the results of the compaction, which have it, too."""
    monkeypatch.setattr("duolog.delay.tables.compaction.COMPACTION_WIDTH", 2)
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.TOMBSTONES_MS", 1 << 60)
    bench = Bench()
    bench.core.topic("orders", 1)
    due_ms = bench.now_ms() + 1_000 * NEAR_MS

    def add(body: str) -> str:
        return str(bench.call("_add", {"topic": "orders", "value": body, "at_ms": due_ms})["id"])

    add("before")
    bench.turn_until_idle()
    moved = add("moved")
    flushes = bench.tree.context.executor = HeldTasks(flush_rows)
    while not flushes.ended:
        bench.turn(NEAR_MS)
    bench.call("_reschedule", {"delay_ms": NEAR_MS // 2}, moved)
    compactions = bench.tree.context.executor = HeldTasks(compact)
    flushes.end()
    while not compactions.ended:
        bench.turn()
    bench.call("_reschedule", {"at_ms": due_ms}, moved)
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.TOMBSTONES_MS", 0)
    for _ in range(100):
        bench.turn(NEAR_MS)
    assert not bench.tree.deletions.keys(), "the deletion has a tombstone in the table that is being compacted"
    compactions.end()
    for _ in range(100):
        bench.turn(NEAR_MS)
    bench.core.clock.pass_ms(1_000 * NEAR_MS)
    for _ in range(100):
        bench.turn(NEAR_MS)
    assert sorted(bench.bodies("orders")) == [b"before", b"moved"]


class LateTasks(Inline):
    """Runs tasks at once, but those of some kinds only when the test says so."""

    def __init__(self, *late: Callable[..., Any]) -> None:
        super().__init__()
        self.late = late
        self.waiting: list[tuple[Any, Callable[[], None]]] = []

    def submit(self, run: Callable[[], Any], done: Callable[[Any], None]) -> None:
        kind = getattr(run.func, "__func__", run.func) if isinstance(run, partial) else None
        if kind in self.late:
            self.waiting.append((kind, lambda: super(LateTasks, self).submit(run, done)))
        else:
            super().submit(run, done)

    def run(self, kind: Callable[..., Any]) -> None:
        """Run the tasks of this kind that wait now."""
        found = [each for each in self.waiting if each[0] is kind]
        self.waiting = [each for each in self.waiting if each[0] is not kind]
        for _, task in found:
            task()


def test_a_deletion_is_not_forgotten_if_a_compaction_ends_while_deletions_are_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The results of the compaction have the message, so it needs a tombstone in them."""
    monkeypatch.setattr("duolog.delay.tables.compaction.COMPACTION_WIDTH", 2)
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.TOMBSTONES_MS", 1 << 60)
    bench = Bench()
    bench.core.topic("orders", 1)
    workers = bench.tree.context.executor = LateTasks(compact, tombstone_job._find)
    for spans in (20, 1_000):
        bench.call("_add", {"topic": "orders", "value": str(spans), "at_ms": bench.now_ms() + spans * NEAR_MS})
        bench.turn_until_idle()
    assert workers.waiting, "a compaction is under way"
    bench.core.clock.pass_ms(20 * NEAR_MS)
    bench.turn_until_idle()
    assert bench.bodies("orders") == [b"20"]
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.TOMBSTONES_MS", 0)
    bench.turn(NEAR_MS)
    workers.run(compact)
    workers.run(tombstone_job._find)
    workers.late = ()
    bench.turn_until_idle()
    assert not bench.tree.deletions.keys(), "all deletions have tombstones"
    again = bench.restarted()
    again.turn_until_idle()
    assert again.bodies("orders") == [b"20"]
    assert len(again.core.delays.timers) == 1


def test_a_read_does_not_pass_by_rows_of_a_topic_that_was_paused_and_flushed_meanwhile() -> None:
    """The read has not seen the new table, and the topic shares the cursor again when the flush has ended."""
    bench = Bench()
    for name in ("orders", "refunds"):
        bench.core.topic(name, 1)
    bench.call("_add", {"topic": "refunds", "value": "far", "delay_ms": 1_000 * NEAR_MS})
    bench.turn_until_idle()
    again = bench.restarted()
    workers = again.tree.context.executor = LateTasks(Read.run)
    again.turn(NEAR_MS)
    assert workers.waiting, "a read from the beginning is under way"
    again.call("_add", {"topic": "orders", "value": "due", "delay_ms": NEAR_MS // 10})
    again.call("_pause", match="orders")
    again.core.clock.pass_ms(NEAR_MS // 5)
    again.turn_until_idle()
    assert len(again.tree.context.tables.manifest) == 2
    again.call("_resume", match="orders")
    workers.late = ()
    workers.run(Read.run)
    again.turn_until_idle()
    assert again.bodies("orders") == [b"due"]


def test_a_flush_takes_nothing_that_the_cursor_of_a_paused_topic_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared cursor has gone back for other topics. After that, a clock that is set back makes rows far again."""
    monkeypatch.setattr("duolog.delay.tree.cursors.OWN_MAX", 0)
    cursors = Cursors(Prefetch(lambda topic, due_ms: None))
    cursors.skip_to(1_000)
    cursors.stop(1)
    cursors.stop(2, (10, 0))
    cursors.go({1})
    cursors.next_read(20, 5, 26)
    assert cursors.shared_ms == 10
    assert cursors.read_to_ms == 1_000


def many_far(count: int) -> tuple[Bench, list[str]]:
    """Return a bench with this many far messages in one table, and their ids."""
    bench = Bench()
    bench.core.topic("orders", 1)
    wanted = {"topic": "orders", "value": "far", "delay_ms": 1_000 * NEAR_MS}
    ids = [bench.call("_add", wanted)["id"] for _ in range(count)]
    bench.turn_until_idle()
    return bench, ids


def test_cursors_read_on_while_deletions_are_counted_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread is left for both, so each read runs while the loop counts what the search before it has found."""
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.TOMBSTONES_MIN", 1)
    bench, ids = many_far(10)
    bench.call("_add", {"topic": "orders", "value": "due", "delay_ms": 20 * NEAR_MS})
    bench.turn_until_idle()
    workers = bench.tree.context.executor = LateTasks(Read.run, tombstone_job._find)
    bench.core.clock.pass_ms(20 * NEAR_MS)
    for text in ids:
        assert bench.call("_cancel", match=text) == {"outcome": "cancelled"}
        bench.turn(NEAR_MS)
        workers.run(tombstone_job._find)
        for _ in range(3):
            bench.turn()
        workers.run(Read.run)
    assert bench.bodies("orders") == [b"due"]


def test_tables_are_compacted_while_deletions_are_counted_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.TOMBSTONES_MIN", 1)
    monkeypatch.setattr("duolog.delay.tables.compaction.COMPACTION_WIDTH", 2)
    bench, ids = many_far(30)
    workers = bench.tree.context.executor = LateTasks(tombstone_job._find)
    bench.call("_cancel", match=ids[0])
    bench.turn(NEAR_MS)
    bench.call("_add", {"topic": "orders", "value": "far", "delay_ms": 1_000 * NEAR_MS})
    for _ in range(5):
        bench.turn(NEAR_MS)
    assert len(bench.tree.context.tables.manifest) == 2
    for text in ids[1:5]:
        bench.call("_cancel", match=text)
        workers.run(tombstone_job._find)
        bench.turn(NEAR_MS)
        bench.turn(NEAR_MS)
    assert len(bench.tree.context.tables.manifest) == 1
    assert len(bench.core.delays.timers) == 26


def test_a_manifest_has_few_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest must fit into a segment, however many messages were deleted, and the loop replays it in one turn."""
    monkeypatch.setattr("duolog.delay.tree.tombstone_job.MARKED_IN_SLICE", 4)
    bench, ids = many_far(20)
    counts: list[int] = []
    replay = bench.tree.context.tables.add_tombstones

    def add_tombstones(rows: Sequence[TombstoneRow]) -> None:
        counts.append(sum(len(ordinals) for _, _, ordinals in rows))
        replay(rows)

    bench.tree.context.tables.add_tombstones = add_tombstones  # type: ignore[method-assign, assignment]
    for text in ids[:9]:
        bench.call("_cancel", match=text)
    for _ in range(20):
        bench.turn(NEAR_MS)
    assert counts == [4, 4, 1, 0]
    assert len(bench.restarted().core.delays.timers) == 11
