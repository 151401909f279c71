"""Proves that a port that refuses connections stays bound, disconnects nobody, and accepts connections again."""

import asyncio
import socket
from typing import Any, Final

import pytest
import uvloop

from duolog.bridge.net.addresses import StartError, bind
from duolog.bridge.net.ports.listening_port import ListeningPort

HOST: Final = "127.0.0.1"
GREETING: Final = b"hello"


async def is_accepted(address: tuple[str, int]) -> bool:
    """Whether a client can connect, and gets what the port sends it."""
    try:
        reader, writer = await asyncio.open_connection(*address)
    except ConnectionRefusedError:
        return False
    greeting = await reader.read(len(GREETING))  # Nothing if the connection is closed at once.
    writer.close()
    return greeting == GREETING


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(GREETING)


@pytest.mark.parametrize("is_told_to_refuse", [True, False])
def test_port_that_was_shut_down_from_outside_accepts_again(is_told_to_refuse: bool) -> None:
    async def main() -> None:
        bound = bind(HOST, 0, "kafka.port")
        address = bound.getsockname()
        port = ListeningPort(asyncio.get_running_loop(), "kafka", bound, Greeter)
        await port.open()
        with bound.dup() as outside:
            outside.shutdown(socket.SHUT_RDWR)
        assert not await is_accepted(address)
        if is_told_to_refuse:
            port.refuse()
            port.listen_again()
            assert not await is_accepted(address)
            await port.open()
        else:
            port.listen_again()
        assert await is_accepted(address)
        port.close()

    uvloop.run(main())


@pytest.mark.parametrize("is_of_the_system", [True, False])
def test_port_that_refuses_keeps_its_connections_and_its_address_and_accepts_again(is_of_the_system: bool) -> None:
    async def main() -> None:
        with socket.create_server((HOST, 0)) as free:
            number = 0 if is_of_the_system else free.getsockname()[1]
        bound = bind(HOST, number, "kafka.port")
        address = bound.getsockname()
        port = ListeningPort(asyncio.get_running_loop(), "kafka", bound, Greeter)
        assert not await is_accepted(address)
        await port.open()
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.readexactly(len(GREETING)) == GREETING
        for _ in range(2):
            port.refuse()
            port.refuse()
            assert not await is_accepted(address)
            port.listen_again()
            assert not await is_accepted(address), "only a port that was shut down from outside listens again"
            await port.open()
            await port.open()
            assert await is_accepted(address)
        assert not reader.at_eof()
        writer.close()
        port.close()
        await asyncio.sleep(0)
        assert not await is_accepted(address)

    uvloop.run(main())


def test_port_that_another_process_has_taken_cannot_be_opened() -> None:
    async def main() -> None:
        bound = bind(HOST, 0, "kafka.port")
        port = ListeningPort(asyncio.get_running_loop(), "kafka", bound, Greeter)
        with bind(HOST, bound.getsockname()[1], "kafka.port") as other:
            other.listen()
            with pytest.raises(StartError, match="kafka: cannot listen on"):
                await port.open()
        port.close()

    uvloop.run(main())
