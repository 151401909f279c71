"""Proves that a port that refuses connections stays bound, disconnects nobody, and accepts connections again."""

import asyncio
import socket
from typing import Final

import pytest

from duolog.bridge.net.addresses import StartError, bind
from duolog.bridge.net.ports.listening_port import ListeningPort

HOST: Final = "127.0.0.1"


async def is_accepted(address: tuple[str, int]) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@pytest.mark.parametrize("is_of_the_system", [True, False])
def test_port_that_refuses_keeps_its_connections_and_its_address_and_accepts_again(is_of_the_system: bool) -> None:
    async def main() -> None:
        with socket.create_server((HOST, 0)) as free:
            number = 0 if is_of_the_system else free.getsockname()[1]
        bound = bind(HOST, number, "kafka.port")
        address = bound.getsockname()
        port = ListeningPort(asyncio.get_running_loop(), "kafka", bound, asyncio.Protocol)
        assert not await is_accepted(address)
        await port.open()
        reader, writer = await asyncio.open_connection(*address)
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

    asyncio.run(main())


def test_port_that_another_process_has_taken_cannot_be_opened() -> None:
    async def main() -> None:
        bound = bind(HOST, 0, "kafka.port")
        port = ListeningPort(asyncio.get_running_loop(), "kafka", bound, asyncio.Protocol)
        with bind(HOST, bound.getsockname()[1], "kafka.port") as other:
            other.listen()
            with pytest.raises(StartError, match="kafka: cannot listen on"):
                await port.open()
        port.close()

    asyncio.run(main())
