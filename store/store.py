"""The store as its users see it: queues, units, promises, reading, retention.

One thread (the event loop's) calls everything here; only the executors own other threads, and they come back through
the `post` callable they were given. Nothing here awaits, and nothing asks the time.

    store = Store.open(files, options, replayer, now_ms)          # recovery happens here
    queue = store.queue(key)                                      # key = topic number << 16 | queue id
    appended = store.append([Frame(queue, form, body)], now_ms)   # in memory, offsets assigned
    store.when(appended.promise, answer)                          # called once written / fsynced
    found = store.read(queue, offset, max_bytes=1 << 20, until=queue.visible_end)

When the disk fails:

    write meets ENOSPC      those who wait for it hear DiskFull, appends are refused. `check_disk` writes the same bytes
                            to the same place until it works; then appends are taken again. What was appended stays,
                            for state has followed it already: a refused sender may find its message stored later.
    no file can be opened   EMFILE, ENFILE: the same.
    write fails otherwise   WritingEnded: all who wait hear it, and every append from then on.
    fsync fails             WritingEnded: the kernel may have dropped the pages, and another fsync would prove nothing.

ARCHITECTURE.md ("When the disk fails") has every operation.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from duolog.store.entry import Appended, EntryLocation, Promise, Slot, Stored, new_tuple
from duolog.store.errors import (
    NO_HANDLES,
    NO_SPACE,
    DataDirectoryInUse,
    DiskFull,
    HalfApplied,
    HalfWritten,
    OffsetOutOfRange,
    StoreError,
    WritingEnded,
)
from duolog.store.files import Files
from duolog.store.index.index_maintenance import IndexFlush
from duolog.store.index.key_index import KeyIndex, Search
from duolog.store.index.queue import Queue, queue_key
from duolog.store.index.queue_index import Row
from duolog.store.index.queues import Queues
from duolog.store.index.scan import TagScan
from duolog.store.index.store_times import (
    StepBack,
    pack_steps,
    undone,
    with_step,
)
from duolog.store.log.cold_read import ColdEntries, ColdRead
from duolog.store.log.commitlog import CommitLog, SyncTask
from duolog.store.log.control import (
    Control,
    ControlKind,
    QueueRow,
    queue_control,
)
from duolog.store.log.encode import (
    Entry,
    put_frame,
    put_other,
    put_run,
    sizes_of,
)
from duolog.store.log.format import (
    CLOSED_FLAG,
    NO_OFFSET,
    OPENED_FLAG,
    UNIT_HEADER_SIZE,
)
from duolog.store.log.frames import Frames
from duolog.store.log.segment import LOG_DIRECTORY, Segment
from duolog.store.log.write_buffer import Chunk
from duolog.store.options import StoreOptions
from duolog.store.promises import Done, Promises
from duolog.store.recovery.checkpoint_run import CheckpointRun, log_left
from duolog.store.recovery.checkpointer import Checkpointer
from duolog.store.recovery.recovery import RecoveryReport, recover
from duolog.store.recovery.replay import Replayer
from duolog.store.retention.log_start import NO_LIMIT, RetentionLimits, expired_to
from duolog.store.spare_file import Spare
from duolog.store.unit import Frame, FrameRun, Part
from duolog.store.workers import Executor, Failure, Inline

LOCK_PATH = "lock"
FREEING_BYTES_MAX = 1 << 20  # Of units that make room and cannot be written yet.
READ_ENTRIES_MAX = 1024  # of one read, unless the caller asks for another number

T = TypeVar("T")

_Placed = tuple[Entry, int, int]  # with the size of its payload and its place in the unit
_RunPlaces = list[tuple[int, int]]  # (position, size) of each frame

log = logging.getLogger("store")


class FindRow(Protocol):
    """Finds the number of a row; None: it would block."""

    def __call__(self, *, block: bool) -> int | None: ...


class Address(NamedTuple):
    """Where a record is: what its position in the log leads to."""

    queue: Queue
    offset: int


class Store:
    """One data directory, open. Made by `open`; `durable <= written <= next_position` always."""

    def __init__(self, files: Files, options: StoreOptions, replayer: Replayer, lock: int) -> None:
        self.on_visible: Callable[[list[Queue]], None] = _ignore  # these queues' visible_end moved
        self.contain: Callable[[Exception], None] = _reraise  # takes what a callback raised; the others are called
        self.readers: Executor = Inline()  # for cold reads, and look-ups for retention
        self.background: Executor = Inline()  # for checkpoints and the removal of files; must refuse nothing
        self.searches: Executor = Inline()  # for searches by key, one at a time
        self.options = options
        self._files = files
        self._lock = lock
        self._is_sync = options.flush == "sync"
        self._queues = Queues(files, durable=self._is_sync)
        recovered = recover(files, options.open_segments_max, self._queues, replayer)
        self.recovery: RecoveryReport = recovered.report
        self._log = CommitLog(files, options, recovered.segments, recovered.end_position, epoch=recovered.report.epoch)
        self._frames = Frames(files, self._log)
        self.keys = KeyIndex(files, self._frames)
        self.keys.forget_others({queue.topic for queue in self._queues})
        self._stored_ms = recovered.stored_ms  # of the last unit; it falls by `set_time_back` only
        self.recovered_ms = recovered.stored_ms  # of the last unit of the run before this one; 0: there was none
        self.written = recovered.end_position  # kill -9 does not lose what lies below
        self._to_write = Promises(self._contain)
        self._to_sync = Promises(self._contain)
        self._touched, self._moment = self._queues.touched, self._queues.moment
        self._unsynced: dict[Queue, int] = {}  # written, to be seen up to this offset when durable
        self._syncing: dict[Queue, int] = {}  # the same of the task that runs
        self._sync: SyncTask | None = None  # the task that runs
        self._full_indexes: dict[Queue, None] = {}  # flushed with the next write
        self._refusal: StoreError | None = None  # why appends are refused at present
        self._is_full = False  # a write met ENOSPC, and is still to be done
        self._is_making_room = False  # the spare file is being given up
        self.is_closed = False
        self._is_late: Callable[[], bool] = lambda: False  # See `stop_in_time`.
        self._spare = Spare(files, options.spare_bytes)
        self._usage = files.usage()  # of the disk: used bytes, total bytes
        self._queues.index_files.opener = self._log.segments.opener = lambda: self.readers
        self._checkpoints = Checkpointer(
            files,
            options,
            self._log,
            self._queues,
            replayer,
            position=max(recovered.report.checkpoint_position, 0),
            snapshot_position=recovered.snapshot_position,
        )
        self._checkpoint_run = CheckpointRun(self, self._checkpoints, self._queues, self._log.segments)

    @classmethod
    def open(cls, files: Files, options: StoreOptions, replayer: Replayer, now_ms: int) -> "Store":
        """Lock the directory, recover, and begin a new run. Blocks; raises DataDirectoryInUse, Corruption, OSError."""
        try:
            lock = files.lock(LOCK_PATH)
        except BlockingIOError as error:
            raise DataDirectoryInUse(
                "the data directory is in use by another process, probably a second broker"
            ) from error
        try:
            files.make_directory(LOG_DIRECTORY)
            files.sync_directory(".")
            store = cls(files, options, replayer, lock)
            store._begin_run(now_ms)
        except BaseException:
            files.close(lock)
            raise
        log.info("recovered %s", store.recovery)
        return store

    def _begin_run(self, now_ms: int) -> None:
        """Append what carries the new epoch, and make it durable before anything else can be."""
        # With the last store time of the log, for nobody has looked yet whether the clock can be right.
        self._append_unit([], self._stored_ms or now_ms, OPENED_FLAG)
        try:
            self._log.write()
        except OSError as error:
            if error.errno not in (*NO_SPACE, *NO_HANDLES):
                raise
            self.write_failed(error)  # Reading and retention go on; they may make room.
            return
        task = self._log.sync_task(self._log.written)
        task.run()
        self._log.synced(task)
        self.written = self._log.written

    def stop_in_time(self, is_late: Callable[[], bool]) -> None:
        """Let checkpoints come to nothing once `is_late()`, which threads ask, too: the next start reads more then."""
        self._is_late = is_late
        self._queues.index_files.is_late = is_late

    def close(self, now_ms: int) -> None:
        """Write, sync, mark the run as ended in order, leave a checkpoint if there is time, release the directory.

        Blocks. The executors must have been stopped before.
        """
        self.readers = self.background = self.searches = Inline(self._is_late)
        self._write_and_sync()
        if not self._has_ended:
            self._append_unit([], now_ms, CLOSED_FLAG)
            self._write_and_sync()
        self._checkpoint_run.abandon()
        self._checkpoint_run.begin(closed=True)
        if self._checkpoints.is_running:
            log.warning("no checkpoint was left, for it would have taken too long: the next start reads more")
            self._checkpoint_run.abandon()
        self.is_closed = True
        self._log.segments.close()
        self._queues.index_files.close()
        self._files.close(self._lock)

    def _write_and_sync(self) -> None:
        self.write()
        # What a stopped flusher was about to report is synced again: simpler than asking how far it came.
        while task := self._sync or self.sync_wanted(background=True):
            error = _error_of(task)
            self.synced(task, error)
            if error is not None:
                return  # While no file can be opened, the same sync would be wanted again and again.

    @property
    def clean(self) -> bool:
        """The run before this one closed the log in order."""
        return self.recovery.clean

    @property
    def refusal(self) -> str:
        """Why appends are refused at present; empty when they are not."""
        return "" if self._refusal is None else str(self._refusal)

    @property
    def epoch(self) -> int:
        """The number of this run; it rises with every start."""
        return self._log.epoch

    def segments(self) -> Iterable[Segment]:
        """The chain of log files, the oldest first."""
        return iter(self._log.segments)

    @property
    def last_stored_ms_of_log(self) -> int:
        """When the last unit was appended, by the clock of the log."""
        return self._stored_ms

    @property
    def next_position(self) -> int:
        return self._log.next_position

    @property
    def durable(self) -> int:
        """Power loss does not lose what lies below."""
        return self._log.durable

    # -- Store times

    @property
    def stored_ms(self) -> int:
        """The store time of the last unit: no unit gets an earlier one, but behind `set_time_back`."""
        return self._stored_ms

    @property
    def has_time_steps(self) -> bool:
        """Whether store times fall anywhere in the log."""
        return bool(self._queues.index_files.steps)

    def set_time_back(self, now_ms: int) -> None:
        """Let store times begin anew at `now_ms`: the clock was ahead, and is right again. A unit of its own."""
        self._refuse_when_ended()
        before_ms, steps = self._stored_ms, self._queues.index_files.steps
        if now_ms < before_ms:
            self._stored_ms = now_ms
            try:
                self._put_steps(with_step(steps, StepBack(self._log.next_position, now_ms, before_ms)))
            except BaseException:
                self._stored_ms = before_ms
                raise

    def undo_time_back(self, now_ms: int) -> None:
        """Undo the steps back that were wrong, for the clock is at least where it was before them."""
        self._refuse_when_ended()
        before = self._queues.index_files.steps
        steps = undone(before, now_ms)
        if steps != before:
            self._put_steps(steps)

    def _put_steps(self, steps: tuple[StepBack, ...]) -> None:
        self._append_unit([Control(ControlKind.CLOCK_STEPS, 0, pack_steps(steps))], self._stored_ms)
        self._queues.index_files.steps = steps

    # -- Queues

    def queue(self, key: int) -> Queue:
        """Return the queue of this key (`queue_key`), creating it on first use."""
        return self._queues.get(key)

    def queues(self) -> Iterable[Queue]:
        return iter(self._queues)

    # -- Appending

    def append(self, entries: Sequence[Part], now_ms: int) -> Appended:
        """Append one unit: whole or absent, in memory, offsets and positions assigned.

        Raises DiskFull, WritingEnded or EntryTooLarge; then nothing has happened.
        """
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)
        log = self._log
        if log.next_position - log.written > self.options.tail_bytes:
            self._write_early()
        if len(entries) == 1 and type(frame := entries[0]) is Frame:
            slot = self._append_frame(frame, now_ms)
            return new_tuple(Appended, ([slot], new_tuple(Promise, (log.next_position, frame.queue.durable))))
        slots = self._append_unit(entries, now_ms)
        promise = new_tuple(Promise, (log.next_position, self._is_durable(entries)))
        return new_tuple(Appended, (slots, promise))

    def append_freeing(self, entries: Sequence[Part], now_ms: int) -> Appended:
        """Append a unit that makes room, also where `append` refuses because the disk is full.

        Raises WritingEnded, EntryTooLarge, and DiskFull if more than `FREEING_BYTES_MAX` wait for the disk already.
        """
        self._refuse_when_ended()
        if self._refusal is not None and self._log.unwritten_bytes > FREEING_BYTES_MAX:
            raise DiskFull(*self._refusal.args)
        slots = self._append_unit(entries, now_ms)
        return Appended(slots, Promise(self._log.next_position, self._is_durable(entries)))

    def _is_durable(self, entries: Sequence[Part]) -> bool:
        """Tell what the answer waits for: the most that a queue asks; for state alone the broker's own setting."""
        has_frame = False
        for entry in entries:
            if type(entry) is Frame or type(entry) is FrameRun:
                if entry.queue.durable:
                    return True
                has_frame = True
        return not has_frame and self._is_sync

    def _append_unit(self, entries: Sequence[Entry], now_ms: int, flags: int = 0) -> list[Slot]:
        """Encode the unit into the tail, then index it. What can be wrong is found before anything has changed."""
        stored_ms = self._stored_ms
        if now_ms > stored_ms:
            stored_ms = now_ms
        placed: list[_Placed] = []
        unit_size, entry_count = UNIT_HEADER_SIZE, len(entries)
        for entry in entries:
            size, occupied = sizes_of(entry)
            placed.append((entry, size, unit_size))
            unit_size += occupied
            if type(entry) is FrameRun:
                entry_count += len(entry.frames) - 1
        chunk = self._log.begin(unit_size)
        slots: list[Slot] = []
        try:
            runs = _put_entries(chunk, placed, stored_ms, slots)
        except BaseException:
            _undo(chunk, placed, slots, unit_size)
            raise
        try:
            self._log.commit(chunk, unit_size, stored_ms, entry_count, flags)
            self._stored_ms = stored_ms
            self._index(placed, slots, runs)
        except Exception as error:
            raise self._half_applied(error) from error
        return slots

    def _append_frame(self, frame: Frame, now_ms: int) -> Slot:
        """Do the same for the unit that nearly all are: one frame. Without lists it takes a quarter less."""
        stored_ms = self._stored_ms
        if now_ms > stored_ms:
            stored_ms = now_ms
        log, queue, count = self._log, frame.queue, frame.count
        size, occupied = sizes_of(frame)
        unit_size = UNIT_HEADER_SIZE + occupied
        chunk = log.begin(unit_size)
        at = chunk.used + UNIT_HEADER_SIZE
        position, base_offset = chunk.start + at, queue.end_offset
        slot = new_tuple(Slot, (position, base_offset, stored_ms))
        try:
            put_frame(chunk, at, frame, size, slot)
        except BaseException:
            chunk.writable[at : at + occupied] = bytes(occupied)
            raise
        try:
            log.commit(chunk, unit_size, stored_ms, 1)
            self._stored_ms = stored_ms
            queue.end_offset = base_offset + count
            log.segments.active.last_offsets[queue.key] = base_offset + count - 1
            index = queue.index
            if index.append(base_offset, position, size, count, frame.timestamp_ms, stored_ms, frame.tags, frame.form):
                self._full_indexes[queue] = None
        except Exception as error:
            raise self._half_applied(error) from error
        if not queue.is_touched:
            queue.is_touched = True
            self._touched.append(queue)
            if self._moment.is_active:
                self._keep(queue, base_offset)
        return slot

    def _half_applied(self, error: Exception) -> HalfApplied:
        """End writing, so that nothing is promised or decided any more, and give what ends the process."""
        self.end_writing(f"an append is half applied: {error!r}")
        return HalfApplied(f"the unit before {self._log.next_position} was appended, its index was not: {error!r}")

    def _index(self, placed: list[_Placed], slots: list[Slot], runs: list[_RunPlaces]) -> None:
        """Add the rows of a unit that was appended, and note whom it touched."""
        last_offsets, places_of_runs = self._log.segments.active.last_offsets, iter(runs)
        for (entry, size, _), (position, base_offset, stored_ms) in zip(placed, slots, strict=True):
            if type(entry) is Frame:
                index, count, form = entry.queue.index, entry.count, entry.form
                is_full = index.append(
                    base_offset, position, size, count, entry.timestamp_ms, stored_ms, entry.tags, form
                )
            elif type(entry) is FrameRun:
                index, count, places = entry.queue.index, len(entry.frames), next(places_of_runs)
                is_full = index.append_run(base_offset, places, entry.timestamps_ms, stored_ms, entry.tags, entry.form)
            else:
                continue
            queue = entry.queue
            last_offsets[queue.key] = base_offset + count - 1
            if is_full:
                self._full_indexes[queue] = None
            if not queue.is_touched:
                queue.is_touched = True
                self._touched.append(queue)
                if self._moment.is_active:
                    self._keep(queue, base_offset)

    def _keep(self, queue: Queue, end_offset: int) -> None:
        """The queue was appended to for the first time since the last write: a checkpoint has its end before that."""
        row = QueueRow(queue.key, queue.start_offset, end_offset, queue.index.written_row)
        self._moment.keep(queue.key, row)

    def _write_early(self) -> None:
        """Keep the tail within its bound before the loop's turn ends. Promises and readers hear at the next `write`."""
        try:
            self._log.write()
        except OSError as error:
            raise DiskFull(f"{self._log.unwritten_bytes} bytes are not written: {error}") from error

    # -- Promises

    def promise(self) -> Promise:
        """Return the promise for all that was appended so far, at the broker's own durability."""
        return Promise(self._log.next_position, self._is_sync)

    def kept(self, promise: Promise) -> bool:
        return promise.end <= (self._log.durable if promise.durable else self.written)

    def when(self, promise: Promise, done: Done) -> None:
        """Call `done(None)` once the promise is kept, at once if it is; `done(error)` when it cannot be."""
        if self.kept(promise):
            done(None)
        elif self._refusal is not None and (self._has_ended or (self._is_full and promise.end > self.written)):
            done(self._refusal)
        else:
            (self._to_sync if promise.durable else self._to_write).add(promise.end, done)

    # -- The steps that a flusher drives

    def write(self) -> None:
        """Write everything appended, at the end of a turn of the loop; queues under async become visible.

        Raises HalfWritten for what is not the disk's fault.
        """
        if self._refusal is not None and self._has_ended:
            return
        try:
            self._log.write()
        except OSError as error:
            self.write_failed(error)
            return
        except Exception as error:
            self.end_writing(f"write broke off: {error!r}")
            raise HalfWritten(f"the write at {self.written} broke off: {error!r}") from error
        self.written = self._log.written
        visible = self._note_written()
        if self._full_indexes:
            self._flush_indexes()
        self._to_write.keep(self.written)
        if visible:
            self._show(visible)

    def _note_written(self) -> list[Queue]:
        """Show the queues under async up to their ends; the others wait for the next sync."""
        visible = []
        for queue in self._touched:
            queue.is_touched = False
            if queue.durable:
                self._unsynced[queue] = queue.end_offset
            else:
                queue.visible_end = queue.end_offset
                visible.append(queue)
        self._touched.clear()
        return visible

    def _flush_indexes(self) -> None:
        """Have the rows of indexes written that want it."""
        full, self._full_indexes = self._full_indexes, {}
        flush = IndexFlush(self._queues.index_files, [queue for queue in full if queue.index.has_much_to_write])
        if flush:
            self.background.submit(flush.run, partial(self._indexes_flushed, flush))

    def _indexes_flushed(self, flush: IndexFlush, outcome: Failure | None) -> None:
        """What a full disk does not take stays in memory until it does."""
        flush.end(self._moment.before_change)
        if outcome is not None:
            self._full_indexes.update(dict.fromkeys(flush.unwritten))
        if isinstance(outcome, OSError):
            self.write_failed(outcome)

    def sync_wanted(self, *, background: bool = False) -> SyncTask | None:
        """Return what an fsync would cover now, if anybody waits for it (`background`: if there is anything to sync).

        None while another task runs. `task.run()` belongs into the flusher's thread, then `synced` into this one.
        """
        if not (self._unsynced or self._to_sync or background):
            return None
        if self._sync is not None or self._has_ended:
            return None
        # While no file can be opened, or written, only the background asks: who waits would ask again at once.
        if self._log.durable == self.written or (self._is_full and not background):
            return None
        try:
            self._sync = self._log.sync_task(self.written)
        except OSError as error:
            self.write_failed(error)  # A file could not be opened.
            return None
        self._syncing, self._unsynced = self._unsynced, {}
        return self._sync

    def synced(self, task: SyncTask, error: OSError | None) -> None:
        """Take the outcome: durable moves, queues under sync become visible, promises are kept."""
        assert task is self._sync, "the outcome of another task"
        self._sync = None
        if error is not None and error.errno in NO_HANDLES:
            # The directory could not be opened: no fsync has failed, and the next one covers all of this once more.
            self._unsynced = self._syncing | self._unsynced
            self.write_failed(error)
            return
        if error is not None:
            self.end_writing(f"fsync failed: {error}")
            return
        self._log.synced(task)
        visible = []
        for queue, end_offset in self._syncing.items():
            if end_offset > queue.visible_end:
                queue.visible_end = end_offset
                visible.append(queue)
        self._to_sync.keep(self._log.durable)
        if visible:
            self._show(visible)

    def _show(self, visible: list[Queue]) -> None:
        try:
            self.on_visible(visible)
        except Exception as error:  # noqa: BLE001 - the log is written, whatever its readers make of it
            self.contain(error)

    def _contain(self, error: Exception) -> None:
        self.contain(error)

    # -- When the disk fails

    def write_failed(self, error: OSError) -> None:
        if error.errno not in (*NO_SPACE, *NO_HANDLES):
            self.end_writing(f"write failed: {error}")
            return
        why = "no file can be opened" if error.errno in NO_HANDLES else "the disk is full"
        if self._refusal is None:
            log.warning("%s, appends are refused: %s unwritten=%d", why, error, self._log.unwritten_bytes)
        self._refusal = DiskFull(f"{why}: {error}")
        self._is_full = True
        self._to_write.fail(self.written, self._refusal)
        self._to_sync.fail(self.written, self._refusal)
        if error.errno in NO_SPACE:
            self.make_room()

    def make_room(self) -> None:
        """Give up the spare file, for a write to the log or of a checkpoint met ENOSPC."""
        if self._has_ended or self._is_making_room or self.is_closed:
            return
        self._is_making_room = True
        self._spare.is_held = False
        self.background.submit(self._spare.give_up, self._room_made)

    def _room_made(self, outcome: Failure | None) -> None:
        """Write what the full disk did not take; if it still does not, the next look at the disk tries again."""
        if outcome is not None:
            log.warning("the spare file could not be given up: %s", outcome)
        elif self._is_full and not self._has_ended and not self.is_closed:
            self._is_full = False
            self.write()
        self._is_making_room = False

    def _hold_spare(self) -> None:
        """Have the spare file made, or made again, where there is room for it."""
        used, total = self._usage
        has_room = used + self._spare.size <= total * self.options.disk_resume_ratio
        if self._spare.size and has_room and not self._spare.is_held and not self._is_making_room:
            self._spare.is_held = True
            self.background.submit(self._spare.hold, self._spare_held)

    def _spare_held(self, outcome: Failure | None) -> None:
        if outcome is not None:
            self._spare.is_held = False
            log.warning("the spare file cannot be made, it is tried again: %s", outcome)

    def end_writing(self, reason: str) -> None:
        """Refuse every append from now on, and tell those who wait for the log that it will not keep its promises."""
        if self._has_ended:
            return
        log.critical("writing has ended until a restart: %s durable=%d", reason, self._log.durable)
        self._refusal = WritingEnded(reason)
        self._to_write.fail(self.written, self._refusal)
        self._to_sync.fail(self._log.durable, self._refusal)

    @property
    def _has_ended(self) -> bool:
        return isinstance(self._refusal, WritingEnded)

    def check_disk(self) -> None:
        """Refuse appends above the disk's mark, take them again below the lower one. To be called each second or so."""
        if self._has_ended:
            return
        self.readers.submit(self._files.usage, self._take_usage)

    def _take_usage(self, usage: tuple[int, int] | Failure) -> None:
        if not isinstance(usage, tuple):
            log.warning("cannot tell how full the disk is: %s", usage)
            return
        self._usage = used, total = usage
        if self._has_ended or self.is_closed:
            return
        if self._refusal is None:
            if used > total * self.options.disk_full_ratio:
                log.warning("the disk is above its mark, appends are refused: used=%d total=%d", used, total)
                self._refusal = DiskFull(f"{used} of {total} bytes of the disk are used")
            else:
                self._hold_spare()
            return
        if self._is_full:
            self._is_full = False
            self.write()
        if not self._is_full and used <= total * self.options.disk_resume_ratio:
            log.warning("there is room on the disk again, appends are taken: used=%d total=%d", used, total)
            self._refusal = None

    # -- Reading

    def read(
        self,
        queue: Queue,
        offset: int,
        *,
        max_bytes: int,
        until: int,
        max_entries: int = READ_ENTRIES_MAX,
        scan: TagScan | None = None,
    ) -> list[Stored] | ColdRead:
        """Return whole entries from the one that covers `offset`, of those that end at or below offset `until`.

        With a `scan` only those that it finds, which may be none before the end; it says how far it looked.

        The first comes even if it is larger than `max_bytes`; fewer than allowed may come; [] only at the end. What
        neither the tail nor the page cache holds comes as a ColdRead. `until` is at most `visible_end`.
        Raises OffsetOutOfRange outside start_offset .. until.
        """
        if not queue.start_offset <= offset <= until:
            raise OffsetOutOfRange(str(queue), offset, queue.start_offset, until)
        if offset == until:
            return []
        find = queue.index.rows_from if scan is None else partial(scan.rows, queue.index)
        rows = find(offset, max_entries, max_bytes, until)
        if rows is not None:
            found = self._frames.cached(rows) if rows else []
            if found or not rows:
                return found

        def find_rows() -> list[Row]:
            return find(offset, max_entries, max_bytes, until, block=True) or []

        return ColdRead(self.readers, self._frames, queue, offset, find_rows)

    def read_one(self, queue: Queue, offset: int, *, until: int) -> Stored | ColdRead:
        """Return the entry that covers `offset`, as `read` does, in a third of the time if it was appended lately."""
        row = queue.index.tail_row(offset)
        if row is not None and queue.start_offset <= offset < until:
            found = self._frames.in_tail(row)
            if found is not None:
                return found
        entries = self.read(queue, offset, max_bytes=1, max_entries=1, until=until)
        return entries[0] if isinstance(entries, list) else entries

    def read_at(self, places: Sequence[EntryLocation]) -> list[Stored] | ColdEntries:
        """Return the frames at these places, which must rise in position; visible or not, all must be in the log still.

        Of each `Stored` only position, form and frame mean anything. What is not in memory comes as ColdEntries.
        """
        rows: list[Row] = [(NO_OFFSET, position, size, 1, 0, 0, 0, form, 0) for position, size, form in places]
        floor = self._log.tail.floor
        if rows[0][1] >= floor:
            return self._frames.cached(rows)
        in_files = [row for row in rows if row[1] < floor]
        in_tail = self._frames.cached(rows[len(in_files) :]) if len(in_files) < len(rows) else []
        found = self._frames.cached(in_files)
        if len(found) == len(in_files):
            return found + in_tail
        return ColdEntries(self.readers, self._frames, in_files, in_tail)

    def read_written(self, places: Sequence[EntryLocation]) -> list[Stored]:
        """Do the same for what is written, waiting for the disk: for threads. Raises OSError, StoreError."""
        return self._frames.from_disk(
            [(NO_OFFSET, position, size, 1, 0, 0, 0, form, 0) for position, size, form in places]
        )

    def find_by_time(self, queue: Queue, timestamp_ms: int, until: int) -> Stored | ColdRead | None:
        """Return the first entry by whose end a record timestamp of at least this was seen; None if there is none.

        A ColdRead gives a list of one or none.
        """
        return self._find_entry(queue, until, partial(queue.index.find_latest, timestamp_ms))

    def find_by_store_time(self, queue: Queue, stored_ms: int, until: int) -> Stored | ColdRead | None:
        """Return the first entry that was stored at this time or later; None if there is none."""
        return self._find_entry(queue, until, partial(queue.index.find_stored, stored_ms))

    def _find_entry(self, queue: Queue, until: int, find: FindRow) -> Stored | ColdRead | None:
        start_offset = queue.start_offset
        if start_offset >= until:
            return None
        rows = _rows_found(queue, find, start_offset, until, block=False)
        if rows is not None:
            found = self._frames.cached(rows) if rows else []
            if found or not rows:
                return found[0] if found else None

        def find_rows() -> list[Row]:
            return _rows_found(queue, find, start_offset, until, block=True) or []

        return ColdRead(self.readers, self._frames, queue, start_offset, find_rows)

    def last_stored_ms(self, queue: Queue) -> int:
        """Return when the last entry was stored; 0 if there is none, or its row is not in memory."""
        return self.stored_ms_at(queue, queue.end_offset - 1)

    def stored_ms_at(self, queue: Queue, offset: int) -> int:
        """Return when the entry that covers `offset` was stored; 0 if there is none, or its row is not in memory."""
        if not queue.start_offset <= offset < queue.end_offset:
            return 0
        number = queue.index.find_offset(offset)
        rows = queue.index.rows(number) if number is not None else None
        return rows[0][5] if rows else 0

    def disk_usage(self) -> tuple[int, int]:
        """Return (used bytes, total bytes) of the disk, as `check_disk` has found them."""
        return self._usage

    def find_address(self, position: int, done: Callable[[Address | Failure | None], None]) -> None:
        """Find the record of this address (position of its entry + its index in it), if it may be read.

        A look at every queue that has entries near by: a reader thread's work, for people who ask for one message.
        """
        queues: list[Queue] = []
        if self._log.segments.start <= position < self.written:
            keys = self._log.segments.find(position).last_offsets
            queues = [queue for queue in map(self._queues.find, keys) if queue is not None]
        self.readers.submit(partial(_find_address, queues, position), done)

    def search(
        self, where: Sequence[tuple[Queue, int]], search: Search[T], done: Callable[[Search[T] | Failure], None]
    ) -> None:
        """Look for records with a key in these queues, each up to an offset; a thread's work that may take seconds."""
        self.searches.submit(partial(self.keys.search, where, self._log.durable, search), done)

    # -- Retention

    def trim(self, queue: Queue, start_offset: int, now_ms: int) -> None:
        """Raise the log start, by a unit of its own; never lowers it. Raises OffsetOutOfRange above the visible end."""
        if start_offset > queue.visible_end:
            raise OffsetOutOfRange(str(queue), start_offset, queue.start_offset, queue.visible_end)
        if start_offset > queue.start_offset:
            self._refuse_when_ended()
            self._append_unit([queue_control(queue.key, start_offset, queue.end_offset)], now_ms)
            self._moment.before_change(queue.key)
            queue.move_start(start_offset)
            self._count_bytes(queue)

    def _count_bytes(self, queue: Queue) -> None:
        """Find out how many bytes lie below the log start, now or when a thread has read the index."""
        offset = queue.start_offset
        found = queue.bytes_below(offset, block=False)
        if found is not None:
            queue.bytes_below_start = found
            return

        def counted(outcome: int | Failure) -> None:
            if isinstance(outcome, int) and queue.start_offset == offset:
                queue.bytes_below_start = outcome

        self.readers.submit(partial(queue.bytes_below_blocking, offset), counted)

    def expire(
        self,
        queue: Queue,
        *,
        keep_ms: int = NO_LIMIT,
        keep_bytes: int = NO_LIMIT,
        keep_records: int = NO_LIMIT,
        now_ms: int,
    ) -> int | None:
        """Return the log start that these limits ask for, for `trim`; None when nothing is to go. Below 0: no limit.

        None too while the index has to be fetched from the disk: that is begun, and the next call will find it.
        """
        limits = RetentionLimits(keep_ms, keep_bytes, keep_records)
        start_offset = expired_to(queue, limits, now_ms, block=False)
        if start_offset is None:
            self.readers.submit(partial(expired_to, queue, limits, now_ms, block=True), _ignore)
            return None
        return start_offset if start_offset > queue.start_offset else None

    def drop_topic(self, number: int, now_ms: int) -> None:
        """Drop the queues of a topic: a unit of its own. The number must not be used again."""
        self._refuse_when_ended()
        self._append_unit([Control(ControlKind.TOPIC_DROPPED, queue_key(number, 0))], now_ms)
        self._queues.drop_topic(number)
        self.searches.submit(partial(self.keys.forget, number), log_left)

    def remove_dead_segments(self) -> Generator[None, None, int]:
        """Let the sealed segments go in which nothing is live; returns how many, after some slices of looking.

        They go behind the next checkpoint, for which this asks: then the state that they may hold is in a snapshot, and
        whatever made them dead is durable.
        """
        yield from self._checkpoints.look_for_dead()
        dead = self._checkpoints.removable()
        if dead:
            self._checkpoints.ask()
        return len(dead)

    @property
    def held_from(self) -> int:
        """From the segment that holds this position on none is removed: somebody reads their files."""
        return self._checkpoints.held_from

    @held_from.setter
    def held_from(self, position: int) -> None:
        self._checkpoints.held_from = position

    @property
    def held_bytes(self) -> int:
        """How much of the log is on disk only because of `held_from`, as of the last `remove_dead_segments`."""
        return self._checkpoints.held_bytes

    # -- Checkpoints

    def checkpoint_due(self, mono_ms: int) -> bool:
        """Tell whether a checkpoint is wanted: by bytes appended, by time, or to remove segments."""
        return not self._has_ended and self._checkpoints.is_due(mono_ms)

    def checkpoint(self, mono_ms: int) -> None:
        """Begin a checkpoint of the present state; it is written in the background once the log is durable."""
        self._checkpoints.note_time(mono_ms)
        self._checkpoint_run.begin(closed=False)

    def checkpoint_after_replay(self, mono_ms: int) -> None:
        """Leave a checkpoint if the start has replayed much: else one killed again and again would replay ever more.

        Blocks, so it belongs before the executors are set; all owners of state must stand. A disk that fails costs only
        the checkpoint.
        """
        replayed_bytes = self.recovery.end_position - max(self.recovery.checkpoint_position, 0)
        if replayed_bytes > self.options.recovery_checkpoint_bytes and not self._has_ended:
            self._write_and_sync()
            self.checkpoint(mono_ms)

    def write_silently(self) -> bool:
        """Write and tell nobody yet: who is told may append, and a capture would miss that. False if it failed."""
        if self._has_ended:
            return False
        try:
            self._log.write()
        except OSError as error:
            self.write_failed(error)
            return False
        return True

    def _refuse_when_ended(self) -> None:
        if self._refusal is not None and self._has_ended:
            raise WritingEnded(*self._refusal.args)


def _put_entries(chunk: Chunk, placed: list[_Placed], stored_ms: int, slots: list[Slot]) -> list[_RunPlaces]:
    """Encode the entries, assigning their slots; `slots` has those that are done should one fail.

    Returns where the frames of each run lie.
    """
    runs: list[_RunPlaces] = []
    at = chunk.used
    position = chunk.start + at
    for entry, size, place in placed:
        if type(entry) is Frame:
            queue = entry.queue
            slot = new_tuple(Slot, (position + place, queue.end_offset, stored_ms))
            put_frame(chunk, at + place, entry, size, slot)
            queue.end_offset += entry.count
        elif type(entry) is FrameRun:
            queue = entry.queue
            slot = new_tuple(Slot, (position + place, queue.end_offset, stored_ms))
            runs.append(put_run(chunk, at + place, entry, slot))
            queue.end_offset += len(entry.frames)
        else:
            slot = Slot(position + place, NO_OFFSET, stored_ms)
            put_other(chunk, at + place, entry)
        slots.append(slot)
    return runs


def _undo(chunk: Chunk, placed: list[_Placed], slots: list[Slot], unit_size: int) -> None:
    """Give back the offsets of a unit that could not be encoded, and clear its place for the next."""
    for (entry, _, _), slot in reversed(list(zip(placed, slots, strict=False))):
        if type(entry) is Frame or type(entry) is FrameRun:
            entry.queue.end_offset = slot.base_offset
    chunk.writable[chunk.used : chunk.used + unit_size] = bytes(unit_size)


def _find_address(queues: list[Queue], position: int) -> Address | None:
    for queue in queues:
        index = queue.index
        above = index.find_position(position + 1, block=True)
        if above is None or above <= index.first_row:
            continue
        for base_offset, start, _, count, *_ in index.rows(above - 1, block=True) or []:
            offset = base_offset + position - start
            if offset < base_offset + count and queue.start_offset <= offset < queue.visible_end:
                return Address(queue, offset)
    return None


def _rows_found(queue: Queue, find: FindRow, start_offset: int, until: int, *, block: bool) -> list[Row] | None:
    """Return the row that a search finds, or the first live one if that is later; None if it would block."""
    number = find(block=block)
    first = queue.index.find_offset(start_offset, block=block)
    if number is None or first is None:
        return None
    rows = queue.index.rows(max(number, first), block=block)
    return rows if rows is None else [row for row in rows if row[0] + row[3] <= until]


def _error_of(task: SyncTask) -> OSError | None:
    try:
        task.run()
    except OSError as error:
        return error
    return None


def _ignore(_: object) -> None:
    pass


def _reraise(error: Exception) -> None:
    raise error
