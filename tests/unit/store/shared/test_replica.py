"""Proves that brokers over one object store lose nothing that was acknowledged, in virtual time, with seeded faults."""

from collections import Counter

import pytest

from duolog.store.log import unit_source
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.polling import AHEAD_MAX
from duolog.store.shared.replica import Replica
from duolog.store.shared.uploader import HEARTBEATS
from duolog.store.shared.wal.wal_object import key_of, sequence_of
from tests.kit.loop import run
from tests.kit.object_store import StoreFaults
from tests.kit.rows import first_in_unit
from tests.kit.shared_chaos import chaos
from tests.kit.shared_nodes import SHARED_QUEUE, World, serving, stop_all, until
from tests.kit.threads import ManualThreads

SEEDS = range(8)
OPTIONS = SharedOptions(object_bytes=1 << 13, in_flight_bytes=1 << 15, behind_bytes_max=1 << 18)


def test_first_broker_owns_the_stream_and_a_standby_has_its_state() -> None:
    world = World(1, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        standby = world.start("b")
        await world.pass_s(5)
        assert world.owners == [owner]
        assert len(world.acknowledged) > 100
        owner.append_ms = 10_000_000
        await world.pass_s(3)
        assert owner.store is not None
        assert standby.store is not None
        assert standby.store.next_position == owner.store.next_position == owner.store.durability.shared
        assert standby.replayer.state == owner.replayer.state
        await stop_all(world)
        world.check()

    run(main(), world.clock)


@pytest.mark.slow
def test_standby_takes_over_within_seconds_and_the_old_owner_follows_without_what_was_not_uploaded() -> None:
    world = World(2, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        standby = world.start("b")
        await world.pass_s(5)
        owner.faults.is_cut = True  # What it appends from now on is lost.
        await world.pass_s(0.5)
        killed_mono_ms, count = world.clock.mono_ms(), len(world.acknowledged)
        owner.kill()
        await until(lambda: any(done.node == "b" for done in world.acknowledged[count:]), world)
        assert world.clock.mono_ms() - killed_mono_ms < 5_000
        old = world.start("a", StoreFaults())
        await world.pass_s(5)
        assert world.owners == [standby]
        assert old.lost_units > 0
        standby.append_ms = 10_000_000
        await world.pass_s(3)
        assert old.replayer.state == standby.replayer.state
        await stop_all(world)
        world.check()

    run(main(), world.clock)


def test_lease_counts_from_the_first_create_of_an_object() -> None:
    """A later create may have worked only because another broker has taken over, and deleted the slot since."""
    world = World(4, OPTIONS)
    begun: dict[str, list[int]] = {}  # The times of all creates of an object.

    def note_creates(replica: Replica) -> None:
        create = replica._requests.create

        async def noted(key: str, data: bytes) -> bool:
            begun.setdefault(key, []).append(world.clock.mono_ms())
            return await create(key, data)

        replica._requests.create = noted  # type: ignore[method-assign]

    world.make_replica = note_creates

    async def main() -> None:
        owner = await serving(world)
        await world.pass_s(1)
        owner.faults.lost_request, owner.faults.timeout_ms = 1.0, 300
        await world.pass_s(2)
        owner.faults.lost_request = 0.0
        assert owner.replica is not None
        assert owner.replica.uploader is not None
        uploader, renewed = owner.replica.uploader, list[int]()
        uploader.lease.renew = renewed.append  # type: ignore[method-assign]
        lost = key_of(uploader.slots.counted.sequence + 1)
        await until(lambda: uploader.slots.counted.sequence >= sequence_of(lost), world)  # type: ignore[operator]
        assert begun[lost][-1] > begun[lost][0] + 1_000
        assert renewed[0] == begun[lost][0]
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.parametrize(("latency_ms", "append_ms"), [(5, 10_000_000), (5, 20), (200, 10_000_000)])
def test_standby_takes_over_from_an_owner_that_writes_and_that_no_client_reaches(
    latency_ms: int, append_ms: int
) -> None:
    """The fence must win against the slots of the owner: beats, or what timers and the like append."""
    world = World(7, OPTIONS)

    async def main() -> None:
        faults = StoreFaults(latency_ms=(latency_ms, latency_ms))
        owner = await serving(world, faults)
        owner.append_ms = append_ms
        standby = world.start("b", faults)
        await world.pass_s(10.4)
        assert world.owners == [owner]
        begun_mono_ms = world.clock.mono_ms()
        standby.clients.is_owner_cut_off = True
        await until(lambda: bool(owner.deposed), world)
        assert world.clock.mono_ms() - begun_mono_ms <= 2 * OPTIONS.takeover_ms // HEARTBEATS + 4 * latency_ms
        await until(lambda: world.owners == [standby], world)
        # The old owner, which is told by its next slot, has given up its lease.
        assert world.clock.mono_ms() - begun_mono_ms <= 2 * OPTIONS.takeover_ms // HEARTBEATS + 8 * latency_ms + 200
        await world.pass_s(5)
        assert world.owners == [standby]
        await stop_all(world)
        world.check()

    run(main(), world.clock)


@pytest.mark.parametrize("ends", [False, True])
def test_new_owner_that_ends_while_an_earlier_one_may_answer_does_not_end_the_wait(ends: bool) -> None:
    world = World(1, OPTIONS)

    async def main() -> None:
        old = await serving(world)
        new = world.start("b")
        await world.pass_s(2)
        old.pause(20)
        await world.pass_s(0.2)
        new.clients.is_owner_cut_off = True
        await until(lambda: new.replica is not None and new.replica.uploader is not None, world)
        assert world.owners == [old]
        if ends and new.replica is not None:
            await new.replica.end()
        new.kill()
        await world.pass_s(0.1)
        new = world.start("b")
        await until(lambda: new.is_serving, world)
        assert world.owners == [new]
        await stop_all(world)
        world.check()

    run(main(), world.clock)


def test_standby_leaves_the_stream_to_an_owner_that_clients_ask() -> None:
    world = World(8, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        owner.clients.heard_mono_ms = 1 << 40
        await world.pass_s(2)
        standby = world.start("b")
        standby.clients.is_owner_cut_off = True
        await world.pass_s(10)
        assert (world.owners, owner.deposed) == ([owner], [])
        await stop_all(world)
        world.check()

    run(main(), world.clock)


def test_standby_that_was_away_reads_what_an_idle_owner_wrote_at_once() -> None:
    world = World(6, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        owner.append_ms = 10_000_000
        standby = world.start("b")
        await world.pass_s(2)
        standby.pause(100)
        await world.pass_s(102)
        assert owner.replica is not None
        assert owner.replica.uploader is not None
        assert standby.replica is not None
        written = owner.replica.uploader.slots.counted.sequence
        assert written > 90
        assert standby.replica.follower.cursor.sequence >= written
        assert world.owners == [owner]
        await stop_all(world)

    run(main(), world.clock)


@pytest.mark.slow
def test_standby_that_is_far_behind_keeps_few_slots_in_memory() -> None:
    # A store that answers faster than a standby replays put the whole log into its memory.
    world = World(4, SharedOptions(flush_interval_ms=20))

    async def main() -> None:
        owner = await serving(world)
        await world.pass_s(20)
        owner.append_ms = 10_000_000
        written = sum(key.startswith("wal/") for key in world.bucket.objects)
        assert written > 600
        begun = len(world.bucket.history)
        standby = world.start("b", StoreFaults(latency_ms=(0, 0)))
        ahead = []
        while standby.replayer.state != owner.replayer.state:
            await world.pass_s(0.001)
            if standby.replica is not None:
                found = [sequence_of(each.key) or 0 for each in world.bucket.history[begun:] if each.client == "b"]
                ahead.append(max(found, default=0) - standby.replica.follower.cursor.sequence)
        assert max(ahead) <= 2 * AHEAD_MAX + 1
        await stop_all(world)
        world.check()

    run(main(), world.clock)


@pytest.mark.slow
def test_idle_brokers_send_few_requests() -> None:
    world = World(3, SharedOptions())

    async def main() -> None:
        owner = await serving(world)
        owner.append_ms = 10_000_000
        world.start("b")
        await world.pass_s(10)
        before = len(world.bucket.history)
        await world.pass_s(120)
        sent = Counter(each.client for each in world.bucket.history[before:] if each.kind == "effect")
        assert {name: 30 * count <= 4_000 for name, count in sent.items()} == {"a": True, "b": True}, sent
        await stop_all(world)

    run(main(), world.clock)


def test_thread_prepares_a_large_upload_and_cold_reads_of_clients_neither_delay_nor_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unit_source, "LOOP_CHECKSUM_BYTES", 1000)
    world = World(8, OPTIONS)

    async def main() -> None:
        owner = await serving(world)
        store, threads, reads = owner.store, ManualThreads(), ManualThreads()
        assert store is not None
        store.executors.uploads, store.executors.readers = threads, reads
        durability = store.durability
        owner.append_ms, owner.filler_bytes = 100, (2000,)
        await until(lambda: bool(threads.waiting), world)
        begun, count = durability.shared, len(world.acknowledged)
        await world.pass_s(0.3)
        assert durability.written > begun + 4000
        assert (durability.shared, len(world.acknowledged), len(threads.waiting)) == (begun, count, 1)
        threads.run()
        await until(lambda: durability.shared > begun, world)
        assert durability.shared < durability.written
        ends = [done.offset + 1 for done in world.acknowledged[count:] if done.key == SHARED_QUEUE]
        assert store.queue(SHARED_QUEUE).visible_end == max(ends)
        owner.append_ms, owner.filler_bytes = 10_000_000, (0,)
        while durability.shared < durability.written:
            threads.run()
            await world.pass_s(0.05)
        assert (len(world.acknowledged) > count, len(reads.waiting), owner.deposed) == (True, 0, [])
        await stop_all(world)
        world.check()

    run(main(), world.clock)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_in_unit(SEEDS, 3))
def test_nothing_acknowledged_is_lost_whatever_happens(seed: int) -> None:
    world = World(seed)
    run(chaos(world), world.clock)
