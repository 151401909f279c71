"""Requests for the chunks of dropped segments. Each chunk is checked against its CRC after the download."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from threading import Thread
from typing import Final

from crc32c import crc32c

from duolog.store.errors import StoreError
from duolog.store.objects.errors import StoreRetry, StoreUnknown
from duolog.store.objects.interface import ObjectStore
from duolog.store.shared.cache.remote_segment import RemoteChunk
from duolog.store.shared.wal.wal_object import damaged

ANSWER_MS: Final = 10_000  # A read ends with an error if its chunk was not downloaded within this time.
RETRY_MS: Final = (50, 100, 200, 500, 1_000)  # The pauses between attempts; further ones last as long as the last one.


async def request_chunk(objects: ObjectStore, chunk: RemoteChunk) -> bytes:
    """Ask for a chunk until the store answers. Raises DamagedObject and StoreRefused."""
    attempt = 0
    while True:
        try:
            data = await objects.get_range(chunk.key, chunk.start - chunk.object_start, chunk.size)
            break
        except (StoreRetry, StoreUnknown):
            await asyncio.sleep(RETRY_MS[min(attempt, len(RETRY_MS) - 1)] / 1000)
            attempt += 1
    if data is None or len(data) < chunk.size:
        raise damaged(chunk.key, "it does not exist, or is too short")
    actual = crc32c(data)
    if actual != chunk.crc:
        first = chunk.start - chunk.object_start
        reason = f"the CRC of its bytes {first} to {first + chunk.size} is {actual:#010x}"
        raise damaged(chunk.key, f"{reason}, and the log had {chunk.crc:#010x}")
    return data


@asynccontextmanager
async def in_time(chunk: RemoteChunk) -> AsyncIterator[asyncio.Timeout]:
    """Limit the time of a download to ANSWER_MS, including the wait for other requests.

    Raises StoreError when this time is over.
    """
    try:
        async with asyncio.timeout(ANSWER_MS / 1000) as limit:
            yield limit
    except TimeoutError:
        reason = f"the object store has not answered within {ANSWER_MS // 1000} s"
        raise StoreError(f"{chunk.key}: {reason}: read again later") from None


def wait_for_chunk(objects: ObjectStore, chunk: RemoteChunk) -> bytes:
    """Return the bytes of a chunk. Blocks; raises StoreError.

    The request runs in a thread and a loop of its own, because the thread of the caller may have a loop.
    """
    outcome: Future[bytes] = Future()

    async def request() -> bytes:
        async with in_time(chunk):
            return await request_chunk(objects, chunk)

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(request()))
        except Exception as error:  # noqa: BLE001 - raised in the thread of the caller
            outcome.set_exception(error)

    Thread(target=run, name="range", daemon=True).start()
    return outcome.result()
