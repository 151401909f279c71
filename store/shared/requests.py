"""The class Requests: requests to the object store that are repeated until they have an outcome.

A hedged request is sent again after a third of `cluster.takeover_ms` without an answer, because its time-out is longer
than a takeover. The first answer decides. This is safe for a create, too: a create that finds the object of the
earlier request reads it back, as after a time-out.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from duolog.store.objects.errors import StoreRefused, StoreRetry, StoreUnknown
from duolog.store.objects.interface import LIST_LIMIT, Content, Creation, ObjectEntry, ObjectStore
from duolog.store.objects.transfers import read_ahead
from duolog.store.shared.events import Event, StoreAnswers, StoreTrouble
from duolog.store.shared.wal.wal_object import OBJECT_BYTES_MAX

T = TypeVar("T")

RETRY_MS = (20, 50, 100, 200, 400)  # Pauses before the repetitions of a request; later ones have the last value.
HEDGES_MAX = 4  # The greatest number of concurrent requests for one object.
REFUSED_MS = 1_000  # The pause after a request that fails until an operator acts.

COMMAND_ANSWER_MS = 60_000  # A command sends a request again after a third of this time without an answer.
FAILURES_MAX = 50  # A command ends after so many failures in a row: 20 s if the store answers at once that it is busy.


class RequestsStopped(Exception):
    """The broker stops, and repeats no request."""


class Requests:
    """Sends requests of one broker to the store of one stream."""

    def __init__(self, objects: ObjectStore, takeover_ms: int, on_event: Callable[[Event], None]) -> None:
        self._objects, self._on_event = objects, on_event
        self._hedge_s = takeover_ms / 3000
        self._is_in_trouble = False
        self.is_stopped = False

    async def create(self, key: str, content: Content) -> bool:
        """Create an object. Return whether it is known that this very request has created it.

        After False, the caller must read the object: this object, another one, or none may be there. Raises
        RequestsStopped.
        """
        try:
            return await self._repeat(lambda: self._objects.create(key, content)) is Creation.CREATED
        except StoreUnknown as error:
            self._report(error)
            return False

    async def create_once(self, key: str) -> None:
        """Create an empty object by one request, also after the broker has stopped. Raises ObjectStoreError."""
        await self._objects.create(key, b"")

    async def get(self, key: str, *, is_hedged: bool = True) -> bytes | None:
        """Return an object; None if there is none. Raises RequestsStopped.

        A caller that repeats its requests itself passes `is_hedged=False`.
        """
        return await self._repeat(lambda: self._objects.get(key, OBJECT_BYTES_MAX), is_hedged=is_hedged)

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """Return a part of an object; None if there is no object. Raises RequestsStopped."""
        return await self._repeat(lambda: self._objects.get_range(key, start, length))

    def parts(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield a range of an object in parts; some are read ahead (`read_ahead`). Raises RequestsStopped."""
        return read_ahead(lambda at, length: self.get_range(key, at, length), start, end)

    async def list(self, prefix: str, start_after: str, limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        """Return the objects of a folder that follow a key; the list may be stale. Raises RequestsStopped."""
        return await self._repeat(lambda: self._objects.list(prefix, start_after, limit))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Raises RequestsStopped."""
        await self._repeat(lambda: self._objects.delete(keys))

    async def _repeat(self, request: Callable[[], Coroutine[Any, Any, T]], *, is_hedged: bool = True) -> T:
        """Send a request until it has a result. Raises StoreUnknown and RequestsStopped."""
        attempt = 0
        while True:
            try:
                found = await (self._hedged(request) if is_hedged else request())
            except (StoreRetry, StoreRefused) as error:
                self._report(error)
                last = RETRY_MS[min(attempt, len(RETRY_MS) - 1)]
                await self.pause(REFUSED_MS if isinstance(error, StoreRefused) else last)
                attempt += 1
            else:
                self._note_success()
                return found

    async def _hedged(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Send a request, and send it again after each `_hedge_s` without an answer; return the first result.

        Raises an ObjectStoreError once no request is under way.
        """
        tasks = {asyncio.create_task(request())}
        try:
            while True:
                wait_s = self._hedge_s if len(tasks) < HEDGES_MAX else None
                done, tasks = await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None or not tasks:
                        return task.result()
                if not done:
                    tasks.add(asyncio.create_task(request()))
        finally:
            for task in tasks:
                task.cancel()

    async def pause(self, ms: int) -> None:
        """Wait. Raises RequestsStopped."""
        await asyncio.sleep(ms / 1000)
        if self.is_stopped:
            raise RequestsStopped

    def _report(self, error: StoreRetry | StoreRefused | StoreUnknown) -> None:
        self._is_in_trouble = True
        self._on_event(StoreTrouble(str(error)))

    def _note_success(self) -> None:
        if self.is_stopped:
            raise RequestsStopped
        if self._is_in_trouble:
            self._is_in_trouble = False
            self._on_event(StoreAnswers())


class CommandRequests(Requests):
    """Requests of a command or a job, which end with an error where a broker would go on."""

    def __init__(self, objects: ObjectStore, on_event: Callable[[Event], None] = lambda _: None) -> None:
        super().__init__(objects, COMMAND_ANSWER_MS, on_event)
        self._failures = 0  # In a row.

    def _report(self, error: StoreRetry | StoreRefused | StoreUnknown) -> None:
        self._failures += 1
        if isinstance(error, StoreRefused) or self._failures > FAILURES_MAX:
            raise error
        super()._report(error)

    def _note_success(self) -> None:
        self._failures = 0
        super()._note_success()
