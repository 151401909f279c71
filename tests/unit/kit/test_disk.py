"""Proves the disk under the crash tests: what was synced is kept, what was not can be lost in every way."""

import errno

import pytest

from tests.kit.disk import PAGE_SIZE, SECTOR_SIZE, CrashDisk, FailingDisk, PowerCut

SEEDS = range(200)


def disk_with(path: str, content: bytes, *, cut_at: int | None = None) -> tuple[CrashDisk, int]:
    """A disk with one durable file, and its handle."""
    disk = CrashDisk(cut_at=cut_at)
    file = disk.open(path, create=True)
    disk.write(file, [content], 0)
    disk.sync(file)
    disk.sync_directory(".")
    return disk, file


def test_what_was_synced_survives_every_cut() -> None:
    disk, _ = disk_with("a", b"x" * 10_000)
    assert all(disk.after_power_cut(seed).contents() == {"a": b"x" * 10_000} for seed in SEEDS)


def test_an_unsynced_page_is_old_new_or_torn_between_sectors() -> None:
    disk, file = disk_with("a", b"-" * PAGE_SIZE)
    disk.write(file, [b"1" * PAGE_SIZE], 0)
    disk.write(file, [b"2" * PAGE_SIZE], 0)
    found = {disk.after_power_cut(seed).contents()["a"] for seed in SEEDS}
    assert {mark * PAGE_SIZE for mark in (b"-", b"1", b"2")} < found
    sectors = {image[at : at + SECTOR_SIZE] for image in found for at in range(0, PAGE_SIZE, SECTOR_SIZE)}
    assert sectors == {mark * SECTOR_SIZE for mark in (b"-", b"1", b"2")}


def test_pages_survive_independently_and_out_of_order() -> None:
    disk, file = disk_with("a", b"-" * (2 * PAGE_SIZE))
    disk.write(file, [b"1" * PAGE_SIZE], 0)
    disk.write(file, [b"1" * PAGE_SIZE], PAGE_SIZE)
    found = {disk.after_power_cut(seed).contents()["a"] for seed in SEEDS}
    assert b"-" * PAGE_SIZE + b"1" * PAGE_SIZE in found
    assert b"1" * PAGE_SIZE + b"-" * PAGE_SIZE in found


def test_an_unsynced_append_may_leave_any_length_with_zeros_in_it() -> None:
    disk, file = disk_with("a", b"old")
    disk.write(file, [b"new" * 2_000], 3)
    found = [disk.after_power_cut(seed).contents()["a"] for seed in SEEDS]
    assert all(image[:3] == b"old" and 3 <= len(image) <= 6_003 for image in found)
    assert {3, 6_003} < {len(image) for image in found}
    assert any(len(image) > 3 and not any(image[3:]) for image in found)


def test_what_was_cut_off_does_not_come_back_under_later_writes() -> None:
    disk, file = disk_with("a", b"old" * 1_000)
    disk.truncate(file, 3)
    disk.write(file, [b"new"], 2_997)
    allowed = {b"old" * 1_000, b"old"}
    for seed in SEEDS:
        image = disk.after_power_cut(seed).contents()["a"]
        assert image in allowed or (image[:3] == b"old" and not any(image[3:2_997]))


def test_names_are_lost_until_their_directory_is_synced() -> None:
    disk, _ = disk_with("a", b"1")
    disk.make_directory("d/e")
    disk.sync(disk.open("d/e/b", create=True))
    disk.sync_directory("d/e")
    assert {tuple(disk.after_power_cut(seed).paths()) for seed in SEEDS} == {("a",), ("a", "d/e/b")}
    disk.sync_directory("d")
    disk.sync_directory(".")
    assert {tuple(disk.after_power_cut(seed).paths()) for seed in SEEDS} == {("a", "d/e/b")}


def test_a_rename_happens_whole_or_not_at_all() -> None:
    disk, _ = disk_with("state", b"old")
    file = disk.open("state.new", create=True)
    disk.write(file, [b"new"], 0)
    disk.sync(file)
    disk.rename("state.new", "state")
    found = [disk.after_power_cut(seed).contents() for seed in SEEDS]
    kept = [{"state": b"old"}, {"state": b"old", "state.new": b"new"}, {"state": b"new"}]
    assert all(each in found for each in kept)
    assert all(each in kept for each in found)


def test_a_removed_name_may_return_until_the_directory_is_synced() -> None:
    disk, _ = disk_with("a", b"1")
    disk.remove("a")
    assert {tuple(disk.after_power_cut(seed).paths()) for seed in SEEDS} == {(), ("a",)}
    disk.sync_directory(".")
    assert {tuple(disk.after_power_cut(seed).paths()) for seed in SEEDS} == {()}


def test_the_power_goes_at_the_chosen_operation_and_stays_away() -> None:
    disk, file = disk_with("a", b"1", cut_at=5)
    with pytest.raises(PowerCut, match="operation 5: write 3 bytes at 1"):
        disk.write(file, [b"234"], 1)
    with pytest.raises(PowerCut):
        disk.read(file, 1, 0)
    assert {b"1", b"1234"} <= {disk.after_power_cut(seed).contents()["a"] for seed in SEEDS}


def test_a_killed_process_leaves_all_it_wrote_still_unsynced() -> None:
    disk, file = disk_with("a", b"1")
    disk.lock("lock")
    disk.write(file, [b"2"], 0)
    after = disk.after_kill()
    after.lock("lock")
    assert after.contents()["a"] == b"2"
    assert {after.after_power_cut(seed).contents()["a"] for seed in SEEDS} == {b"1", b"2"}


def test_a_full_disk_takes_half_of_a_write_and_recovers() -> None:
    disk = FailingDisk("write", 2, errno.ENOSPC, failures=None)
    file = disk.open("a", create=True)
    disk.write(file, [b"1111"], 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            disk.write(file, [b"22", b"22"], 4)
    assert disk.contents() == {"a": b"111122"}
    disk.heal()
    disk.write(file, [b"2222"], 4)
    assert disk.contents() == {"a": b"11112222"}


def test_what_a_failed_sync_should_have_kept_is_never_kept() -> None:
    disk = FailingDisk("sync", 1, errno.EIO)
    file = disk.open("a", create=True)
    disk.sync_directory(".")
    disk.write(file, [b"lost"], 0)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(file)
    disk.sync(file)
    assert disk.read(file, 4, 0) == b"lost"
    assert {disk.after_power_cut(seed).contents()["a"] for seed in SEEDS} == {b""}
