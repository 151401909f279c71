"""Each request of each dispatch table and router, mutated field by field and sent to a whole broker core in virtual
time: it is answered or its connection is closed, no other client notices, a turn of the loop stays within its budget of
work, and nothing is kept of it.

The rows come from the tables, so a request that is added is covered at once. `make soak` runs the same for an hour, and
`make fuzz` lets coverage choose the bytes.
"""

import asyncio
import os
import random
import time
from importlib import import_module

import pytest

from duolog.bridge import kafka
from duolog.bridge.rocketmq import request_table
from duolog.protocol.framing import FrameReader
from duolog.protocol.kafka.api_messages import ApiKey
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode
from tests.kit.loop import run
from tests.kit.rows import first_in_unit
from tests.unit.adversary import http_requests, rocketmq_requests, scenes
from tests.unit.adversary.http_side import HttpSide
from tests.unit.adversary.world import Attacker, World

# The port imports these modules at their first use, one of them in a thread, which the virtual clock does not wait for.
import_module("duolog.bridge.http.metrics.exposition")
import_module("duolog.bridge.http.openapi.document")

KAFKA = [pytest.param(api.key, id=api.key.name) for api in kafka.TABLE.values()]
ROCKETMQ = [pytest.param(RequestCode(code), id=RequestCode(code).name) for code in request_table.TABLE]
PAIRS = 2  # Pairs of connections for each row; each connection sends one request.
HTTP_PAIRS = 1  # There are twice as many routes as requests of a client protocol. `make unit` sends no pairs.
SOAK_REQUESTS = int(os.environ.get("DUOLOG_SOAK_REQUESTS", "3000000"))
WORLD_REQUESTS = 3_000  # After so many requests the soak makes a new world, because state grows.
MUTATIONS = (1, 1, 1, 2, 3)
CHECK_STEP_MS = 20_000  # Four of them are longer than `txn.check_interval_ms`.


@pytest.fixture(scope="module")
def _world() -> World:
    return World(seed=1)


@pytest.fixture
def world(_world: World, rng: random.Random) -> World:
    """One world for all rows, because it takes long to make; each row has its own random numbers."""
    _world.findings.clear()
    _world.rng = rng
    return _world


def check(world: World) -> None:
    assert not world.findings, "\n".join(map(str, world.findings[:20]))


@pytest.mark.parametrize("key", KAFKA)
def test_kafka_requests(world: World, key: ApiKey) -> None:
    api = kafka.TABLE[key]
    for version in range(api.min_version, api.max_version + 1):
        attacker = world.kafka()
        world.attack_kafka(attacker, key, version, mutations=0)
        assert not attacker.connection.closed, f"the valid request of version {version} closed the connection"
        world.end(attacker)
    for _ in range(PAIRS):
        pair = world.kafka(), world.kafka()
        for attacker in pair:
            version = world.rng.randint(api.min_version, api.max_version)
            world.attack_kafka(attacker, key, version, world.rng.choice(MUTATIONS))
        world.end(*pair)
    check(world)


@pytest.mark.parametrize("code", ROCKETMQ)
def test_rocketmq_requests(world: World, code: RequestCode) -> None:
    attacker = world.rocketmq()
    world.attack_rocketmq(attacker, code, mutations=0)
    assert not attacker.connection.closed, "the valid request closed the connection"
    world.end(attacker)
    for _ in range(PAIRS):
        pair = world.rocketmq(), world.rocketmq()
        for attacker in pair:
            world.attack_rocketmq(attacker, code, world.rng.choice(MUTATIONS))
        world.end(*pair)
    check(world)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_decisions_about_open_half_messages(world: World, is_deleted: bool) -> None:
    """Two other clients decide about half messages of a producer: with wrong offsets, as other groups, again, before
    and after a check-back, and after their topic is deleted. A half message that they do not name is committed last.
    """
    producer, strangers = world.rocketmq(), (world.rocketmq(), world.rocketmq())
    kept, *named = [scenes.half(producer) for _ in range(6)]
    orders = world.topic("orders")
    checked = 0
    for _ in range(3):
        for _ in range(20):
            _decide(world, world.rng.choice(strangers), named)
        producer.transport.taken.clear()
        for _ in range(4):
            world.pass_ms(CHECK_STEP_MS)
        frames = FrameReader(1 << 30).feed(bytes(producer.transport.taken))
        checked += sum(remoting.decode(frame).code == RequestCode.CHECK_TRANSACTION_STATE for frame in frames)
        if is_deleted and world.topic("orders") is orders:
            world.topics.delete(orders, world.clock.now_ms())
    before = sum(queue.end_offset for queue in world.topic("orders").queues)
    fields = {**kept, "producerGroup": "shop", "commitOrRollback": "8", "fromTransactionCheck": "false"}
    producer.say(rocketmq_requests.valid(RequestCode.END_TRANSACTION, world.rng, fields).encode())
    world.settle()
    committed = sum(queue.end_offset for queue in world.topic("orders").queues) - before
    world.end(*strangers, producer)
    check(world)
    assert checked > 0
    assert is_deleted or committed == 1


def _decide(world: World, stranger: Attacker, named: list[dict[str, str]]) -> None:
    """Send END_TRANSACTION one to three times for one of these half messages, or for a mixture of two."""
    rng = world.rng
    fields = {
        **rng.choice(named), "producerGroup": rng.choice(("shop", "other")),
        "commitOrRollback": rng.choice(("8", "12", "0")), "fromTransactionCheck": rng.choice(("true", "false")),
    }  # fmt: skip
    if rng.random() < 0.4:
        fields["commitLogOffset"] = rng.choice(named)["commitLogOffset"]
    request = rocketmq_requests.valid(RequestCode.END_TRANSACTION, rng, fields)
    for _ in range(rng.choice((0, 0, 1, 2))):
        request.mutate(rng)
    for _ in range(rng.randint(1, 3)):
        stranger.send(request.encode(), "END_TRANSACTION", is_answered=False)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", first_in_unit([0, HTTP_PAIRS], 1))
def test_http_requests(world: World, pairs: int) -> None:
    async def attack() -> None:
        async with HttpSide(world) as side:
            for method, path in side.rows:
                has_body = method in ("POST", "PATCH", "PUT")
                assert not has_body or (method, path) in http_requests.BODIES, f"no valid body of {method} {path}"
                assert await side.attack(method, path, mutations=0), f"{method} {path} is not answered"
                for _ in range(pairs):
                    pair = [side.attack(method, path, world.rng.choice(MUTATIONS)) for _ in range(2)]
                    await asyncio.gather(*pair)
                world.pass_ms(1_000)

    run(attack(), world.clock)
    check(world)


@pytest.mark.soak
def test_requests_of_all_kinds_for_long(rng: random.Random) -> None:
    """Send requests of random rows of all tables: three a connection, one connection of each protocol at a time.

    Each world has a seed of its own, which is printed with what was found in it; DUOLOG_SOAK_WORLD repeats one world.
    """
    found, sent, begun_s = 0, 0, time.monotonic()
    while sent < SOAK_REQUESTS:
        seed = int(os.environ.get("DUOLOG_SOAK_WORLD") or rng.getrandbits(40))
        try:
            world = _attacked_world(random.Random(seed))
        except Exception as error:
            error.add_note(f"DUOLOG_SOAK_WORLD={seed} repeats it")
            raise
        sent, found = sent + world.requests, found + len(world.findings)
        for finding in world.findings:
            print(f"DUOLOG_SOAK_WORLD={seed}: {finding}"[:2_000])
        print(f"{sent} requests in {time.monotonic() - begun_s:.0f} s, {found} findings", flush=True)
        if "DUOLOG_SOAK_WORLD" in os.environ:
            break
    assert not found


def _attacked_world(rng: random.Random) -> World:
    rows = [(api.key, v) for api in kafka.TABLE.values() for v in range(api.min_version, api.max_version + 1)]
    codes = [RequestCode(code) for code in request_table.TABLE]
    world = World(rng.getrandbits(32), counts_calls=False)
    while world.requests < WORLD_REQUESTS:
        pair = world.kafka(), world.rocketmq()
        for _ in range(3):
            world.attack_kafka(pair[0], *rng.choice(rows), rng.choice((0, *MUTATIONS)))
            world.attack_rocketmq(pair[1], rng.choice(codes), rng.choice((0, *MUTATIONS)))
        world.end(*pair)
    run(_http_round(world, rng), world.clock)
    return world


async def _http_round(world: World, rng: random.Random) -> None:
    async with HttpSide(world) as side:
        rows = side.rows
        for _ in range(WORLD_REQUESTS // 30):
            await side.attack(*rng.choice(rows), rng.choice((0, *MUTATIONS)))
