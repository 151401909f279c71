"""The class RangeCache: chunks of dropped segments that were read back from the object store, as files in `cache/`.

    loop's thread     fetch       requests chunks, at most REQUESTS_AT_ONCE at a time, and calls back
    any thread        read        returns bytes of a chunk that is on the disk
    any thread        fetched     returns bytes of a chunk; waits for the store if it is not on the disk
    any thread        ask_ahead   requests chunks for a reader that will come to them

Each chunk is checked against its CRC after the download. While the chunks on the disk exceed `bytes_max`, the least
recently read one is removed. A chunk that a read waits for is not removed before that read.

A start removes all chunks, because their files may be incomplete after a crash, and the store has them.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Final

from duolog.store.errors import NO_SPACE, Fault, StoreError
from duolog.store.files import Files
from duolog.store.objects.interface import ObjectStore
from duolog.store.shared.cache.chunk_requests import in_time, request_chunk, wait_for_chunk
from duolog.store.shared.cache.remote_segment import RemoteChunk
from duolog.store.shared.cache.windows import LEFT_MS, SLOW_MS, Windows

CACHE_DIRECTORY: Final = "cache"
# Concurrent requests for chunks, for reads in the loop and for chunks that are read ahead. A chunk has 2 MiB, so 48 MiB
# of them are in memory at most.
REQUESTS_AT_ONCE: Final = 24
WAITING_MAX: Final = 1024  # The chunks that are requested or that reads wait for; further reads are refused.

log = logging.getLogger("store")

FetchDone = Callable[[StoreError | OSError | None], None]


class RangeCache:
    """The chunks of one data directory."""

    def __init__(self, files: Files, objects: ObjectStore, bytes_max: int) -> None:
        """Remove the chunks of the last run. Blocks; raises OSError."""
        self.bytes_max = bytes_max
        self.total_bytes = 0  # The size of the chunks on the disk.
        self.hits = self.misses = 0  # Metrics: reads of chunks that were on the disk, and of others.
        self._files, self._objects = files, objects
        self._writing = Lock()  # Held by a thread that writes and removes files; the loop's thread never takes it.
        # Protects the counts above and the three tables below, which several threads change. No holder waits for I/O.
        self._lock = Lock()
        # The size of each chunk by its start, the least recently read first.
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._wanted: Counter[int] = Counter()  # The number of reads that wait for a chunk, by its start.
        self._windows = Windows(bytes_max)
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # Set by the first fetch, until the end.
        self._slots = asyncio.Semaphore(REQUESTS_AT_ONCE)
        for name in files.list(CACHE_DIRECTORY):
            files.remove(f"{CACHE_DIRECTORY}/{name}")

    def __contains__(self, chunk: RemoteChunk) -> bool:
        with self._lock:
            return chunk.start in self._sizes

    # -- Reading

    def read(self, chunk: RemoteChunk, size: int, at: int) -> bytes | None:
        """Return bytes of a chunk from its byte `at` on; None if the chunk is not on the disk. Raises OSError."""
        with self._lock:
            is_here = chunk.start in self._sizes
            if is_here:
                self._sizes.move_to_end(chunk.start)
                self.hits += 1
            else:
                self.misses += 1
        if not is_here:
            return None
        try:
            handle = self._files.open(_path(chunk.start))
        except FileNotFoundError:
            self._forget_missing(chunk.start)
            return None
        try:
            return self._files.read(handle, size, at)
        finally:
            self._files.close(handle)

    def _forget_missing(self, start: int) -> None:
        """Note that a chunk has no file: another thread or another program has removed it."""
        with self._lock:
            self.total_bytes -= self._sizes.pop(start, 0)
            self._windows.forget(start)

    def fetched(self, chunk: RemoteChunk, size: int, at: int) -> bytes:
        """Return bytes of a chunk, which is requested if it is not on the disk. Blocks; raises StoreError, OSError."""
        found = self.read(chunk, size, at)
        if found is None:
            data = wait_for_chunk(self._objects, chunk)
            try:
                self._keep(chunk, data)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                log.warning("range not kept, the disk is full: start=%d bytes=%d", chunk.start, chunk.size)
            found = data[at : at + size]
        return found

    # -- Fetching

    def want(self, chunks: Sequence[RemoteChunk]) -> None:
        """Keep these chunks on the disk after their download, until `release` is called as often."""
        with self._lock:
            self._wanted.update(each.start for each in chunks)

    def release(self, chunks: Sequence[RemoteChunk]) -> None:
        with self._lock:
            self._wanted.subtract(each.start for each in chunks)
            for each in chunks:
                if self._wanted[each.start] <= 0:
                    del self._wanted[each.start]

    def fetch(self, chunks: Sequence[RemoteChunk], done: FetchDone) -> None:
        """Read chunks back, and call `done` once all of them are on the disk, or with the first error.

        Must be called in the loop's thread.
        """
        self._loop = asyncio.get_running_loop()
        if len(self._under_way) + len(chunks) > WAITING_MAX:
            refusal = StoreError(f"{WAITING_MAX} reads wait for the object store already")
            self._loop.call_soon(done, refusal)
            return
        tasks = [self._begin(each) for each in chunks if each not in self]
        asyncio.create_task(_all_of(tasks)).add_done_callback(lambda task: _report(task, done))

    def next_window(self, chunk: RemoteChunk) -> int:
        """Return how many chunks to ask for when a reader has come to one that was read ahead; 0 if it was not."""
        with self._lock:
            return self._windows.next_window(chunk.start)

    def ask_ahead(self, chunks: Sequence[RemoteChunk], window: int) -> None:
        """Ask for chunks in which no read waits, as far as no other read would wait for that."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_ahead, chunks, window)

    def _begin_ahead(self, chunks: Sequence[RemoteChunk], window: int) -> None:
        for each in chunks:
            if len(self._under_way) >= REQUESTS_AT_ONCE or self._loop is None:
                return
            if each not in self and each.start not in self._under_way:
                with self._lock:
                    if not self._windows.has_room(each.size):
                        return
                    self._windows.note(each.start, window)
                self._loop.call_later(LEFT_MS / 1000, self._with_lock, self._windows.forget, each.start)
                self._begin(each)

    def _with_lock(self, change: Callable[[int], None], start: int) -> None:
        with self._lock:
            change(start)

    def _begin(self, chunk: RemoteChunk) -> "asyncio.Task[None]":
        task = self._under_way.get(chunk.start)
        if task is None:
            task = self._under_way[chunk.start] = asyncio.create_task(self._fetch_one(chunk))
            task.add_done_callback(lambda ended: self._ended(chunk, ended))
        return task

    def _ended(self, chunk: RemoteChunk, task: "asyncio.Task[None]") -> None:
        del self._under_way[chunk.start]
        with self._lock:
            self._windows.note_end(chunk.start)
            if chunk.start not in self._sizes:
                self._windows.forget(chunk.start)
        if not task.cancelled():
            task.exception()  # A read that waits for the chunk reports the error.

    async def _fetch_one(self, chunk: RemoteChunk) -> None:
        loop = asyncio.get_running_loop()
        late = loop.call_later(SLOW_MS / 1000, self._with_lock, self._windows.note_late, chunk.start)
        try:
            # The time includes the wait for the semaphore, so that all reads end together if the store does not answer.
            async with in_time(chunk) as limit, self._slots:
                data = await request_chunk(self._objects, chunk)
                limit.reschedule(None)
                late.cancel()
                # Before the semaphore is released, so that few chunks are in memory.
                await asyncio.to_thread(self._keep, chunk, data)
        finally:
            late.cancel()

    # -- Files

    def _keep(self, chunk: RemoteChunk, data: bytes) -> None:
        """Write a chunk to the disk, and remove others beyond `bytes_max`. Blocks; raises OSError."""
        with self._writing:
            if chunk in self:
                return
            if CACHE_DIRECTORY not in self._files.list("."):
                self._files.make_directory(CACHE_DIRECTORY)
            path = _path(chunk.start)
            with suppress(FileNotFoundError):
                self._files.remove(path)  # A failed write has left the file.
            handle = self._files.open(path, create=True)
            try:
                self._files.write(handle, [data], 0)
            finally:
                self._files.close(handle)
            with self._lock:
                self._sizes[chunk.start] = len(data)
                self.total_bytes += len(data)
                removed = self._take_out_oldest()
            self._remove(removed)

    def _take_out_oldest(self) -> list[int]:
        """Remove the least recently read chunks from the table; return their starts."""
        newest, removed = next(reversed(self._sizes)), list[int]()
        for start in [*self._sizes]:
            if self.total_bytes <= self.bytes_max:
                break
            if start not in self._wanted and start != newest:
                self.total_bytes -= self._sizes.pop(start)
                self._windows.forget(start)
                removed.append(start)
        return removed

    def forget(self, chunks: Sequence[RemoteChunk]) -> None:
        """Remove the chunks of a removed segment. Blocks; raises OSError."""
        with self._writing:
            with self._lock:
                removed = [each.start for each in chunks if each.start in self._sizes]
                for start in removed:
                    self.total_bytes -= self._sizes.pop(start)
                    self._windows.forget(start)
            self._remove(removed)

    def _remove(self, starts: Sequence[int]) -> None:
        for start in starts:
            with suppress(FileNotFoundError):
                self._files.remove(_path(start))

    def stop(self) -> None:
        """End the requests under way. Must be called in the loop's thread."""
        self._loop = None
        for task in self._under_way.values():
            task.cancel()


async def _all_of(tasks: "Sequence[asyncio.Task[None]]") -> None:
    for task in tasks:
        await task


def _report(task: "asyncio.Task[None]", done: FetchDone) -> None:
    """Call `done`, unless the broker stops. A bug is raised in the loop, too."""
    if task.cancelled():
        return
    error = task.exception()
    if error is None or isinstance(error, StoreError | OSError):
        done(error)
        return
    done(Fault(f"a range could not be read back because of {error!r}"))
    raise error


def _path(start: int) -> str:
    return f"{CACHE_DIRECTORY}/{start:020}"
