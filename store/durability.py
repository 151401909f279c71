"""Writes and syncs the log, moves the visible ends of queues, and calls the callbacks of promises.

    durable <= written <= next_position
    shared  <= written

    write          writes all appended units by one pwrite and moves `written`; asynchronous queues become visible;
                   promises that wait for a write are kept
    sync_wanted    returns the SyncTask that the flusher's thread must run
    synced         moves `durable`; synchronous queues become visible; promises that wait for an fsync are kept
    stored         moves `shared`; shared queues become visible; promises that wait for the object store are kept

A queue is *asynchronous*, *synchronous* or *shared* if its entries become visible after a write, after an fsync, or
once the object store has them (`Queue.level`).
"""

from collections import deque
from collections.abc import Callable, Mapping

from duolog.store.entry import SYNCED, WRITTEN, Promise
from duolog.store.errors import NO_HANDLES, HalfWritten, StoreError, WritingEnded
from duolog.store.index.index_maintenance import IndexFlusher
from duolog.store.index.queue import Queue
from duolog.store.index.queues import Queues
from duolog.store.log.commitlog import CommitLog, SyncTask
from duolog.store.promises import Done, Promises
from duolog.store.write_state import WriteState


class Durability:
    """How far the log is written and durable, and the promises that wait for it.

    No other class moves `Queue.visible_end`, so a reader never sees an entry that is less durable than its queue asks.
    The class has more than 15 fields because each level of durability has a position, promises and queues that wait for
    it.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        index_flusher: IndexFlusher,
        write_state: WriteState,
        *,
        level: int,
    ) -> None:
        self.on_visible: Callable[[list[Queue]], None] = _ignore  # Called with the queues whose visible_end moved.
        self.contain: Callable[[Exception], None] = _reraise  # Called with each exception that a callback raised.
        # All callbacks for positions up to `written` were called. The log itself may be written further, because
        # `Appender.append` writes when the write buffer is full.
        self.written = log.written
        # Whether the first unit of the run is durable. If it is not, as the run began on a full disk, the first write
        # syncs it: the next start would give the number of a run that was lost to other records.
        self.is_run_durable = True
        self._log = log
        self._touched = queues.touched
        self._index_flusher = index_flusher
        self._write_state = write_state
        self.shared = log.written  # The object store has the log up to this position. Only `stored` moves it.
        self._level = level
        self._to_write = Promises(self._contain)
        self._to_sync = Promises(self._contain)
        self._to_share = Promises(self._contain)
        self._unsynced: dict[Queue, int] = {}  # Visible ends of synchronous queues after the next SyncTask.
        self._syncing: dict[Queue, int] = {}  # Visible ends of synchronous queues after the SyncTask in progress.
        self._task: SyncTask | None = None  # The SyncTask in progress.
        # Visible ends of shared queues once `shared` reaches a position, in the order of these positions.
        self._unshared: deque[tuple[int, dict[Queue, int]]] = deque()
        self._begins_share = True  # Whether the next write begins a new item of `_unshared`.

    # -- Promises

    def promise(self) -> Promise:
        """Return a promise that covers all units appended so far, with the level of `store.flush`."""
        return Promise(self._log.next_position, self._level)

    def kept(self, promise: Promise) -> bool:
        """Return whether the log is already as safe as the promise requires."""
        end, level = promise
        return end <= (self.written if level == WRITTEN else self._log.durable if level == SYNCED else self.shared)

    def safe_end(self, level: int) -> int:
        """Return the position up to which the log is as safe as promises of this level require."""
        return self.written if level == WRITTEN else self._log.durable if level == SYNCED else self.shared

    def when(self, promise: Promise, done: Done) -> None:
        """Call `done(None)` once the promise is kept, or `done(error)` once it cannot be kept.

        `done` is called before this method returns if the outcome is known already.
        """
        state = self._write_state
        end, level = promise
        if end <= (self.written if level == WRITTEN else self._log.durable if level == SYNCED else self.shared):
            done(None)
        elif state.refusal is not None and (
            state.has_ended or (state.is_blocked and not state.is_retrying and end > self.written)
        ):
            done(state.refusal)
        else:
            waiting = self._to_write if level == WRITTEN else self._to_sync if level == SYNCED else self._to_share
            waiting.add(end, done)

    def fail_promises(self, refusal: StoreError) -> None:
        """Call the callbacks of the promises that cannot be kept in the state `blocked` or `ended`.

        With DiskFull these are the promises above `written`: what is written may still be synced. With WritingEnded
        these are also the promises that wait for an fsync or for the object store.
        """
        has_ended = isinstance(refusal, WritingEnded)
        self._to_write.fail(self.written, refusal)
        self._to_sync.fail(self._log.durable if has_ended else self.written, refusal)
        self._to_share.fail(self.shared if has_ended else self.written, refusal)

    # -- Writing

    def write(self) -> None:
        """Write all appended units, show the entries of asynchronous queues, and keep promises.

        The method is called at the end of each loop turn. An OSError is passed to `WriteState`; any other exception
        is raised as HalfWritten.
        """
        state = self._write_state
        if state.refusal is not None and state.has_ended:
            return
        try:
            self._log.write()
        except OSError as error:
            state.write_failed(error)
            return
        except Exception as error:
            state.end_writing(f"the write of the log broke off: {error!r}")
            raise HalfWritten(f"the write of the log at position {self.written} broke off: {error!r}") from error
        if not self.is_run_durable and not self._sync_run():
            return
        self.written = self._log.written
        visible = self._note_written()
        if self._index_flusher.wanted:
            self._index_flusher.flush()
        self._to_write.keep(self.written)
        if visible:
            self._show(visible)

    def _sync_run(self) -> bool:
        """Sync the first unit of the run, and what follows it; return whether that succeeded. Blocks."""
        try:
            task = self._log.sync_task(self._log.written)
            task.run()
        except OSError as error:
            self._sync_failed(error)
            return False
        self._log.synced(task)
        self.is_run_durable = True
        return True

    def _sync_failed(self, error: OSError) -> None:
        if error.errno in NO_HANDLES:
            # A file or the directory could not be opened, so no fsync has failed, and a later one may succeed.
            self._write_state.write_failed(error)
        else:
            self._write_state.end_writing(f"fsync failed: {error}")

    def write_silently(self) -> bool:
        """Write all appended units without calling any callback; return whether the write succeeded.

        A checkpoint calls this method before it captures the state, because a callback could append another unit,
        which would then be missing in the captured state.
        """
        if self._write_state.has_ended:
            return False
        try:
            self._log.write()
        except OSError as error:
            self._write_state.write_failed(error)
            return False
        return True

    def _note_written(self) -> list[Queue]:
        """Move the visible ends of asynchronous queues and return these queues; note the other queues."""
        visible = []
        unshared: dict[Queue, int] = {}
        for queue in self._touched:
            queue.is_touched = False
            if queue.level == SYNCED:
                self._unsynced[queue] = queue.end_offset
            elif queue.level == WRITTEN:
                queue.visible_end = queue.end_offset
                visible.append(queue)
            else:
                unshared[queue] = queue.end_offset
        self._touched.clear()
        if unshared:
            self._note_unshared(unshared)
        return visible

    def raise_if_ended(self) -> None:
        """Raise WritingEnded if writing has ended."""
        self._write_state.raise_if_ended()

    # -- Syncing

    def sync_wanted(self, *, background: bool = False) -> SyncTask | None:
        """Return a SyncTask for all that is written, or None if no promise and no queue waits for an fsync.

        With `background`, return a task if any written byte is not durable. Return None while another task is in
        progress. The caller must run `SyncTask.run` in the flusher's thread, and then call `synced` in the loop's
        thread.
        """
        if not (self._unsynced or self._to_sync or background):
            return None
        if self._task is not None or self._write_state.has_ended:
            return None
        # In the state `blocked` only the background syncs. A promise that waits would start the same failing task
        # again immediately.
        if self._log.durable == self.written or (self._write_state.is_blocked and not background):
            return None
        try:
            self._task = self._log.sync_task(self.written)
        except OSError as error:
            self._write_state.write_failed(error)  # The file of a segment could not be opened.
            return None
        self._syncing, self._unsynced = self._unsynced, {}
        return self._task

    def synced(self, task: SyncTask, error: OSError | None) -> None:
        """Process the outcome of a SyncTask: move `durable`, show the entries of synchronous queues, keep promises."""
        assert task is self._task, "the outcome belongs to a task that does not run"
        self._task = None
        if error is not None:
            if error.errno in NO_HANDLES:  # The next task covers the same range again.
                self._unsynced = self._syncing | self._unsynced
            self._sync_failed(error)
            return
        self._log.synced(task)
        visible = _moved(self._syncing)
        self._to_sync.keep(self._log.durable)
        if visible:
            self._show(visible)

    def write_and_sync(self) -> None:
        """Write and sync the whole log in the caller's thread. Blocks; the executors must be stopped before.

        A SyncTask whose outcome was not reported, because the flusher was stopped, is run again.
        """
        self.write()
        while task := self._task or self.sync_wanted(background=True):
            error = _error_of(task)
            self.synced(task, error)
            if error is not None:
                return  # While no file can be opened, `sync_wanted` would return the same task for ever.

    # -- The object store

    def _note_unshared(self, ends: dict[Queue, int]) -> None:
        """Note the ends of shared queues, which become visible when the store has the log up to `written`."""
        if self._begins_share or not self._unshared:
            self._begins_share = False
            self._unshared.append((self.written, ends))
        else:
            self._unshared[-1] = (self.written, self._unshared[-1][1] | ends)

    def cut(self) -> None:
        """Note that an object of the store ends at or below `written`; what is written later becomes visible later."""
        self._begins_share = True

    def stored(self, position: int) -> None:
        """Move `shared` to `position`, up to which the store has the log; show shared queues, and keep promises."""
        assert self.shared <= position <= self.written, f"stored to {position}, {self.shared} .. {self.written}"
        self.shared = position
        ends: dict[Queue, int] = {}
        while self._unshared and self._unshared[0][0] <= position:
            ends |= self._unshared.popleft()[1]
        visible = _moved(ends)
        self._to_share.keep(position)
        if visible:
            self._show(visible)

    # -- Callbacks

    def _show(self, visible: list[Queue]) -> None:
        try:
            self.on_visible(visible)
        except Exception as error:  # noqa: BLE001 - an error of a reader must not interrupt the writing of the log
            self.contain(error)

    def _contain(self, error: Exception) -> None:
        self.contain(error)


def _error_of(task: SyncTask) -> OSError | None:
    try:
        task.run()
    except OSError as error:
        return error
    return None


def _moved(ends: Mapping[Queue, int]) -> list[Queue]:
    """Move the visible ends of queues, and return the queues whose visible end was lower."""
    visible = [queue for queue, end_offset in ends.items() if end_offset > queue.visible_end]
    for queue in visible:
        queue.visible_end = ends[queue]
    return visible


def _ignore(_: object) -> None:
    pass


def _reraise(error: Exception) -> None:
    raise error
