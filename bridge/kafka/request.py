"""One request on its way to a handler, and what handlers are made of."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from bridge.answers import Answer
from bridge.server import OutboxSlot
from protocol.kafka.api import NO_THROTTLE, ResponseTypes, encode_response, response_types
from store.entry import Promise

if TYPE_CHECKING:
    from bridge.broker import Broker
    from bridge.kafka.connection import KafkaConnection

__all__ = ("NO_THROTTLE", "Handler", "Request", "later")


class Request(NamedTuple):
    """A decoded request; `body` is what `protocol.kafka.api.decode_request` gave for this key and version."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: Any

    @property
    def types(self) -> ResponseTypes:
        """The classes of this version's response; their constructors drop what the version lacks."""
        return response_types(self.api_key, self.version)

    def answer(self, entity: Any, promise: Promise | None = None) -> Answer:
        """Encode the response; it leaves once the log keeps the promise."""
        return Answer(encode_response(self.api_key, self.version, self.correlation_id, entity), promise)


# What a handler gives: the answer; the place in the order of a later one (`connection.outbox.reserve()`, filled by
# `connection.outbox.fill`); or None for a request that has no answer.
Handler = Callable[["Broker", "KafkaConnection", Request], Answer | OutboxSlot | None]


def later(first: Promise | None, second: Promise | None) -> Promise | None:
    """The promise that covers both."""
    if first is None or second is None:
        return first or second
    return Promise(max(first.end, second.end), first.durable or second.durable)
