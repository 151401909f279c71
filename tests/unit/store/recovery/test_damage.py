"""Proves that a verification finds damage where a start would refuse the log, and names the positions.

Each case damages a copy of one log on purpose: flipped bits, zeros, truncated and missing segments. A start without a
checkpoint reads the same log, and must come to the same judgement.
"""

import random

import pytest

from duolog.store.errors import Corruption
from duolog.store.log.format import UNIT_HEADER_SIZE
from duolog.store.recovery.damage import BadRange, Verification
from tests.kit.disk import CrashDisk
from tests.kit.rows import first_in_unit
from tests.unit.store.recovery.test_recovery import (
    DURABLE,
    SMALL_SEGMENTS,
    UNIT_SIZE,
    UNITS,
    let_go,
    log_of_ten,
    opened,
)


def segment_paths(disk: CrashDisk) -> list[str]:
    return [f"log/{name}" for name in disk.list("log") if name.endswith(".log")]


def test_an_intact_log_is_read_to_its_end() -> None:
    disk, positions = log_of_ten(SMALL_SEGMENTS)
    noted: list[int] = []
    verification = Verification(disk, is_served=False)
    report = verification.run(noted.append)
    assert report.is_intact
    assert report.entries == UNITS
    assert report.units == UNITS + 1  # The first unit of the run has no entries.
    assert (report.end, report.torn_bytes) == (positions[-1] + UNIT_SIZE, 0)
    assert sum(noted) == verification.total_bytes == report.read_bytes


def test_damage_is_named_with_its_positions_and_the_units_after_it_are_read() -> None:
    disk, positions = log_of_ten()
    disk.flip("log/00000000000000000000.log", positions[2] + UNIT_HEADER_SIZE + 60, 0x10)
    disk.flip("log/00000000000000000000.log", positions[4] + UNIT_HEADER_SIZE + 60, 0x10)
    report = Verification(disk, is_served=False).run()
    assert [(bad.start, bad.end) for bad in report.damage] == [
        (positions[2], positions[3]),
        (positions[4], positions[5]),
    ]
    assert "the CRC is" in report.damage[0].reason
    assert report.entries == UNITS - 2


def test_a_torn_end_is_no_damage() -> None:
    disk, positions = log_of_ten()
    disk.flip("log/00000000000000000000.log", positions[DURABLE] + UNIT_HEADER_SIZE + 60, 0x10)
    report = Verification(disk, is_served=False).run()
    # The units after DURABLE say that the log was durable up to it, and no further.
    assert report.is_intact
    assert report.end == positions[DURABLE]
    assert report.torn_bytes == (UNITS - DURABLE) * UNIT_SIZE


def test_a_missing_segment_is_damage_of_the_segment_before_it() -> None:
    disk, _ = log_of_ten(SMALL_SEGMENTS)
    first, second, third, *_ = segment_paths(disk)
    disk.remove(second)
    report = Verification(disk, is_served=False).run()
    starts = [int(path[4:24]) for path in (second, third)]
    assert [bad[:3] for bad in report.damage] == [BadRange(first, *starts, "")[:3]]


def test_a_log_whose_first_segment_is_missing_lacks_the_state_in_it() -> None:
    disk, _ = log_of_ten(SMALL_SEGMENTS)
    disk.remove(segment_paths(disk)[0])
    report = Verification(disk, is_served=False).run()
    assert "neither the segments from position 0 on" in report.missing_state
    assert not report.is_intact


def test_end_that_the_checkpoint_proves_is_damage_if_it_is_missing() -> None:
    disk = CrashDisk()
    store = opened(disk, SMALL_SEGMENTS)
    store.close(1000)
    (path,) = segment_paths(disk)
    end = Verification(disk, is_served=False).run().end
    file = disk.open(path)
    disk.truncate(file, 0)
    disk.close(file)
    assert [bad[:3] for bad in Verification(disk, is_served=False).run().damage] == [(path, 0, end)]


def test_beside_a_broker_only_sealed_segments_are_read() -> None:
    disk, positions = log_of_ten(SMALL_SEGMENTS)
    newest = segment_paths(disk)[-1]
    disk.flip(newest, UNIT_HEADER_SIZE + 60, 0x10)
    assert Verification(disk, is_served=True).run().is_intact
    disk.flip(segment_paths(disk)[0], positions[1] + UNIT_HEADER_SIZE + 60, 0x10)
    report = Verification(disk, is_served=True).run()
    assert [bad.start for bad in report.damage] == [positions[1]]


@pytest.mark.parametrize("seed", first_in_unit(range(60), 20))
def test_a_start_refuses_what_a_verification_calls_damage_and_nothing_else(seed: int) -> None:
    choose = random.Random(seed)
    print(f"seed={seed}")
    disk, _ = log_of_ten(SMALL_SEGMENTS)
    for _ in range(choose.choice((1, 1, 2))):
        path = choose.choice(segment_paths(disk))
        file = disk.open(path)
        size = disk.size(file)
        at = choose.randrange(0, max(size, 1))
        match choose.choice(("flip", "zero", "truncate", "remove")):
            case "flip" if size:
                disk.flip(path, at, 1 << choose.randrange(8))
            case "zero":
                disk.write(file, [bytes(min(choose.choice((8, 100, 1000)), size - at))], at)
            case "truncate":
                disk.truncate(file, at)
            case "remove" if len(segment_paths(disk)) > 1 and path != segment_paths(disk)[0]:
                disk.remove(path)
        disk.close(file)
    report = Verification(disk, is_served=False).run()
    try:
        store = opened(disk, SMALL_SEGMENTS)
    except Corruption:
        assert not report.is_intact
    else:
        assert report.is_intact, report.damage
        assert store.recovery.end_position == report.end
        let_go(store)
