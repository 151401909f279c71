"""The HTTP port of a world: bytes in, bytes out, on an event loop whose time jumps."""

import asyncio
from typing import TYPE_CHECKING, cast

from tests.kit.http import new_port
from tests.kit.loop import VirtualLoop
from tests.kit.sockets import FakeTransport, connect
from tests.unit.adversary import budget, http_requests

if TYPE_CHECKING:
    from tests.unit.adversary.world import World

TURNS_MAX = 2_000  # The turns of the loop for one request; long lists are made in slices.


class HttpSide:
    """Serves a world over HTTP; use it as an asynchronous context."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.port = new_port(world)

    async def __aenter__(self) -> "HttpSide":
        cast(VirtualLoop, asyncio.get_running_loop()).run_task = budget.uncounted
        await self.port.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.port.stop()

    @property
    def rows(self) -> list[tuple[str, str]]:
        return http_requests.rows(self.port.application)

    async def attack(self, method: str, path: str, mutations: int) -> int:
        """Send one request, and return the status of the answer; 0: the connection was closed without an answer."""
        request = http_requests.Request(method, path)
        for _ in range(mutations):
            request.mutate(self.world.rng)
        self.world.replenish()
        return await self.say(request.encode(), request.kind, is_whole=not mutations)

    async def say(self, sent: bytes, kind: str, *, is_whole: bool = True) -> int:
        world = self.world
        connection = cast(asyncio.Protocol, self.port.connection())
        world.requests += 1
        transport = connect(connection, asyncio.get_running_loop())
        connection.data_received(sent)
        if not is_whole:
            connection.eof_received()
        for _ in range(TURNS_MAX):
            with budget.counted(calls=world.counts_calls) as work:
                await asyncio.sleep(0)
            world.settle()
            world.judge(kind, work, [sent])
            if transport.closing:
                break
        else:
            if is_whole:
                world.note(kind, f"not answered within {TURNS_MAX} turns", [sent])
            transport.abort()
        await asyncio.sleep(0)
        return _status(transport)


def _status(transport: FakeTransport) -> int:
    head = bytes(transport.taken[:12])
    return int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else 0
