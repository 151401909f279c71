"""Threads for what blocks: syncs, cold reads, checkpoints. Results are posted to the loop's thread."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NoReturn, Protocol, TypeVar

from duolog.store.errors import Fault, StoreError

T = TypeVar("T")

Failure = StoreError | OSError
Post = Callable[
    [Callable[[], None]], None
]  # runs its argument in the loop's thread, soon (`loop.call_soon_threadsafe`)


class Executor(Protocol):
    """Where blocking work goes. A StoreError or OSError that `run` raises is handed to `done` instead of a result.

    For anything else that it raises `done` gets a Fault, and then the error itself is raised in the loop's thread.
    """

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None: ...


class Inline:
    """Runs everything at once in the caller's thread: for recovery, shut-down, and tests that go step by step.

    What `done` submits runs when `done` has returned: a chain of a thousand tasks needs no deeper stack than one.
    Once `gives_up()` is true nothing more is begun.
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


class Workers:
    """A few threads with one queue in front; at most `waiting_max` wait, one more is refused with `refusal`."""

    def __init__(self, name: str, threads: int, post: Post, waiting_max: int, refusal: StoreError) -> None:
        self._post = post
        self._waiting_max = waiting_max
        self._refusal = refusal
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, run: Callable[[], T], done: Callable[[T | Failure], None]) -> None:
        """Run in one of the threads; `done` is called in the loop's thread, never before this returns."""
        if self._queue.qsize() >= self._waiting_max:
            self._post(partial(done, self._refusal))
        else:
            self._queue.put(partial(self._run, run, done))

    def stop(self) -> None:
        """Finish what runs and end the threads; what waits is left, as if the process had ended before it.

        Nobody hears of its outcome any more, and whatever must be on disk is synced by `Store.close`.
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
        except BaseException as bug:  # noqa: BLE001 - a bug is raised in the loop's thread, where it is seen
            self._post(partial(_break_off, bug, done))
        else:
            self._post(partial(done, outcome))


def _outcome(run: Callable[[], T]) -> T | Failure:
    try:
        return run()
    except (StoreError, OSError) as error:
        return error


def _break_off(bug: BaseException, done: Callable[[Failure], None]) -> NoReturn:
    try:
        done(Fault(f"work in a thread broke off: {bug!r}"))
    finally:
        raise bug
