"""No far timer is lost by a failure of the disk at any operation on table files.

Each is delivered once, in due order; a failed table is not current, and no file stays open.
"""

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from duolog.store.entry import Buffer
from duolog.store.errors import StoreError
from tests.kit.disk import CrashDisk
from tests.unit.bridge.batches import batch
from tests.unit.bridge.data.test_far_timers import NEAR_MS, Bench

T = TypeVar("T")

ROUNDS = 9  # One table for each round: enough for a compaction.
OF_ROUND = 4


class FailingTimers(CrashDisk):
    """A disk on which the n-th operation on table files fails; 0: none."""

    def __init__(self, nth: int = 0) -> None:
        super().__init__()
        self.calls, self.nth = 0, nth
        self.of_timers: set[int] = set()

    def count(self) -> None:
        self.calls += 1
        if self.calls == self.nth:
            raise OSError(errno.EIO, f"call {self.nth}")

    def open(self, path: str, *, create: bool = False) -> int:
        if path.startswith("timers/"):
            self.count()
        file = super().open(path, create=create)
        if path.startswith("timers/"):
            self.of_timers.add(file)
        return file

    def close(self, file: int) -> None:
        super().close(file)
        self.of_timers.discard(file)

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        if file in self.of_timers:
            self.count()
        super().write(file, buffers, at)

    def read(self, file: int, size: int, at: int) -> bytes:
        if file in self.of_timers:
            self.count()
        return super().read(file, size, at)

    def sync(self, file: int) -> None:
        if file in self.of_timers:
            self.count()
        super().sync(file)

    def sync_directory(self, path: str) -> None:
        if path == "timers":
            self.count()
        super().sync_directory(path)


def again(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except StoreError:
        return ask()


def lived(nth: int) -> FailingTimers:
    """Run far timers through tables, a compaction, commands, tombstones, reads, a pause and deliveries."""
    disk = FailingTimers()
    bench = Bench(disk)
    disk.calls, disk.nth = 0, nth
    bench.core.topic("orders", 1)

    def add(value: str, due_ms: int, key: str) -> str:
        wanted: dict[str, Any] = {"topic": "orders", "value": value, "at_ms": due_ms, "key": key, "replace": True}
        return cast(str, again(lambda: bench.call("_add", wanted))["id"])

    start_ms = bench.now_ms() + 600_000
    ids: dict[str, str] = {}
    for number in range(ROUNDS * OF_ROUND):
        ids[f"{number:02}"] = add(f"{number:02}", start_ms + number, f"k{number}")
        if number % OF_ROUND == OF_ROUND - 1:
            for _ in range(3):
                bench.turn(NEAR_MS)
    for value in ("05", "17", "30"):
        cancel = partial(bench.call, "_cancel", match=ids.pop(value))
        assert again(cancel) == {"outcome": "cancelled"}
        bench.turn(20 * NEAR_MS)
    again(lambda: bench.call("_reschedule", {"at_ms": start_ms + 99}, ids["08"]))
    add("99", start_ms + 100, "k9")  # It replaces 09.
    bench.turn_until_idle()
    assert len(bench.core.delays.timers) == len(ids)
    bench.core.clock.set_now_ms(start_ms - NEAR_MS // 4)  # All are read ahead.
    bench.turn_until_idle()
    for value in ("97", "98"):
        add(value, start_ms + 101, f"k{value}")
    bench.call("_pause", match="orders")
    bench.core.clock.set_now_ms(start_ms + NEAR_MS)
    for _ in range(3):
        bench.turn_until_idle()
    assert not bench.bodies("orders")
    assert not (len(bench.core.delays.timers.pending.memtable) + len(bench.core.delays.timers.pending.prefetch))
    bench.call("_resume", match="orders")
    bench.turn_until_idle()
    expected = [value for value in sorted(ids) if value not in ("08", "09")] + ["08", "99", "97", "98"]
    assert [body.decode() for body in bench.bodies("orders")] == expected
    bench.turn_until_idle()
    assert len(bench.tree.context.tables.manifest) == 0
    assert not disk.of_timers, "left open"
    return disk


CALLS_MAX = 150  # The disk calls of one run.


def test_each_call_of_a_life_fails_in_one_test() -> None:
    assert CALLS_MAX * 3 // 4 < lived(0).calls <= CALLS_MAX


@pytest.mark.parametrize("nth", range(1, CALLS_MAX, 5))
def test_a_failure_of_the_disk_loses_nothing(nth: int) -> None:
    lived(nth)


@pytest.mark.soak
@pytest.mark.parametrize("nth", range(1, CALLS_MAX))
def test_a_failure_of_the_disk_at_any_operation_loses_nothing(nth: int) -> None:
    lived(nth)


def test_a_disk_that_goes_on_to_fail_is_not_tried_each_second() -> None:
    """A failed attempt costs as much as a table."""
    disk = FailingTimers()
    bench = Bench(disk)
    bench.core.topic("orders", 1)
    bench.call("_add", {"topic": "orders", "value": "v", "at_ms": bench.now_ms() + 600_000})
    disk.nth = disk.calls + 1
    for _ in range(9):
        bench.turn(NEAR_MS)
    assert disk.calls == disk.nth
    for _ in range(9):
        bench.turn(NEAR_MS)
    assert len(bench.tree.context.tables.manifest) == 1


@pytest.mark.parametrize("damage", ["removed", "a byte of the footer", "a byte of a message"])
def test_a_damaged_table_costs_what_it_held_and_the_broker_starts(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    for body, delay_ms in ((b"lost", 20 * NEAR_MS), (b"kept", 22 * NEAR_MS)):
        one = batch([body], headers=[("TIMER_DELIVER_MS", b"%d" % (bench.now_ms() + delay_ms))])
        bench.core.publisher.publish_batch(bench.core.topic("orders", 1), 0, one, bench.now_ms())
        bench.turn_until_idle()
    disk = bench.core.disk.after_kill()
    first, _ = (path for path in disk.paths() if path.endswith(".table"))
    if damage == "removed":
        disk.remove(first)
    else:
        content = disk.contents()[first]
        disk.flip(first, content.index(b"lost") if damage == "a byte of a message" else len(content) - 1)
    bench = Bench(disk, bench.now_ms())
    bench.core.clock.pass_ms(30 * NEAR_MS)
    bench.turn_until_idle()
    assert bench.bodies("orders") == [b"kept"]
    assert first in caplog.text
    assert "timers=1" in caplog.text
    if damage != "a byte of a message":
        assert bench.core.delays.timers.tree.context.tables.lost == 1
        assert (first + ".damaged" in bench.core.disk.paths()) == (damage != "removed")
    caplog.clear()
    bench = bench.restarted()
    assert not len(bench.core.delays.timers)
    assert "lost" not in caplog.text


class Unreadable(CrashDisk):
    """A disk on which no table file can be read while `is_broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False

    def open(self, path: str, *, create: bool = False) -> int:
        if self.is_broken and path.startswith("timers/"):
            raise OSError(errno.EIO, "broken")
        return super().open(path, create=create)

    def read(self, file: int, size: int, at: int) -> bytes:
        if self.is_broken:
            raise OSError(errno.EIO, "broken")
        return super().read(file, size, at)


def test_a_message_that_is_due_in_an_unreadable_table_is_overdue() -> None:
    disk = Unreadable()
    bench = Bench(disk)
    timers = bench.core.delays.timers
    bench.core.topic("orders", 1)
    due_ms = bench.now_ms() + 600_000
    bench.call("_add", {"topic": "orders", "value": "far", "at_ms": due_ms})
    bench.turn_until_idle()
    assert (len(timers.tree), len(timers.pending.memtable)) == (1, 0)
    bench.core.clock.set_now_ms(due_ms - NEAR_MS)
    bench.turn_until_idle()
    disk.is_broken = True
    bench.core.clock.set_now_ms(due_ms + 5_000)
    for _ in range(3):
        bench.turn(NEAR_MS)
    assert 5_000 <= timers.overdue_ms(bench.now_ms()) < 5_000 + NEAR_MS
    disk.is_broken = False
    bench.turn_until_idle()
    assert bench.bodies("orders") == [b"far"]
    assert timers.overdue_ms(bench.now_ms()) == 0
