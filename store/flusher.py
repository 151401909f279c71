"""The class Flusher: the worker threads of one store, and group commit by one of them.

    loop      append append write |wake           append append write |wake   synced, answers
    thread                        [---- fdatasync 1 ----][---- fdatasync 2 --------------]

Requests that arrive while one sync is in progress share the next sync; there is no timer and no batch size. With
`store.flush` = `async` no answer waits for a sync, and `advance` syncs in the background every
`store.flush_interval_ms`. The steps are methods of `Durability`, so a test can call them one by one without a thread.
"""

from collections.abc import Callable
from functools import partial
from threading import Event

from duolog.store.errors import StoreError
from duolog.store.log.commitlog import SyncTask
from duolog.store.store import Store
from duolog.store.workers import Failure, Post, Workers

SEARCHES_WAITING_MAX = 256  # Searches by key that may wait; further ones are refused.
# A search pauses so long after about a millisecond of work, so that it takes at most half of the idle CPU time.
SEARCH_PAUSE_S = 0.001
BACKGROUND_WAITING_MAX = 64  # Tasks of checkpoints and removals that may wait; further ones are refused.


class Flusher:
    """Owns the threads of one store: for syncs, checkpoints, cold reads, uploads and searches by key."""

    def __init__(self, store: Store, post: Post, seconds: Callable[[], float], took_s: Callable[[float], None]) -> None:
        """Start the threads. `seconds` is a monotonic clock; `took_s` gets the time that each sync took."""
        options = store.options
        self._durability = store.durability
        self._interval_ms = options.flush_interval_ms
        self._next_sync_mono_ms = 0  # When the next background sync is due.
        self._is_stopped = False
        self._seconds, self._took_s = seconds, took_s
        self._syncs = Workers("flusher", 1, post, 1, StoreError("a sync is already running"))
        too_many = StoreError(f"{BACKGROUND_WAITING_MAX} background tasks of the store wait already")
        self._background = Workers("checkpoints", 1, post, BACKGROUND_WAITING_MAX, too_many)
        too_many = StoreError(f"{options.cold_reads_max} reads wait for the disk already (store.cold_reads_max)")
        self._readers = Workers("reader", options.reader_threads, post, options.cold_reads_max, too_many)
        self._uploads = Workers("upload", 1, post, 1, StoreError("units are being prepared for an upload already"))
        self._searches = Workers(
            "search", 1, post, SEARCHES_WAITING_MAX, StoreError(f"{SEARCHES_WAITING_MAX} searches by key wait already")
        )
        self._is_ending = Event()
        store.keys.pause = partial(self._is_ending.wait, SEARCH_PAUSE_S)
        executors = store.executors
        executors.readers, executors.background = self._readers, self._background
        executors.uploads, executors.searches = self._uploads, self._searches

    def wake(self) -> None:
        """Start a sync if a promise or a queue waits for one. To be called after each `Store.write`."""
        task = self._durability.sync_wanted()
        if task is not None:
            self._start(task)

    def next_deadline_ms(self) -> int:
        """Return the monotonic time at which the next background sync is due."""
        return self._next_sync_mono_ms

    def advance(self, mono_ms: int) -> None:
        """Start a background sync if one is due."""
        if mono_ms >= self._next_sync_mono_ms:
            self._next_sync_mono_ms = mono_ms + self._interval_ms
            task = self._durability.sync_wanted(background=True)
            if task is not None:
                self._start(task)

    def stop(self) -> None:
        """Wait for the running tasks and end the threads. To be called before `Store.close`, which syncs once more."""
        self._is_stopped = True
        self._is_ending.set()
        self._searches.stop()
        self._syncs.stop()
        self._readers.stop()
        self._uploads.stop()
        self._background.stop()

    def _start(self, task: SyncTask) -> None:
        self._syncs.submit(partial(self._run, task), partial(self._finish, task))

    def _run(self, task: SyncTask) -> float:
        """Run a task in the thread, and return how many seconds it took."""
        begun_s = self._seconds()
        task.run()
        return self._seconds() - begun_s

    def _finish(self, task: SyncTask, outcome: float | Failure) -> None:
        if self._is_stopped:
            return
        error = outcome if isinstance(outcome, Failure) else None
        if not isinstance(outcome, Failure):
            self._took_s(outcome)
        # A StoreError is a Fault of the thread: how much was synced is unknown, as after a failed fsync.
        self._durability.synced(task, OSError(str(error)) if isinstance(error, StoreError) else error)
        self.wake()
