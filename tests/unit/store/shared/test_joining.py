"""Proves which data directories may join which prefix, and that a damaged or foreign one is refused with a remedy."""

import asyncio
from collections.abc import Callable

import pytest

from duolog.store.errors import StoreError
from duolog.store.files import read_whole, write_new
from duolog.store.log.segment import LOG_DIRECTORY, Segment
from duolog.store.options import StoreOptions
from duolog.store.recovery.checkpoint import snapshot_path
from duolog.store.shared.copy_state import read_copy_state
from duolog.store.shared.joining import AHEAD
from duolog.store.shared.local_copy import LocalCopy
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.own_log import PATH
from duolog.store.shared.wal.stream import KEY, encode_stream
from duolog.store.shared.wal.wal_object import key_of
from duolog.store.store import Store
from tests.kit.disk import CrashDisk
from tests.kit.loop import run
from tests.kit.shared_nodes import Node, Sums, World, serving, stop_all, until


async def served(world: World, name: str = "a") -> Node:
    """Return a node that has served and was killed."""
    node = world.start(name)
    await until(lambda: node.is_serving, world)
    await world.pass_s(1)
    node.kill()
    return node


def with_a_log(disk: CrashDisk) -> None:
    Store.open(disk, StoreOptions(spare_bytes=0), Sums(), 1).close(2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda world, disk: world.bucket.objects.clear(), "the prefix in the store is empty"),
        (lambda world, disk: world.bucket.objects.update({KEY: encode_stream(b"x" * 16)}), "two clusters must not use"),
        (lambda world, disk: world.bucket.objects.update({KEY: b'{"format": 2}'}), "is damaged"),
        (
            lambda world, disk: world.bucket.objects.update({KEY: b'{"format": 2, "stream": "00"}'}),
            "has format 2.*start a newer version",
        ),
        (lambda world, disk: disk.flip(PATH, 30), "the file shared has magic.*remove the data directory"),
        (
            lambda world, disk: world.bucket.objects.update({key_of(6): world.bucket.objects[key_of(6)][:-1]}),
            "the object wal/0{19}6 is damaged.*restore this object",
        ),
    ],
)  # fmt: skip
def test_start_that_would_lose_or_mix_data_is_refused(change: Callable[[World, CrashDisk], None], reason: str) -> None:
    world = World(1)

    async def main() -> None:
        node = await served(world)
        change(world, node.disk)
        node = world.start("a") if "wal" not in reason else world.start("b")
        assert node.task is not None
        with pytest.raises(StoreError, match=reason):
            await node.task
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.parametrize("name", ["a", "b"])
def test_start_that_finds_a_slot_removed_in_the_middle_writes_nothing_into_it(name: str) -> None:
    world = World(1, SharedOptions(state_interval_ms=1_000_000))

    async def main() -> None:
        node = await serving(world)
        await world.pass_s(4)
        node.kill()
        del world.bucket.objects[key_of(5)]
        node = world.start(name)
        assert node.task is not None
        with pytest.raises(StoreError, match=r"the object wal/0{19}5 is missing, and wal/0{18}21 follows it: restore"):
            await node.task
        assert key_of(5) not in world.bucket.objects
        await stop_all(world)

    run(main(), world.clock)


def test_segment_that_begins_where_the_log_is_cut_stays_if_all_segments_before_it_were_removed() -> None:
    # A start with an empty disk failed: it has a snapshot, and an empty segment at its position.
    disk, first = CrashDisk(), Segment(4096)
    disk.make_directory(LOG_DIRECTORY)
    write_new(disk, snapshot_path(first.start), b"")
    write_new(disk, first.path, bytes(64))
    write_new(disk, Segment(8192).path, b"")
    LocalCopy(disk).cut(first.start)
    assert disk.list(LOG_DIRECTORY) == [path.removeprefix("log/") for path in (first.path, snapshot_path(first.start))]
    assert read_whole(disk, first.path) == b""


def test_log_that_is_no_copy_is_refused() -> None:
    world = World(1)

    async def main() -> None:
        await served(world)
        disk = CrashDisk()
        with_a_log(disk)
        node = world.start("b", disk=disk)
        assert node.task is not None
        with pytest.raises(StoreError, match=r"has a log of its own.*use an empty data directory"):
            await node.task
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
def test_restarted_owner_keeps_what_it_had_not_uploaded_if_nobody_took_over() -> None:
    world = World(1)

    async def main() -> None:
        node = await serving(world)
        node.faults.is_cut = True
        await world.pass_s(1)
        assert node.store is not None
        end, shared = node.store.written, node.store.durability.shared
        assert end > shared
        node.kill()
        node.faults.is_cut = False
        begun_mono_ms = world.clock.mono_ms()
        again = await serving(world)
        assert world.clock.mono_ms() - begun_mono_ms < 500, "it does not wait for a takeover"
        assert again.lost_units == 0
        assert again.store is not None
        assert again.store.durability.shared > end, "it serves once the store has everything"
        await asyncio.sleep(11)
        state = read_copy_state(again.disk)
        assert state is not None
        assert state.tail.position > end
        await stop_all(world)
        world.check()

    run(main(), world.clock)


def test_restarted_owner_compares_its_log_with_many_slots_at_a_time() -> None:
    # One slot after the other, each after a look for new manifests, took a minute with a store of 200 ms.
    world = World(1, SharedOptions())

    async def main() -> None:
        node = await serving(world)
        await world.pass_s(9)
        node.kill()
        slots = sum(key.startswith("wal/") for key in world.bucket.objects)
        assert slots > 60
        node.faults.latency_ms = (200, 200)
        begun_mono_ms = world.clock.mono_ms()
        await serving(world)
        assert world.clock.mono_ms() - begun_mono_ms < 200 * (slots // AHEAD + 15)
        await stop_all(world)
        world.check()

    run(main(), world.clock)
