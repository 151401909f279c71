"""Proves that a broker which is killed before any duty of its own is due does not read ever more at its starts."""

import errno

import pytest

from duolog.bridge.config import KIB
from duolog.bridge.records.groups import CommittedOffset
from duolog.store.options import StoreOptions
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk, FailingDisk

APPENDED, LIMIT = 10 * KIB, 32 * KIB
OPTIONS = StoreOptions(segment_bytes=256 * KIB, reserve_bytes=0, recovery_checkpoint_bytes=LIMIT)


def run(disk: CrashDisk, number: int) -> ManualCore:
    """Start, take some messages and a position; no time passes, so no background duty runs."""
    core = ManualCore(disk=disk, store=OPTIONS)
    topic = core.topic("orders", 1)
    core.publish(topic, bytes(APPENDED))
    core.group_offsets.commit("g", [CommittedOffset(topic.key(0), number)], core.clock.now_ms())
    core.settle()
    return core


def test_what_a_start_reads_is_bounded_though_every_run_is_killed_soon() -> None:
    disk, read_bytes, read_units = CrashDisk(), [], []
    for number in range(40):
        core = run(disk, number)
        recovery = core.store.recovery
        read_bytes.append(recovery.end_position - max(recovery.checkpoint_position, 0))
        read_units.append(recovery.units)
        disk = core.disk.after_kill()
    assert max(read_bytes) <= LIMIT + 2 * APPENDED
    assert max(read_units) == max(read_units[:10])
    core = ManualCore(disk=disk, store=OPTIONS)
    topic = core.topic("orders", 1)
    assert topic.queues[0].end_offset == 40
    assert core.group_offsets.all_of("g")[topic.key(0)].offset == 39


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_start_that_cannot_write_its_checkpoint_goes_on(code: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = FailingDisk("rename", 1, code, failures=None)
    for number in range(6):
        core = run(disk, number)
        disk._root = core.disk.after_kill()._root
        disk._locks.clear()
    assert core.store.recovery.end_position > LIMIT
    assert "the checkpoint could not be written" in caplog.text
    assert not core.store.refusal
