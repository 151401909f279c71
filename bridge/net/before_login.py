"""The class BeforeLogin: what the connections of clients that must log in, and have not, occupy together."""

from typing import Protocol

from duolog.bridge.config import LimitsOptions


class ConnectionBeforeLogin(Protocol):
    """The members of a connection that are used here."""

    closed: bool
    partial_bytes: int  # The size of the received part of an incomplete request.

    def close(self, reason: str, *, abort: bool = False) -> None: ...


class BeforeLogin:
    """The bytes of unfinished requests, and what happens at the limit."""

    def __init__(self, limits: LimitsOptions) -> None:
        self._bytes_max = limits.before_login_bytes_max
        self.bytes = 0  # Invariant: the sum of `partial_bytes`.
        self._connections: dict[ConnectionBeforeLogin, None] = {}  # The oldest first.

    def add(self, connection: ConnectionBeforeLogin) -> None:
        """Add a new connection."""
        self._connections[connection] = None

    def remove(self, connection: ConnectionBeforeLogin) -> None:
        """Remove a connection that is closed, or whose client has logged in, if it is here."""
        if connection in self._connections:
            del self._connections[connection]
            self.bytes -= connection.partial_bytes

    def count(self, size: int) -> None:
        """Count bytes of an unfinished request; at the limit, the oldest connection that has one is closed.

        A client that can log in does so with its first requests, so the oldest connections are those of clients that
        cannot.
        """
        self.bytes += size
        if self.bytes > self._bytes_max:
            oldest = next((c for c in self._connections if c.partial_bytes and not c.closed), None)
            if oldest is not None:
                oldest.close(
                    f"{oldest.partial_bytes} bytes of a request before the login, above "
                    f"limits.before_login_bytes_max={self._bytes_max} over all"
                )
