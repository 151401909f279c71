"""Tasks in worker threads, and what remains of a task that has failed."""

import gc
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from duolog.store.errors import StoreError
from duolog.store.workers import Executor, Inline, Workers


@pytest.fixture
def posted() -> SimpleQueue[Callable[[], None]]:
    return SimpleQueue()


@pytest.fixture(params=["in a thread", "inline"])
def executor(request: pytest.FixtureRequest, posted: SimpleQueue[Callable[[], None]]) -> Iterator[Executor]:
    if request.param == "inline":
        yield Inline()
        return
    workers = Workers("test", 1, posted.put, 10, StoreError("too many tasks"))
    yield workers
    workers.stop()


class Block:
    """Stands for bytes that a task has read."""


def test_failed_task_keeps_nothing_alive_that_it_has_read(
    executor: Executor, posted: SimpleQueue[Callable[[], None]]
) -> None:
    """Reads of dropped segments end with an error again and again, and what they have read is megabytes each time."""
    blocks: list[weakref.ref[Block]] = []
    errors: list[object] = []

    def read() -> None:
        block = Block()
        blocks.append(weakref.ref(block))
        raise StoreError("the rest is in the object store only")

    gc.disable()
    try:
        executor.submit(read, lambda outcome: errors.append(str(outcome)))
        if isinstance(executor, Workers):
            posted.get(timeout=10)()
            executor.stop()
        assert errors == ["the rest is in the object store only"]
        assert blocks[0]() is None, "the error's traceback keeps the frames of the task alive"
    finally:
        gc.enable()
