"""Proves that a standby sends each request of its clients to the owner at most once, answers each once and never with a
success that the owner did not give, and holds no more of them than is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from duolog.bridge.cluster.forwarding import (
    ANSWER_MS,
    BYTES_MAX,
    REQUESTS_MAX,
    USERS_MAX,
    WAIT_MS,
    Forwarding,
)
from duolog.bridge.net.nodes import Address
from duolog.bridge.rocketmq.requests.admission import Busy
from duolog.protocol.framing import FrameReader
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.remoting import FLAG_FORWARDED, RemotingCommand
from tests.kit.clock import ManualClock
from tests.kit.hosts import Port, run_hosts, running_loop

OWNER, NEXT_OWNER = ("10.0.0.1", 10911), ("10.0.0.2", 10911)
EXT = {"topic": "orders", "AccessKey": "alice", "Signature": "c2lnbmVk"}


class Owner:
    """A broker that notes what it gets, and answers it if it `answers`."""

    def __init__(self, address: Address) -> None:
        self.got: list[RemotingCommand] = []
        self.connections: list[asyncio.Transport] = []
        self.answers = True
        running_loop().network.listen(Port(*address), lambda: _Accepted(self))


class _Accepted(asyncio.Protocol):
    def __init__(self, owner: Owner) -> None:
        self._owner, self._frames = owner, FrameReader(1 << 24)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._owner.connections.append(self._transport)

    def data_received(self, data: bytes) -> None:
        for command in map(remoting.decode, self._frames.feed(data)):
            self._owner.got.append(command)
            if self._owner.answers and not command.is_oneway:
                stored = remoting.response(command, ext={"queueOffset": str(len(self._owner.got))}, body=b"body")
                self._transport.write(b"".join(remoting.encode(stored)))


class Bench:
    """A standby, whose clients' requests are `send`, and an owner."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.owner: Address | None = OWNER
        self.broker = Owner(OWNER)
        self.forwarding = Forwarding(clock, lambda: self.owner, lambda: None)
        self.answers: list[tuple[int, int]] = []  # Opaque and code of each answer.
        self.found: list[RemotingCommand] = []

    def send(self, opaque: int, user: str = "", size: int = 100, *, oneway: bool = False, json: bool = True) -> None:
        frame = remoting.encode(
            remoting.request(RequestCode.SEND_MESSAGE_V2, opaque, dict(EXT), b"message", oneway=oneway, json=json)
        )
        command = remoting.decode(memoryview(b"".join(frame))[4:])
        self.forwarding.forward(user, command, size, self._answered)

    def _answered(self, answer: RemotingCommand) -> None:
        self.found.append(answer)
        self.answers.append((answer.opaque, answer.code))


def run_bench(main: Callable[[Bench], Coroutine[object, object, None]]) -> None:
    clock = ManualClock()

    async def with_bench() -> None:
        bench = Bench(clock)
        await main(bench)
        bench.forwarding.stop()

    run_hosts(with_bench(), clock, 1)


@pytest.mark.parametrize("json", [True, False])
def test_only_the_number_and_a_flag_of_a_request_are_changed(json: bool) -> None:
    async def main(bench: Bench) -> None:
        bench.send(77, json=json)
        await asyncio.sleep(0.1)
        bench.send(78, json=json)
        await asyncio.sleep(0.1)
        (first, second) = bench.broker.got
        assert (first.ext, bytes(first.body), first.json) == (EXT, b"message", json)  # type: ignore[arg-type]
        assert (first.flag, first.opaque != second.opaque) == (FLAG_FORWARDED, True)
        assert bench.answers == [(77, 0), (78, 0)]
        assert (bench.found[0].ext["queueOffset"], bytes(bench.found[0].body)) == ("1", b"body")  # type: ignore[arg-type]
        assert len(bench.broker.connections) == 1, "the connection is kept"

    run_bench(main)


def test_a_request_waits_for_an_owner_within_the_time_of_a_send() -> None:
    async def main(bench: Bench) -> None:
        bench.owner = None
        bench.send(1)
        await asyncio.sleep(1)
        bench.send(2)
        await asyncio.sleep((WAIT_MS - 1000) / 1000 + 0.1)
        assert bench.answers == [(1, ResponseCode.SERVICE_NOT_AVAILABLE)]
        bench.owner = OWNER
        await asyncio.sleep(0.2)
        assert bench.answers[1:] == [(2, ResponseCode.SUCCESS)]
        assert len(bench.broker.got) == 1, "what was refused is not sent later"

    run_bench(main)


def test_an_owner_that_refuses_connections_is_asked_again_until_the_time_is_over() -> None:
    async def main(bench: Bench) -> None:
        bench.owner = NEXT_OWNER
        bench.send(1)
        await asyncio.sleep(1)
        Owner(NEXT_OWNER)
        await asyncio.sleep(0.2)
        assert bench.answers == [(1, ResponseCode.SUCCESS)]

    run_bench(main)


@pytest.mark.parametrize("lost", ["connection", "owner", "answer"])
def test_a_request_whose_outcome_is_unknown_is_an_error_and_is_not_sent_again(lost: str) -> None:
    async def main(bench: Bench) -> None:
        bench.broker.answers = False
        bench.send(1)
        await asyncio.sleep(0.1)
        following = bench.broker
        if lost == "connection":
            bench.broker.connections[0].close()
        elif lost == "owner":
            following, bench.owner = Owner(NEXT_OWNER), NEXT_OWNER
        await asyncio.sleep(ANSWER_MS / 1000 if lost == "answer" else 0.1)
        assert bench.answers == [(1, ResponseCode.SYSTEM_ERROR)]
        following.answers = True
        bench.send(2)
        await asyncio.sleep(0.2)
        assert bench.answers[1:] == [(2, ResponseCode.SUCCESS)]
        assert sum(len(each.got) for each in {bench.broker, following}) == 2, "each was sent once"

    run_bench(main)


def test_a_late_answer_is_dropped() -> None:
    async def main(bench: Bench) -> None:
        bench.broker.answers = False
        bench.send(1)
        await asyncio.sleep(ANSWER_MS / 1000 + 0.2)
        late = remoting.response(bench.broker.got[0])
        bench.broker.connections[0].write(b"".join(remoting.encode(late)))
        await asyncio.sleep(0.1)
        assert bench.answers == [(1, ResponseCode.SYSTEM_ERROR)]

    run_bench(main)


def test_one_way_requests_take_no_room_once_they_are_sent() -> None:
    async def main(bench: Bench) -> None:
        for _ in range(3):
            bench.send(1, size=BYTES_MAX, oneway=True)
            await asyncio.sleep(0.1)
        assert len(bench.broker.got) == 3

    run_bench(main)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(REQUESTS_MAX, 0), (4, BYTES_MAX // 4)], ids=["requests", "bytes"])
def test_requests_beyond_the_limit_are_refused_until_others_are_answered(count: int, size: int) -> None:
    async def main(bench: Bench) -> None:
        bench.owner = None
        for number in range(count):
            bench.send(number, size=size)
        with pytest.raises(Busy):
            bench.send(-1, size=1)
        bench.owner = OWNER
        await asyncio.sleep(1)
        assert len(bench.answers) == count
        bench.send(-2, size=1)
        await asyncio.sleep(0.1)
        assert bench.answers[-1] == (-2, ResponseCode.SUCCESS)

    run_bench(main)


def test_each_user_has_a_connection_and_the_idle_ones_make_room() -> None:
    async def main(bench: Bench) -> None:
        for number in range(USERS_MAX):
            bench.send(number, f"user {number}")
        with pytest.raises(Busy):
            bench.send(-1, "another user")
        await asyncio.sleep(0.2)
        assert len(bench.answers) == len(bench.broker.connections) == USERS_MAX
        bench.send(-2, "another user")
        await asyncio.sleep(0.2)
        assert bench.answers[-1] == (-2, ResponseCode.SUCCESS)
        assert sum(each.is_closing() for each in bench.broker.connections) == 1

    run_bench(main)


def test_what_is_no_answer_ends_the_connection() -> None:
    async def main(bench: Bench) -> None:
        bench.broker.answers = False
        bench.send(1)
        await asyncio.sleep(0.1)
        bench.broker.connections[0].write(b"\xff\xff\xff\xff")
        await asyncio.sleep(0.1)
        assert bench.answers == [(1, ResponseCode.SYSTEM_ERROR)]
        assert bench.broker.connections[0].is_closing()

    run_bench(main)
