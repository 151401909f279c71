"""Coroutines that wait for callbacks: the broker's parts call back in the loop, HTTP's handlers are coroutines."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from duolog.store.errors import StoreError

T = TypeVar("T")


async def awaited(start: Callable[[Callable[[T | StoreError], None]], None]) -> T:
    """Start something, and wait for what it gives to its callback; raises that if it is a StoreError.

    Who waits may be cancelled, and what comes then is dropped.
    """
    done: asyncio.Future[T | StoreError] = asyncio.get_running_loop().create_future()
    start(lambda result: None if done.done() else done.set_result(result))
    result = await done
    if isinstance(result, StoreError):
        raise result
    return result
