"""Worker threads for work that blocks: syncs, cold reads, checkpoints, searches.

Results are posted to the loop's thread.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NoReturn, Protocol, TypeVar

from duolog.store.errors import Fault, StoreError

T = TypeVar("T")

Failure = StoreError | OSError
# Calls its argument in the loop's thread soon, as `loop.call_soon_threadsafe` does.
Post = Callable[[Callable[[], None]], None]


class Executor(Protocol):
    """Runs `run`, which may block, and calls `done` in the loop's thread with the result.

    If `run` raises a StoreError or OSError, `done` is called with that error. If `run` raises another exception, `done`
    is called with a Fault, and the exception itself is raised in the loop's thread.
    """

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None: ...


class Inline:
    """An Executor that runs each task in the caller's thread: for recovery, shutdown and tests.

    A task that is submitted by `done` runs after `done` has returned, so a chain of a thousand tasks does not deepen
    the stack. Once `gives_up()` returns true, no further task is started.
    """

    def __init__(self, gives_up: Callable[[], bool] = lambda: False) -> None:
        self._gives_up = gives_up
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        self._waiting.append(lambda: done(_outcome(run)))
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._waiting and not self._gives_up():
                self._waiting.popleft()()
        finally:
            self._is_running = False
            self._waiting.clear()


@dataclass(slots=True)
class Executors:
    """The executors of one store, shared by its parts.

    The parts read these fields at each use, because the Flusher replaces the executors after recovery.
    """

    readers: Executor = field(default_factory=Inline)  # Cold reads, index lookups for retention, opening of files.
    uploads: Executor = field(default_factory=Inline)  # Reads and checksums of units for uploads, one at a time.
    background: Executor = field(default_factory=Inline)  # Checkpoints, index flushes, removal of files.
    searches: Executor = field(default_factory=Inline)  # Searches by key, one at a time.


class Workers:
    """An Executor of `threads` threads with one queue of tasks.

    While `waiting_max` tasks wait, `done` of a further task is called with `refusal`.
    """

    def __init__(self, name: str, threads: int, post: Post, waiting_max: int, refusal: StoreError) -> None:
        self._post = post
        self._waiting_max = waiting_max
        self._refusal = refusal
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        """Run a task in one of the threads. `done` is called in the loop's thread after `submit` has returned."""
        if self._queue.qsize() >= self._waiting_max:
            self._post(partial(done, self._refusal))
        else:
            self._queue.put(partial(self._run, run, done))

    def stop(self) -> None:
        """Wait for the running tasks, drop the waiting tasks, and end the threads. Blocks.

        `done` is not called for a dropped task. `Store.close` syncs the log afterwards, so nothing is lost.
        """
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            task()

    def _run(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        try:
            outcome = _outcome(run)
        except BaseException as bug:  # noqa: BLE001 - the error is raised in the loop's thread, where it is reported
            self._post(partial(_break_off, bug, done))
        else:
            self._post(partial(done, outcome))


def _outcome(run: Callable[[], T]) -> T | Failure:
    try:
        return run()
    except (StoreError, OSError) as error:
        # The frames of a traceback refer to the error, and would keep what the task has read until the next collection.
        return error.with_traceback(None)


def _break_off(bug: BaseException, done: Callable[[Failure], None]) -> NoReturn:
    try:
        done(Fault(f"a task in a worker thread raised {bug!r}"))
    finally:
        raise bug
