"""Recovery: verifies the log at a start, truncates its torn end, and replays it.

    checkpoint                                      P                              end of the files
        |---------- verified, then replayed --------|----------- beyond -------------|

1. *Verify*: the units are read from the checkpoint on, or without a checkpoint from the first segment on, up to the
   first unit that is not whole, at position P.
2. *Search beyond P*: after a power failure, pages of units in any order and zeros of reserved blocks may follow. If a
   valid unit is found there, by its magic, position and CRC, whose field `durable` is above P, then the unit at P was
   durable once and is damaged now: recovery raises Corruption and the broker does not start. Otherwise P is the
   beginning of the torn end.
3. *Truncate* the log at P.
4. *Write again and sync*: the bytes from the last position that is proven durable up to P are written again and synced.
   A unit, a checkpoint or a snapshot proves that an fsync up to a position has succeeded.
5. *Replay* the units below P (`store/recovery/replay.py`).

Step 4 writes the bytes again, because an fsync alone proves nothing if a fsync of the previous run failed. The kernel
then marks pages as clean that were never written to the disk. They can be read until the power fails, and the next
fsync succeeds without writing them (PostgreSQL's "fsyncgate", 2018). Usually a few units are written again, and none
after a run that ended with `Store.close`. On a file system that copies on write, a full disk may refuse this write.
Recovery then logs a warning and only syncs, because the broker must be started to free space.

A copy of another broker's log (`store/shared/`) has units whose field `durable` is a position on that broker's disk. So
the field counts only in units from position `own_from` on; a copy that lacks something is completed from the object
store.

Downsides: damage to the units that were synced last cannot be distinguished from a torn end, because no later unit
says that they were durable. A message body that contains a forged unit, for the position at which the body is stored,
can make a torn end look like corruption.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from duolog.store.errors import NO_SPACE, Corruption
from duolog.store.files import Files
from duolog.store.index.queues import Queues
from duolog.store.log.format import (
    CLOSED_FLAG,
    OPENED_FLAG,
    POSITION_MAX,
    BadUnit,
    UnitHeader,
    check_unit,
)
from duolog.store.log.segment import (
    LOG_DIRECTORY,
    Segment,
    Segments,
    is_complete,
    list_segments,
)
from duolog.store.log.unit_walk import (
    BLOCK_BYTES,
    readable_end,
    search_units,
    size_without_zeros,
    units_of_file,
    units_of_log,
)
from duolog.store.recovery.checkpoint import (
    NO_SNAPSHOT,
    Checkpoint,
    read_checkpoint,
    read_snapshot,
    remove_checkpoint,
    snapshot_positions,
)
from duolog.store.recovery.replay import Replay, Replayer

log = logging.getLogger("store")


class RecoveryReport(NamedTuple):
    """The result of a recovery, with the fields of the log line `recovered` in their order."""

    clean: bool  # Whether the previous run ended with `Store.close`.
    checkpoint_position: int  # The position of the checkpoint that was used; -1 if the whole log was read.
    end_position: int  # The position of the next unit.
    units: int  # The number of units that were read.
    entries: int  # The number of entries that were replayed.
    cut_bytes: int  # The size of the torn end in bytes.
    segments: int
    queues: int
    epoch: int  # The number of the run that begins.


@dataclass(slots=True)
class Recovered:
    """The values with which CommitLog, Appender and Checkpointer continue."""

    segments: Segments
    end_position: int
    stored_ms: int  # The store time of the last unit; 0 if the log is empty.
    is_last_run_empty: bool  # Whether the last unit is the first one of its run.
    snapshot_position: int  # The position of the newest snapshot; -1 if there is none.
    read_from: int  # The position from which on a start with the present checkpoint reads the log; 0 without one.
    report: RecoveryReport


def recover(
    files: Files, open_segments_max: int, queues: Queues, replayer: Replayer, *, own_from: int = 0
) -> Recovered:
    """Recover the log: verify, truncate and sync it, then replay it into the queues and the replayer. Blocks.

    The units below position `own_from` were copied from another broker.

    Raises Corruption if data that was durable is missing or damaged; the log has not been changed then.
    """
    segments = Segments(files, list_segments(files) or [Segment(0)], open_segments_max)
    checkpoint = _restore_checkpoint(files, segments, queues)
    snapshot = _read_snapshot(files, segments) if checkpoint is None else None
    verified = _Verification(files, segments, checkpoint, snapshot, own_from)
    verified.run()
    cut_bytes = _search_beyond(files, segments, verified)
    _cut(files, segments, verified)
    replay = Replay(segments, queues, replayer, checkpoint, snapshot)
    for block, at, position in units_of_log(files, segments, verified.first, verified.end):
        replay.take(block, at, position)
    replay.end()
    queues.show_all()
    report = RecoveryReport(
        clean=verified.closed and not cut_bytes,
        checkpoint_position=checkpoint.position if checkpoint else -1,
        end_position=verified.end,
        units=verified.units,
        entries=replay.entries,
        cut_bytes=cut_bytes,
        segments=len(segments),
        queues=len(queues),
        epoch=verified.epoch + 1,
    )
    snapshot_position = max(snapshot_positions(files), default=-1)
    read_from = checkpoint.read_from if checkpoint else 0
    return Recovered(segments, verified.end, verified.stored_ms, verified.opened, snapshot_position, read_from, report)


def _restore_checkpoint(files: Files, segments: Segments, queues: Queues) -> Checkpoint | None:
    """Restore the queues, and the last offsets of segments, from the checkpoint. Return None if there is none to use.

    The checkpoint is not used if segments after its `read_from` were removed or an index is damaged. All index files
    are removed then, because they will be built again from the log.
    """
    checkpoint = read_checkpoint(files)
    if checkpoint and not segments.active.exists:
        raise Corruption(
            f"{LOG_DIRECTORY}/ has no segment, but the checkpoint was written at position {checkpoint.position}"
        )
    if checkpoint and checkpoint.read_from >= segments.start:
        try:
            queues.restore(checkpoint.queues)
            queues.index_files.steps = checkpoint.steps
        except Corruption as reason:
            log.warning("an index is damaged, all indexes will be built again from the log: %s", reason)
        else:
            for segment in segments:
                segment.last_offsets.update(checkpoint.last_offsets.get(segment.start, {}))
            return checkpoint
    queues.forget()
    remove_checkpoint(files)  # It refers to rows of the index files that were removed.
    return None


def _read_snapshot(files: Files, segments: Segments) -> Checkpoint | None:
    """Return the newest snapshot, which a start without a checkpoint needs if segments were removed.

    Returns None if there is no snapshot and no segment was removed. Raises Corruption if segments were removed and
    there is no whole snapshot.
    """
    try:
        snapshot = read_snapshot(files)
    except Corruption:
        if not is_complete(segments):
            raise
        return None
    if snapshot is None and not is_complete(segments):
        raise Corruption(NO_SNAPSHOT)
    if snapshot is not None and not segments.active.exists:
        raise Corruption(
            f"{LOG_DIRECTORY}/ has no segment, but its newest snapshot was written at position {snapshot.position}"
        )
    return snapshot


# -- Verify


class _Verification:
    """Step 1: reads the units from position `first` up to the first unit that is not whole, at position `end`."""

    def __init__(
        self,
        files: Files,
        segments: Segments,
        checkpoint: Checkpoint | None,
        snapshot: Checkpoint | None,
        own_from: int,
    ) -> None:
        self.own_from = own_from
        self._files = files
        self._segments = segments
        self.first = checkpoint.read_from if checkpoint else segments.start
        self.end = self.first
        self.reason = f"the log ends at position {self.end}"  # Why the unit at `end` is not whole.
        self.epoch = checkpoint.epoch if checkpoint else 0
        self.stored_ms = checkpoint.stored_ms if checkpoint else snapshot.stored_ms if snapshot else 0
        self.opened = False  # Whether the last unit is the first one of a run.
        self.closed = checkpoint.closed if checkpoint else True
        self._source, found = ("checkpoint", checkpoint) if checkpoint else ("snapshot", snapshot)
        self.durable = found.position if found else 0  # The log was durable up to the checkpoint or snapshot.
        # The highest position up to which the log was durable, according to the checkpoint, the snapshot and the units.
        self.proven = self.durable
        self.units = 0

    def run(self) -> None:
        self._walk()
        if self.end < self.durable:
            raise Corruption(
                f"{self.reason}; but according to the {self._source} the log was durable up to position {self.durable}"
            )

    def _walk(self) -> None:
        for segment in self._segments.between(self.first, POSITION_MAX):
            if segment.is_gap:
                self.end = segment.known_end
            elif segment.exists:
                self._verify(segment)
            if self.end != segment.end:
                return

    def _verify(self, segment: Segment) -> None:
        limit = readable_end(self._files, self._segments, segment)
        if limit < self.end:
            raise Corruption(
                f"{segment.path} ends at position {limit}; "
                f"but according to the {self._source} the log was durable up to position {self.durable}"
            )
        try:
            handle = self._segments.file_of(segment)
            for block, at, position in units_of_file(self._files, handle, segment.start, self.end, limit):
                self._take(check_unit(block, at, position))
        except BadUnit as reason:
            self.reason = f"{segment.path} has no whole unit at byte {self.end - segment.start}: {reason}"

    def _take(self, header: UnitHeader) -> None:
        if header.epoch < self.epoch:
            raise BadUnit(f"the unit has epoch {header.epoch}, and the one before it has epoch {self.epoch}")
        self.end += header.size
        if header.position >= self.own_from:
            self.proven = max(self.proven, header.durable)
        self.epoch = header.epoch
        self.stored_ms = header.stored_ms
        self.opened = header.flags & OPENED_FLAG != 0
        self.closed = header.flags & CLOSED_FLAG != 0
        self.units += 1


# -- Search beyond the first unit that is not whole


def _search_beyond(files: Files, segments: Segments, verified: _Verification) -> int:
    """Return the size of the torn end: the number of bytes from `verified.end` to the last byte that is not zero.

    Raises Corruption if a valid unit beyond the end says that the log was durable there.
    """
    end = last_byte = verified.end
    for segment in segments.between(end, POSITION_MAX):
        if segment.is_gap:
            raise Corruption(f"{verified.reason}; but the gap {segment.path} shows that the log was durable beyond it")
        if not segment.exists:
            continue
        handle, limit = segments.file_of(segment), readable_end(files, segments, segment)
        for position in range(max(segment.start, end), limit, BLOCK_BYTES):
            block = files.read(handle, min(BLOCK_BYTES, limit - position), position - segment.start)
            if size := size_without_zeros(block):
                last_byte = position + size
                _refuse_if_durable(search_units(files, handle, segment.start, block, position, limit), verified)
    return last_byte - end


def _refuse_if_durable(beyond: Iterable[UnitHeader], verified: _Verification) -> None:
    """Raise Corruption if a valid unit beyond `verified.end` says that the log was durable there."""
    for header in beyond:
        if header.durable > verified.end and header.position >= verified.own_from:
            raise Corruption(
                f"{verified.reason}; but according to the unit at position {header.position} "
                f"the log was durable up to position {header.durable}"
            )


def _cut(files: Files, segments: Segments, verified: _Verification) -> None:
    """Truncate the log at `verified.end`, write again what is not proven durable, and sync the log."""
    removed = segments.cut(verified.end)
    for segment in removed:
        files.remove(segment.path)
    for segment in segments.between(verified.first, POSITION_MAX):
        if not segment.exists or files.is_remote(segment.path):
            continue
        handle = segments.file_of(segment)
        if segment is segments.active and files.size(handle) > verified.end - segment.start:
            files.truncate(handle, verified.end - segment.start)
        _write_again(files, handle, segment, verified.proven, verified.end)
        files.sync(handle)
    files.sync_directory(LOG_DIRECTORY)


def _write_again(files: Files, handle: int, segment: Segment, start: int, end: int) -> None:
    """Write the bytes between two positions again at the same place, so that the next fsync writes them to the disk."""
    last = min(end, segment.known_end)
    try:
        for position in range(max(start, segment.start), last, BLOCK_BYTES):
            block = files.read(handle, min(BLOCK_BYTES, last - position), position - segment.start)
            files.write(handle, [block], position - segment.start)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        log.warning(
            "segment not written again, it is only synced: path=%s from=%d reason=%r", segment.path, start, str(error)
        )
