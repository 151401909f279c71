"""Proves the chain of segments: names of files, the limit of open handles, and removals."""

from contextlib import suppress
from itertools import pairwise

import pytest

from duolog.store.errors import StoreError
from duolog.store.log.segment import LOG_DIRECTORY, Segments, list_segments
from tests.kit.disk import CrashDisk, PowerCut
from tests.kit.rows import first_in_unit


def log_name(start: int) -> str:
    return f"{LOG_DIRECTORY}/{start:020}.log"


def gap_name(start: int, end: int) -> str:
    return f"{LOG_DIRECTORY}/{start:020}-{end:020}.gap"


def disk_with(*paths: str) -> CrashDisk:
    disk = CrashDisk()
    disk.make_directory(LOG_DIRECTORY)
    for path in paths:
        disk.close(disk.open(path, create=True))
    return disk


def chain_of(starts: range) -> tuple[CrashDisk, Segments]:
    disk = disk_with(*map(log_name, starts))
    return disk, Segments(disk, list_segments(disk), open_max=3)


def described(segments: Segments) -> list[tuple[int, int | None, bool]]:
    return [(segment.start, segment.end, segment.is_gap) for segment in segments]


LISTINGS = {
    "no files": ((), []),
    "each ends where the next begins": ((log_name(0), log_name(80)), [(0, 80, False), (80, None, False)]),
    "a gap": (
        (log_name(0), gap_name(80, 160), log_name(160)),
        [(0, 80, False), (80, 160, True), (160, None, False)],
    ),
    "a removal that was not finished": (
        (log_name(0), log_name(80), gap_name(80, 160), log_name(160)),
        [(0, 80, False), (80, 160, True), (160, None, False)],
    ),
    "a merge that was not finished": (
        (log_name(0), gap_name(80, 160), gap_name(80, 240), log_name(160), log_name(240)),
        [(0, 80, False), (80, 240, True), (240, None, False)],
    ),
    "names of others": ((log_name(0), "log/core", "log/12.log", "log/notes.txt"), [(0, None, False)]),
}  # fmt: skip


@pytest.mark.parametrize(("paths", "chain"), LISTINGS.values(), ids=LISTINGS.keys())
def test_the_names_alone_say_what_the_chain_is(
    paths: tuple[str, ...], chain: list[tuple[int, int | None, bool]]
) -> None:
    disk = disk_with(*paths)
    assert described(Segments(disk, list_segments(disk), 3)) == chain
    assert described(Segments(disk, list_segments(disk), 3)) == chain


def test_positions_are_found() -> None:
    _, segments = chain_of(range(80, 400, 80))
    assert [segments.find(position).start for position in (80, 159, 160, 10_000)] == [80, 80, 160, 320]
    assert [segment.start for segment in segments.between(159, 240)] == [80, 160]
    assert [segment.start for segment in segments.between(160, 241)] == [160, 240]
    with pytest.raises(StoreError, match="position 79 is below the first position of the log, 80"):
        segments.find(79)


def test_few_files_are_open_at_a_time_but_the_active_one_and_those_in_sync_stay() -> None:
    disk, segments = chain_of(range(0, 800, 80))
    in_sync, active = segments.find(0), segments.active
    segments.file_of(active)
    segments.file_of(in_sync)
    in_sync.in_sync = True
    for segment in segments:
        segments.file_of(segment)
        assert len(disk._open) <= 4
    assert in_sync.file is not None
    assert active.file is not None
    segments.close()
    assert not disk._open


@pytest.mark.parametrize(
    ("dead", "left"),
    [
        ([0, 80], [log_name(160), log_name(240), log_name(320)]),
        ([80], [gap_name(80, 160), log_name(0), log_name(160), log_name(240), log_name(320)]),
        ([80, 160], [gap_name(80, 240), log_name(0), log_name(240), log_name(320)]),
        ([0, 160], [gap_name(160, 240), log_name(80), log_name(240), log_name(320)]),
        ([0, 80, 160, 240], [log_name(320)]),
    ],
)
def test_removed_segments_leave_a_gap_only_between_others(dead: list[int], left: list[str]) -> None:
    disk, segments = chain_of(range(0, 400, 80))
    for segment in segments:
        segments.file_of(segment)
    segments.take_out([segment for segment in segments if segment.start in dead]).run()
    assert sorted(disk.paths()) == sorted(left)
    assert described(segments) == described(Segments(disk, list_segments(disk), 3))


def test_gaps_grow_together_and_go_with_what_lies_before_them() -> None:
    disk, segments = chain_of(range(0, 400, 80))

    def remove(start: int) -> list[str]:
        segments.take_out([segments.find(start)]).run()
        return [path for path in disk.paths() if path.endswith(".gap")]

    assert remove(80) == [gap_name(80, 160)]
    assert remove(240) == [gap_name(80, 160), gap_name(240, 320)]
    assert remove(160) == [gap_name(80, 320)]
    assert remove(0) == []
    assert disk.paths() == [log_name(320)]


@pytest.mark.parametrize("seed", first_in_unit(range(20), 5))
@pytest.mark.parametrize("cut_at", range(1, 9))
def test_a_power_cut_during_a_removal_never_leaves_a_hole(cut_at: int, seed: int) -> None:
    disk, segments = chain_of(range(0, 480, 80))
    disk.sync_directory(".")
    disk.sync_directory(LOG_DIRECTORY)
    disk.cut_at = disk.operations + cut_at
    with suppress(PowerCut):
        segments.take_out([segments.find(start) for start in (0, 80, 240)]).run()
    found = list_segments(disk.after_power_cut(seed))
    assert found[-1].start == 400
    for segment, following in pairwise(found):
        assert segment.end == following.start
        assert following.start - segment.start == 80, f"a hole: {found}"
