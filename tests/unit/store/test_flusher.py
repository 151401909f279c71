"""Proves the threads: group commit, cold reads and checkpoints on real files, their results posted to one thread.

The test's thread plays the loop: it runs what the threads post, and nothing else decides when they have finished.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import pytest

from duolog.store.entry import FIRST_FRAME_FORM, WRITTEN, Stored
from duolog.store.errors import DataDirectoryInUse, Fault, StoreError
from duolog.store.files import RealFiles
from duolog.store.flusher import BACKGROUND_WAITING_MAX, SEARCHES_WAITING_MAX, Flusher
from duolog.store.index.queue import queue_key
from duolog.store.log.cold_read import ColdRead
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from duolog.store.unit import Frame
from duolog.store.workers import Executor, Workers
from tests.unit.store.model import Notes, read_all

OPTIONS = StoreOptions(segment_bytes=1 << 16, reserve_bytes=1 << 14, tail_bytes=1 << 12, checkpoint_bytes=1 << 14)
KEY = queue_key(1, 0)


def flusher_of(store: Store, loop: "Loop", took_s: Callable[[float], None] = lambda took_s: None) -> Flusher:
    """Make a flusher; each reading of its clock is a second later than the one before."""
    return Flusher(store, loop.post, partial(next, count()), took_s)


class Loop:
    """Runs what other threads post, one at a time, in the thread that asks."""

    def __init__(self) -> None:
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def run_until(self, is_done: Callable[[], object]) -> None:
        while not is_done():
            self._posted.get(timeout=60)()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(RealFiles(str(tmp_path)), OPTIONS, Notes(), 1000)
    yield store
    store.close(2000)


def test_everything_works_on_real_files(tmp_path: Path, loop: Loop) -> None:
    files = RealFiles(str(tmp_path))
    store = Store.open(files, OPTIONS, Notes(), 1000)
    with pytest.raises(DataDirectoryInUse):
        Store.open(RealFiles(str(tmp_path)), OPTIONS, Notes(), 1000)
    flusher = flusher_of(store, loop)
    queue = store.queue(KEY)
    kept: list[StoreError | None] = []
    bodies = [bytes([number % 256]) * (number * 7 % 900) for number in range(500)]
    for number, body in enumerate(bodies):
        store.when(store.append([Frame(queue, FIRST_FRAME_FORM, body)], 1000).promise, kept.append)
        if number % 10 == 9:
            store.write()
            flusher.wake()
        if store.checkpoint_due(number):
            store.checkpoint(number)
    loop.run_until(lambda: len(kept) == 500)
    assert kept == [None] * 500
    assert queue.visible_end == 500

    found: list[Stored] = []
    while len(found) < 500:
        answer = store.reader.read(queue, len(found), max_bytes=5000, until=500)
        if isinstance(answer, ColdRead):
            outcome: list[list[Stored] | StoreError] = []
            answer.start(outcome.append)
            loop.run_until(lambda outcome=outcome: outcome)
            assert isinstance(outcome[0], list)
            answer = outcome[0]
        found += answer
    assert [bytes(stored.frame) for stored in found] == bodies
    flusher.stop()
    store.close(2000)

    store = Store.open(files, OPTIONS, Notes(), 1000)
    assert store.clean
    assert store.recovery.units == 0
    assert [bytes(stored.frame) for stored in read_all(store, store.queue(KEY))] == bodies
    store.close(3000)


def test_each_sync_is_timed(store: Store, loop: Loop) -> None:
    took_s: list[float] = []
    flusher = flusher_of(store, loop, took_s.append)
    kept: list[StoreError | None] = []
    for number in range(3):
        store.when(store.append([Frame(store.queue(KEY), FIRST_FRAME_FORM, b"x")], 1000).promise, kept.append)
        store.write()
        flusher.wake()
        loop.run_until(lambda wanted=number + 1: len(kept) == wanted)
    flusher.stop()
    assert took_s == [1, 1, 1]


def test_a_closed_store_has_kept_what_its_flusher_was_about_to_report(tmp_path: Path, loop: Loop) -> None:
    store = Store.open(RealFiles(str(tmp_path)), OPTIONS, Notes(), 1000)
    flusher = flusher_of(store, loop)
    kept: list[StoreError | None] = []
    store.when(store.append([Frame(store.queue(KEY), FIRST_FRAME_FORM, b"x")], 1000).promise, kept.append)
    store.write()
    flusher.wake()
    flusher.stop()
    store.close(2000)
    assert kept == [None]
    loop.run_until(lambda: loop._posted.empty())
    assert kept == [None]


def test_under_async_a_sync_comes_in_the_background_at_intervals(store: Store, loop: Loop) -> None:
    flusher = flusher_of(store, loop)
    queue = store.queue(KEY)
    queue.level = WRITTEN
    flusher.advance(10_000)
    assert flusher.next_deadline_ms() == 10_000 + OPTIONS.flush_interval_ms
    store.append([Frame(queue, FIRST_FRAME_FORM, b"x")], 1000)
    store.write()
    flusher.wake()
    flusher.advance(10_001)
    assert store.durability.sync_wanted() is None
    flusher.advance(flusher.next_deadline_ms())
    loop.run_until(lambda: store.durable == store.written)
    flusher.stop()


def test_workers_hand_errors_over_refuse_what_is_too_much_and_raise_bugs_in_the_loop(loop: Loop) -> None:
    workers = Workers("test", threads=1, post=loop.post, waiting_max=2, refusal=StoreError("too much"))
    is_running, may_go_on = threading.Event(), threading.Event()
    outcomes: list[object] = []

    def block() -> str:
        is_running.set()
        may_go_on.wait()
        return "done"

    def fail(error: Exception) -> None:
        raise error

    workers.submit(block, outcomes.append)
    is_running.wait()
    workers.submit(partial(fail, OSError("disk")), outcomes.append)
    workers.submit(partial(fail, ZeroDivisionError()), outcomes.append)
    workers.submit(lambda: None, outcomes.append)
    loop.run_until(lambda: outcomes)
    assert str(outcomes.pop()) == "too much"
    may_go_on.set()
    with pytest.raises(ZeroDivisionError):
        loop.run_until(lambda: False)
    assert outcomes[0] == "done"
    assert [type(outcome) for outcome in outcomes[1:]] == [OSError, Fault]
    workers.stop()


@pytest.mark.parametrize(
    ("name", "waiting_max"),
    [("readers", 3), ("uploads", 1), ("searches", SEARCHES_WAITING_MAX), ("background", BACKGROUND_WAITING_MAX)],
)
def test_each_kind_of_work_of_the_threads_has_its_limit(
    tmp_path: Path, loop: Loop, name: str, waiting_max: int
) -> None:
    options = replace(OPTIONS, cold_reads_max=3, reader_threads=1)
    store = Store.open(RealFiles(str(tmp_path)), options, Notes(), 1000)
    flusher = flusher_of(store, loop)
    threads: Executor = getattr(store.executors, name)
    is_running, may_go_on, outcomes = threading.Event(), threading.Event(), list[object]()

    def block() -> None:
        is_running.set()
        may_go_on.wait()

    threads.submit(block, outcomes.append)
    is_running.wait()
    for _ in range(waiting_max + 1):
        threads.submit(lambda: None, outcomes.append)
    loop.run_until(lambda: outcomes)
    assert [type(outcome) for outcome in outcomes] == [StoreError]
    may_go_on.set()
    loop.run_until(lambda: len(outcomes) == waiting_max + 2)
    assert outcomes[1:] == [None] * (waiting_max + 1)
    flusher.stop()
    store.close(2000)


def test_workers_that_stop_finish_what_runs_and_leave_what_waits(loop: Loop) -> None:
    workers = Workers("test", threads=1, post=loop.post, waiting_max=100, refusal=StoreError("too much"))
    is_running, may_go_on, ran = threading.Event(), threading.Event(), []

    def first() -> None:
        is_running.set()
        may_go_on.wait()
        ran.append("first")

    workers.submit(first, lambda outcome: None)
    is_running.wait()
    for _ in range(50):
        workers.submit(lambda: ran.append("waiting"), lambda outcome: None)
    stopping = threading.Thread(target=workers.stop)
    stopping.start()
    while workers._queue.qsize() > 1:  # The end of the thread is left in it.
        pass
    may_go_on.set()
    stopping.join()
    assert ran == ["first"]


def test_short_writes_and_short_reads_are_continued(tmp_path: Path) -> None:
    files = RealFiles(str(tmp_path))
    file = files.open("file", create=True)
    pieces = [bytes([number % 256]) * 3 for number in range(3000)]  # more buffers than one pwritev takes
    files.write(file, pieces, 5)
    assert files.read(file, 100_000, 5) == b"".join(pieces)
    assert files.read(file, 10, 3) == b"\0\0" + b"".join(pieces)[:8]
    assert files.read(file, 10, 100_000) == b""
    files.reserve(file, 20_000)
    assert files.size(file) == 20_000
    cached = files.read_cached(file, 100, 5)
    assert cached is None or bytes(cached) == b"".join(pieces)[:100]
    assert files.read_cached(file, 100, 30_000) is None
    files.truncate(file, 7)
    files.sync(file)
    assert files.read(file, 100, 0) == b"\0" * 5 + b"\0\0"
    files.close(file)
