"""The background check of sealed data: it reads all of it at the rate of the setting, and finds each damaged byte."""

import logging

import pytest

from duolog.bridge.config import Options, StoreSection
from duolog.bridge.monitoring.sealed_data import PASS_MS, ROUND_MS
from duolog.store.index import index_files
from duolog.store.options import StoreOptions
from duolog.store.recovery.sealed_files import CheckedPiece, check_index_file
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk

SEGMENT_BYTES = 64 << 10


def filled_core(rate: int) -> ManualCore:
    """Return a core with some sealed segments."""
    section = StoreSection(segment_bytes=SEGMENT_BYTES, verify_bytes_per_s=rate)
    core = ManualCore(Options(store=section), store=StoreOptions(segment_bytes=SEGMENT_BYTES))
    topic = core.topic("orders", 1)
    for _ in range(8):
        core.publish(topic, *[bytes(1_000)] * 50)
    core.settle()
    return core


def sealed_bytes(core: ManualCore) -> int:
    return sum(each.known_end - each.start for each in core.store.segments() if each.is_sealed)


def run_pass(core: ManualCore) -> int:
    """Run rounds until a pass is complete; return how many there were."""
    passes, rounds = core.sealed_data.passes, 0
    while core.sealed_data.passes == passes:
        due_mono_ms = core.sealed_data.next_deadline_mono_ms()
        assert due_mono_ms is not None
        core.clock.pass_ms(max(0, due_mono_ms - core.clock.mono_ms()))
        core.sealed_data.advance(core.clock.mono_ms())
        rounds += 1
    return rounds


def test_all_sealed_segments_are_read_at_the_rate_of_the_setting() -> None:
    core = filled_core(rate=100_000)
    begun_ms = core.clock.mono_ms()
    run_pass(core)
    assert core.sealed_data.read_bytes == sealed_bytes(core) > 5 * SEGMENT_BYTES
    assert core.clock.mono_ms() - begun_ms >= (sealed_bytes(core) // 100_000 - 1) * 1_000
    assert core.sealed_data.damaged_places == 0
    due_mono_ms = core.sealed_data.next_deadline_mono_ms()
    assert due_mono_ms is not None
    assert due_mono_ms - begun_ms >= PASS_MS


def test_damage_is_logged_and_counted_in_each_pass_and_the_broker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    core = filled_core(rate=1 << 30)
    segment = next(each for each in core.store.segments() if each.is_sealed and each.start)
    core.disk.flip(segment.path, 5_000)
    for _ in range(2):
        with caplog.at_level(logging.INFO, "store"):
            run_pass(core)
        assert core.sealed_data.damaged_places == 1
    assert caplog.text.count(f"sealed data is damaged place='{segment.path} positions") == 2
    assert caplog.text.count("sealed data checked bytes=") == 2
    core.publish(core.topic("orders", 1), b"more")


def test_passes_without_damage_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    core = filled_core(rate=1 << 30)
    with caplog.at_level(logging.INFO, "store"):
        run_pass(core)
        run_pass(core)
    assert caplog.text.count("sealed data checked bytes=") == 1


def test_a_pass_over_nothing_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    core = ManualCore()
    with caplog.at_level(logging.INFO, "store"):
        run_pass(core)
    assert core.sealed_data.passes == 1
    assert "sealed data checked" not in caplog.text


def test_a_segment_that_retention_removes_meanwhile_is_no_damage() -> None:
    core = filled_core(rate=10_000)
    core.sealed_data.advance(core.clock.mono_ms())
    for each in [*core.store.segments()]:
        if each.is_sealed:
            core.disk.remove(each.path)
    run_pass(core)
    assert core.sealed_data.damaged_places == 0


def test_a_rate_of_zero_checks_nothing() -> None:
    core = filled_core(rate=0)
    assert core.sealed_data.next_deadline_mono_ms() is None
    core.sealed_data.advance(core.clock.mono_ms() + 10 * ROUND_MS)
    assert core.sealed_data.read_bytes == 0


def index_file() -> tuple[CrashDisk, str]:
    """Return a disk with one full index file."""
    core = ManualCore(store=StoreOptions())
    topic = core.topic("orders", 1)
    for _ in range(4):
        core.publish(topic, *[b"x"] * 20)
    core.settle()
    core.store.close(core.clock.now_ms())
    (path,) = [path for path in core.disk.contents() if path.startswith(f"index/{topic.number}/0/")]
    return core.disk, path


def test_rows_of_an_index_file_are_checked_for_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, path = index_file()
    size = len(disk.contents()[path])
    monkeypatch.setattr("duolog.store.recovery.sealed_files.ROWS_PER_FILE", size // index_files.ROW_SIZE)
    assert [*check_index_file(disk, path)] == [CheckedPiece(size)]
    for byte in (0, 8, 16, 20, 50):
        damaged = disk.after_kill()
        damaged.flip(path, 7 * index_files.ROW_SIZE + byte)
        assert any(piece.damage.startswith(path) for piece in check_index_file(damaged, path)), byte
    assert [*check_index_file(disk, "index/99/0/00")] == []
