"""The object store behind a URL, by the library `obstore`: S3, Google, Azure, a local directory, or memory.

`obstore` sends requests from threads of its own. It never repeats one here: a create that was sent twice can find its
own object, and only the caller can decide that (`errors.py`).

A local directory creates a file under another name and links it, which fails if the name exists, so exactly one of
several processes wins. The files are not synced: `file://` is for trials.
"""

import asyncio
import re
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

from duolog.store.objects.answers import StoreAnswer, answer_of, error_of, says_exists, says_missing
from duolog.store.objects.errors import StoreRefused
from duolog.store.objects.interface import LIST_LIMIT, Content, Creation, ObjectEntry, size_of
from duolog.store.objects.options import Location, ObjectStoreOptions

T = TypeVar("T")
DELETE_LIMITS = {"s3": 1000, "az": 256}  # Keys of one DeleteObjects of S3, and of one batch of Azure
LISTS_IN_ORDER = ("s3", "gs", "az", "memory")
PART_BYTES = 16 << 20  # The size of a part of a large upload. S3 accepts 10,000 parts of 5 MiB to 5 GiB.
PARTS_AT_ONCE = 4
# What `obstore` says of a range from the end of an object, or from after it, where the store itself does not refuse it:
# a directory, memory, and Azurite, which answers with an empty range.
_BEYOND_THE_END = re.compile("[rR]ange was invalid|[iI]nvalid range|Wanted range starting at")


class RemoteObjects:
    """An ObjectStore on a store of `obstore`, with time-outs, and with errors that say what to do."""

    def __init__(self, store: Any, location: Location, options: ObjectStoreOptions) -> None:
        self._store = store
        self._location = location
        self._options = options

    async def create(self, key: str, content: Content) -> Creation:
        what = self._what("create", key)
        put = self._store.put_async(key, content, mode="create", use_multipart=False)
        try:
            await self._in_time(put, size_of(content))
        except Exception as error:  # noqa: BLE001 - `obstore` documents no complete list; answers.py decides
            return self._creation(error, what)
        return Creation.CREATED

    def _creation(self, error: Exception, what: str) -> Creation:
        answer = self._answer(error)
        is_local = answer.status == 0 and type(error).__name__ == "AlreadyExistsError"
        if is_local or says_exists(answer):
            return Creation.EXISTS
        raise error_of(answer, what, is_create=True) from None

    async def put(self, key: str, blocks: Iterable[bytes]) -> None:
        from obstore import open_writer_async

        what = self._what("write", key)
        writer = open_writer_async(self._store, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        for block in blocks:
            await self._in_part(writer.write(block), what)
        await self._in_part(writer.close(), what)

    async def _in_part(self, request: Awaitable[object], what: str) -> None:
        """Await a write that may wait for all parts under way."""
        try:
            await self._in_time(request, PARTS_AT_ONCE * PART_BYTES)
        except Exception as error:  # noqa: BLE001 - see create
            raise self._error(error, what) from None

    async def get(self, key: str, bytes_max: int) -> bytes | None:
        what = self._what("read", key)
        try:
            found = await self._in_time(self._store.get_async(key))
            size: int = found.meta["size"]
            if size > bytes_max:
                raise StoreRefused(
                    f"{what}: the object has {size} bytes, more than the {bytes_max} that Duolog writes there: another "
                    "program wrote it, so use a prefix of your own"
                )
            content: bytes = (await self._in_time(found.bytes_async(), size)).to_bytes()
        except Exception as error:  # noqa: BLE001 - see create
            self._raise_unless_missing(error, what)
            return None
        return content

    async def get_range(self, key: str, start: int, length: int) -> bytes | None:
        what = self._what(f"read {length} bytes at {start} of", key)
        try:
            found = await self._in_time(self._store.get_range_async(key, start=start, length=length), length)
            content: bytes = found.to_bytes()
        except Exception as error:  # noqa: BLE001 - see create
            if self._answer(error).status == 416 or _BEYOND_THE_END.search(str(error)):
                return b""
            self._raise_unless_missing(error, what)
            return None
        return content

    async def list(self, prefix: str, start_after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectEntry]:
        what = self._what("list", prefix)
        try:
            return await self._in_time(self._listed(prefix, start_after, limit))
        except Exception as error:  # noqa: BLE001 - see create
            raise self._error(error, what) from None

    async def _listed(self, prefix: str, start_after: str, limit: int) -> Sequence[ObjectEntry]:
        """Collect the entries. Only a local directory, whose files have no order, is read to its end."""
        found: list[ObjectEntry] = []
        stream = self._store.list(prefix or None, offset=start_after or None, chunk_size=min(limit, LIST_LIMIT))
        is_ordered = self._location.scheme in LISTS_IN_ORDER
        async for chunk in stream:
            # Azure's `startFrom` is newer than the version of the API that `obstore` asks for: it may have no effect.
            found += (ObjectEntry(each["path"], each["size"]) for each in chunk if each["path"] > start_after)
            if is_ordered and len(found) >= limit:
                break
        return sorted(found)[:limit]

    async def delete(self, keys: Sequence[str]) -> None:
        limit = DELETE_LIMITS.get(self._location.scheme, 1)
        for at in range(0, len(keys), limit):
            await self._delete(keys[at : at + limit])

    async def _delete(self, keys: Sequence[str]) -> None:
        """Delete objects by one request."""
        try:
            await self._in_time(self._store.delete_async(list(keys)))
        except Exception as error:  # noqa: BLE001 - see create
            self._raise_unless_missing(error, self._what("delete", keys[0]))
            if len(keys) > 1:  # Azure: one of them is missing, and what became of those after it is not reported.
                for key in keys:
                    await self._delete([key])

    # -- Outcomes

    async def _in_time(self, request: Awaitable[T], content_bytes: int = 0) -> T:
        """Await a request of `obstore`. Raises TimeoutError when its time is over; the request is then given up."""
        options = self._options
        async with asyncio.timeout(options.request_timeout_ms / 1000 + content_bytes / options.bytes_per_s_min):
            return await request

    def _raise_unless_missing(self, error: Exception, what: str) -> None:
        """Raise the ObjectStoreError for this exception, unless it says that the object does not exist."""
        if not isinstance(error, FileNotFoundError) or not says_missing(self._answer(error)):
            raise self._error(error, what) from None

    def _error(self, error: Exception, what: str) -> Exception:
        return error if isinstance(error, StoreRefused) else error_of(self._answer(error), what, is_create=False)

    def _answer(self, error: Exception) -> StoreAnswer:
        if isinstance(error, TimeoutError):
            return StoreAnswer(0, "")
        answer = answer_of(error)
        if isinstance(error, FileNotFoundError) and not answer.status:
            return StoreAnswer(404, "")
        if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError") and not answer.status:
            return StoreAnswer(403, answer.code)
        return answer

    def _what(self, operation: str, key: str) -> str:
        location = self._location
        root = f"{location.scheme}://{location.bucket}"
        return f"{operation} {root}{'/' if location.bucket and location.prefix else ''}{location.prefix}/{key}"
