"""The flusher: group commit by one thread.

    loop      append append write |wake           append append write |wake   synced, answers
    thread                        [---- fdatasync 1 ----][---- fdatasync 2 --------------]

While one sync runs those who come next gather, and the following sync serves them all: no timer, no batch size. Under
async nobody waits; `advance` syncs in the background every `store.flush_interval_ms`. All steps are the store's own,
so a test can drive them one by one without a thread.
"""

from functools import partial
from threading import Event

from duolog.store.errors import StoreError
from duolog.store.log.commitlog import SyncTask
from duolog.store.store import Store
from duolog.store.workers import Failure, Post, Workers

SEARCHES_WAITING_MAX = 256  # by key; further ones are refused
SEARCH_PAUSE_S = 0.001  # after a millisecond of work: it gets half of what the loop leaves
BACKGROUND_WAITING_MAX = 64  # checkpoints, removals and look-ups for retention; more are left out until the next round


class Flusher:
    """Owns the threads of one store: those that sync, write checkpoints, search by key, and do its cold reads."""

    def __init__(self, store: Store, post: Post) -> None:
        options = store.options
        self._store = store
        self._interval_ms = options.flush_interval_ms
        self._next_sync_mono_ms = 0  # in the background
        self._is_stopped = False
        self._syncs = Workers("flusher", 1, post, 1, StoreError("a sync is running"))
        self._background = Workers("checkpoints", 1, post, BACKGROUND_WAITING_MAX, StoreError("too much to do"))
        too_many = StoreError(f"{options.cold_reads_max} reads wait for the disk")
        self._readers = Workers("reader", options.reader_threads, post, options.cold_reads_max, too_many)
        self._searches = Workers("search", 1, post, SEARCHES_WAITING_MAX, StoreError("too many searches wait"))
        self._is_ending = Event()
        store.keys.pause = partial(self._is_ending.wait, SEARCH_PAUSE_S)
        store.searches = self._searches
        store.background = self._background
        store.readers = self._readers

    def wake(self) -> None:
        """Sync if anybody waits for it. To be called after each `Store.write`."""
        task = self._store.sync_wanted()
        if task is not None:
            self._start(task)

    def next_deadline_ms(self) -> int:
        """When `advance` has something to do; monotonic."""
        return self._next_sync_mono_ms

    def advance(self, mono_ms: int) -> None:
        """Sync in the background when it is due."""
        if mono_ms >= self._next_sync_mono_ms:
            self._next_sync_mono_ms = mono_ms + self._interval_ms
            task = self._store.sync_wanted(background=True)
            if task is not None:
                self._start(task)

    def stop(self) -> None:
        """Finish what runs and end the threads; before `Store.close`, which syncs once more. Late posts do nothing."""
        self._is_stopped = True
        self._is_ending.set()
        self._searches.stop()
        self._syncs.stop()
        self._readers.stop()
        self._background.stop()

    def _start(self, task: SyncTask) -> None:
        self._syncs.submit(task.run, partial(self._finish, task))

    def _finish(self, task: SyncTask, outcome: Failure | None) -> None:
        if self._is_stopped:
            return
        # A StoreError is a bug in the thread: nobody knows what it synced, as after an fsync that failed.
        self._store.synced(task, OSError(str(outcome)) if isinstance(outcome, StoreError) else outcome)
        self.wake()
