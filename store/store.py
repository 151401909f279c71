"""The class Store: one open data directory and its parts.

    store = Store.open(files, options, replayer, now_ms)          # recovers the log
    queue = store.queue(key)                                      # key = topic number << 16 | queue id
    appended = store.append([Frame(queue, form, body)], now_ms)   # in memory; offsets are assigned
    store.when(appended.promise, answer)                          # called once the unit is written or fsynced
    found = store.reader.read(queue, offset, max_bytes=1 << 20, until=queue.visible_end)

    part            holds                                                              module
    appender        units in the write buffer, offsets, store times                    store/log/appender.py
    durability      how far the log is written and durable, promises, visible ends     store/durability.py
    write_state     whether appends are accepted: full disk, failed disk, spare file   store/write_state.py
    reader          reading entries and finding them by time, position and key         store/log/entry_reader.py
    retention       log starts, dead segments                                          store/retention/retention.py

All methods are called in the event loop's thread. Work that blocks runs in the executors, which post its outcome to
the loop's thread. No method awaits, and no method reads a clock: time is an argument.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

from duolog.store.durability import Durability
from duolog.store.errors import NO_HANDLES, NO_SPACE, DataDirectoryInUse
from duolog.store.files import LOCK_PATH, Files
from duolog.store.index.index_maintenance import IndexFlusher
from duolog.store.index.key_index import KeyIndex
from duolog.store.index.queue import Queue, queue_key
from duolog.store.index.queues import Queues
from duolog.store.log.appender import Appender
from duolog.store.log.commitlog import CommitLog
from duolog.store.log.control import Control, ControlKind
from duolog.store.log.entry_reader import EntryReader
from duolog.store.log.format import CLOSED_FLAG, OPENED_FLAG
from duolog.store.log.frames import Frames
from duolog.store.log.log_copy import LogCopy
from duolog.store.log.segment import LOG_DIRECTORY, Segment
from duolog.store.log.unit_source import UnitSource
from duolog.store.options import StoreOptions
from duolog.store.recovery.checkpoint_run import CheckpointRun, log_removal_failure
from duolog.store.recovery.checkpointer import Checkpointer
from duolog.store.recovery.recovery import Recovered, RecoveryReport, recover
from duolog.store.recovery.replay import Replayer
from duolog.store.retention.dead_segments import DeadSegments
from duolog.store.retention.retention import Retention
from duolog.store.shared.cache.local_segments import LocalSegments
from duolog.store.shared.segments.local_ranges import LocalRanges
from duolog.store.workers import Executors, Inline
from duolog.store.write_state import WriteState

log = logging.getLogger("store")


class Store:
    """One open data directory, created by `Store.open`. Invariant: `durable <= written <= next_position`.

    The class has more than 20 methods and 15 fields because it creates the parts of the store and connects them, and
    its methods are all that other packages call; it holds no other state. `append`, `write`, `promise`, `when` and
    `kept` are bound methods of the parts, because a method that only delegates would cost each request one more call.
    """

    def __init__(self, files: Files, options: StoreOptions, replayer: Replayer, lock: int, own_from: int = 0) -> None:
        self.options = options
        self.stream = b""  # The id of the stream that this log is a copy of; empty if it is none.
        self.executors = Executors()
        self._files = files
        self._lock = lock
        self._queues = queues = Queues(files, level=options.level)
        recovered = recover(files, options.open_segments_max, queues, replayer, own_from=own_from)
        self.recovery: RecoveryReport = recovered.report
        # Whether the last run has written nothing but its first unit. A log that was moved here from an object store
        # ends so if its last owner may have shown records that were lost (`store/shared/moving/to_disk.py`).
        self.is_last_run_empty = recovered.is_last_run_empty
        self._log = CommitLog(files, options, recovered.segments, recovered.end_position, epoch=recovered.report.epoch)
        queues.index_files.opener = self._log.segments.opener = lambda: self.executors.readers
        frames = Frames(files, self._log)
        self.keys = KeyIndex(files, frames)
        self.keys.forget_others({queue.topic for queue in queues})
        self.reader = EntryReader(frames, self._log, queues, self.keys, self.executors)

        self.write_state = WriteState(files, options, self.executors, self._log)
        index_flusher = IndexFlusher(queues, self.executors, self.write_state.write_failed)
        self.durability = Durability(self._log, queues, index_flusher, self.write_state, level=options.level)
        self.write_state.attach(self.durability.write, self.durability.fail_promises)
        self.appender = Appender(self._log, queues, index_flusher, self.write_state, options, recovered.stored_ms)
        self.append = self.appender.append
        self.write, self.promise = self.durability.write, self.durability.promise
        self.when, self.kept = self.durability.when, self.durability.kept
        self.safe_end = self.durability.safe_end
        self._index_flusher = index_flusher
        self._open_checkpoints(recovered, replayer)

    def _open_checkpoints(self, recovered: Recovered, replayer: Replayer) -> None:
        """Create the parts that write checkpoints and remove segments."""
        queues = self._queues
        dead_segments = DeadSegments(self._log.segments, queues)
        self._checkpoints = Checkpointer(
            self._files,
            self.options,
            self._log,
            queues,
            replayer,
            dead_segments,
            position=max(recovered.report.checkpoint_position, 0),
            snapshot_position=recovered.snapshot_position,
            read_from=recovered.read_from,
        )
        self._checkpoint_run = CheckpointRun(
            self._checkpoints,
            queues,
            self._log.segments,
            self.appender,
            self.durability,
            self.write_state,
            self.executors,
            dead_segments,
            is_shared=self.options.is_shared,
        )
        self.retention = Retention(
            self.appender, queues, self.write_state, self.executors, dead_segments, self._checkpoints.ask
        )

    # -- Opening and closing

    @classmethod
    def open(cls, files: Files, options: StoreOptions, replayer: Replayer, now_ms: int) -> "Store":
        """Lock the directory, recover the log, and begin a new run. Blocks.

        Raises DataDirectoryInUse, Corruption or OSError.
        """
        with ExitStack() as undo:
            lock = lock_directory(files)
            undo.callback(files.close, lock)
            store = cls._recover(files, options, replayer, lock)
            store.begin_run(now_ms, store.recovery.epoch)
            undo.pop_all()
        return store

    @classmethod
    def open_copy(cls, files: Files, options: StoreOptions, replayer: Replayer, lock: int, own_from: int) -> "Store":
        """Recover a log that continues elsewhere: `log_copy` appends to it.

        `lock` is what `lock_directory` returned; it is closed with the store. The units below position `own_from` were
        copied. No run begins, so nothing else may append before `begin_run`. Blocks. Raises Corruption or OSError.
        """
        store = cls._recover(files, options, replayer, lock, own_from)
        store._log.epoch -= 1  # The epoch of the last unit: recovery has already counted the next run.
        return store

    @classmethod
    def _recover(cls, files: Files, options: StoreOptions, replayer: Replayer, lock: int, own_from: int = 0) -> "Store":
        files.make_directory(LOG_DIRECTORY)
        files.sync_directory(".")
        store = cls(files, options, replayer, lock, own_from)
        log.info(
            "recovered clean=%s checkpoint_position=%d end_position=%d units=%d entries=%d cut_bytes=%d segments=%d "
            "queues=%d epoch=%d",
            *store.recovery,
        )
        return store

    def log_copy(self, replayer: Replayer) -> LogCopy:
        """Make the LogCopy that appends the units of another broker. The store must be from `open_copy`."""
        return LogCopy(self._log, self._queues, self.appender, self._index_flusher, replayer)

    def unit_source(self) -> UnitSource:
        """Make the UnitSource that reads written units of this log for an upload."""
        return UnitSource(self._log, self._files, self.executors)

    def local_ranges(self) -> LocalRanges:
        """Make the LocalRanges from which a compaction of the shared log reads this log."""
        return LocalRanges(self._files, self._log.segments, self.unit_source())

    def local_segments(self) -> LocalSegments:
        """Make the LocalSegments that say which segments are on the disk, and which of them may be dropped."""
        return LocalSegments(self._log.segments, self.retention.dead_segments, lambda: self._checkpoints.needed_from)

    def close_without_writing(self) -> None:
        """Close the files and release the lock. The log stays as it is, as after a crash."""
        self.write_state.is_closed = True
        self._log.segments.close()
        self._queues.index_files.close()
        self._files.close(self._lock)

    def take_over(self, now_ms: int, epoch: int) -> None:
        """End the copying, and begin a run with this epoch. The whole copy must be durable. Blocks.

        Raises StoreError if the disk fails.
        """
        assert self.durable == self.next_position, f"durable up to {self.durable}, not {self.next_position}"
        self.write_state.raise_if_ended()
        self._queues.show()
        self.begin_run(now_ms, epoch)

    def begin_run(self, now_ms: int, epoch: int) -> None:
        """Append the unit that carries the new epoch, and make it durable before any other unit is appended. Blocks.

        If the disk is full, the first write that succeeds makes it durable before it shows anything of the run.
        """
        self._log.epoch = epoch
        self.appender.recovered_ms = self.appender.stored_ms
        # The unit has the last store time of the log, because the clock has not been checked yet
        # (`bridge/state/wall_time.py`).
        self.appender.append_unit([], self.appender.stored_ms or now_ms, OPENED_FLAG)
        try:
            self._log.write()
        except OSError as error:
            if error.errno not in (*NO_SPACE, *NO_HANDLES):
                raise
            self.durability.is_run_durable = False
            self.write_state.write_failed(error)  # The store still serves reads and retention, which may free space.
            return
        task = self._log.sync_task(self._log.written)
        task.run()
        self._log.synced(task)
        self.durability.written = self._log.written

    def abandon_checkpoint_when(self, is_late: Callable[[], bool]) -> None:
        """Let `close` abandon the last checkpoint once `is_late()` is true; the next start then reads more of the log.

        `is_late` is also called in worker threads.
        """
        self._queues.index_files.is_late = is_late

    def close(self, now_ms: int) -> None:
        """Write and sync the log, mark the run as closed, write a last checkpoint, and release the lock.

        `abandon_checkpoint_when` limits the time of the checkpoint. Blocks. The executors must be stopped before.
        """
        executors = self.executors
        executors.readers = executors.background = executors.searches = Inline(self._queues.index_files.is_late)
        self.durability.write_and_sync()
        if not self.write_state.has_ended:
            self.appender.append_unit([], now_ms, CLOSED_FLAG)
            self.durability.write_and_sync()
        self._checkpoint_run.abandon()
        # A checkpoint of a shared log may contain only units that the object store has (`CheckpointRun`), and this
        # process no longer uploads the last unit.
        if not self.options.is_shared:
            self._checkpoint_run.begin(closed=True)
        if self._checkpoints.is_running:
            log.warning("the last checkpoint was given up, after server.stop_ms: the next start reads more of the log")
            self._checkpoint_run.abandon()
        self.close_without_writing()

    # -- The log

    @property
    def clean(self) -> bool:
        """Whether the previous run ended with `close`."""
        return self.recovery.clean

    @property
    def epoch(self) -> int:
        """The number of this run. Each start of the broker increments it."""
        return self._log.epoch

    @property
    def next_position(self) -> int:
        """The position of the next unit."""
        return self._log.next_position

    @property
    def written(self) -> int:
        """The position up to which the log was written: a killed process loses nothing below it."""
        return self.durability.written

    @property
    def behind_bytes(self) -> int:
        """Bytes that were written and that the object store lacks, as far as is known; 0 if there is none."""
        return self.durability.written - self.durability.shared if self.options.is_shared else 0

    @property
    def durable(self) -> int:
        """The position up to which the log was fsynced: a power failure loses nothing below it."""
        return self._log.durable

    def segments(self) -> Iterable[Segment]:
        """Return the segments of the log, the oldest first."""
        return iter(self._log.segments)

    @property
    def level_max(self) -> int:
        """The highest level of durability that a promise may have here."""
        return self.options.level_max

    # -- Queues

    def queue(self, key: int) -> Queue:
        """Return the queue with this key (`queue_key`). The queue is created on first use."""
        return self._queues.get(key)

    def queues(self) -> Iterable[Queue]:
        """Return all queues."""
        return iter(self._queues)

    def drop_topic(self, number: int, now_ms: int) -> None:
        """Append a unit that deletes the queues of a topic. The topic number must not be used again.

        Raises WritingEnded.
        """
        self.write_state.raise_if_ended()
        self.appender.append_unit([Control(ControlKind.TOPIC_DROPPED, queue_key(number, 0))], now_ms)
        self._queues.drop_topic(number)
        self.executors.searches.submit(partial(self.keys.forget, number), log_removal_failure)

    # -- Whether appends are accepted

    @property
    def refusal(self) -> str:
        """The reason why appends are refused at present; empty if appends are accepted."""
        refusal = self.write_state.refusal
        return "" if refusal is None else str(refusal)

    def end_writing(self, reason: str) -> None:
        """Refuse every append until a restart, and fail the promises that can no longer be kept."""
        self.write_state.end_writing(reason)

    def check_disk(self) -> None:
        """Refuse appends above `store.disk_full_ratio`, accept them again below `store.disk_resume_ratio`."""
        self.write_state.check_disk()

    # -- Checkpoints

    def checkpoint_due(self, mono_ms: int) -> bool:
        """Return whether a checkpoint is due: by bytes appended, by time, or because segments can be removed."""
        return not self.write_state.has_ended and self._checkpoints.is_due(mono_ms)

    def checkpoint(self, mono_ms: int) -> None:
        """Begin a checkpoint of the present state. The background thread writes it.

        Its file is put in place once the log is durable up to the position of the checkpoint.
        """
        self._checkpoints.note_time(mono_ms)
        self._checkpoint_run.begin(closed=False)

    def checkpoint_after_replay(self, mono_ms: int) -> None:
        """Write a checkpoint if the start replayed more than `recovery_checkpoint_bytes`.

        Without it, a broker that is killed again and again would replay more of the log at each start. Blocks. The
        method must be called after all state owners were created and before the Flusher sets the executors. If the
        disk fails, the store continues without this checkpoint.
        """
        replayed_bytes = self.recovery.end_position - max(self.recovery.checkpoint_position, 0)
        if replayed_bytes > self.options.recovery_checkpoint_bytes and not self.write_state.has_ended:
            self.durability.write_and_sync()
            self.checkpoint(mono_ms)


def lock_directory(files: Files) -> int:
    """Lock the data directory and return the lock's handle; closing it releases the lock. Raises DataDirectoryInUse."""
    try:
        return files.lock(LOCK_PATH)
    except BlockingIOError as error:
        raise DataDirectoryInUse("the data directory is in use by another process, probably a second broker") from error
