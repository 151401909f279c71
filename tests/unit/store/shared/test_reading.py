"""Proves that a reader of the store gets each unit of the log once, wherever it is by then, or an error."""

import itertools
import random
from collections.abc import Sequence

import pytest

from duolog.store.errors import StoreError
from duolog.store.log.log_reader import LogRange
from duolog.store.log.segment import LOG_DIRECTORY
from duolog.store.objects.errors import StoreRefused
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.reading import Positions, SharedLogReader, find_ranges
from duolog.store.shared.wal.stream import KEY, decode_stream
from tests.kit.loop import run
from tests.kit.object_store import SimulatedBucket, StoreFaults
from tests.kit.shared_nodes import Node, World, serving, stop_all, until

OPTIONS = SharedOptions(
    object_bytes=1 << 13, segment_bytes=1 << 14, compact_slots=10, kept_slots=16, state_interval_ms=200
)
URL = "s3://bucket/prefix"
WAIT_MS = 1_000


async def ranges_of(world: World, wanted: Sequence[Positions], stream: bytes = b"") -> list[LogRange]:
    objects = world.bucket.client("spark")
    return await find_ranges(objects, URL, stream or decode_stream(world.bucket.objects[KEY]), wanted, WAIT_MS)


def read(bucket: SimulatedBucket, ranges: Sequence[LogRange]) -> bytes:
    """Return the units of the ranges, each of which was read once, in the order of their positions."""
    objects = bucket.client("spark", StoreFaults(latency_ms=(0, 0)))
    found: dict[int, bytes] = {}
    with SharedLogReader(objects, URL) as reader:
        for range_ in ranges:
            for unit in reader.units(range_):
                assert unit.header.position not in found, "a unit was read twice"
                found[unit.header.position] = bytes(unit.content)
    return b"".join(found[position] for position in sorted(found))


def local_log(node: Node) -> bytes:
    contents = node.disk.contents()
    return b"".join(
        contents[path] for path in sorted(contents) if path.startswith(LOG_DIRECTORY) and path.endswith(".log")
    )


@pytest.mark.parametrize("seed", range(6))
def test_each_unit_is_read_once_from_segment_objects_and_wal_objects(seed: int) -> None:
    world, choose = World(seed, OPTIONS), random.Random(seed)

    async def main() -> tuple[list[LogRange], bytes]:
        owner = await serving(world)
        standby = world.start("b")
        await world.pass_s(3)
        owner.pause(10)
        await until(lambda: standby.is_serving, world)
        await world.pass_s(choose.uniform(2, 4))
        assert standby.store is not None
        end = standby.store.written
        ranges = await ranges_of(world, [Positions(0, end)])
        standby.append_ms = 10_000_000
        await world.pass_s(1)
        log = local_log(standby)[:end]
        await stop_all(world)
        return ranges, log

    ranges, log = run(main(), world.clock)
    assert {path.partition("/")[0] for path, *_ in ranges} == {"seg", "wal"}
    assert read(world.bucket, ranges) == log
    places = sorted({0, len(log), *(choose.randrange(len(log)) for _ in range(40))})
    pieces = [
        LogRange(path, first, max(start, low), min(end, high))
        for path, first, start, end in ranges
        for low, high in itertools.pairwise(places)
        if start < high and low < end
    ]
    assert read(world.bucket, pieces) == log


def test_a_wal_object_that_was_compacted_meanwhile_is_read_from_its_segment_object() -> None:
    world = World(5, OPTIONS)

    async def main() -> tuple[list[LogRange], bytes]:
        owner = await serving(world)
        await world.pass_s(3)
        assert owner.store is not None
        end = owner.store.written
        middle = end // 2
        ranges = await ranges_of(world, [Positions(0, middle), Positions(middle, end)])
        await world.pass_s(10)
        log = local_log(owner)[:end]
        await stop_all(world)
        return ranges, log

    ranges, log = run(main(), world.clock)
    gone = [path for path, *_ in ranges if path not in world.bucket.objects]
    assert gone
    assert all(path.startswith("wal/") for path in gone)
    assert read(world.bucket, ranges) == log


def test_what_the_owner_cannot_upload_is_not_waited_for_without_end() -> None:
    world = World(6, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        await world.pass_s(1)
        assert owner.store is not None
        with pytest.raises(StoreError, match=r"the object store has the log up to position \d+, and the broker has"):
            await ranges_of(world, [Positions(0, owner.store.written + (1 << 30))])
        await stop_all(world)

    run(main(), world.clock)


def test_another_stream_or_none_is_refused() -> None:
    world = World(7, OPTIONS)

    async def main() -> None:
        await serving(world)
        with pytest.raises(StoreError, match=r"has stream .*, and the broker's is .*: give the URL of the broker's"):
            await ranges_of(world, [Positions(0, 8)], b"x" * 16)
        stream = decode_stream(world.bucket.objects.pop(KEY))
        with pytest.raises(StoreError, match="has no object 'stream', so it has no stream: correct the URL"):
            await ranges_of(world, [Positions(0, 8)], stream)
        await stop_all(world)

    run(main(), world.clock)


def test_a_removed_segment_object_is_named() -> None:
    bucket = SimulatedBucket(1)
    missing = LogRange(f"seg/{0:020}-{4096:020}", 0, 0, 4096)
    with pytest.raises(StoreError, match=r"seg/0+-0+4096 does not exist or is too short; retention removes it"):
        read(bucket, [missing])
    with pytest.raises(StoreError, match=r"wal/0+7 does not exist, and no segment object has replaced it"):
        read(bucket, [LogRange(f"wal/{7:020}", 0, 0, 4096)])


def test_a_request_that_is_refused_ends_the_read() -> None:
    class Refusing:
        async def get(self, key: str, bytes_max: int) -> bytes:
            raise StoreRefused(f"read {key}: the credentials are wrong")

    async def main() -> None:
        with pytest.raises(StoreRefused, match="the credentials are wrong"):
            await find_ranges(Refusing(), URL, b"x" * 16, [], WAIT_MS)  # type: ignore[arg-type]

    run(main(), World(1).clock)
