"""The addresses of the broker's ports: those that it listens on, and those that its answers name to clients."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Addresses:
    """`listening` has the address of each port: kafka, rocketmq, namesrv, http."""

    advertised_host: str  # The host that clients are told to connect to.
    listening: Mapping[str, tuple[str, int]]

    @property
    def kafka(self) -> tuple[str, int]:
        """The address that Kafka clients are told to connect to."""
        return self.advertised_host, self.listening["kafka"][1]

    @property
    def rocketmq(self) -> tuple[str, int]:
        """The address that RocketMQ clients are told to connect to."""
        return self.advertised_host, self.listening["rocketmq"][1]


def endpoint(host: str, port: int) -> str:
    """Format an address for people and scripts, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
