"""Proves that WAL objects go only when segment objects have their units, and that nobody uses a deleted slot again."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from duolog.store.objects.transfers import RANGE_BYTES
from duolog.store.shared.lease import released_key
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.segments import orphans
from duolog.store.shared.segments.manifest import (
    Floor,
    SegmentManifest,
    SegmentObject,
    decode_manifest,
    encode_manifest,
    manifest_key,
)
from duolog.store.shared.wal.slots import Tail
from duolog.store.shared.wal.wal_object import (
    DamagedObject,
    Identity,
    WalHeader,
    WalKind,
    decode,
    encode,
    key_of,
    sequence_of,
)
from tests.kit.loop import run
from tests.kit.object_store import StoreFaults
from tests.kit.shared_nodes import World, serving, stop_all, until

OPTIONS = SharedOptions(
    object_bytes=1 << 13, segment_bytes=1 << 14, compact_slots=10, kept_slots=16, state_interval_ms=200
)
FLOOR = Floor(Identity(b"s" * 16, b"w" * 16, 3), Tail(17, 4096, 5))
MANIFEST = SegmentManifest(FLOOR, (SegmentObject(0, 1024, 1), SegmentObject(1024, 4096, 2)))


def test_manifest_reads_back_and_every_changed_byte_is_noticed() -> None:
    data = encode_manifest(MANIFEST)
    assert decode_manifest(data, 7) == MANIFEST
    for at in range(len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(DamagedObject, match=manifest_key(7)):
            decode_manifest(bytes(changed), 7)
    for size in range(len(data) - 1):
        with pytest.raises(DamagedObject, match=manifest_key(7)):
            decode_manifest(data[:size], 7)


def wal(world: World) -> dict[int, WalKind]:
    found = ((sequence_of(key), data) for key, data in world.bucket.objects.items())
    return {sequence: decode(data, sequence).header.kind for sequence, data in found if sequence is not None}


def run_in(world: World, main: Callable[[], Awaitable[None]]) -> None:
    """Run `main`, stop all brokers, and check what the world requires of their histories."""

    async def whole() -> None:
        await main()
        await stop_all(world)
        world.check()

    run(whole(), world.clock)


def test_compacted_log_is_read_by_a_broker_with_an_empty_disk_and_fences_stay() -> None:
    world = World(3, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        await world.pass_s(5)
        owner.kill()
        owner = await serving(world)  # Its second fence is not in the first slot.
        await world.pass_s(5)
        left = wal(world)
        assert sum(kind == WalKind.FENCE for kind in left.values()) == 2
        assert sum(kind == WalKind.UNITS for kind in left.values()) < OPTIONS.kept_slots + 25
        assert max(left) > 60
        standby = world.start("b")
        await world.pass_s(2)
        assert world.owners == [owner], "a broker that joins leaves the owner alone"
        owner.append_ms = 10_000_000
        await world.pass_s(2)
        assert standby.replayer.state == owner.replayer.state == world.state()

    run_in(world, main)


@pytest.mark.slow
def test_segment_object_with_units_across_its_parts_is_read_by_a_broker_with_an_empty_disk() -> None:
    world = World(4, replace(OPTIONS, object_bytes=1 << 20, segment_bytes=1 << 30))

    async def main() -> None:
        owner = await serving(world)
        owner.filler_bytes, owner.append_ms = (12 << 10,), 1
        await world.pass_s(1)
        owner.filler_bytes, owner.append_ms = (0,), 20
        await world.pass_s(5)
        owner.append_ms = 10_000_000
        await world.pass_s(1)
        sizes = [len(data) for key, data in world.bucket.objects.items() if key.startswith("seg/")]
        assert max(sizes) > RANGE_BYTES, "a segment object has several parts"
        standby = world.start("b")
        await until(lambda: standby.replayer.state == owner.replayer.state == world.state(), world)

    run_in(world, main)


@pytest.mark.slow
def test_slots_that_come_while_segment_objects_are_uploaded_do_not_change_what_is_compacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(5, replace(OPTIONS, segment_bytes=1 << 11, compact_slots=1, flush_interval_ms=5))

    async def main() -> None:
        owner = await serving(world, StoreFaults(latency_ms=(20, 60)))
        await world.pass_s(10)
        assert sum(key.startswith("manifest/") for key in world.bucket.objects) > 5
        owner.kill()
        await serving(world)
        world.start("b")
        await world.pass_s(5)

    run_in(world, main)
    assert not [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.slow
def test_standby_that_was_away_neither_takes_a_deleted_slot_nor_misses_it() -> None:
    world = World(4, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        standby = world.start("b")
        await world.pass_s(1)
        standby.pause(10)
        await world.pass_s(20)
        assert world.owners == [owner]
        assert [node.deposed for node in world.nodes.values()] == [[], []]
        owner.append_ms = 10_000_000
        await world.pass_s(2)
        assert standby.replayer.state == owner.replayer.state

    run_in(world, main)


def test_standby_does_not_follow_the_fence_that_it_has_created_in_a_deleted_slot() -> None:
    # It would ignore what the owner writes after this fence, and take over without it.
    world = World(1, replace(OPTIONS, flush_interval_ms=50))

    async def main() -> None:
        owner, standby = await serving(world), world.start("b")
        await world.pass_s(3)
        # During this pause, the owner deletes the slot of the fence, but not the slots from the 16th after it on.
        standby.create_pause_s = 0.8
        standby.clients.is_owner_cut_off = True
        await until(lambda: not standby.create_pause_s, world)
        standby.clients.is_owner_cut_off = False
        await world.pass_s(3)
        left = wal(world)
        fence = max(sequence for sequence, kind in left.items() if kind == WalKind.FENCE)
        assert fence > 0
        assert fence - 1 not in left, "the slot before the fence was deleted, and so was the slot of the fence"
        assert world.owners == [owner]
        owner.kill()
        await until(lambda: standby.is_serving, world)

    run_in(world, main)


def test_standby_that_met_a_damaged_slot_follows_again_once_the_owner_has_compacted_it() -> None:
    """The segment object is made from the owner's disk, which has what the slot had."""
    world = World(7, replace(OPTIONS, compact_slots=50))

    async def main() -> None:
        owner = await serving(world)
        standby = world.start("b")
        await world.pass_s(1)
        standby.pause(0.5)
        sequence = max(wal(world)) + 5
        await until(lambda: key_of(sequence) in world.bucket.objects, world)
        world.bucket.objects[key_of(sequence)] = world.bucket.objects[key_of(sequence)][:-1]
        for is_started_again in (False, True):
            standby = world.start("b") if is_started_again else standby
            assert standby.task is not None
            with pytest.raises(DamagedObject, match=f"the object {key_of(sequence)} is damaged"):
                await standby.task
        del world.nodes["b"]
        await until(lambda: key_of(sequence) not in world.bucket.objects, world)
        standby = world.start("b", disk=standby.disk.after_kill())
        await world.pass_s(2)
        assert world.owners == [owner]
        owner.append_ms = 10_000_000
        await world.pass_s(2)
        assert standby.replayer.state == owner.replayer.state == world.state()

    run_in(world, main)


def test_wrong_bit_of_the_local_log_gets_into_no_segment_object(caplog: pytest.LogCaptureFixture) -> None:
    """The WAL objects stay, because they have the right units."""
    world = World(3, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        await world.pass_s(0.5)
        owner.disk.flip(next(path for path in owner.disk.paths() if path.startswith("log/")), 200)
        await world.pass_s(10)
        assert "the local log is damaged at position" in caplog.text
        assert not any(key.startswith("seg/") for key in world.bucket.objects)
        owner.append_ms = 10_000_000
        standby = world.start("b")
        await world.pass_s(2)
        assert standby.replayer.state == owner.replayer.state == world.state()

    run_in(world, main)


def test_objects_that_a_deposed_owner_creates_in_deleted_slots_hide_nothing() -> None:
    """They have a lower epoch, so they are ignored; the units that the slots had are in a segment object."""
    world = World(6, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        owner.kill()
        owner = world.start("a")  # Its epoch is 2.
        standby = world.start("b")
        await until(lambda: owner.is_serving, world)
        await world.pass_s(1)
        standby.pause(3)
        await world.pass_s(2.5)
        assert standby.replica is not None
        cursor = standby.replica.follower.cursor
        left = min(sequence for sequence in wal(world) if sequence >= cursor.sequence)
        assert left > cursor.sequence, "slots were compacted"
        for sequence in range(cursor.sequence, left):
            header = WalHeader(WalKind.UNITS, 0, 1, sequence, 0, 8, 7, *cursor.owner[:2])
            world.bucket.objects[key_of(sequence)] = encode(header, [bytes(8)])[0]
        owner.append_ms = 10_000_000
        await world.pass_s(6)
        assert standby.replayer.state == owner.replayer.state == world.state()
        assert standby.replica.joined.cursor.sequence > left, "by which the broker says who owns the stream"

    run_in(world, main)


@pytest.mark.slow
def test_segments_without_live_records_go_from_the_bucket_and_an_empty_disk_starts_from_a_snapshot() -> None:
    world = World(5, OPTIONS)
    world.trims = True

    async def main() -> None:
        owner = world.start("a")
        owner.append_ms = 5
        await until(lambda: owner.is_serving, world)
        await until(lambda: any(key.startswith("snapshot/") for key in world.bucket.objects), world)
        await world.pass_s(5)
        segments = sorted(key for key in world.bucket.objects if key.startswith("seg/"))
        assert segments[0] > "seg/00000000000000100000", "the first segments were deleted"
        assert sum(key.startswith("snapshot/") for key in world.bucket.objects) <= 2
        standby = world.start("b")
        await world.pass_s(2)
        owner.append_ms = 10_000_000
        await world.pass_s(2)
        assert standby.replayer.state == owner.replayer.state

    run_in(world, main)


@pytest.mark.slow
def test_an_owner_that_always_has_to_look_for_orphans_compacts_as_well() -> None:
    world = World(11, replace(OPTIONS, compact_slots=1, cleanup_interval_ms=1))

    async def main() -> None:
        await serving(world)
        await world.pass_s(20)
        numbers = [key for key in world.bucket.objects if key.startswith("manifest/")]
        assert len(numbers) > 5
        lists = [each for each in world.bucket.history if each.operation == "list" and each.kind == "effect"]
        assert len(lists) > 5 * 4, "a search for orphans lists four folders"

    run_in(world, main)


def test_objects_of_an_interrupted_test_of_the_store_go_and_those_of_a_running_one_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orphans, "TEST_MS", 5_000)
    world = World(7, replace(OPTIONS, cleanup_interval_ms=1_000))
    left, running = "self-test/left/0", "self-test/running/0"

    async def main() -> None:
        owner = await serving(world)
        world.bucket.objects[left] = b"left"
        await world.pass_s(4)
        assert left in world.bucket.objects
        world.bucket.objects[running] = b"running"
        await world.pass_s(4)
        assert left not in world.bucket.objects
        assert running in world.bucket.objects
        del world.bucket.objects[running]
        await world.pass_s(3)
        assert owner.replica is not None
        assert not owner.replica._orphans._tests

    run_in(world, main)


@pytest.mark.parametrize(
    "faults", [StoreFaults(), StoreFaults(busy=0.1, lost_answer=0.05, repeated=0.2, stale_list=0.3)]
)
def test_objects_that_nobody_reads_any_more_go_and_all_others_stay(faults: StoreFaults) -> None:
    world = World(7, replace(OPTIONS, cleanup_interval_ms=2_000))

    async def main() -> None:
        owner = await serving(world)
        owner.kill()
        owner = await serving(world, faults)  # Its epoch is 2.
        await until(lambda: manifest_key(1) in world.bucket.objects, world)
        assert owner.replica is not None
        manifests = owner.replica.joined.manifests
        floor = manifests.floor
        assert floor is not None
        sequence, position = floor.tail.sequence, floor.tail.position
        fences = {key_of(each) for each, kind in wal(world).items() if kind == WalKind.FENCE}
        stale = WalHeader(WalKind.UNITS, 0, 1, sequence, 0, 8, 7, *floor.owner[:2])
        unread = {
            key_of(sequence): encode(stale, [bytes(8)])[0],  # A deposed owner has created it in a deleted slot.
            SegmentObject(0, 8, 0).key: b"8 bytes.",
            released_key(Identity(bytes(16), bytes(16), 1)): b"",  # The owner of epoch 2 has begun.
            SegmentObject(position - 8, position + 800, 0).key: b"of a deposed owner",
        }
        others = {
            SegmentObject(position + (1 << 30), position + (1 << 31), 0).key: b"above the floor: about to be named",
            "seg/notes.txt": b"no object of Duolog",
            "nodes/0001": b"a broker",
        }
        world.bucket.objects.update(unread | others)
        await until(lambda: not unread.keys() & world.bucket.objects.keys(), world)
        await world.pass_s(5)
        assert (others.keys() | fences) <= world.bucket.objects.keys()
        assert {each.key for each in manifests.segments} <= world.bucket.objects.keys()

    run_in(world, main)
