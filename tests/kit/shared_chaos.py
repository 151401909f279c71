"""Faults by chance for the nodes of `shared_nodes.py`, and what must hold at the end of them, whatever happened."""

import random

from tests.kit.object_store import StoreFaults
from tests.kit.shared_nodes import Node, World, stop_all, until


async def chaos(world: World, seconds: int = 12) -> None:
    """Three nodes with faults by chance; then all faults end, and one node serves."""
    world.trims = world.random.random() < 0.5
    world.has_threads = True
    chance = random.Random(world.random.randrange(1 << 32))
    for name in "abc":
        world.start(name)
    end = world.clock.mono_ms() + seconds * 1000
    while world.clock.mono_ms() < end:
        await world.pass_s(chance.uniform(0.1, 2))
        happen(world, world.nodes[chance.choice("abc")], chance)
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
        await world.pass_s(3)
        assert standby.store is not None
        assert standby.store.next_position == owner.store.next_position
        assert standby.replayer.state == owner.replayer.state
    else:
        assert owner.replayer.state == world.state()
    await stop_all(world)
    world.check()


def happen(world: World, node: Node, chance: random.Random) -> None:
    """Let something happen to a node."""
    is_running = node.task is not None and not node.task.done()
    what = chance.choice(("kill", "pause", "cut", "heal", "faults", "slow", "power", "lose disk", "cut off"))
    if not is_running:
        world.start(node.name)
    elif what == "kill":
        node.kill()
    elif what == "pause":
        node.pause(chance.uniform(0.1, 20))
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
