"""Proves what the local cache does when a segment cannot be dropped, a file vanishes, or a start must be refused."""

import asyncio
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from crc32c import crc32c

from duolog.store.backup.manifest import CopiedFile
from duolog.store.backup.sources import BackupPlan, Sources, verify_log
from duolog.store.errors import StoreError
from duolog.store.files import RealFiles
from duolog.store.log.format import POSITION_MAX
from duolog.store.log.segment import LOG_DIRECTORY, Segments, list_segments
from duolog.store.objects.interface import ObjectStore
from duolog.store.recovery.repair import Placeholder, RepairRefused, plan_repair
from duolog.store.shared.cache.cached_files import CachedFiles
from duolog.store.shared.cache.dropping import _in_thread
from duolog.store.shared.cache.range_cache import CACHE_DIRECTORY, REQUESTS_AT_ONCE, RangeCache
from duolog.store.shared.cache.remote_segment import RemoteChunk, RemoteSegment, encode_drop_marker
from tests.kit.disk import CrashDisk, PowerCut
from tests.kit.loop import run
from tests.kit.object_store import StoreFaults
from tests.kit.shared_nodes import SHARED_QUEUE, World, serving, stop_all, until
from tests.unit.store.shared.test_local_cache import (
    CACHE_BYTES,
    OPTIONS,
    dropped,
    fast,
    history,
    is_within,
    read,
    store_of,
)


@pytest.mark.slow
def test_segment_that_no_objects_have_stays_and_later_ones_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    world = World(3, replace(OPTIONS, cache_bytes=0))

    async def main() -> None:
        owner = await serving(world, fast())
        await until(lambda: store_of(owner).next_position > 6 * CACHE_BYTES, world, 600)
        owner.append_ms = 10_000_000
        await world.pass_s(30)
        assert owner.replica is not None
        dropper = owner.replica.dropper
        await dropper._manifests.refresh()
        dropper._manifests.segments = dropper._manifests.segments[1:]
        dropper._options = OPTIONS
        await until(lambda: is_within(owner), world, 300)
        first = f"{LOG_DIRECTORY}/{0:020}.log"
        assert first in owner.disk.paths()
        assert len(dropped(owner.disk)) > 3
        warnings = [each for each in caplog.records if "no objects have all of it" in each.getMessage()]
        assert len(warnings) == 1
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
def test_dropped_segments_end_below_the_position_that_a_start_compares_from() -> None:
    world = World(3, OPTIONS)

    async def main() -> None:
        owner = await history(world)
        assert owner.replica is not None
        local = owner.replica.dropper._local
        first, second, *_ = local._segments
        assert [*local.droppable(second.known_end, lambda _: False)] == [first]
        assert [*local.droppable(second.known_end + 1, lambda _: False)] == [first, second]
        saved = owner.replica.dropper._saved().position
        assert all(each.end < saved for each in owner.replica._files._remote.values())
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
def test_range_whose_file_was_removed_is_read_back_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, OPTIONS)
    fetches, fetch = list[object](), RangeCache.fetch

    def counted(self: RangeCache, *arguments: object) -> None:
        fetches.append(arguments)
        assert len(fetches) < 100, "the read does not end"
        fetch(self, *arguments)  # type: ignore[arg-type]

    async def main() -> None:
        owner = await history(world)
        store = store_of(owner)
        queue = store.queue(SHARED_QUEUE)
        before = [bytes(each.frame) for each in await read(store, queue, 0, 1)]
        removed = [path for path in owner.disk.paths() if path.startswith(CACHE_DIRECTORY)]
        assert removed
        for path in removed:
            owner.disk.remove(path)
        monkeypatch.setattr(RangeCache, "fetch", counted)
        assert [bytes(each.frame) for each in await read(store, queue, 0, 1)] == before
        assert 1 <= len(fetches) < 5
        assert owner.replica is not None
        cache = owner.replica._files.cache
        assert cache.total_bytes == sum(cache._sizes.values())
        await stop_all(world)

    run(main(), world.clock)


def test_cancelled_step_ends_before_its_generator_is_closed() -> None:
    begun, may_end = Event(), Event()

    def step() -> int:
        begun.set()
        assert may_end.wait(60)
        return 1

    async def main() -> None:
        task = asyncio.create_task(_in_thread(step))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done(), "the step is running in its thread"
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


@pytest.mark.slow
def test_segment_that_a_lease_holds_is_not_dropped() -> None:
    world = World(3, replace(OPTIONS, cache_bytes=0))

    async def main() -> None:
        owner = await serving(world, fast())
        await until(lambda: store_of(owner).next_position > 6 * CACHE_BYTES, world, 600)
        owner.append_ms = 10_000_000
        await world.pass_s(30)
        assert owner.replica is not None
        dead_segments, dropper = store_of(owner).retention.dead_segments, owner.replica.dropper
        _, second, *_ = dropper._local._segments
        dead_segments.held_from = second.start
        dropper._options = OPTIONS
        await until(lambda: bool(dropped(owner.disk)), world)
        await world.pass_s(60)
        assert len(dropped(owner.disk)) == 1
        assert second.path in owner.disk.paths()
        dead_segments.held_from = POSITION_MAX
        await until(lambda: is_within(owner), world, 300)
        assert second.path not in owner.disk.paths()
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
def test_backup_reads_dropped_segments_and_opens_the_object_store_once(tmp_path: Path) -> None:
    world = World(2, OPTIONS)
    disk = CrashDisk()

    async def main() -> None:
        nonlocal disk
        owner = await history(world)
        await stop_all(world)
        disk = owner.disk.after_kill()

    run(main(), world.clock)
    for path, content in disk.contents().items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    opened = list[ObjectStore]()

    def open_objects() -> ObjectStore:
        opened.append(world.bucket.client("x", fast()))
        return opened[-1]

    cached, copied = CachedFiles(disk, world.bucket.client("y", fast()), 1 << 20), list[CopiedFile]()
    sealed = list_segments(cached)[:-1]
    assert sum(cached.is_remote(each.path) for each in sealed) > 3
    for each in sealed:
        assert not each.is_gap
        copied.append(CopiedFile(each.path, each.known_end - each.start))
    end = sealed[-1].known_end
    plan = BackupPlan(str(tmp_path), end, copied, [])
    sources = Sources(plan, open_objects)
    verify_log(sources.copied_files, end)
    for segment, file in zip(sealed, copied, strict=True):
        handle = cached.open(segment.path)
        assert b"".join(sources.blocks(file)) == cached.read(handle, file.size, 0)
        cached.close(handle)
    sources.close()
    assert len(opened) == 1
    with pytest.raises(StoreError, match=r"is in the object store only: add --set shared.url=URL"):
        verify_log(Sources(plan).copied_files, end)


def test_all_reads_that_wait_for_a_store_without_answers_end_within_the_time_of_one() -> None:
    world = World(0)
    count = 10 * REQUESTS_AT_ONCE
    chunks = [RemoteChunk(number * 64, 64, crc32c(bytes(64)), 0, 64 * count) for number in range(count)]
    world.bucket.objects[chunks[0].key] = bytes(64 * count)
    faults = StoreFaults(is_cut=True)

    async def main() -> None:
        cache, loop = RangeCache(CrashDisk(), world.bucket.client("x", faults), 64 * count), asyncio.get_running_loop()
        begun_s = loop.time()

        async def outcomes() -> list[StoreError | OSError | None]:
            futures = [loop.create_future() for _ in chunks]
            for chunk, future in zip(chunks, futures, strict=True):
                cache.want([chunk])
                cache.fetch([chunk], future.set_result)
            return await asyncio.gather(*futures)

        for error in await outcomes():
            assert isinstance(error, StoreError)
            assert "has not answered within 10 s: read again later" in str(error)
        assert loop.time() - begun_s < 11
        faults.is_cut = False
        assert await outcomes() == [None] * count
        assert all(cache.read(each, 64, 0) == bytes(64) for each in chunks)

    run(main(), world.clock)


# -- Removal by retention


def _three_segments(cut_at: int | None = None) -> CrashDisk:
    disk = CrashDisk()
    disk.make_directory(LOG_DIRECTORY)
    for start in (0, 136, 272):
        handle = disk.open(f"{LOG_DIRECTORY}/{start:020}.log", create=True)
        disk.write(handle, [b"u" * 136], 0)
        disk.sync(handle)
        disk.close(handle)
    disk.sync_directory(LOG_DIRECTORY)
    disk.sync_directory(".")
    disk.cut_at = None if cut_at is None else disk.operations + cut_at
    return disk


def _remove_while_it_is_dropped(disk: CrashDisk, step: str) -> None:
    """Remove the first two segments after a step of the drop of the first one."""
    files = CachedFiles(disk, World(0).bucket.client("x"), 1 << 20)
    chain = list_segments(files)
    segments, first = Segments(files, chain, 8), RemoteSegment([RemoteChunk(0, 136, 7, 0, 136)])
    files.put_drop_marker(first)
    if step != "marker":
        files.drop(first)
    if step == "file":
        files.remove_file(first.path)
    segments.take_out(chain[:2]).run()
    if step == "marker":
        files.remove_drop_marker(first)
    elif step == "drop":
        files.remove_file(first.path)


@pytest.mark.parametrize("step", ["marker", "drop", "file"])
def test_power_cut_while_retention_removes_a_segment_that_is_dropped_leaves_no_marker_behind(step: str) -> None:
    disk = _three_segments()
    before = disk.operations
    _remove_while_it_is_dropped(disk, step)
    assert disk.paths() == [f"{LOG_DIRECTORY}/{272:020}.log"]
    for cut_at in range(1, disk.operations - before + 1):
        disk = _three_segments(cut_at)
        with pytest.raises(PowerCut):
            _remove_while_it_is_dropped(disk, step)
        for found in (disk.after_kill(), *(disk.after_power_cut(seed) for seed in range(20))):
            files = CachedFiles(found, World(0).bucket.client("x"), 1 << 20)
            chain = list_segments(files)
            assert chain[-1].start == 272
            for each in chain[:-1]:
                handle = files.open(each.path)
                assert files.size(handle) == each.known_end - each.start, "no segment is missing"
                files.close(handle)
            Segments(files, chain, 8).take_out(chain[:-1]).run()
            assert found.paths() == [f"{LOG_DIRECTORY}/{272:020}.log"]


# -- Refusals


def _remote(files: RealFiles | CrashDisk) -> RemoteSegment:
    """Make a data directory whose first segment was dropped."""
    segment = RemoteSegment([RemoteChunk(0, 136, 7, 0, 136)])
    files.make_directory(LOG_DIRECTORY)
    for path, content in (
        (segment.drop_marker_path, encode_drop_marker(segment)),
        (f"{LOG_DIRECTORY}/{136:020}.log", b""),
    ):
        handle = files.open(path, create=True)
        files.write(handle, [content], 0)
        files.close(handle)
    return segment


def test_bytes_of_a_dropped_segment_cannot_be_changed() -> None:
    disk = CrashDisk()
    segment = _remote(disk)
    files = CachedFiles(disk, World(0).bucket.client("x"), 1 << 20)
    handle = files.open(segment.path)
    for change in (
        lambda: files.write(handle, [b"x"], 0),
        lambda: files.sync(handle),
        lambda: files.reserve(handle, 200),
        lambda: files.truncate(handle, 64),
    ):
        with pytest.raises(StoreError, match=f"{segment.path} cannot be changed, because it is in the object store"):
            change()


def test_log_with_dropped_segments_is_refused_without_the_object_store() -> None:
    disk = CrashDisk()
    segment = _remote(disk)
    with pytest.raises(StoreError, match=rf"{segment.path} and 0 more segments .* duolog move"):
        list_segments(disk)
    cached = CachedFiles(disk, World(0).bucket.client("x"), 1 << 20)
    assert [each.start for each in list_segments(cached)] == [0, 136]


def test_repair_of_a_log_with_dropped_segments_is_refused(tmp_path: Path) -> None:
    files = RealFiles(str(tmp_path / "data"))
    _remote(files)
    with pytest.raises(RepairRefused, match=r"1 of its segments are in the object store only.* duolog move"):
        plan_repair(files, lambda *_: Placeholder(0, b""))
