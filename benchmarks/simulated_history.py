"""How long a takeover takes with a long history in the object store, in virtual time: no byte of the history is needed.

A takeover depends on the number of segment objects, if on anything of the history, and not on their size. So the
objects here have 16 KiB each instead of 64 MiB: `segment_objects(100)` of them are listed and named by manifests as
those of 100 GiB would be.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from duolog.store.shared.options import MIB, SharedOptions
from tests.kit.loop import run
from tests.kit.object_store import StoreFaults
from tests.kit.shared_nodes import Node, World, stop_all, until

SEGMENT_BYTES = 16 << 10
FILLER_BYTES = 12 << 10  # So that two units need two segment objects.
OPTIONS = SharedOptions(
    object_bytes=SEGMENT_BYTES, segment_bytes=SEGMENT_BYTES, compact_slots=10, kept_slots=16, state_interval_ms=200
)
IDLE_MS = 10_000_000
WITHIN_S = 600.0


class Takeover(NamedTuple):
    objects: int  # Segment objects that the store had.
    waited_s: float  # From the end of the owner to the next acknowledged record, in virtual time.
    cpu_s: float  # The time that this process computed for it: both brokers, the store and the client.


def segment_objects(gib: int) -> int:
    """Return how many segment objects a log of this size has."""
    return gib * 1024 * MIB // SharedOptions().segment_bytes


def takeover(gib: int, latency_ms: int) -> Takeover:
    """Fill a simulated store, end the owner, and measure."""
    world = World(1, OPTIONS)
    faults = StoreFaults(latency_ms=(latency_ms, latency_ms))
    found: list[Takeover] = []

    async def main() -> None:
        owner = await _filled(world, segment_objects(gib))
        owner.faults.latency_ms = (latency_ms, latency_ms)
        standby = world.start("b", faults)
        await until(lambda: standby.replayer.state == owner.replayer.state, world, WITHIN_S)
        await world.pass_s(10)
        objects = _segments(world)
        begun_mono_ms, begun_cpu_s, count = world.clock.mono_ms(), time.process_time(), len(world.acknowledged)
        owner.kill()
        await until(lambda: any(done.node == "b" for done in world.acknowledged[count:]), world)
        waited_s = (world.clock.mono_ms() - begun_mono_ms) / 1000
        found.append(Takeover(objects, waited_s, time.process_time() - begun_cpu_s))
        await stop_all(world)

    run(main(), world.clock)
    return found[0]


async def _filled(world: World, objects: int) -> Node:
    """Return an owner that has written so many segment objects, and appends nothing from then on."""
    owner = world.start("a")
    await until(lambda: owner.is_serving, world)
    owner.filler_bytes = (FILLER_BYTES,)
    await until(lambda: _segments(world) >= objects, world, WITHIN_S)
    owner.append_ms = IDLE_MS
    return owner


def _segments(world: World) -> int:
    return sum(key.startswith("seg/") for key in world.bucket.objects)
