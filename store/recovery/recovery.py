"""What a start does with the log that it finds: verify, cut, replay.

    checkpoint                                      P                              end of the files
        |---------- verified, then replayed --------|----------- beyond -------------|

*Verify* walks the units from the checkpoint on, without one from the first segment on, up to the first that is not
whole, at P. *Beyond* P a power loss may have left pages of units in any order, and zeros of reserved blocks. If a valid
unit there (found by its magic, position and CRC) says that the log was durable beyond P when it was written, then what
lay at P had been kept and is damaged now: Corruption, the start is refused. Else P is the torn tail: *cut* there,
whatever follows, and sync before anything is served. *Replay* reads only what is known to be whole
(`store/recovery/replay.py`).

The sync alone proves nothing. A run before this one may have ended because its fsync failed: then the kernel has marked
the pages clean that the disk does not have, so they read back whole until the power goes, and another fsync succeeds
without writing them (PostgreSQL's "fsyncgate", 2018). A note of that failure would lie on the same disk, so none is
left. Instead every start *writes again* what no unit and no checkpoint says was durable, from the last such claim to P,
and only then syncs: mostly the last unit or a few, and nothing after an orderly end. A disk without any room may refuse
even that (on file systems that copy on write); then a warning says so and the sync alone has to do, since a start on a
full disk is how room is made.

Downsides: damage to what was synced last before a power loss cannot be told from a torn tail, as nothing durable lies
behind it. A payload that holds a forged unit for the very position where it lies can make a torn tail look damaged.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple

from duolog.store.errors import NO_SPACE, Corruption
from duolog.store.files import Files
from duolog.store.index.queues import Queues
from duolog.store.log.format import (
    CLOSED_FLAG,
    MAGIC_BYTES,
    POSITION_AT,
    POSITION_MAX,
    UNIT_HEADER_SIZE,
    BadUnit,
    UnitHeader,
    check_unit,
    unit_size,
)
from duolog.store.log.segment import (
    LOG_DIRECTORY,
    Segment,
    Segments,
    list_segments,
)
from duolog.store.log.unit_walk import (
    BLOCK_BYTES,
    readable_end,
    units_of_log,
    units_of_segment,
)
from duolog.store.recovery.checkpoint import (
    Checkpoint,
    read_checkpoint,
    read_snapshot,
    remove_checkpoint,
    snapshot_positions,
)
from duolog.store.recovery.replay import Replay, Replayer

log = logging.getLogger("store")


class RecoveryReport(NamedTuple):
    """What a start found and did, for one line in the log."""

    clean: bool  # the last run ended in order
    checkpoint_position: int  # of the checkpoint that was taken; -1: none, the whole log was read
    end_position: int
    units: int  # that were read
    entries: int
    cut_bytes: int  # of a torn tail
    segments: int
    queues: int
    epoch: int  # of the run that begins

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._asdict().items())


@dataclass(slots=True)
class Recovered:
    """What the commitlog goes on with."""

    segments: Segments
    end_position: int
    stored_ms: int
    snapshot_position: int  # of the newest snapshot; -1: there is none
    report: RecoveryReport


def recover(files: Files, open_segments_max: int, queues: Queues, replayer: Replayer) -> Recovered:
    """Bring the log into a known and durable state, and fill the queues and the replayer from it.

    Raises Corruption when what was durable once no longer reads back; the log has not been changed then.
    """
    segments = Segments(files, list_segments(files) or [Segment(0)], open_segments_max)
    checkpoint = _restore_checkpoint(files, segments, queues)
    snapshot = _read_snapshot(files, segments) if checkpoint is None else None
    verified = _Verification(files, segments, checkpoint, snapshot)
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
    return Recovered(segments, verified.end, verified.stored_ms, snapshot_position, report)


def _restore_checkpoint(files: Files, segments: Segments, queues: Queues) -> Checkpoint | None:
    """Take queues and segments from the checkpoint; None when there is none to be used, and all comes from the log."""
    checkpoint = read_checkpoint(files)
    if checkpoint and not segments.active.exists:
        raise Corruption(
            f"no files in {LOG_DIRECTORY}/, and a checkpoint says that the log reached {checkpoint.position}"
        )
    if checkpoint and checkpoint.read_from >= segments.start:
        try:
            queues.restore(checkpoint.queues)
            queues.index_files.steps = checkpoint.steps
        except Corruption as reason:
            log.warning("an index is damaged, all will be made again from the log: %s", reason)
        else:
            for segment in segments:
                segment.last_offsets.update(checkpoint.last_offsets.get(segment.start, {}))
            return checkpoint
    queues.forget()
    remove_checkpoint(files)  # It counts rows of indexes that are about to be made again.
    return None


def _read_snapshot(files: Files, segments: Segments) -> Checkpoint | None:
    """Return the newest snapshot, by whose state a start without a checkpoint begins; None if no segment was removed.

    Raises Corruption if the state of removed segments cannot be had.
    """
    is_complete = not segments.start and not any(segment.is_gap for segment in segments)
    try:
        snapshot = read_snapshot(files)
    except Corruption:
        if not is_complete:
            raise
        return None  # All that it says is in the log still.
    if snapshot is None and not is_complete:
        raise Corruption(f"{LOG_DIRECTORY}/ has neither the segments from position 0 on nor a snapshot of their state")
    if snapshot is not None and not segments.active.exists:
        raise Corruption(
            f"no segments in {LOG_DIRECTORY}/, and a snapshot says that the log reached {snapshot.position}"
        )
    return snapshot


# -- Verify


class _Verification:
    """The walk from `first` to the first unit that is not whole, at `end`."""

    def __init__(
        self, files: Files, segments: Segments, checkpoint: Checkpoint | None, snapshot: Checkpoint | None
    ) -> None:
        self._files = files
        self._segments = segments
        self.first = checkpoint.read_from if checkpoint else segments.start
        self.end = self.first
        self.reason = "nothing more is written"
        self.epoch = checkpoint.epoch if checkpoint else 0
        self.stored_ms = checkpoint.stored_ms if checkpoint else snapshot.stored_ms if snapshot else 0
        self.closed = checkpoint.closed if checkpoint else True
        self._source, found = ("checkpoint", checkpoint) if checkpoint else ("snapshot", snapshot)
        self.durable = found.position if found else 0  # what that says; units say more
        self.proven = self.durable  # An fsync up to here succeeded, as a checkpoint, a snapshot or a whole unit says.
        self.units = 0

    def run(self) -> None:
        self._walk()
        if self.end < self.durable:
            raise Corruption(f"{self.reason}; but a {self._source} says that the log was durable up to {self.durable}")

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
                f"{segment.path} ends at {limit}, and a {self._source} says that the log reached {self.durable}"
            )
        try:
            for block, at, position in units_of_segment(self._files, self._segments, segment, self.end, limit):
                self._take(check_unit(block, at, position))
        except BadUnit as reason:
            self.reason = f"{segment.path} has at {self.end - segment.start}: {reason}"

    def _take(self, header: UnitHeader) -> None:
        if header.epoch < self.epoch:
            raise BadUnit(f"a unit of epoch {header.epoch} behind one of {self.epoch}")
        self.end += header.size
        self.proven = max(self.proven, header.durable)
        self.epoch = header.epoch
        self.stored_ms = header.stored_ms
        self.closed = header.flags & CLOSED_FLAG != 0
        self.units += 1


# -- Beyond the first unit that is not whole


def _search_beyond(files: Files, segments: Segments, verified: _Verification) -> int:
    """Return how far what lies behind the end is not zero; raises Corruption if a unit there proves it durable once."""
    end = last_byte = verified.end
    for segment in segments.between(end, POSITION_MAX):
        if segment.is_gap:
            raise Corruption(f"{verified.reason}; but {segment.path} says that the log was durable there")
        if not segment.exists:
            continue
        limit = readable_end(files, segments, segment)
        for position in range(max(segment.start, end), limit, BLOCK_BYTES):
            block = files.read(segments.file_of(segment), min(BLOCK_BYTES, limit - position), position - segment.start)
            filled = len(block.rstrip(b"\0"))
            if filled:
                last_byte = position + filled
                _refuse_if_durable(files, segments, segment, block, position, verified)
    return last_byte - end


def _refuse_if_durable(
    files: Files, segments: Segments, segment: Segment, block: bytes, start: int, verified: _Verification
) -> None:
    """Look at every place in the block where a unit could begin."""
    at = block.find(MAGIC_BYTES)
    while at >= 0:
        # Most of what has the magic and is no unit fails here, cheaply: a payload may be full of it.
        own = block[at + POSITION_AT : at + POSITION_AT + 8]
        is_candidate = own == (start + at).to_bytes(8, "big") or len(own) < 8
        header = _valid_unit(files, segments, segment, start + at) if is_candidate else None
        if header and header.durable > verified.end:
            claim = f"the unit at {header.position} says that the log was durable up to {header.durable}"
            raise Corruption(f"{verified.reason}; but {claim}")
        at = block.find(MAGIC_BYTES, at + (header.size if header else 1))


def _valid_unit(files: Files, segments: Segments, segment: Segment, position: int) -> UnitHeader | None:
    """Return the header of a whole unit at this position. What lies here may be anything, a payload included."""
    handle, at = segments.file_of(segment), position - segment.start
    try:
        size = unit_size(memoryview(files.read(handle, UNIT_HEADER_SIZE, at)), 0)
        if size > readable_end(files, segments, segment) - position:
            return None
        return check_unit(memoryview(files.read(handle, size, at)), 0, position)
    except BadUnit:
        return None


def _cut(files: Files, segments: Segments, verified: _Verification) -> None:
    """Cut the log at its end, and make durable what was read: it may have been in the page cache only."""
    removed = segments.cut(verified.end)
    for segment in removed:
        files.remove(segment.path)
    for segment in segments.between(verified.first, POSITION_MAX):
        if not segment.exists:
            continue
        handle = segments.file_of(segment)
        if segment is segments.active and files.size(handle) > verified.end - segment.start:
            files.truncate(handle, verified.end - segment.start)
        _write_again(files, handle, segment, verified.proven, verified.end)
        files.sync(handle)
    files.sync_directory(LOG_DIRECTORY)


def _write_again(files: Files, handle: int, segment: Segment, start: int, end: int) -> None:
    """Write the bytes of the segment between two positions to where they are, so that the next sync writes them."""
    last = min(end, segment.known_end)
    try:
        for position in range(max(start, segment.start), last, BLOCK_BYTES):
            block = files.read(handle, min(BLOCK_BYTES, last - position), position - segment.start)
            files.write(handle, [block], position - segment.start)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        log.warning("%s could not be written again from %d on before its sync: %s", segment.path, start, error)
