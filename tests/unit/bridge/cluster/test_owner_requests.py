"""Proves that what a standby asks the owner is limited in number, time and size, and ends with the connection."""

from __future__ import annotations

import asyncio
import struct

import pytest

from duolog.bridge.cluster.owner_requests import AT_ONCE_MAX, OwnerRequests
from duolog.bridge.net.nodes import Address

ANSWER_BYTES_MAX = 1000


async def ask(answer: bytes) -> bytes:
    """Ask an owner on loopback that gives this answer, and then closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(7) == b"\0\0\0\3ask"
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        owner: Address = server.sockets[0].getsockname()[:2]
        return await OwnerRequests(ANSWER_BYTES_MAX, lambda: None).ask(owner, b"ask")


def test_the_answer_of_the_owner_is_returned_as_it_is() -> None:
    assert asyncio.run(ask(b"\0\0\0\2ok")) == b"\0\0\0\2ok"


@pytest.mark.parametrize(
    "answer",
    [b"", b"\0\0\0\5ok", struct.pack(">i", ANSWER_BYTES_MAX + 1) + bytes(ANSWER_BYTES_MAX + 1), b"\xff\xff\xff\xff"],
    ids=["none", "cut short", "too large", "negative"],
)
def test_an_answer_that_is_none_is_an_error_of_the_connection(answer: bytes) -> None:
    with pytest.raises(ConnectionError):
        asyncio.run(ask(answer))


def test_no_more_requests_wait_than_allowed() -> None:
    async def main() -> list[bool]:
        requests, ended = OwnerRequests(ANSWER_BYTES_MAX, lambda: None), asyncio.Event()

        async def wait() -> None:
            await ended.wait()

        begun = [requests.begin(wait()) for _ in range(AT_ONCE_MAX + 1)]
        ended.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [*begun, requests.begin(wait())]

    assert asyncio.run(main()) == [*[True] * AT_ONCE_MAX, False, True]
