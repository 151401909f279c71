"""Repairs a damaged log, so that a broker starts and serves what is left of it. Positions and offsets do not change.

Each damaged range of positions is replaced by valid units. They contain a *placeholder* for each queue that lost
offsets there: a frame without messages that covers these offsets. The caller makes placeholders, because the store does
not know frame formats. Which offsets were lost follows from the next entry of the queue, and from the ends of the
queues in the checkpoint. Entries that were last in their queue, and are not in a checkpoint, leave no trace.

The state is taken from the checkpoint, which becomes a snapshot, so that state records in damaged ranges below it do
not matter; the next start builds the indexes again. The steps, each of which is durable before the next one begins:

    1. the checkpoint is copied to a snapshot, and then moved to the directory of old files
    2. a repaired copy of each damaged segment is written beside it
    3. the old segment gets a second name in the directory of old files, and the copy takes its place

After a crash in between, the repair can be run again.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duolog.store.entry import FIRST_FRAME_FORM
from duolog.store.errors import StoreError
from duolog.store.files import RealFiles
from duolog.store.log.format import (
    COUNT_MAX,
    UNIT_HEADER_SIZE,
    entry_size,
    put_entry,
    seal_unit,
)
from duolog.store.log.segment import LOG_DIRECTORY
from duolog.store.log.unit_walk import BLOCK_BYTES
from duolog.store.recovery.checkpoint import CHECKPOINT_PATH, Checkpoint, NewFile, snapshot_path
from duolog.store.recovery.damage import BadRange, LogReport, Verification, scan_segment

FILLER_BYTES: Final = 1 << 20  # Size of the units without entries in a long range.
_NEW_SUFFIX: Final = ".repaired"


class Placeholder(NamedTuple):
    """A frame without messages that covers offsets of a queue."""

    form: int
    frame: bytes


# (base offset, number of offsets, store time) -> the frame. All placeholders have the same size.
MakePlaceholder = Callable[[int, int, int], Placeholder]


class RepairRefused(StoreError):
    """The log cannot be repaired; the message says why."""


class LostOffsets(NamedTuple):
    """The offsets of a queue from `start` to `end` were in damaged ranges."""

    key: int
    start: int
    end: int


@dataclass(slots=True)
class Filling:
    """What replaces one damaged range."""

    bad: BadRange
    epoch: int  # Epoch and store time of the unit before the range.
    stored_ms: int
    lost: list[LostOffsets] = field(default_factory=list)
    used_bytes: int = UNIT_HEADER_SIZE  # The bytes of the range that the unit's header and the placeholders fill.

    @property
    def free_bytes(self) -> int:
        return self.bad.end - self.bad.start - self.used_bytes


@dataclass(slots=True)
class RepairPlan:
    """What a repair will do."""

    report: LogReport
    fillings: list[Filling]
    state: Checkpoint | None  # The state that is used; None if all state comes from the log.

    @property
    def lost_state(self) -> list[BadRange]:
        """The damaged ranges above the state, whose state records are lost."""
        position = -1 if self.state is None else self.state.position
        return [each.bad for each in self.fillings if each.bad.end > position]


def plan_repair(files: RealFiles, make: MakePlaceholder) -> RepairPlan:
    """Verify the log and return what a repair will do. The caller must hold the lock of the directory.

    Raises RepairRefused. Blocks.
    """
    verification = Verification(files, is_served=False)
    if verification.remote_count:
        raise RepairRefused(
            f"the log cannot be repaired: {verification.remote_count} of its segments are in the object store only, so "
            "their offsets would be taken for lost: make a data directory with the whole log, with duolog move, or "
            "remove this directory and start the broker, which downloads the log again; what was not uploaded is lost"
        )
    report = verification.run()
    if report.missing_state and verification.state is None:
        raise RepairRefused(f"the log cannot be repaired, restore a backup: {report.missing_state}")
    fillings = _Planner(files, verification, report, make).fillings() if report.damage else []
    return RepairPlan(report, fillings, verification.state)


class _Planner:
    """Finds the offsets that were lost in the damaged ranges, and chooses a range for the placeholder of each."""

    def __init__(self, files: RealFiles, verification: Verification, report: LogReport, make: MakePlaceholder) -> None:
        self._files, self._verification = files, verification
        self._damage = {bad.start: bad for bad in report.damage}
        self._end = report.end
        self._frame_size = len(make(0, 1, 0).frame)
        self._fillings: list[Filling] = []
        state = verification.state
        self._rows = {} if state is None else {row.key: row for row in state.queues}
        self._state_position = 0 if state is None else state.position
        self._next: dict[int, tuple[int, int]] = {}  # Queue key -> (next offset, fillings before its last entry).

    def fillings(self) -> list[Filling]:
        epoch = stored_ms = 0
        is_state_reached = False
        for segment in self._verification.segments:
            for found in scan_segment(self._files, segment, self._verification.end_of(segment)):
                at = found.start if isinstance(found, BadRange) else found.header.position
                if at >= self._end:
                    break
                if at >= self._state_position and not is_state_reached:
                    is_state_reached = True
                    self._note_state()
                if isinstance(found, BadRange):
                    self._fillings.append(Filling(self._damage[found.start], epoch, stored_ms))
                    continue
                epoch, stored_ms = found.header.epoch, found.header.stored_ms
                for entry in found.entries():
                    if entry.form >= FIRST_FRAME_FORM:
                        self._note(entry.key, entry.base_offset, entry.base_offset + entry.count)
        if not is_state_reached:
            self._note_state()
        return self._fillings

    def _note_state(self) -> None:
        """Note the ends of the queues at the position of the checkpoint or snapshot."""
        for row in self._rows.values():
            self._note(row.key, row.end_offset, row.end_offset)

    def _note(self, key: int, base_offset: int, next_offset: int) -> None:
        """Note that the entry at `base_offset` follows in a queue; the offsets before it may have been lost."""
        known, before = self._next.get(key, (self._rows[key].start_offset if key in self._rows else 0, 0))
        if base_offset > known and before < len(self._fillings):
            self._lose(LostOffsets(key, known, base_offset), self._fillings[before:])
        self._next[key] = max(known, next_offset), len(self._fillings)

    def _lose(self, lost: LostOffsets, candidates: list[Filling]) -> None:
        count = lost.end - lost.start
        size = entry_size(self._frame_size, 0, count)
        filling = max(candidates, key=lambda each: each.free_bytes)
        if size > filling.free_bytes or count > COUNT_MAX:
            raise RepairRefused(
                f"the log cannot be repaired: no damaged range has room for {count} lost offsets of a queue; "
                f"the largest is {filling.bad.path}, positions {filling.bad.start}..{filling.bad.end}"
            )
        filling.lost.append(lost)
        filling.used_bytes += size


# -- Writing


def repair(directory: str, files: RealFiles, plan: RepairPlan, make: MakePlaceholder) -> str:
    """Repair the log, and return the path of the directory that has the old files. Blocks; raises OSError.

    `directory` is the data directory, and `files` are the files below it. The caller must hold the lock of the
    directory since before `plan_repair`.
    """
    kept = _make_kept_directory(files)
    if CHECKPOINT_PATH in files.list("."):
        _keep_state(files, kept, plan)
    by_path: dict[str, list[Filling]] = {}
    for filling in plan.fillings:
        by_path.setdefault(filling.bad.path, []).append(filling)
    for path, fillings in by_path.items():
        _replace_segment(directory, files, kept, path, fillings, make)
    return f"{directory}/{kept}"


def _make_kept_directory(files: RealFiles) -> str:
    """Create the directory for the old files: `repair-<number>/` in the data directory."""
    names = set(files.list("."))
    number = next(number for number in range(1, len(names) + 2) if f"repair-{number}" not in names)
    kept = f"repair-{number}"
    files.make_directory(f"{kept}/{LOG_DIRECTORY}")
    files.sync_directory(kept)
    files.sync_directory(".")
    return kept


def _keep_state(files: RealFiles, kept: str, plan: RepairPlan) -> None:
    """Copy the checkpoint to a snapshot if it is valid, and move it to the old files."""
    if plan.report.checkpoint_position >= 0:
        _copy_checkpoint(files, snapshot_path(plan.report.checkpoint_position))
    files.rename(CHECKPOINT_PATH, f"{kept}/{CHECKPOINT_PATH}")
    files.sync_directory(kept)
    files.sync_directory(".")


def _copy_checkpoint(files: RealFiles, path: str) -> None:
    copy = NewFile(files, path)
    handle = files.open(CHECKPOINT_PATH)
    try:
        for at in range(0, files.size(handle), BLOCK_BYTES):
            copy.write(files.read(handle, BLOCK_BYTES, at))
    finally:
        files.close(handle)
    copy.put_in_place()


def _replace_segment(
    directory: str, files: RealFiles, kept: str, path: str, fillings: list[Filling], make: MakePlaceholder
) -> None:
    new = f"{path}{_NEW_SUFFIX}"
    with suppress(FileNotFoundError):
        files.remove(new)  # A repair that was interrupted has left it.
    file = files.open(new, create=True)
    try:
        shutil.copyfile(f"{directory}/{path}", f"{directory}/{new}")
        first = int(os.path.basename(path).partition(".")[0])
        for filling in fillings:
            at = filling.bad.start - first
            for unit in _units(filling, make):
                files.write(file, [unit], at)
                at += len(unit)
        files.sync(file)
    finally:
        files.close(file)
    shutil.copystat(f"{directory}/{path}", f"{directory}/{new}")
    _keep(directory, files, path, f"{kept}/{path}")
    files.rename(new, path)
    files.sync_directory(LOG_DIRECTORY)


def _keep(directory: str, files: RealFiles, path: str, kept: str) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    try:
        os.link(f"{directory}/{path}", f"{directory}/{kept}")
    except OSError:
        shutil.copy2(f"{directory}/{path}", f"{directory}/{kept}")
        file = files.open(kept)
        try:
            files.sync(file)
        finally:
            files.close(file)
    files.sync_directory(os.path.dirname(kept))


def _units(filling: Filling, make: MakePlaceholder) -> Iterator[bytearray]:
    """Yield the units that replace a range: one with all placeholders, and units without entries in a long range."""
    at, size = filling.bad.start, filling.bad.end - filling.bad.start
    sizes = [size]
    if filling.free_bytes >= 2 * FILLER_BYTES:
        fillers = filling.free_bytes // FILLER_BYTES
        last = filling.free_bytes - (fillers - 1) * FILLER_BYTES
        sizes = [filling.used_bytes, *[FILLER_BYTES] * (fillers - 1), last]
    lost = filling.lost
    for size in sizes:
        unit = bytearray(size)
        place = UNIT_HEADER_SIZE
        for queue in lost:
            count = queue.end - queue.start
            form, frame = make(queue.start, count, filling.stored_ms)
            place = put_entry(unit, place, form, 0, queue.key, frame, queue.start, count)
        seal_unit(memoryview(unit), filling.epoch, at, at, filling.stored_ms, len(lost))
        yield unit
        at, lost = at + size, []
