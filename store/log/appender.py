"""The class Appender: encodes units into the write buffer, assigns offsets and positions, and adds index rows.

    Appender.append([Frame, FrameRun, StateRecord ...])
        `-> CommitLog.begin        room for the unit in the write buffer
        `-> put_frame, put_run     the entries' bytes, with offsets assigned      store/log/encode.py
        `-> CommitLog.commit       the unit's header and CRC; the unit is part of the log
        `-> QueueIndex.append      a row for each frame

All of this happens in memory. `Durability` (`store/durability.py`) writes and syncs what was appended.
"""

from collections.abc import Sequence

from duolog.store.entry import Appended, EntrySlot, Promise, new_tuple
from duolog.store.errors import DiskFull, HalfApplied
from duolog.store.index.index_maintenance import IndexFlusher
from duolog.store.index.queue import Queue
from duolog.store.index.queues import Queues
from duolog.store.index.store_times import StepBack, pack_steps, undone, with_step
from duolog.store.log.commitlog import CommitLog
from duolog.store.log.control import Control, ControlKind, QueueRow
from duolog.store.log.encode import Entry, put_frame, put_other, put_run, sizes_of
from duolog.store.log.format import NO_OFFSET, UNIT_HEADER_SIZE
from duolog.store.log.write_buffer import Chunk
from duolog.store.options import StoreOptions
from duolog.store.unit import Frame, FrameRun, Part
from duolog.store.write_state import WriteState

FREEING_BYTES_MAX = 1 << 20  # Unwritten bytes beyond which `append_freeing` refuses while the disk is full.

_SizedEntry = tuple[Entry, int, int]  # An entry, the size of its payload, and its byte offset in the unit.
_RunLocations = list[tuple[int, int]]  # (position, size) of each frame of a FrameRun


class Appender:
    """Appends units to one log.

    After each append the log, the end offsets of the queues and the index rows agree. If an error is raised before
    `CommitLog.commit`, nothing has changed; an error after it ends the process (HalfApplied).
    """

    __slots__ = (
        "_captured_rows",
        "_index_flusher",
        "_log",
        "_queues",
        "_state_level",
        "_touched",
        "_write_buffer_bytes",
        "_write_state",
        "recovered_ms",
        "stored_ms",
    )

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        index_flusher: IndexFlusher,
        write_state: WriteState,
        options: StoreOptions,
        stored_ms: int,
    ) -> None:
        self._log, self._queues = log, queues
        self._index_flusher = index_flusher
        self._write_state = write_state
        self._write_buffer_bytes = options.tail_bytes
        self._state_level = options.level
        self._touched, self._captured_rows = queues.touched, queues.captured_rows
        self.stored_ms = stored_ms  # Store time of the last unit. Only `set_time_back` decreases it.
        self.recovered_ms = stored_ms  # Store time of the last unit of the previous run; 0 if the log was empty.

    def append(self, entries: Sequence[Part], now_ms: int) -> Appended:
        """Append one unit in memory and assign its offsets and positions. After a crash the unit is whole or absent.

        Raises DiskFull, WritingEnded or EntryTooLarge; nothing has changed then.
        """
        refusal = self._write_state.refusal
        if refusal is not None:
            raise type(refusal)(*refusal.args)
        log = self._log
        if log.next_position - log.written > self._write_buffer_bytes:
            self._write_early()
        if len(entries) == 1 and type(frame := entries[0]) is Frame:
            slot = self._append_frame(frame, now_ms)
            return new_tuple(Appended, ([slot], new_tuple(Promise, (log.next_position, frame.queue.level))))
        slots = self.append_unit(entries, now_ms)
        promise = new_tuple(Promise, (log.next_position, self._level_of(entries)))
        return new_tuple(Appended, (slots, promise))

    def append_freeing(self, entries: Sequence[Part], now_ms: int) -> Appended:
        """Append a unit that frees disk space. It is also accepted while `append` raises DiskFull.

        Raises WritingEnded, EntryTooLarge, and DiskFull if more than `FREEING_BYTES_MAX` bytes are unwritten already.
        """
        state = self._write_state
        state.raise_if_ended()
        if state.refusal is not None and self._log.unwritten_bytes > FREEING_BYTES_MAX:
            raise DiskFull(*state.refusal.args)
        slots = self.append_unit(entries, now_ms)
        return Appended(slots, Promise(self._log.next_position, self._level_of(entries)))

    def _level_of(self, entries: Sequence[Part]) -> int:
        """Return the level of the Promise of this unit.

        It is the highest level of the unit's queues. For a unit of state records alone it is that of `store.flush`.
        """
        levels = [entry.queue.level for entry in entries if type(entry) is Frame or type(entry) is FrameRun]
        return max(levels, default=self._state_level)

    def _write_early(self) -> None:
        """Write the log before the end of the loop turn, so that the write buffer stays within its limit.

        No callback is called here: the next `Durability.write` keeps promises and moves visible ends.
        """
        try:
            self._log.write()
        except OSError as error:
            raise DiskFull(
                f"the write buffer is full, and its {self._log.unwritten_bytes} bytes could not be written: {error}"
            ) from error

    # -- Units

    def append_unit(self, entries: Sequence[Entry], now_ms: int, flags: int = 0) -> list[EntrySlot]:
        """Append a unit of any entries, control entries included, without checking whether appends are accepted.

        Raises EntryTooLarge and any exception that a Stamp raises; nothing has changed then.
        """
        stored_ms = self.stored_ms
        if now_ms > stored_ms:
            stored_ms = now_ms
        sized: list[_SizedEntry] = []
        unit_size, entry_count = UNIT_HEADER_SIZE, len(entries)
        for entry in entries:
            size, occupied = sizes_of(entry)
            sized.append((entry, size, unit_size))
            unit_size += occupied
            if type(entry) is FrameRun:
                entry_count += len(entry.frames) - 1
        chunk = self._log.begin(unit_size)
        slots: list[EntrySlot] = []
        try:
            runs = _put_entries(chunk, sized, stored_ms, slots)
        except BaseException:
            _undo(chunk, sized, slots, unit_size)
            raise
        try:
            self._log.commit(chunk, unit_size, stored_ms, entry_count, flags)
            self.stored_ms = stored_ms
            self._add_rows(sized, slots, runs)
        except Exception as error:
            raise self._half_applied(error) from error
        return slots

    def _append_frame(self, frame: Frame, now_ms: int) -> EntrySlot:
        """Append a unit of one Frame as `append_unit` does, in a quarter less time. Nearly all units have one Frame."""
        stored_ms = self.stored_ms
        if now_ms > stored_ms:
            stored_ms = now_ms
        log, queue, count = self._log, frame.queue, frame.count
        size, occupied = sizes_of(frame)
        unit_size = UNIT_HEADER_SIZE + occupied
        chunk = log.begin(unit_size)
        at = chunk.used + UNIT_HEADER_SIZE
        position, base_offset = chunk.start + at, queue.end_offset
        slot = new_tuple(EntrySlot, (position, base_offset, stored_ms))
        try:
            put_frame(chunk, at, frame, size, slot)
        except BaseException:
            chunk.writable[at : at + occupied] = bytes(occupied)
            raise
        try:
            log.commit(chunk, unit_size, stored_ms, 1)
            self.stored_ms = stored_ms
            queue.end_offset = base_offset + count
            log.segments.active.last_offsets[queue.key] = base_offset + count - 1
            index = queue.index
            if index.append(base_offset, position, size, count, frame.timestamp_ms, stored_ms, frame.tags, frame.form):
                self._index_flusher.wanted[queue] = None
        except Exception as error:
            raise self._half_applied(error) from error
        if not queue.is_touched:
            queue.is_touched = True
            self._touched.append(queue)
            if self._captured_rows.is_active:
                self._keep_row(queue, base_offset)
        return slot

    def _add_rows(self, sized: list[_SizedEntry], slots: list[EntrySlot], runs: list[_RunLocations]) -> None:
        """Add the index rows of a unit that was appended, and note its queues as touched."""
        last_offsets, locations_of_runs = self._log.segments.active.last_offsets, iter(runs)
        for (entry, size, _), (position, base_offset, stored_ms) in zip(sized, slots, strict=True):
            if type(entry) is Frame:
                index, count, form = entry.queue.index, entry.count, entry.form
                is_full = index.append(
                    base_offset, position, size, count, entry.timestamp_ms, stored_ms, entry.tags, form
                )
            elif type(entry) is FrameRun:
                index, count, run = entry.queue.index, len(entry.frames), next(locations_of_runs)
                is_full = index.append_run(base_offset, run, entry.timestamps_ms, stored_ms, entry.tags, entry.form)
            else:
                continue
            queue = entry.queue
            last_offsets[queue.key] = base_offset + count - 1
            if is_full:
                self._index_flusher.wanted[queue] = None
            if not queue.is_touched:
                queue.is_touched = True
                self._touched.append(queue)
                if self._captured_rows.is_active:
                    self._keep_row(queue, base_offset)

    def _keep_row(self, queue: Queue, end_offset: int) -> None:
        """Give the running checkpoint the queue's row as it was before this append.

        This is called at the first append to the queue after a write, so the position of the checkpoint is below this
        append.
        """
        row = QueueRow(queue.key, queue.start_offset, end_offset, queue.index.written_row)
        self._captured_rows.keep(queue.key, row)

    def _half_applied(self, error: Exception) -> HalfApplied:
        """End writing, so that no promise is kept any more, and return the error that ends the process."""
        self._write_state.end_writing(f"a unit was appended, but its index rows could not be added: {error!r}")
        return HalfApplied(
            f"the unit that ends at position {self._log.next_position} was appended, "
            f"but its index rows could not be added: {error!r}"
        )

    # -- Store times

    @property
    def has_time_steps(self) -> bool:
        """Whether the log contains a step back, where store times decrease (`store/index/store_times.py`)."""
        return bool(self._queues.index_files.steps)

    def set_time_back(self, now_ms: int) -> None:
        """Append a step back: store times continue from `now_ms`, because the clock was ahead and was corrected.

        Does nothing if `now_ms` is not below the last store time. Raises WritingEnded.
        """
        self._write_state.raise_if_ended()
        before_ms, steps = self.stored_ms, self._queues.index_files.steps
        if now_ms < before_ms:
            self.stored_ms = now_ms
            try:
                self._put_steps(with_step(steps, StepBack(self._log.next_position, now_ms, before_ms)))
            except BaseException:
                self.stored_ms = before_ms
                raise

    def undo_time_back(self, now_ms: int) -> None:
        """Mark the steps back as undone that were wrong, since the clock is again where it was before them.

        Raises WritingEnded.
        """
        self._write_state.raise_if_ended()
        before = self._queues.index_files.steps
        steps = undone(before, now_ms)
        if steps != before:
            self._put_steps(steps)

    def _put_steps(self, steps: tuple[StepBack, ...]) -> None:
        self.append_unit([Control(ControlKind.CLOCK_STEPS, 0, pack_steps(steps))], self.stored_ms)
        self._queues.index_files.steps = steps


def _put_entries(chunk: Chunk, sized: list[_SizedEntry], stored_ms: int, slots: list[EntrySlot]) -> list[_RunLocations]:
    """Encode the entries and append their slots to `slots`; return the frame locations of each FrameRun.

    If an entry cannot be encoded, `slots` has the slots of the entries before it.
    """
    runs: list[_RunLocations] = []
    unit_at = chunk.used
    unit_position = chunk.start + unit_at
    for entry, size, at in sized:
        if type(entry) is Frame:
            queue = entry.queue
            slot = new_tuple(EntrySlot, (unit_position + at, queue.end_offset, stored_ms))
            put_frame(chunk, unit_at + at, entry, size, slot)
            queue.end_offset += entry.count
        elif type(entry) is FrameRun:
            queue = entry.queue
            slot = new_tuple(EntrySlot, (unit_position + at, queue.end_offset, stored_ms))
            runs.append(put_run(chunk, unit_at + at, entry, slot))
            queue.end_offset += len(entry.frames)
        else:
            slot = EntrySlot(unit_position + at, NO_OFFSET, stored_ms)
            put_other(chunk, unit_at + at, entry)
        slots.append(slot)
    return runs


def _undo(chunk: Chunk, sized: list[_SizedEntry], slots: list[EntrySlot], unit_size: int) -> None:
    """Restore the end offsets of queues after a unit could not be encoded, and zero its bytes in the chunk."""
    for (entry, _, _), slot in reversed(list(zip(sized, slots, strict=False))):
        if type(entry) is Frame or type(entry) is FrameRun:
            entry.queue.end_offset = slot.base_offset
    chunk.writable[chunk.used : chunk.used + unit_size] = bytes(unit_size)
