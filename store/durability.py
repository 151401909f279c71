"""Makes the log durable, and keeps the promises that wait for it.

durable <= written <= next_position

write          one pwrite of everything that was appended: `written` moves; queues that are not durable become
               visible; promises that wait for a write are kept
sync_wanted    returns the SyncTask that the flusher's thread runs
synced         `durable` moves; durable queues become visible; promises that wait for an fsync are kept
"""

from collections.abc import Callable

from duolog.store.entry import Promise
from duolog.store.errors import NO_HANDLES, HalfWritten, StoreError, WritingEnded
from duolog.store.index.index_maintenance import IndexFlusher
from duolog.store.index.queue import Queue
from duolog.store.index.queues import Queues
from duolog.store.log.commitlog import CommitLog, SyncTask
from duolog.store.promises import Done, Promises
from duolog.store.write_state import WriteState


class Durability:
    """How far the log is written and durable, and who waits for it.

    A queue's `visible_end` moves here and nowhere else, so readers never see what its durability does not cover yet.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        index_flusher: IndexFlusher,
        write_state: WriteState,
        *,
        is_sync: bool,
    ) -> None:
        self.on_visible: Callable[[list[Queue]], None] = _ignore  # Called with the queues whose visible_end moved.
        self.contain: Callable[[Exception], None] = _reraise  # Called with what a callback raised; the others run.
        self.written = log.written  # A killed process does not lose what lies below. Readers were told of it.
        self._log = log
        self._touched = queues.touched
        self._index_flusher = index_flusher
        self._write_state = write_state
        self._is_sync = is_sync
        self._to_write = Promises(self._contain)
        self._to_sync = Promises(self._contain)
        self._unsynced: dict[Queue, int] = {}  # Durable queues with written entries, and their new visible ends.
        self._syncing: dict[Queue, int] = {}  # The same, for the SyncTask that runs.
        self._task: SyncTask | None = None  # The SyncTask that runs.

    # -- Promises

    def promise(self) -> Promise:
        """Return the promise for everything appended so far, as durable as `store.flush` says."""
        return Promise(self._log.next_position, self._is_sync)

    def kept(self, promise: Promise) -> bool:
        return promise.end <= (self._log.durable if promise.durable else self.written)

    def when(self, promise: Promise, done: Done) -> None:
        """Call `done(None)` once the promise is kept, at once if it is; `done(error)` when it cannot be kept."""
        state = self._write_state
        if promise.end <= (self._log.durable if promise.durable else self.written):
            done(None)
        elif state.refusal is not None and (state.has_ended or (state.is_blocked and promise.end > self.written)):
            done(state.refusal)
        else:
            (self._to_sync if promise.durable else self._to_write).add(promise.end, done)

    def fail_promises(self, refusal: StoreError) -> None:
        """Fail the promises that a blocked or ended log does not keep. After WritingEnded nothing becomes durable."""
        self._to_write.fail(self.written, refusal)
        self._to_sync.fail(self._log.durable if isinstance(refusal, WritingEnded) else self.written, refusal)

    # -- Writing

    def write(self) -> None:
        """Write everything appended, at the end of a turn of the loop; queues that are not durable become visible.

        Raises HalfWritten for an error that is not the disk's.
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
        self.written = self._log.written
        visible = self._note_written()
        if self._index_flusher.wanted:
            self._index_flusher.flush()
        self._to_write.keep(self.written)
        if visible:
            self._show(visible)

    def write_silently(self) -> bool:
        """Write everything appended without keeping promises or telling readers; return whether that succeeded.

        A checkpoint uses it: a callback could append more, which the capture of the state would then miss.
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
        """Move the visible ends of the queues that are not durable and return them; the others wait for a sync."""
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

    # -- Syncing

    def sync_wanted(self, *, background: bool = False) -> SyncTask | None:
        """Return the SyncTask that covers what is written, if a promise or queue waits for it.

        With `background`, return one if anything is not durable. None while another task runs. `SyncTask.run` belongs
        in the flusher's thread; `synced` must follow in the loop's thread.
        """
        if not (self._unsynced or self._to_sync or background):
            return None
        if self._task is not None or self._write_state.has_ended:
            return None
        # While writes are blocked only the background syncs: a promise that waits would start the same task at once.
        if self._log.durable == self.written or (self._write_state.is_blocked and not background):
            return None
        try:
            self._task = self._log.sync_task(self.written)
        except OSError as error:
            self._write_state.write_failed(error)  # A segment's file could not be opened.
            return None
        self._syncing, self._unsynced = self._unsynced, {}
        return self._task

    def synced(self, task: SyncTask, error: OSError | None) -> None:
        """Take the outcome of a SyncTask: move `durable`, show durable queues, keep promises."""
        assert task is self._task, "the outcome belongs to a task that does not run"
        self._task = None
        if error is not None and error.errno in NO_HANDLES:
            # The directory could not be opened, so no fsync has failed; the next task covers all of this again.
            self._unsynced = self._syncing | self._unsynced
            self._write_state.write_failed(error)
            return
        if error is not None:
            self._write_state.end_writing(f"fsync failed: {error}")
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

    def write_and_sync(self) -> None:
        """Write and sync everything, in the caller's thread. Blocks; the executors must not run any more.

        A task whose outcome a stopped flusher did not report is run once more.
        """
        self.write()
        while task := self._task or self.sync_wanted(background=True):
            error = _error_of(task)
            self.synced(task, error)
            if error is not None:
                return  # While no file can be opened, the same task would be wanted again and again.

    # -- Callbacks

    def _show(self, visible: list[Queue]) -> None:
        try:
            self.on_visible(visible)
        except Exception as error:  # noqa: BLE001 - the log is written, whatever a reader raises
            self.contain(error)

    def _contain(self, error: Exception) -> None:
        self.contain(error)


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
