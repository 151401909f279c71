"""Sends Kafka requests of a standby's clients to the owner, and returns its answers as they are.

A standby can neither create topics nor assign producer ids, and a client may ask the same broker for them again and
again. With `security.enabled`, the standby has decided that the client may do what it asks for, and logs in to the
owner as a broker of the stream (`bridge/security/logins.py`).
"""

import asyncio
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

from duolog.bridge.cluster.owner_login import log_in
from duolog.bridge.net.nodes import Address
from duolog.bridge.security.scram import LoginFailed
from duolog.bridge.security.secret_box import SecretBox
from duolog.protocol.errors import ProtocolError

WITHIN_S: Final = 2.0
AT_ONCE_MAX: Final = 100  # With more, the connection of the client is closed.
_SIZE: Final = struct.Struct(">i")


class OwnerRequests:
    """The requests that wait for the owner.

    `tls` returns what verifies its certificate; None: without TLS. `box` has the key of the stream's brokers; None:
    without a login.
    """

    def __init__(
        self, answer_bytes_max: int, tls: Callable[[], ssl.SSLContext | None], box: SecretBox | None = None
    ) -> None:
        self._answer_bytes_max, self._tls, self._box = answer_bytes_max, tls, box
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

            async def exchange(request: bytes) -> bytes:
                writer.write(_SIZE.pack(len(request)) + request)
                (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
                if not 0 <= size <= self._answer_bytes_max:
                    raise ConnectionError(f"the owner's answer has {size} bytes")
                return await reader.readexactly(size)

            try:
                if self._box is not None:
                    await log_in(exchange, self._box)
                answer = await exchange(frame)
                return _SIZE.pack(len(answer)) + answer
            except asyncio.IncompleteReadError as error:
                raise ConnectionError("the owner closed the connection") from error
            except (LoginFailed, ProtocolError) as error:
                raise ConnectionError(f"login to the owner: {error}") from error
            finally:
                writer.close()
