"""Proves how many chunks of dropped segments are asked for ahead of readers, with a store of 200 ms in virtual time."""

import asyncio

import pytest
from crc32c import crc32c

from duolog.store.errors import StoreError
from duolog.store.files import NotOnDisk
from duolog.store.shared.cache.cached_files import CachedFiles
from duolog.store.shared.cache.range_cache import REQUESTS_AT_ONCE
from duolog.store.shared.cache.remote_segment import RemoteChunk, RemoteSegment
from duolog.store.shared.cache.windows import LEFT_MS, SLOW_MS, WINDOW_MAX, WINDOW_MIN
from tests.kit.disk import CrashDisk
from tests.kit.loop import run
from tests.kit.object_store import StoreFaults
from tests.kit.shared_nodes import World

LATENCY_MS = 200
CHUNK_BYTES = 64
SEGMENTS, SEGMENT_CHUNKS = 4, 60
SEGMENT_BYTES = SEGMENT_CHUNKS * CHUNK_BYTES
ROOM_CHUNKS = 4 * WINDOW_MAX


class Reader:
    """Reads dropped segments as cold reads do: it waits in the loop for what is not on the disk."""

    def __init__(self, world: World, room_chunks: int = ROOM_CHUNKS) -> None:
        self._world = world
        self.faults = StoreFaults(latency_ms=(LATENCY_MS, LATENCY_MS))
        self.files = CachedFiles(CrashDisk(), world.bucket.client("x", self.faults), room_chunks * CHUNK_BYTES)
        for start in range(0, SEGMENTS * SEGMENT_BYTES, SEGMENT_BYTES):
            end, content = start + SEGMENT_BYTES, bytes(SEGMENT_BYTES)
            positions = range(start, end, CHUNK_BYTES)
            chunks = [RemoteChunk(at, CHUNK_BYTES, crc32c(bytes(CHUNK_BYTES)), start, end) for at in positions]
            world.bucket.objects[chunks[0].key] = content
            self.files.drop(RemoteSegment(chunks))

    @property
    def asked(self) -> int:
        return sum(each.key.startswith("seg/") and each.kind == "effect" for each in self._world.bucket.history)

    async def read(self, chunk: int) -> None:
        segment, number = divmod(chunk, SEGMENT_CHUNKS)
        handle = self.files.open(f"log/{segment * SEGMENT_BYTES:020}.log")
        try:
            while True:
                try:
                    assert self.files.read_on_disk(handle, CHUNK_BYTES, number * CHUNK_BYTES) == bytes(CHUNK_BYTES)
                    return
                except NotOnDisk as lacking:
                    outcome: asyncio.Future[StoreError | OSError | None] = asyncio.get_running_loop().create_future()
                    lacking.range.fetch(outcome.set_result)
                    assert await outcome is None
                    lacking.range.release()
        finally:
            self.files.close(handle)

    async def settle(self) -> None:
        """Wait until no request is under way."""
        await asyncio.sleep(0)
        while self.files.cache._under_way:
            await asyncio.wait([*self.files.cache._under_way.values()])


def test_scan_over_segments_has_as_many_requests_under_way_as_there_may_be() -> None:
    world = World(0)
    chunks = SEGMENTS * SEGMENT_CHUNKS

    async def main() -> None:
        reader, loop = Reader(world), asyncio.get_running_loop()
        begun_s = loop.time()
        for chunk in range(chunks):
            await reader.read(chunk)
        round_trips = (loop.time() - begun_s) * 1000 / LATENCY_MS
        assert chunks / REQUESTS_AT_ONCE <= round_trips < chunks / REQUESTS_AT_ONCE + 6, "six until the window is full"
        assert reader.asked == chunks, "each chunk once"

    run(main(), world.clock)


def test_reader_that_jumps_has_nothing_read_ahead_and_one_that_ends_a_window() -> None:
    world = World(0)

    async def main() -> None:
        reader = Reader(world)
        for chunk in range(SEGMENT_CHUNKS - 1, 1, -5):
            await reader.read(chunk)
        await reader.settle()
        assert reader.asked == len(range(SEGMENT_CHUNKS - 1, 1, -5))
        first = 2 * SEGMENT_CHUNKS
        before = reader.asked
        for chunk in range(first, first + 2):
            await reader.read(chunk)
        await reader.settle()
        assert reader.asked - before == 2 + 2 * WINDOW_MIN

    run(main(), world.clock)


def test_chunks_that_readers_have_left_take_at_most_half_of_the_room() -> None:
    world = World(0)
    room_chunks = 16

    async def main() -> None:
        reader = Reader(world, room_chunks)
        for first in range(0, SEGMENTS * SEGMENT_CHUNKS, SEGMENT_CHUNKS):
            for chunk in range(first, first + 3):
                await reader.read(chunk)
        await reader.settle()
        unread = [each for each in reader.files.cache._sizes if each // CHUNK_BYTES % SEGMENT_CHUNKS >= 3]
        assert 0 < len(unread) <= room_chunks // 2

    run(main(), world.clock)


def test_chunks_that_readers_have_left_leave_room_for_other_readers_after_a_while() -> None:
    world = World(0)

    async def main() -> None:
        reader, loop = Reader(world, 2 * WINDOW_MAX + 2), asyncio.get_running_loop()

        async def scan_s(segment: int) -> float:
            """Read half of a segment, and return how long it took."""
            begun_s = loop.time()
            for chunk in range(segment * SEGMENT_CHUNKS, segment * SEGMENT_CHUNKS + SEGMENT_CHUNKS // 2):
                await reader.read(chunk)
            return loop.time() - begun_s

        first_s = await scan_s(0)
        assert await scan_s(1) > first_s, "the first reader has left half of the room full"
        await asyncio.sleep(LEFT_MS / 1000)
        assert await scan_s(2) == pytest.approx(first_s)

    run(main(), world.clock)


@pytest.mark.parametrize(("room", "asked"), [(8, 1 + WINDOW_MIN), (7, 1), (0, 1)])
def test_nothing_is_read_ahead_with_room_for_few_chunks(room: int, asked: int) -> None:
    world = World(0)

    async def main() -> None:
        reader = Reader(world, room)
        await reader.read(0)
        await reader.settle()
        assert reader.asked == asked

    run(main(), world.clock)


def test_windows_are_small_while_a_download_is_slow() -> None:
    world = World(0)

    async def main() -> None:
        reader = Reader(world)
        for chunk in range(4):
            await reader.read(chunk)
        await reader.settle()
        reader.faults.latency_ms = (2 * SLOW_MS, 2 * SLOW_MS)
        slow = asyncio.create_task(reader.read(3 * SEGMENT_CHUNKS + 30))
        await asyncio.sleep(SLOW_MS / 1000 + 1)
        await reader.read(4)
        await asyncio.sleep(0)
        assert len(reader.files.cache._under_way) == 1, "only the slow one: the next chunks are on the disk"
        await slow
        await reader.read(5)
        await asyncio.sleep(0)
        assert len(reader.files.cache._under_way) > 2 * WINDOW_MIN - 2

    run(main(), world.clock)
