"""Sends Kafka requests of a standby's clients to the owner, and returns its answers as they are.

A standby can neither create topics nor assign producer ids, and a client may ask the same broker for them again and
again.
"""

import asyncio
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

from duolog.bridge.net.nodes import Address

WITHIN_S: Final = 2.0
AT_ONCE_MAX: Final = 100  # With more, the connection of the client is closed.
_SIZE: Final = struct.Struct(">i")


class OwnerRequests:
    """The requests that wait for the owner. `tls` returns what verifies its certificate; None: without TLS."""

    def __init__(self, answer_bytes_max: int, tls: Callable[[], ssl.SSLContext | None]) -> None:
        self._answer_bytes_max, self._tls = answer_bytes_max, tls
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, waiting: Coroutine[Any, Any, None]) -> bool:
        """Run what waits for the owner; False: AT_ONCE_MAX are running."""
        if len(self._tasks) >= AT_ONCE_MAX:
            waiting.close()
            return False
        task = asyncio.create_task(waiting)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def ask(self, owner: Address, frame: bytes) -> bytes:
        """Return the whole frame that answers this one. Raises OSError and TimeoutError."""
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection(*owner, ssl=self._tls())
            try:
                writer.write(_SIZE.pack(len(frame)) + frame)
                head = await reader.readexactly(_SIZE.size)
                (size,) = _SIZE.unpack(head)
                if not 0 <= size <= self._answer_bytes_max:
                    raise ConnectionError(f"the owner's answer has {size} bytes")
                return head + await reader.readexactly(size)
            except asyncio.IncompleteReadError as error:
                raise ConnectionError("the owner closed the connection") from error
            finally:
                writer.close()
