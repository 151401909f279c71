"""Proves that a broker with `cache_bytes` reads what it has dropped from its disk as it was written."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from duolog.store.entry import Stored
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue
from duolog.store.log.segment import LOG_DIRECTORY, REMOTE_SUFFIX
from duolog.store.shared.cache.cached_files import CachedFiles
from duolog.store.shared.cache.range_cache import CACHE_DIRECTORY
from duolog.store.shared.cache.remote_segment import RemoteChunk, RemoteSegment, decode_drop_marker, encode_drop_marker
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.wal.wal_object import DamagedObject
from duolog.store.store import Store
from tests.kit.disk import CrashDisk
from tests.kit.loop import run
from tests.kit.object_store import StoreFaults
from tests.kit.shared_nodes import SHARED_QUEUE, STORE, SYNC_QUEUE, Node, World, serving, stop_all, until

CACHE_BYTES = 1 << 15
OPTIONS = SharedOptions(
    object_bytes=1 << 13,
    segment_bytes=3 << 12,
    compact_slots=1_000,
    kept_slots=16,
    state_interval_ms=200,
    cache_bytes=CACHE_BYTES,
    range_bytes=1 << 10,
)


def fast() -> StoreFaults:
    """Return a store that answers at once. It is a new one, because a test may change it later."""
    return StoreFaults(latency_ms=(0, 1))


def local_bytes(disk: CrashDisk) -> int:
    return sum(len(data) for path, data in disk.contents().items() if path.startswith((LOG_DIRECTORY, CACHE_DIRECTORY)))


def dropped(disk: CrashDisk) -> list[str]:
    return [path for path in disk.paths() if path.endswith(REMOTE_SUFFIX)]


def store_of(node: Node) -> Store:
    assert node.store is not None
    return node.store


def is_within(node: Node) -> bool:
    """Whether the broker keeps no more on its disk than it should, besides the segments that it cannot drop."""
    assert node.replica is not None
    return node.replica.dropper.bytes_on_disk <= CACHE_BYTES


async def history(world: World, name: str = "a") -> Node:
    """Let a broker own the stream until its log is several times as large as what it keeps, and then be idle."""
    owner = world.start(name, fast())
    await until(lambda: owner.is_serving, world)
    await until(lambda: store_of(owner).next_position > 6 * CACHE_BYTES, world, 600)
    owner.append_ms = 10_000_000
    await until(lambda: store_of(owner).durability.shared == store_of(owner).next_position, world)
    await until(lambda: is_within(owner), world, 300)
    return owner


async def read(store: Store, queue: Queue, offset: int, max_bytes: int = 4096) -> list[Stored]:
    """Read as a request does. Raises StoreError."""
    found = store.reader.read(queue, offset, max_bytes=max_bytes, until=queue.visible_end)
    if isinstance(found, list):
        return found
    outcome: asyncio.Future[list[Stored] | StoreError] = asyncio.get_running_loop().create_future()
    found.start(outcome.set_result)
    entries = await outcome
    if isinstance(entries, StoreError):
        raise entries
    return entries


async def bodies(store: Store, key: int, max_bytes: int = 4096) -> dict[int, bytes]:
    """Read a queue from its start to its end."""
    queue, found = store.queue(key), dict[int, bytes]()
    offset = queue.start_offset
    while offset < queue.visible_end:
        for entry in await read(store, queue, offset, max_bytes):
            found[entry.base_offset] = bytes(entry.frame)
            offset = entry.base_offset + entry.count
    return found


def expected(world: World, key: int) -> dict[int, bytes]:
    return {offset: body for (queue, offset), (_, body) in world.log().items() if queue == key}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_reads_in_any_order_give_what_was_written_and_the_bound_is_kept(seed: int) -> None:
    world, choose = World(seed, OPTIONS), random.Random(seed)

    async def main() -> None:
        owner = await history(world)
        store, most = store_of(owner), 0
        for key in (SHARED_QUEUE, SYNC_QUEUE):
            wanted, queue = expected(world, key), store.queue(key)
            assert await bodies(store, key, choose.choice((1, 700, 3000))) == wanted
            for _ in range(60):
                offset = choose.randrange(queue.visible_end)
                for entry in await read(store, queue, offset, choose.choice((1, 900, 3000))):
                    assert bytes(entry.frame) == wanted[entry.base_offset]
                most = max(most, local_bytes(owner.disk))
        assert most < CACHE_BYTES + 2 * STORE.segment_bytes, "the active segment, and one that is not covered yet"
        assert owner.replica is not None
        cache = owner.replica._files.cache
        assert cache.hits > 0 < cache.misses
        assert cache.total_bytes <= CACHE_BYTES // 4
        assert not cache._wanted
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
def test_scan_costs_one_request_for_each_chunk() -> None:
    world = World(1, OPTIONS)

    async def main() -> None:
        owner = await history(world)
        assert owner.replica is not None
        chunks = sum(len(each.chunks) for each in owner.replica._files._remote.values())
        assert chunks > 50
        before = len(world.bucket.history)
        await bodies(store_of(owner), SHARED_QUEUE)
        gets = [each for each in world.bucket.history[before:] if each.key.startswith("seg/") and each.kind == "effect"]
        assert 10 < len(gets) <= chunks * 1.1
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False])
def test_restarted_broker_and_a_standby_that_takes_over_read_what_they_have_dropped(is_killed: bool) -> None:
    world = World(3, OPTIONS)

    async def main() -> None:
        owner = await serving(world, fast())
        standby = world.start("b", fast())
        await until(lambda: store_of(owner).next_position > 6 * CACHE_BYTES, world, 600)
        owner.append_ms = 10_000_000
        await until(lambda: is_within(owner) and is_within(standby), world, 300)
        if is_killed:
            owner.kill()
            await until(lambda: standby.is_serving, world)
        else:
            standby.kill()
            owner.kill()
            standby = await serving(world)
        standby.append_ms = 10_000_000
        await world.pass_s(1)
        assert local_bytes(standby.disk) < CACHE_BYTES + 2 * STORE.segment_bytes
        assert not [path for path in standby.disk.paths() if path.startswith(CACHE_DIRECTORY)]
        for key in (SHARED_QUEUE, SYNC_QUEUE):
            assert await bodies(store_of(standby), key) == expected(world, key)
        await stop_all(world)
        world.check()

    run(main(), world.clock)


@pytest.mark.slow
def test_start_without_a_checkpoint_builds_its_state_from_the_object_store() -> None:
    world = World(4, OPTIONS)

    async def main() -> None:
        owner = await history(world)
        state = owner.replayer.state
        assert owner.replica is not None
        chunks = sum(len(each.chunks) for each in owner.replica._files._remote.values())
        owner.kill()
        disk = owner.disk.after_kill()
        disk.remove("checkpoint")
        before = len(world.bucket.history)
        again = world.start("a", disk=disk)
        await until(lambda: again.is_serving, world)
        gets = [each for each in world.bucket.history[before:] if each.key.startswith("seg/") and each.kind == "effect"]
        assert chunks < len(gets) < 2.2 * chunks, "they are verified and replayed, and not written again"
        again.append_ms = 10_000_000
        await world.pass_s(1)
        assert dropped(again.disk)
        assert again.replayer.last.items() >= {k: v for k, v in state[2].items() if not k.isdigit()}.items()
        for key in (SHARED_QUEUE, SYNC_QUEUE):
            assert await bodies(store_of(again), key) == expected(world, key)
        await stop_all(world)

    run(main(), world.clock)


# -- Faults


def _busy(faults: StoreFaults) -> None:
    # Two lost answers of 5 s would be the 10 s after which a read ends with an error.
    faults.busy, faults.lost_answer, faults.timeout_ms = 0.3, 0.02, 1_000


def _slow(faults: StoreFaults) -> None:
    faults.latency_ms = (500, 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [_busy, _slow])
def test_reads_wait_while_the_store_is_busy_or_slow(spoil: Callable[[StoreFaults], None]) -> None:
    world = World(5, replace(OPTIONS, takeover_ms=20_000))

    async def main() -> None:
        owner = await history(world)
        spoil(owner.faults)
        assert await bodies(store_of(owner), SYNC_QUEUE) == expected(world, SYNC_QUEUE)
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
def test_read_of_a_store_that_does_not_answer_ends_with_an_error_and_later_ones_succeed() -> None:
    world = World(6, replace(OPTIONS, takeover_ms=20_000))

    async def main() -> None:
        owner = await history(world)
        owner.faults.is_cut = True
        queue = store_of(owner).queue(SHARED_QUEUE)
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(StoreError, match="has not answered within 10 s: read again later"):
            await read(store_of(owner), queue, 0)
        assert asyncio.get_running_loop().time() - begun_s < 11
        owner.faults.is_cut = False
        await world.pass_s(10)  # The requests that were under way end.
        assert await bodies(store_of(owner), SHARED_QUEUE) == expected(world, SHARED_QUEUE)
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_damaged_object_fails_the_reads_of_its_positions_alone(damage: str) -> None:
    world = World(7, OPTIONS)

    async def main() -> None:
        owner = await history(world)
        store, queue = store_of(owner), store_of(owner).queue(SHARED_QUEUE)
        wanted = expected(world, SHARED_QUEUE)
        objects = world.bucket.objects
        key = sorted(key for key in objects if key.startswith("seg/"))[2]
        content = objects.pop(key)
        if damage != "missing":
            objects[key] = content[: len(content) // 2] if damage == "short" else bytes(len(content))
        start, _, end = key.removeprefix("seg/").partition("-")
        failures: list[str] = []
        for offset in [*wanted][::3]:
            try:
                (entry, *_) = await read(store, queue, offset, 1)
            except DamagedObject as error:
                failures.append(str(error))
                continue
            assert bytes(entry.frame) == wanted[offset]
            is_inside = int(start) <= entry.position < int(end)
            assert not is_inside or damage == "short"
        assert failures
        assert all(key in each for each in failures)
        objects[key] = content
        assert await bodies(store, SHARED_QUEUE) == wanted
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
def test_damaged_local_segment_is_not_dropped_and_later_ones_are(caplog: pytest.LogCaptureFixture) -> None:
    world = World(8, replace(OPTIONS, cache_bytes=0))

    async def main() -> None:
        owner = await serving(world, fast())
        await until(lambda: store_of(owner).next_position > 6 * CACHE_BYTES, world, 600)
        assert not dropped(owner.disk), "no bound, so nothing is dropped"
        first = f"{LOG_DIRECTORY}/{0:020}.log"
        owner.disk.flip(first, 4000)
        world.options = OPTIONS
        owner.kill()
        owner = await serving(world)
        owner.append_ms = 10_000_000
        await until(lambda: is_within(owner), world, 300)
        assert first in owner.disk.paths()
        assert len(dropped(owner.disk)) > 3
        errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len(errors) == 1, "it is not tried again at once"
        assert f"could not be dropped, it is tried again: {first} is damaged from position" in errors[0]
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_brokers_with_a_bound_lose_nothing_while_they_take_over_and_remove_segments(seed: int) -> None:
    world, choose = World(seed, OPTIONS), random.Random(seed)
    world.trims = True

    async def main() -> None:
        for name in "ab":
            world.start(name, fast())
        for _ in range(4):
            await until(lambda: bool(world.owners), world)
            owner = world.owners[0]
            await world.pass_s(choose.uniform(5, 15))
            fault = choose.choice(("kill", "pause", "lose"))
            if fault == "pause":
                owner.pause(8)
            else:
                owner.kill()
                if fault == "lose":
                    owner.lose_disk()
                await world.pass_s(choose.uniform(0, 5))
                world.start(owner.name)
        await until(lambda: bool(world.owners), world)
        owner = world.owners[0]
        owner.append_ms = 10_000_000
        await world.pass_s(5)
        for key in (SHARED_QUEUE, SYNC_QUEUE):
            wanted = expected(world, key)
            for offset, body in (await bodies(store_of(owner), key)).items():
                assert wanted[offset] == body
        await stop_all(world)
        world.check()

    run(main(), world.clock)


# -- Files


def _segment() -> RemoteSegment:
    return RemoteSegment([RemoteChunk(64, 100, 7, 0, 164), RemoteChunk(164, 36, 9, 164, 500)])


def test_marker_reads_back_and_every_changed_byte_is_noticed() -> None:
    data = encode_drop_marker(_segment())
    assert list(decode_drop_marker("x", data).chunks) == list(_segment().chunks)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(StoreError, match="is damaged"):
            decode_drop_marker("x", bytes(changed))
        with pytest.raises(StoreError):
            decode_drop_marker("x", data[:at])


def test_power_cut_in_any_step_of_a_drop_leaves_the_segment_on_the_disk_or_in_the_store() -> None:
    content = b"u" * 136

    def prepared(cut_at: int | None = None) -> CrashDisk:
        disk = CrashDisk()
        disk.make_directory(LOG_DIRECTORY)
        for start in (64, 200):
            handle = disk.open(f"{LOG_DIRECTORY}/{start:020}.log", create=True)
            disk.write(handle, [content], 0)
            disk.sync(handle)
            disk.close(handle)
        disk.sync_directory(LOG_DIRECTORY)
        disk.sync_directory(".")
        disk.cut_at = None if cut_at is None else disk.operations + cut_at
        return disk

    def drop(disk: CrashDisk) -> None:
        files, segment = CachedFiles(disk, World(0).bucket.client("x"), 1 << 20), _segment()
        files.put_drop_marker(segment)
        files.drop(segment)
        files.remove_file(segment.path)

    disk = prepared()
    before = disk.operations
    drop(disk)
    path = _segment().path
    for cut_at in range(1, disk.operations - before + 1):
        disk = prepared(cut_at)
        with pytest.raises(BaseException, match="operation"):
            drop(disk)
        for seed in range(20):
            found = disk.after_power_cut(seed)
            files = CachedFiles(found, World(0).bucket.client("x"), 1 << 20)
            assert [name for name in files.list(LOG_DIRECTORY) if name.endswith(".log")] == [
                f"{64:020}.log",
                f"{200:020}.log",
            ]
            handle = files.open(path)
            assert files.size(handle) == 136
            assert files.is_remote(path) != (path in found.paths())
            files.close(handle)
