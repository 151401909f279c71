"""Proves that entries are found by store time, and expire by it, though the clock was wrong for a while.

What is expected is found the slow way: the effective time of each entry, from the clock's history. Each case is looked
at live, after a restart by a checkpoint, and after one that reads the whole log.
"""

from collections.abc import Iterator
from random import Random

import pytest

from duolog.store.entry import FIRST_FRAME_FORM
from duolog.store.index.queue import queue_key
from duolog.store.index.store_times import STEPS_MAX
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from duolog.store.unit import Frame
from tests.kit.disk import CrashDisk
from tests.kit.rows import first_in_unit
from tests.unit.store.model import Notes

KEY = queue_key(1, 0)
OPTIONS = StoreOptions(segment_bytes=1 << 20, reserve_bytes=4096)
DAY_MS = 86_400_000
NOW = 1_700_000_000_000


class Clocked:
    """A store whose entries are stored one by one at given times, and what each says."""

    def __init__(self) -> None:
        self.disk = CrashDisk()
        self.store = Store.open(self.disk, OPTIONS, Notes(), NOW)
        self.stored: list[int] = []

    def append(self, now_ms: int) -> None:
        self.store.append([Frame(self.store.queue(KEY), FIRST_FRAME_FORM, b"x")], now_ms)
        self.stored.append(self.store.appender.stored_ms)

    def step_back(self, now_ms: int) -> None:
        self.store.appender.set_time_back(now_ms)

    def settle(self) -> None:
        self.store.write()
        task = self.store.durability.sync_wanted(background=True)
        if task is not None:
            task.run()
            self.store.durability.synced(task, None)

    def found(self, stored_ms: int) -> int | None:
        self.settle()
        queue = self.store.queue(KEY)
        found = self.store.reader.find_by_store_time(queue, stored_ms, queue.visible_end)
        assert not hasattr(found, "start"), "a disk in memory never waits"
        return None if found is None else found.base_offset

    def restart(self, *, from_checkpoint: bool) -> None:
        self.settle()
        if from_checkpoint:
            self.store.checkpoint(0)
            self.settle()
            self.store.checkpoint(0)  # of an idle queue: no row stays in memory
            self.settle()
        self.disk = self.disk.after_kill()
        if not from_checkpoint and "checkpoint" in self.disk.paths():
            self.disk.remove("checkpoint")
        self.store = Store.open(self.disk, OPTIONS, Notes(), NOW)


def at_each_state(clocked: Clocked) -> Iterator[Clocked]:
    """The same, three times in turn: as it is, and after either restart."""
    yield clocked
    for from_checkpoint in (True, False, True):
        clocked.restart(from_checkpoint=from_checkpoint)
        yield clocked


@pytest.mark.parametrize("jump_ms", [3_600_000, 8 * DAY_MS, 3650 * DAY_MS])
def test_after_a_clock_that_was_ahead_entries_expire_and_are_found_by_the_right_time(jump_ms: int) -> None:
    clocked = Clocked()
    clocked.append(NOW)
    clocked.append(NOW + jump_ms)
    clocked.append(NOW + jump_ms + 1)
    clocked.step_back(NOW + 10)
    clocked.append(NOW + 20)
    assert clocked.stored == [NOW, NOW + jump_ms, NOW + jump_ms + 1, NOW + 20]
    for each in at_each_state(clocked):
        assert [each.found(NOW + ms) for ms in (0, 1, 10, 11, 20, 21, jump_ms)] == [0, 1, 1, 3, 3, None, None]
        queue = each.store.queue(KEY)
        kept = [each.store.retention.expire(queue, keep_ms=DAY_MS, now_ms=NOW + DAY_MS + ms) for ms in (0, 1, 11, 21)]
        assert kept == [None, 1, 3, 4]


def test_a_step_back_that_was_wrong_makes_nothing_older() -> None:
    """The machine's clock begins in 1970, and hears of the time when the broker has run for a while."""
    clocked = Clocked()
    clocked.append(NOW)
    clocked.step_back(1000)
    clocked.append(2000)
    clocked.store.appender.undo_time_back(NOW + 50)
    clocked.append(NOW + 60)
    for each in at_each_state(clocked):
        assert [each.found(at) for at in (1500, NOW, NOW + 1, NOW + 60, NOW + 61)] == [0, 0, 2, 2, None]
        queue = each.store.queue(KEY)
        assert each.store.retention.expire(queue, keep_ms=DAY_MS, now_ms=NOW + DAY_MS) is None
        assert each.store.retention.expire(queue, keep_ms=DAY_MS, now_ms=NOW + DAY_MS + 1) == 2


@pytest.mark.parametrize("seed", first_in_unit(range(20), 8))
def test_any_history_of_clocks_is_searched_like_a_scan_of_all_entries(seed: int) -> None:
    rng = Random(seed)
    clocked, now_ms = Clocked(), NOW
    steps: list[tuple[int, int, int]] = []  # (entries before, since, before) of those that count
    for _ in range(rng.randrange(20, 200)):
        match rng.randrange(12):
            case 0:
                now_ms += rng.choice((3_600_000, 8 * DAY_MS))
                clocked.store.appender.undo_time_back(now_ms)
                steps = [(at, before if now_ms >= before else since, before) for at, since, before in steps]
            case 1 if now_ms < clocked.store.appender.stored_ms or rng.random() < 0.5:
                now_ms = min(now_ms, clocked.store.appender.stored_ms) - rng.choice((61_000, 3_600_000, 8 * DAY_MS))
                steps.append((len(clocked.stored), now_ms, clocked.store.appender.stored_ms))
                clocked.step_back(now_ms)
            case 2:
                clocked.restart(from_checkpoint=rng.random() < 0.7)
            case _:
                now_ms += rng.randrange(1000)
                clocked.append(now_ms)
    bounded = [min([ms, *(since for at, since, _ in steps if at > number)]) for number, ms in enumerate(clocked.stored)]
    effective = [max(bounded[: number + 1]) for number in range(len(bounded))]
    for wanted_ms in {*effective, *clocked.stored, *(ms + 1 for ms in effective), 0, 1 << 50}:
        expected = next((number for number, ms in enumerate(effective) if ms >= wanted_ms), None)
        assert clocked.found(wanted_ms) == expected, f"seed={seed}"


def test_steps_back_are_bounded() -> None:
    clocked = Clocked()
    for number in range(2 * STEPS_MAX):
        clocked.append(NOW + number * 1000 + DAY_MS)
        clocked.step_back(NOW + number * 1000)
    clocked.restart(from_checkpoint=False)
    assert len(clocked.store._queues.index_files.steps) == STEPS_MAX


def test_steps_back_outlive_the_segments_that_said_so() -> None:
    clocked = Clocked()
    clocked.append(NOW + DAY_MS)
    clocked.step_back(NOW)
    clocked.append(NOW + 1)
    for _ in range(60):
        clocked.store.append([Frame(clocked.store.queue(KEY), FIRST_FRAME_FORM, bytes(50_000))], NOW + 2)
    clocked.settle()
    clocked.store.retention.trim(clocked.store.queue(KEY), 1, NOW + 2)
    clocked.settle()
    steps = clocked.store._queues.index_files.steps
    clocked.store.retention.trim(clocked.store.queue(KEY), 50, NOW + 2)
    for _ in clocked.store.retention.remove_dead_segments():
        pass
    for _ in range(2):
        clocked.settle()
        clocked.store.checkpoint(0)
        clocked.settle()
    assert "log/00000000000000000000.log" not in clocked.disk.paths()
    clocked.restart(from_checkpoint=False)
    assert clocked.store._queues.index_files.steps == steps
