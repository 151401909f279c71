"""The class ListeningPort: a bound port of the broker, which accepts connections or refuses them.

    state       open()                  refuse()                     shut down from outside      close()
    ---------   ---------------------   --------------------------   -------------------------   -------
    refuses     accepts                 -                            -                           closed
    accepts     -                       refuses; its clients keep    refuses until               closed
                                        their connections            `listen_again` or `open`
                                                                     after `refuse`

A port that refuses stays bound, so that no other process gets it.
"""

import asyncio
import errno
import socket
from collections.abc import Callable

from duolog.bridge.net.addresses import StartError, endpoint

BACKLOG = 1024  # Connections that the kernel keeps until they are accepted; Apache RocketMQ: 1024 (NettyServerConfig).


class ListeningPort:
    """One port, by its socket from `addresses.bind`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        bound: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._loop, self._name, self._bound, self._factory = loop, name, bound, factory
        self._listener: asyncio.AbstractServer | None = None  # None: connections are refused.

    async def open(self) -> None:
        """Accept connections, if they are refused. Raises StartError."""
        if self._listener is not None:
            return
        try:
            listen(self._bound)  # uvloop does not report that another process listens on the port.
        except OSError as error:
            address = endpoint(*self._bound.getsockname()[:2])
            raise StartError(f"{self._name}: cannot listen on {address}: {error.strerror}") from error
        self._listener = await self._loop.create_server(self._factory, sock=self._bound, backlog=BACKLOG)

    def refuse(self) -> None:
        """Refuse connections, also those that were not accepted yet."""
        if self._listener is None:
            return
        # The listener closes its socket, and a loop that watches a socket after its shutdown would not sleep any more.
        bound = self._bound.dup()
        self._listener.close()
        self._bound, self._listener = bound, None
        # After a second shutdown, Linux would accept connections that are shut down, too.
        if is_listening(bound):
            bound.shutdown(socket.SHUT_RDWR)

    def listen_again(self) -> None:
        """Accept connections again if the socket was shut down from outside. Raises OSError."""
        if self._listener is not None:
            listen(self._bound)

    def close(self) -> None:
        """Accept no connections any more."""
        if self._listener is None:
            self._bound.close()
        else:
            self._listener.close()


def is_listening(bound: socket.socket) -> bool:
    """Whether the kernel accepts connections on a socket."""
    return bool(bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def listen(bound: socket.socket) -> None:
    """Let a socket listen, also after a shutdown, which takes away a port that the system has chosen (port 0)."""
    if is_listening(bound):
        return
    try:
        bound.bind(bound.getsockname())
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: the socket has a port.
            raise
    bound.listen(BACKLOG)
