"""The brokers of a stream, as answers name them to clients, and which of them is the owner.

A broker that shares no stream is the only node, and the owner.
"""

from typing import Final, NamedTuple

import msgspec

from duolog.bridge.net.addresses import Addresses

FIRST_ID: Final = 0  # kafka-python assigns new partitions to broker 0, whatever Metadata says.
ENDPOINTS_BYTES_MAX: Final = 4096

Address = tuple[str, int]


class Endpoints(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The advertised host and port of each of a broker's ports, as its objects in the store hold them, in JSON."""

    kafka: Address
    rocketmq: Address
    namesrv: Address
    http: Address

    @classmethod
    def of(cls, addresses: Addresses) -> "Endpoints":
        host = addresses.advertised_host
        return cls(*((host, addresses.listening[name][1]) for name in cls.__struct_fields__))

    def encode(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> "Endpoints":
        """Read what `encode` wrote, possibly in a newer version. Raises ValueError."""
        if len(data) > ENDPOINTS_BYTES_MAX:
            raise ValueError(f"the addresses of a broker have {len(data)} bytes, more than {ENDPOINTS_BYTES_MAX}")
        try:
            found = msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:  # A ValueError, but not in older versions of msgspec.
            raise ValueError(str(error)) from error
        for name in cls.__struct_fields__:
            host, port = getattr(found, name)
            if not host or not 0 < port <= 65535:
                raise ValueError(f"{host!r}:{port} is no address of a {name} port")
        return found


class Node(NamedTuple):
    """One broker. Kafka clients know it by its id."""

    id: int
    endpoints: Endpoints


class Nodes:
    """The brokers of a stream. `version` changes with every change."""

    def __init__(self, own: Node, owner: Node | None) -> None:
        self.own = own
        self.owner = owner  # None: not known, because a takeover is under way.
        self.all: tuple[Node, ...] = (own,)  # In the order of their ids; the owner is one of them.
        self.reached: frozenset[int] = frozenset()  # The ids of the other brokers that answer, except the owner.
        self.version = 0

    @classmethod
    def alone(cls, addresses: Addresses) -> "Nodes":
        """Return the only broker of a log that is not shared."""
        own = Node(FIRST_ID, Endpoints.of(addresses))
        return cls(own, own)

    @property
    def is_owner(self) -> bool:
        return self.owner == self.own

    @property
    def standbys(self) -> list[Node]:
        """The brokers that are not the owner and that clients reach, as far as is known; this one goes first."""
        own = [] if self.owner is None or self.is_owner else [self.own]
        return own + [node for node in self.all if node.id in self.reached and node not in (self.own, self.owner)]

    def set(self, others: dict[int, Endpoints], owner: Endpoints | None) -> None:
        """Replace the other brokers, and the owner, which is one of all brokers if its address is known."""
        found = {**{number: Node(number, each) for number, each in others.items()}, self.own.id: self.own}
        by_endpoints = {node.endpoints: node for node in found.values()}
        chosen = None if owner is None else by_endpoints.get(owner)
        listed = tuple(found[number] for number in sorted(found))
        if (listed, chosen) != (self.all, self.owner):
            self.all, self.owner = listed, chosen
            self.version += 1
