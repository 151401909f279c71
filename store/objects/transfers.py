"""Requests of commands: repeated for a while where the store is busy, and objects that are read in parts."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from duolog.store.objects.errors import StoreRetry, StoreUnknown
from duolog.store.objects.interface import LIST_LIMIT, ObjectEntry, ObjectStore

RETRY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # Pauses before the repetitions of a request.
RANGE_BYTES: Final = 8 << 20
RANGES_AT_ONCE: Final = 4

T = TypeVar("T")


async def persist(request: Callable[[], Awaitable[T]]) -> T:
    """Send a request that may be repeated, again while the store is busy. Raises ObjectStoreError after the last one.

    A create may be repeated, too, if its caller compares the content where an object exists.
    """
    for pause_s in RETRY_S:
        try:
            return await request()
        except (StoreRetry, StoreUnknown):
            await asyncio.sleep(pause_s)
    return await request()


async def list_all(objects: ObjectStore, prefix: str = "") -> list[ObjectEntry]:
    """Return all objects of a folder and its folders. Raises ObjectStoreError."""
    found: list[ObjectEntry] = []

    async def next_page() -> Sequence[ObjectEntry]:
        return await objects.list(prefix, found[-1].key if found else "")

    while True:
        page = await persist(next_page)
        found += page
        if len(page) < LIST_LIMIT:
            return found


def read_ranges(objects: ObjectStore, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of an object as `read_ahead` does. Raises ObjectStoreError."""

    def read(at: int, length: int) -> Coroutine[Any, Any, bytes | None]:
        return persist(lambda: objects.get_range(key, at, length))

    return read_ahead(read, start, end)


async def read_ahead(
    read: Callable[[int, int], Coroutine[Any, Any, bytes | None]], start: int, end: int, part_bytes: int = RANGE_BYTES
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of an object from `start` up to `end`, in parts, which `read(at, length)` returns.

    RANGES_AT_ONCE parts are read at a time, so as many are in memory. The iterator ends early where the object ends,
    and at once if there is no object. `contextlib.aclosing` ends the reads that are under way.
    """
    under_way: deque[asyncio.Task[bytes | None]] = deque()
    starts = iter(range(start, end, part_bytes))
    try:
        while True:
            while len(under_way) < RANGES_AT_ONCE and (at := next(starts, None)) is not None:
                under_way.append(asyncio.create_task(read(at, min(part_bytes, end - at))))
            if not under_way:
                return
            data = await under_way.popleft()
            if not data:
                return
            yield data
    finally:
        for task in under_way:
            task.add_done_callback(_retrieve)
            task.cancel()


def _retrieve(task: asyncio.Task[bytes | None]) -> None:
    """Retrieve an exception that has no effect because the reader stops, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
