"""Faults by chance for the nodes of `shared_nodes.py`, and what must hold at the end of them, whatever happened."""

import random
from typing import Final

from tests.kit.object_store import StoreFaults
from tests.kit.shared_nodes import Node, World, stop_all, until

FAULTS: Final = ("kill", "pause", "cut", "heal", "faults", "slow", "power", "lose disk", "cut off", "pause at create")


async def chaos(world: World, seconds: int = 12) -> None:
    """Two or three nodes with faults by chance; then all faults end, and one node serves.

    Most seeds have some kinds of faults only, so that the same ones come together more often. In half of the seeds,
    the faults have longer pauses between them and go on for twice the time, because a standby must then follow, or an
    owner be silent, for longer than a takeover takes.
    """
    world.trims = world.random.random() < 0.5
    world.has_threads = True
    chance = random.Random(world.random.randrange(1 << 32))
    pause_s, seconds = chance.choice(((2, seconds), (5, 2 * seconds)))
    names = chance.choice(("ab", "abc"))
    kinds = FAULTS if chance.random() < 0.25 else chance.sample(FAULTS, chance.randrange(2, 6))
    for name in names:
        world.start(name)
    end = world.clock.mono_ms() + seconds * 1000
    while world.clock.mono_ms() < end:
        await world.pass_s(chance.uniform(0.1, pause_s))
        happen(world, world.nodes[chance.choice(names)], chance.choice(kinds), chance)
    for node in [*world.nodes.values()]:
        node.faults = StoreFaults()
        node.clients.is_owner_cut_off = False
        if node.task is None or node.task.done():
            world.start(node.name, node.faults)
        else:
            node.kill()
            await world.pass_s(0.1)
            world.start(node.name, node.faults)
    count = len(world.acknowledged)
    await until(lambda: len(world.acknowledged) > count, world, 30)
    (owner,) = world.owners
    owner.append_ms = 10_000_000
    await world.pass_s(1)
    assert owner.store is not None
    assert owner.store.durability.shared == owner.store.next_position
    if world.trimmed:
        standby = world.start("empty disk")
        # If slots were deleted while it joined, it reads their segments when it would take over.
        end_position = owner.store.next_position
        await until(lambda: standby.store is not None and standby.store.next_position == end_position, world, 10)
        assert standby.replayer.state == owner.replayer.state
    else:
        assert owner.replayer.state == world.state()
    await stop_all(world)
    world.check()


def happen(world: World, node: Node, what: str, chance: random.Random) -> None:
    """Let something happen to a node."""
    is_running = node.task is not None and not node.task.done()
    if not is_running:
        world.start(node.name)
    elif what == "kill":
        node.kill()
    elif what == "pause":
        node.pause(chance.uniform(0.1, 20))
    elif what == "pause at create":  # A standby that has decided to fence is paused before its fence is created.
        node.create_pause_s = chance.uniform(0.1, 2)
    elif what == "cut":
        node.faults.is_cut = True
    elif what == "heal":
        node.faults.is_cut = False
        node.faults.latency_ms = (2, 8)
        node.faults.lost_answer = node.faults.lost_request = node.faults.late_request = 0
    elif what == "faults":
        node.faults.conflict = node.faults.busy = chance.uniform(0, 0.2)
        node.faults.lost_answer = chance.uniform(0, 0.1)
        node.faults.lost_request = node.faults.late_request = chance.uniform(0, 0.05)
        node.faults.repeated = 0.2
        node.faults.timeout_ms = chance.choice((200, 1_000, 5_000))
    elif what == "slow":
        node.faults.latency_ms = (500, 2500)
    elif what == "power":
        node.kill()
        node.disk = node.disk.after_power_cut(chance.randrange(1 << 32))
    elif what == "cut off":  # As a standby, it takes the owner for cut off from its clients, or no longer.
        node.clients.is_owner_cut_off = not node.clients.is_owner_cut_off
    else:
        node.kill()
        node.lose_disk()
