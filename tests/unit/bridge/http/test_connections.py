"""One HTTP client does not harm others: invalid and slow connections, large bodies, answers that are not read."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import pytest
from aiohttp import web

from duolog.bridge.config import HttpOptions, LimitsOptions, Options
from duolog.bridge.http.answers import (
    PIECE_BYTES,
    Listing,
    answer,
    array,
)
from duolog.bridge.http.connections import LINGER_S, HttpConnection
from duolog.bridge.http.port import HttpPort
from tests.kit.core import ManualCore
from tests.kit.http import HEADERS, HttpBench, HttpDialogue, encoded
from tests.kit.loop import run

KEEP = HEADERS | {"Connection": "keep-alive"}
BIG = "x" * 300_000
OPTIONS = Options(
    limits=LimitsOptions(first_request_ms=1000, unread_ms=1000),
    http=HttpOptions(body_bytes_max=1 << 20, held_bytes_max=2 << 20, connections_max=3),
)


def serving(
    talk: Callable[[ManualCore, HttpPort], Awaitable[None]], options: Options = OPTIONS, *, is_virtual: bool = False
) -> ManualCore:
    """Run a talk with a port that has two more routes, for answers of any size; nothing may be left of it.

    With `is_virtual`, the timers of the loop use the core's clock, and a talk that sleeps takes no time.
    """
    core = ManualCore(options)

    async def served() -> None:
        port = HttpBench(core).port()
        port.add_pages([web.get("/body", _body)])
        port.add_pages([web.get("/rows", _rows)])
        await port.start()
        await talk(core, port)
        assert port.connections.held_bytes == 0
        await port.stop()

    if is_virtual:
        run(served(), core.clock)
    else:
        asyncio.run(served())
    assert not core.faults.counts
    return core


async def _body(request: web.Request) -> web.StreamResponse:
    return answer(BIG)


async def _rows(request: web.Request) -> web.StreamResponse:
    return Listing(array("x" * 1000 for _ in range(1_000)))


POST = encoded("POST", "/api/topics", b"", HEADERS).replace(b"Content-Length: 0\r\n\r\n", b"")


@pytest.mark.parametrize("path", ["/api/topics", "/api/timers", "/api/leases", "/api/schedules"])
@pytest.mark.parametrize("body", [b"Content-Length: 10\r\n\r\n", b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a":'])
@pytest.mark.parametrize("turns", range(6))
def test_client_that_goes_while_its_body_is_awaited_harms_nobody(path: str, body: bytes, turns: int) -> None:
    async def talk(core: ManualCore, port: HttpPort) -> None:
        core.topic("big", 64)
        dialogue = HttpDialogue(core, port)
        first = encoded("GET", "/api/topics/big", b"", KEEP)
        dialogue.send(first + POST.replace(b"/api/topics", path.encode()) + body)
        await dialogue.turn(turns)
        await dialogue.close()
        await dialogue.turn(10)

    serving(talk)


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 3000000\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n" + b"40000\r\n%b\r\n" % (b" " * 0x40000) * 5,
    ],
)
def test_body_is_refused_by_its_length_or_as_soon_as_it_is_too_long(body: bytes) -> None:
    async def talk(core: ManualCore, port: HttpPort) -> None:
        dialogue = HttpDialogue(core, port)
        dialogue.send(POST + body)
        await dialogue.turn(20)
        status, _, rest = bytes(dialogue.transport.taken).partition(b"\r\n")
        assert b" 413 " in status
        assert rest.endswith(b'{"error":"the body exceeded http.body_bytes_max=1048576"}')
        await dialogue.close()

    serving(talk)


def test_what_comes_ahead_of_an_answer_is_bounded() -> None:
    async def talk(core: ManualCore, port: HttpPort) -> None:
        dialogue = HttpDialogue(core, port)
        dialogue.send(POST + b"Content-Length: 10\r\n\r\n{")
        await dialogue.turn(5)
        for _ in range(20):
            if not dialogue.transport.closing:
                dialogue.send(b" " * (200 << 10))
        assert dialogue.transport.is_aborted
        await dialogue.turn(5)

    serving(talk)


def test_head_that_is_too_long_is_400_in_json() -> None:
    many = b"".join(b"X-%d: y\r\n" % number for number in range(100))
    for head in (many, b"X: " + b"y" * 5000 + b"\r\n"):
        status, _, body = HttpBench().send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
        assert status == 400
        assert body.startswith(b'{"error":')


def test_body_that_does_not_come_is_answered_in_time() -> None:
    async def talk(core: ManualCore, port: HttpPort) -> None:
        dialogue = HttpDialogue(core, port)
        dialogue.send(POST + b"Content-Length: 10\r\n\r\n{")
        await dialogue.turn(20)
        await asyncio.sleep(0.9)
        assert not dialogue.transport.taken
        await asyncio.sleep(0.2)
        assert b"400" in dialogue.transport.taken[:20]
        await asyncio.sleep(LINGER_S + 1)
        assert dialogue.transport.closing

    serving(talk, is_virtual=True)


def test_answer_that_nobody_takes_is_counted_and_its_connection_closed() -> None:
    async def talk(core: ManualCore, port: HttpPort) -> None:
        for path, held in (("/body", len(BIG)), ("/rows", 0)):
            slow = HttpDialogue(core, port)
            slow.transport.room = 1000
            slow.send(encoded("GET", path, b"", KEEP) * 5)
            await slow.turn(20)
            assert slow.transport.get_write_buffer_size() <= PIECE_BYTES + 2000
            assert held <= port.connections.held_bytes <= held + 1000
            core.clock.pass_ms(900)
            port.connections.sweep()
            assert not slow.transport.is_aborted
            core.clock.pass_ms(200)
            port.connections.sweep()
            assert slow.transport.is_aborted
            await slow.turn(5)
            assert port.connections.held_bytes == 0

    serving(talk)


def test_reader_that_is_slow_but_reads_gets_all_of_it() -> None:
    async def talk(core: ManualCore, port: HttpPort) -> None:
        for path, size in (("/body", len(BIG)), ("/rows", 1_000_000)):
            slow = HttpDialogue(core, port)
            slow.transport.room = 0
            slow.send(encoded("GET", path, b"", HEADERS))
            for _ in range(200):
                await slow.turn(3)
                core.clock.pass_ms(500)
                port.connections.sweep()
                if slow.transport.closing:
                    break
                slow.transport.take(PIECE_BYTES)
            slow.transport.take()
            assert not slow.transport.is_aborted
            assert len(slow.transport.taken) > size

    serving(talk)


def test_answers_of_all_are_bounded() -> None:
    async def talk(core: ManualCore, port: HttpPort) -> None:
        slow = [HttpDialogue(core, port) for _ in range(2)]
        for each in slow:
            each.transport.room = 0
            each.send(encoded("GET", "/body", b"", KEEP))
        await slow[0].turn(20)
        port.connections.hold((2 << 20) - port.connections.held_bytes - 1000)
        refused = HttpDialogue(core, port)
        refused.send(encoded("GET", "/body", b"", HEADERS))
        assert b" 503 " in await refused.answers()
        over = HttpDialogue(core, port)
        over.send(POST + b"Content-Length: 5000\r\n\r\n")
        await over.turn(5)
        over.send(b" " * 4000)
        assert over.transport.is_aborted
        for each in slow:
            await each.close()
        port.connections.held_bytes -= (2 << 20) - 2 * len(BIG) - 4 - 1000

    serving(talk)


def test_connections_above_the_limit_and_silent_ones_are_closed() -> None:
    async def talk(core: ManualCore, port: HttpPort) -> None:
        silent = [HttpDialogue(core, port) for _ in range(3)]
        refused = HttpDialogue(core, port)
        assert refused.transport.is_aborted
        silent[0].send(encoded("GET", "/healthz", b"", KEEP))
        silent[1].send(b"GET /healthz HTTP/1.1\r\nHost: loc")
        await silent[0].turn(5)
        core.clock.pass_ms(1001)
        port.connections.sweep()
        assert [each.transport.is_aborted for each in silent] == [False, True, True]
        await silent[0].turn(5)
        assert len(port.connections) == 1
        assert not HttpDialogue(core, port).transport.is_aborted

    serving(talk)


def test_fault_in_an_answer_that_has_begun_closes_its_connection_only() -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        return Listing(array({} if number < 100_000 else {"": 1 // 0} for number in range(200_000)))

    async def run() -> None:
        core = ManualCore()
        port = HttpBench(core).port()
        port.add_pages([web.get("/broken", broken)])
        await port.start()
        dialogue = HttpDialogue(core, port)
        dialogue.send(encoded("GET", "/broken", b"", KEEP))
        assert b" 200 " in (await dialogue.answers())[:20]
        assert dialogue.transport.is_aborted
        assert core.faults.counts == {"http GET /broken": 1}
        other = HttpDialogue(core, port)
        other.send(encoded("GET", "/healthz", b"", HEADERS))
        assert b" 200 " in (await other.answers())[:20]
        await port.stop()

    asyncio.run(run())


def test_listings_of_many_connections_have_one_slice_in_a_turn_of_the_loop() -> None:
    made = 0

    def rows() -> Iterator[str]:
        nonlocal made
        for _ in range(1_000):
            made += 1
            yield "x" * 1000

    async def counted(request: web.Request) -> web.StreamResponse:
        return Listing(array(rows()))

    async def run() -> None:
        core = ManualCore()
        port = HttpBench(core).port()
        port.add_pages([web.get("/counted", counted)])
        await port.start()
        asking = [HttpDialogue(core, port) for _ in range(20)]
        for each in asking:
            each.send(encoded("GET", "/counted", b"", HEADERS))
        most = 0
        while not all(each.transport.closing for each in asking):
            before = made
            await asking[0].turn()
            most = max(most, made - before)
        assert made == 20_000
        assert most <= PIECE_BYTES // 1000 + 1
        await port.stop()

    asyncio.run(run())


def test_head_has_no_body() -> None:
    async def talk(core: ManualCore, port: HttpPort) -> None:
        for path in ("/body", "/rows"):
            dialogue = HttpDialogue(core, port)
            dialogue.send(encoded("HEAD", path, b"", HEADERS))
            assert len(await dialogue.answers()) < 500
            assert isinstance(cast(object, dialogue.connection), HttpConnection)

    serving(talk)
