"""The addresses of the broker's ports: those that it listens on, and those that its answers name to clients."""

import errno
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from duolog.bridge.config import ConfigError

WILDCARDS: Final = ("", "0.0.0.0", "::")  # Values of `server.host` with which a broker listens on all addresses.


class StartError(Exception):
    """The broker cannot start, or cannot go on, for a reason that an operator can correct. The message is one line."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The advertised host, and the address that each port listens on, by the names of the ports."""

    advertised_host: str  # The host in answers to clients.
    listening: Mapping[str, tuple[str, int]]

    @property
    def kafka(self) -> tuple[str, int]:
        """Return the advertised address of the Kafka listener."""
        return self.advertised_host, self.listening["kafka"][1]

    @property
    def rocketmq(self) -> tuple[str, int]:
        """Return the advertised address of the RocketMQ listener."""
        return self.advertised_host, self.listening["rocketmq"][1]


NO_PORTS: Final = Addresses("127.0.0.1", dict.fromkeys(("kafka", "rocketmq", "namesrv", "http"), ("127.0.0.1", 0)))
"""The addresses for commands that open a log without ports."""


def advertised_host(host: str, advertise: str) -> str:
    """Return the host name that answers name to clients, from the settings `server.host` and `server.advertise`."""
    return advertise or (socket.gethostname() if host in WILDCARDS else host)


def endpoint(host: str, port: int) -> str:
    """Format an address for people and scripts, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int, setting: str) -> socket.socket:
    """Take a port (0: any free one) and close it to others; raises ConfigError or StartError, naming the setting."""
    try:
        found: Sequence[tuple[int, int, int, str, tuple[str, int]]] = sorted(
            socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),  # type: ignore[arg-type]
            key=lambda address: address[0] != socket.AF_INET,
        )
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"server.host: {host!r} is no address of this machine: {error}") from error
    family, kind, number, _, address = found[0]
    bound = socket.socket(family, kind, number)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"server.host: {host!r} is no address of this machine: {error.strerror}") from error
        raise StartError(f"{setting}: cannot listen on {endpoint(host, port)}: {error.strerror}") from error
    bound.setblocking(False)
    return bound
