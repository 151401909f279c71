"""`wait_for_callback` lets a coroutine, such as an HTTP handler, wait for a callback of another part of the broker."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from duolog.store.errors import StoreError

T = TypeVar("T")


async def wait_for_callback(start: Callable[[Callable[[T | StoreError], None]], None]) -> T:
    """Call `start` with a callback, and return the value that the callback gets; raise it if it is a StoreError.

    If the task that waits is cancelled, the value is dropped.
    """
    done: asyncio.Future[T | StoreError] = asyncio.get_running_loop().create_future()
    start(lambda result: None if done.done() else done.set_result(result))
    result = await done
    if isinstance(result, StoreError):
        raise result
    return result
