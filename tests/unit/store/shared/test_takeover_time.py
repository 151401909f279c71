"""Proves how long a takeover takes, in virtual time: the silence, and the round trips that must follow each other.

After the last create of a killed owner:

    half a round trip until its slot is there, and half of one until a standby has read it
    the time until the standby asks for the slot: two heartbeat intervals of the owner while the store is slow; else the
    answer to a request that came a little too early, and a tenth of an interval
    the silence of `cluster.takeover_ms`, less one round trip for the fence to arrive
    one round trip each for the fence, for the slots after it, and for the first upload
"""

import pytest

from duolog.store.shared.options import SharedOptions
from tests.kit.loop import run
from tests.kit.object_store import StoreFaults
from tests.kit.rows import first_in_unit
from tests.kit.shared_nodes import World, serving, stop_all, until

OPTIONS = SharedOptions(object_bytes=1 << 13, in_flight_bytes=1 << 20)
TURNS_MS = 100  # The append, the end of its turn, and the time between two looks of this test.
BEAT_MS, SLOW_BEAT_MS = OPTIONS.takeover_ms // 3, OPTIONS.takeover_ms // 12


def limit_ms(latency_ms: int) -> int:
    asked_ms = 2 * SLOW_BEAT_MS if latency_ms > BEAT_MS else latency_ms + BEAT_MS // 10
    silence_ms = OPTIONS.takeover_ms - min(latency_ms, OPTIONS.takeover_ms * 2 // 3)
    return silence_ms + 4 * latency_ms + asked_ms + OPTIONS.flush_interval_ms + TURNS_MS


def test_limits_are_those_of_the_promise() -> None:
    assert limit_ms(5) < 5_000
    assert limit_ms(200) < 5_000
    assert limit_ms(2_000) < 10_000


@pytest.mark.parametrize("latency_ms", first_in_unit([5, 200, 2_000], 2))
@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
@pytest.mark.parametrize("phase_ms", first_in_unit([0, 370], 1))
@pytest.mark.parametrize("is_cut_off", [False, True])
def test_takeover_takes_the_silence_and_four_round_trips(
    latency_ms: int, is_busy: bool, phase_ms: int, is_cut_off: bool
) -> None:
    """The owner is killed at several moments between two of its slots. The standby may take it for cut off."""
    world = World(latency_ms, OPTIONS)

    async def main() -> None:
        faults = StoreFaults(latency_ms=(latency_ms, latency_ms))
        owner = await serving(world, faults)
        owner.append_ms = max(20, latency_ms // 20) if is_busy else 10_000_000
        standby = world.start("b", faults)
        await world.pass_s((phase_ms + 40 * latency_ms) / 1000 + 10)
        assert world.owners == [owner]
        killed_mono_ms, count = world.clock.mono_ms(), len(world.acknowledged)
        owner.kill()
        standby.clients.is_owner_cut_off = is_cut_off
        await until(lambda: any(done.node == "b" for done in world.acknowledged[count:]), world)
        assert world.clock.mono_ms() - killed_mono_ms <= limit_ms(latency_ms)
        await stop_all(world)
        world.check()

    run(main(), world.clock)


@pytest.mark.parametrize("slow_s", [0.5, 3, 10])
@pytest.mark.parametrize("phase_ms", first_in_unit([0, 370], 1))
def test_takeover_takes_no_longer_if_the_store_has_just_become_slow(slow_s: float, phase_ms: int) -> None:
    """The standby does not take the silence of the store for that of the owner: its fence would come too early."""
    world, latency_ms = World(5, OPTIONS), 2_000

    async def main() -> None:
        faults = StoreFaults(latency_ms=(5, 5))
        owner = await serving(world, faults)
        owner.append_ms = 20
        world.start("b", faults)
        await world.pass_s(phase_ms / 1000 + 10)
        faults.latency_ms = (latency_ms, latency_ms)
        await world.pass_s(slow_s)
        assert world.owners == [owner]
        killed_mono_ms, count = world.clock.mono_ms(), len(world.acknowledged)
        owner.kill()
        await until(lambda: any(done.node == "b" for done in world.acknowledged[count:]), world)
        assert world.clock.mono_ms() - killed_mono_ms <= limit_ms(latency_ms)
        await stop_all(world)
        world.check()

    run(main(), world.clock)
