"""Whom quotas are for, which of several counts, and the keys of quotas. Names and order are those of Kafka (KIP-55).

    user and client id    counts first
    user and any client id
    user
    any user and client id
    any user and any client id
    any user
    client id
    any client id         counts last

`any` is Kafka's `<default>`: it holds for each user, or client id, by itself. Each key is looked up on its own. Clients
that have not logged in are the user ANONYMOUS. Source: ClientQuotaManager.java#DefaultQuotaCallback.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from duolog.bridge.security.rules import NAME_CHARACTERS_MAX

ANONYMOUS: Final = "ANONYMOUS"
ANY: Final = ""

PRODUCED: Final = "producer_byte_rate"
FETCHED: Final = "consumer_byte_rate"
REQUEST_TIME: Final = "request_percentage"
CONNECTIONS: Final = "connections"
CONNECTION_RATE: Final = "connection_creation_rate"
DELAYED: Final = "delayed_messages_pending"
KEYS: Final = {
    PRODUCED: "bytes that are produced in a second",
    FETCHED: "bytes that are fetched in a second",
    REQUEST_TIME: "share of the event loop's time, in percent",
    CONNECTIONS: "connections at a time",
    CONNECTION_RATE: "new connections in a second",
    DELAYED: "delayed messages that are pending",
}


class BadQuota(Exception):
    """A quota cannot be set; the message says why."""


class Entity(NamedTuple):
    """Whom a quota is for. None: the user, or the client id, does not matter; ANY: each one by itself."""

    user: str | None = None
    client_id: str | None = None

    def __str__(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id))
        return " ".join(f"{kind}={name or '<default>'}" for kind, name in parts if name is not None)


class QuotaClient(NamedTuple):
    """Who has sent a request, as far as quotas need it."""

    wire: str  # The protocol: kafka, rocketmq or http.
    user: str
    client_id: str = ""  # RocketMQ and HTTP requests name none.


def candidates(user: str, client_id: str) -> Iterator[Entity]:
    """Yield the entities whose quotas may hold for a client, the one that counts first at the beginning."""
    for of_user in (user, ANY):
        yield Entity(of_user, client_id)
        yield Entity(of_user, ANY)
        yield Entity(of_user)
    yield Entity(None, client_id)
    yield Entity(None, ANY)


def check(entity: Entity, key: str, value: float) -> None:
    """Raise BadQuota unless the entity may have the quota."""
    names = [name for name in entity if name is not None]
    if not names:
        raise BadQuota("expected a user, a client id, or both")
    if any(len(name) > NAME_CHARACTERS_MAX or not name.isprintable() for name in names):
        raise BadQuota(f"a name has at most {NAME_CHARACTERS_MAX} characters, all of them visible")
    check_key(key)
    if not 0 < value < float(1 << 62):
        raise BadQuota(f"{key}: expected a number above 0, got {value!r}")


def check_key(key: str) -> None:
    """Raise BadQuota for a key that is not supported."""
    if key not in KEYS:
        raise BadQuota(f"{key[:60]!r} is not supported; supported are {', '.join(KEYS)}")
