"""Counts the requests to an object store and the bytes of their content, for the metrics and the cost of a store."""

from collections import Counter
from collections.abc import Awaitable, Sequence
from threading import Lock
from typing import TypeVar

from duolog.store.objects.errors import ObjectStoreError, StoreRefused, StoreRetry
from duolog.store.objects.interface import LIST_LIMIT, Content, Creation, ObjectEntry, ObjectStore, size_of

T = TypeVar("T")


class CountedObjects:
    """An ObjectStore that counts what passes to another one.

    `requests` has the number of requests by operation and outcome, and `content_bytes` the bytes by operation. The
    operations are create, get, list and delete; the outcomes are ok, exists, missing, retry, unknown and refused. A
    list counts its pages of LIST_LIMIT entries, as providers charge it.
    """

    def __init__(self, objects: ObjectStore, requests: Counter[tuple[str, str]], content_bytes: Counter[str]) -> None:
        """`requests` and `content_bytes` are the caller's counters."""
        self.requests, self.content_bytes = requests, content_bytes
        self._objects = objects
        self._lock = Lock()  # Threads ask for ranges in loops of their own (`store/shared/cache/`).

    async def create(self, key: str, content: Content) -> Creation:
        created = await self._counted("create", self._objects.create(key, content))
        self._count("create", "ok" if created is Creation.CREATED else "exists", size_of(content))
        return created

    async def get(self, key: str, bytes_max: int) -> bytes | None:
        return self._got(await self._counted("get", self._objects.get(key, bytes_max)))

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        return self._got(await self._counted("get", self._objects.get_range(key, start, length)))

    async def list(self, prefix: str, start_after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        found = await self._counted("list", self._objects.list(prefix, start_after, limit))
        self._count("list", "ok", requests=max(1, -(-len(found) // LIST_LIMIT)))
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        await self._counted("delete", self._objects.delete(keys))
        self._count("delete", "ok")

    def _got(self, content: bytes | None) -> bytes | None:
        self._count("get", "missing" if content is None else "ok", len(content or b""))
        return content

    async def _counted(self, operation: str, request: Awaitable[T]) -> T:
        """Await the request, and count it if it raises an ObjectStoreError."""
        try:
            return await request
        except ObjectStoreError as error:
            self._count(operation, _outcome(error))
            raise

    def _count(self, operation: str, outcome: str, size: int = 0, requests: int = 1) -> None:
        with self._lock:
            self.requests[operation, outcome] += requests
            if size:
                self.content_bytes[operation] += size


def _outcome(error: ObjectStoreError) -> str:
    return "refused" if isinstance(error, StoreRefused) else "retry" if isinstance(error, StoreRetry) else "unknown"
