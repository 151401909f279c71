"""The class Requests: requests to the object store that are repeated until they have an outcome.

A request without an answer is sent again beside the first one after a third of `cluster.takeover_ms`, because waiting
for its time-out would be longer than a takeover takes. Whichever answers first decides. That is safe for a create as it
is for a read: a create that finds the object of its twin is read back, as after a time-out.
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
TWINS_MAX = 4  # Requests for one object that are under way at a time.
REFUSED_MS = 1_000  # Pause after a request that fails until an operator acts.

COMMAND_ANSWER_MS = 60_000  # A third of it passes before a command sends a request again beside the first one.
FAILURES_MAX = 50  # Of requests of a command in a row: 20 s if the store answers at once that it is busy.


class RequestsStopped(Exception):
    """The broker stops, so the request is not repeated any more."""


class Requests:
    """Sends requests of one broker to the store of one stream."""

    def __init__(self, objects: ObjectStore, takeover_ms: int, on_event: Callable[[Event], None]) -> None:
        self._objects, self._on_event = objects, on_event
        self._twin_s = takeover_ms / 3000
        self._is_in_trouble = False
        self.is_stopped = False

    async def create(self, key: str, content: Content) -> bool:
        """Create an object. Return whether it is known that this very request has created it.

        If False is returned, the slot must be read back: the object may be there, be it this one or another. Raises
        RequestsStopped.
        """
        try:
            return await self._repeat(lambda: self._objects.create(key, content)) is Creation.CREATED
        except StoreUnknown as error:
            self._report(error)
            return False

    async def get(self, key: str, *, is_twinned: bool = True) -> bytes | None:
        """Return an object; None if there is none. Raises RequestsStopped.

        Whoever asks for an object again himself needs no request beside one that is not answered.
        """
        return await self._repeat(lambda: self._objects.get(key, OBJECT_BYTES_MAX), is_twinned=is_twinned)

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """Return a part of an object; None if there is no object. Raises RequestsStopped."""
        return await self._repeat(lambda: self._objects.get_range(key, start, length))

    def parts(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield a range of an object in parts; some are read ahead (`read_ahead`). Raises RequestsStopped."""
        return read_ahead(lambda at, length: self.get_range(key, at, length), start, end)

    async def list(self, prefix: str, start_after: str, limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        """Return objects of a folder behind a key; the list may be stale. Raises RequestsStopped."""
        return await self._repeat(lambda: self._objects.list(prefix, start_after, limit))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Raises RequestsStopped."""
        await self._repeat(lambda: self._objects.delete(keys))

    async def _repeat(self, request: Callable[[], Coroutine[Any, Any, T]], *, is_twinned: bool = True) -> T:
        """Send a request until it has a result. Raises StoreUnknown and RequestsStopped."""
        attempt = 0
        while True:
            try:
                found = await (self._twinned(request) if is_twinned else request())
            except (StoreRetry, StoreRefused) as error:
                self._report(error)
                last = RETRY_MS[min(attempt, len(RETRY_MS) - 1)]
                await self.pause(REFUSED_MS if isinstance(error, StoreRefused) else last)
                attempt += 1
            else:
                self._note_success()
                return found

    async def _twinned(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Send a request, and again each time that no answer has come for long; return the first result.

        Raises an ObjectStoreError once no request is under way.
        """
        tasks = {asyncio.create_task(request())}
        try:
            while True:
                wait_s = self._twin_s if len(tasks) < TWINS_MAX else None
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
