"""What a start does with the log it finds: verify, cut, replay.

    checkpoint C                                        P                        end of the files
    |--------------- verified, then replayed -----------|---- beyond ------------|

*Verify* walks the units from the checkpoint on (from the first segment without one) to the first that is not whole, at P.
*Beyond* P power loss may have left pages of units in any order, and zeros of reserved blocks. If any valid unit there, found by
its magic, position and CRC, says that the log was durable beyond P when it was written, then P had been acknowledged and
is damaged now: Corruption, the start is refused. Else P is the torn tail: *cut* there, whatever follows, and sync
before anything is served. *Replay* then reads only what is known to be whole.

State comes from the checkpoint; without one, from the newest snapshot unit in the log, for removed segments may have
held what undid an older state record. Queues and their indexes come from all units.

Downside: damage in the last units before a power loss, with nothing durable behind them, cannot be told from a torn tail.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from store.checkpoint import Checkpoint, read_checkpoint, remove_checkpoint
from store.control import NO_SNAPSHOT, Kind, read_queue_offsets, read_queue_rows
from store.entry import CONTROL_FORM, STATE_FORM, Slot
from store.errors import Corruption
from store.files import Files
from store.format import (
    ALIGNMENT,
    CLOSED_FLAG,
    MAGIC_BYTES,
    NO_OFFSET,
    POSITION_MAX,
    SNAPSHOT_FLAG,
    UNIT_HEADER_SIZE,
    BadUnit,
    Entry,
    UnitHeader,
    check_unit,
    claimed_position,
    entries_of,
    read_header,
    unit_size,
)
from store.queue import Queue
from store.queues import Queues
from store.segment import LOG_DIRECTORY, Segment, Segments, list_segments

BLOCK_BYTES = 4 << 20  # read at a time

log = logging.getLogger("store")


class Replayed(Protocol):
    """The two methods of the replayer that recovery calls."""

    def replay_state(self, payload: bytes, slot: Slot) -> None: ...
    def replay_frame(self, key: int, slot: Slot, form: int, count: int, frame: memoryview, extra: bytes) -> None: ...


class RecoveryReport(NamedTuple):
    """What a start found and did, for one line in the log."""

    clean: bool  # the last run ended in order
    checkpoint_position: int  # where reading began; -1: no checkpoint, the whole log was read
    end_position: int
    units: int  # read behind the checkpoint
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
    snapshot_position: int
    report: RecoveryReport


def recover(files: Files, open_segments_max: int, queues: Queues, replayer: Replayed) -> Recovered:
    """Bring the log into a known and durable state, and fill the queues and the replayer from it.

    Raises Corruption when what was durable once no longer reads back; the log has not been changed then.
    """
    segments = Segments(files, list_segments(files) or [Segment(0)], open_segments_max)
    checkpoint = _restore_checkpoint(files, segments, queues)
    verified = _Verification(files, segments, checkpoint)
    verified.run()
    cut_bytes = _search_beyond(files, segments, verified)
    _cut(files, segments, verified)
    replay = _Replay(segments, queues, replayer, checkpoint, verified.snapshot_position)
    for block, at, position in _read_log(files, segments, verified.first, verified.end):
        replay.take(block, at, position)
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
    return Recovered(segments, verified.end, verified.stored_ms, verified.snapshot_position, report)


def _restore_checkpoint(files: Files, segments: Segments, queues: Queues) -> Checkpoint | None:
    """Take queues and segments from the checkpoint; None when there is none to be used, and all comes from the log."""
    checkpoint = read_checkpoint(files)
    if checkpoint and not segments.active.exists:
        raise Corruption(
            f"no files in {LOG_DIRECTORY}/, and a checkpoint says that the log reached {checkpoint.position}"
        )
    if checkpoint and checkpoint.position >= segments.start:
        try:
            queues.restore(checkpoint.queues)
        except Corruption as reason:
            log.warning("an index is damaged, all will be made again from the log: %s", reason)
        else:
            for segment in segments:
                segment.last_offsets.update(checkpoint.last_offsets.get(segment.start, {}))
            return checkpoint
    queues.forget()
    remove_checkpoint(files)  # It counts rows of indexes that are about to be made again.
    return None


# -- Verify


class _Verification:
    """The walk from `first` to the first unit that is not whole, at `end`."""

    def __init__(self, files: Files, segments: Segments, checkpoint: Checkpoint | None) -> None:
        self._files = files
        self._segments = segments
        self.first = checkpoint.position if checkpoint else segments.start
        self.end = self.first
        self.reason = "nothing more is written"
        self.epoch = checkpoint.epoch if checkpoint else 0
        self.stored_ms = checkpoint.stored_ms if checkpoint else 0
        self.snapshot_position = checkpoint.snapshot_position if checkpoint else NO_SNAPSHOT
        self.closed = checkpoint.closed if checkpoint else True
        self.units = 0

    def run(self) -> None:
        for segment in self._segments.between(self.first, POSITION_MAX):
            if segment.is_gap:
                self.end = segment.known_end
            elif segment.exists:
                self._verify(segment)
            if self.end != segment.end:
                return

    def _verify(self, segment: Segment) -> None:
        limit = _limit(self._files, self._segments, segment)
        if limit < self.end:
            raise Corruption(f"{segment.path} ends at {limit}, and a checkpoint says that the log reached {self.end}")
        try:
            for block, at, position in _read_units(self._files, self._segments, segment, self.end, limit):
                self._take(check_unit(block, at, position))
        except BadUnit as reason:
            self.reason = f"{segment.path} has at {self.end - segment.start}: {reason}"

    def _take(self, header: UnitHeader) -> None:
        if header.epoch < self.epoch:
            raise BadUnit(f"a unit of epoch {header.epoch} behind one of {self.epoch}")
        self.end += header.size
        self.epoch = header.epoch
        self.stored_ms = max(self.stored_ms, header.stored_ms)
        self.closed = header.flags & CLOSED_FLAG != 0
        if header.flags & SNAPSHOT_FLAG:
            self.snapshot_position = header.position
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
        limit = _limit(files, segments, segment)
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
        header = None if at % ALIGNMENT else _valid_unit(files, segments, segment, start + at)
        if header and header.durable > verified.end:
            raise Corruption(
                f"{verified.reason}; but the unit at {header.position} says that the log was durable up to {header.durable}"
            )
        at = block.find(MAGIC_BYTES, at + (header.size if header else 1))


def _valid_unit(files: Files, segments: Segments, segment: Segment, position: int) -> UnitHeader | None:
    """Return the header of a whole unit at this position. What lies here may be anything, a payload included."""
    handle, at = segments.file_of(segment), position - segment.start
    try:
        head = memoryview(files.read(handle, UNIT_HEADER_SIZE, at))
        size = unit_size(head, 0)
        if claimed_position(head, 0) != position:
            return None
        return check_unit(memoryview(files.read(handle, size, at)), 0, position)
    except BadUnit:
        return None


def _cut(files: Files, segments: Segments, verified: _Verification) -> None:
    """Cut the log at its end and make durable what was read: a killed process may have left it in the page cache only."""
    removed = segments.cut(verified.end)
    for segment in removed:
        files.remove(segment.path)
    for segment in segments.between(verified.first, POSITION_MAX):
        if not segment.exists:
            continue
        handle = segments.file_of(segment)
        if segment is segments.active and files.size(handle) > verified.end - segment.start:
            files.truncate(handle, verified.end - segment.start)
        files.sync(handle)
    files.sync_directory(LOG_DIRECTORY)


# -- Replay


class _Replay:
    """Gives every entry to whom it belongs. The units are known to be whole."""

    def __init__(
        self,
        segments: Segments,
        queues: Queues,
        replayer: Replayed,
        checkpoint: Checkpoint | None,
        snapshot_position: int,
    ) -> None:
        self._segments = segments
        self._queues = queues
        self._replayer = replayer
        self._segment = segments.find(segments.start)
        # State begins with the checkpoint; without one with the newest snapshot; without that with the log.
        self._state_from = checkpoint.position if checkpoint else max(snapshot_position, 0)
        self._snapshot_position = NO_SNAPSHOT if checkpoint else snapshot_position
        self.entries = 0
        if checkpoint:
            slot = Slot(checkpoint.position, NO_OFFSET, checkpoint.stored_ms)
            for record in checkpoint.records:
                replayer.replay_state(record, slot)

    def take(self, block: memoryview, at: int, position: int) -> None:
        """Replay the unit at `block[at]`."""
        header = read_header(block, at)
        if position >= self._segment.known_end:
            self._segment = self._segments.find(position)
        is_old = position < self._state_from
        is_repeated = header.flags & SNAPSHOT_FLAG and position != self._snapshot_position
        for entry in entries_of(block[at : at + header.size], position, header.entry_count):
            if entry.form == CONTROL_FORM:
                self._control(entry)
            elif entry.form == STATE_FORM:
                if not (is_old or is_repeated):
                    slot = Slot(entry.position, NO_OFFSET, header.stored_ms)
                    self._replayer.replay_state(bytes(entry.frame), slot)
            else:
                self._frame(entry, header.stored_ms, is_old)
        self.entries += header.entry_count

    def _frame(self, entry: Entry, stored_ms: int, is_old: bool) -> None:
        position, form, _, key, base_offset, count, tags, timestamp_ms, frame, extra = entry
        queue = self._queues.get(key)
        if base_offset != queue.end_offset:
            queue = self._jump(queue, base_offset, position)
        index = queue.index
        if index.append(base_offset, position, len(frame), count, timestamp_ms, stored_ms, tags, form):
            index.flush()
        queue.end_offset = base_offset + count
        self._segment.last_offsets[key] = base_offset + count - 1
        if not is_old:
            self._replayer.replay_frame(key, Slot(position, base_offset, stored_ms), form, count, frame, bytes(extra))

    def _jump(self, queue: Queue, base_offset: int, position: int) -> Queue:
        """Go on at an offset above the queue's end: what lay between went with a dead segment."""
        if base_offset < queue.end_offset:
            raise Corruption(
                f"the entry at {position} has offset {base_offset} of {queue}, {queue.end_offset} was next"
            )
        return self._queues.restart(queue, base_offset)

    def _control(self, entry: Entry) -> None:
        if entry.kind == Kind.QUEUE:
            self._queue_was(entry.key, *read_queue_offsets(entry.frame))
        elif entry.kind == Kind.TOPIC_DROPPED:
            self._queues.drop_topic(Queue.split(entry.key)[0])
        elif entry.kind == Kind.SNAPSHOT:
            rows = list(read_queue_rows(entry.frame))
            kept = {row.key for row in rows}
            for queue in [queue for queue in self._queues if queue.key not in kept]:
                self._queues.drop(queue)
            for row in rows:
                self._queue_was(row.key, row.start_offset, row.end_offset)
        else:
            raise Corruption(f"the control entry at {entry.position} has kind {entry.kind}")

    def _queue_was(self, key: int, start_offset: int, end_offset: int) -> None:
        queue = self._queues.get(key)
        queue.move_start(start_offset)
        queue.end_offset = max(queue.end_offset, end_offset)


# -- Reading units


def _read_log(files: Files, segments: Segments, first: int, end: int) -> Iterator[tuple[memoryview, int, int]]:
    """Yield (block, place in it, position) of each unit of a range that is known to be whole."""
    for segment in segments.between(first, end):
        if not segment.is_gap:
            yield from _read_units(files, segments, segment, max(first, segment.start), min(end, segment.known_end))


def _read_units(
    files: Files, segments: Segments, segment: Segment, position: int, end: int
) -> Iterator[tuple[memoryview, int, int]]:
    """Yield (block, place in it, position) of each unit from `position` to `end`, each whole in its block.

    Raises BadUnit where no unit begins, or one would end behind `end`.
    """
    handle = segments.file_of(segment)
    wanted = BLOCK_BYTES
    while position < end:
        block = memoryview(files.read(handle, min(wanted, end - position), position - segment.start))
        at, wanted = 0, BLOCK_BYTES
        while at < len(block):
            if at and len(block) - at < UNIT_HEADER_SIZE:
                break
            size = unit_size(block, at)
            if size > end - position - at:
                raise BadUnit(f"a unit of {size} bytes where {end - position - at} are left")
            if size > len(block) - at:
                wanted = max(wanted, size)
                break
            yield block, at, position + at
            at += size
        position += at


def _limit(files: Files, segments: Segments, segment: Segment) -> int:
    """Return where a segment's units end at the latest: at its end, or with its file."""
    return min(segment.known_end, segment.start + files.size(segments.file_of(segment)))
