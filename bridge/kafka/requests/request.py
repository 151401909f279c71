"""One request on its way to a handler, and what handlers are made of."""

from collections.abc import Generator
from typing import Any, NamedTuple

from duolog.bridge.net.answers import Answer
from duolog.protocol.kafka.api_messages import (
    NO_THROTTLE,
    ResponseTypes,
    encode_response,
    response_types,
)
from duolog.store.entry import Promise

__all__ = ("NO_THROTTLE", "KafkaRequest", "Steps", "join_promises")


class KafkaRequest(NamedTuple):
    """A decoded request; `body` is what `protocol.kafka.api.decode_request` gave for this key and version."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: Any
    size: int = 0  # Of its frame, in bytes.

    @property
    def held_bytes(self) -> int:
        """What it takes in memory while it waits, at most: objects are some ten times as large as on the wire."""
        return 10 * self.size

    @property
    def without_body(self) -> "KafkaRequest":
        """Give what its answer needs, for a request that waits for long: its body need not stay."""
        return self._replace(body=None, size=0)

    @property
    def types(self) -> ResponseTypes:
        """The classes of this version's response; their constructors drop what the version lacks."""
        return response_types(self.api_key, self.version)

    def answer(self, entity: Any, promise: Promise | None = None) -> Answer:
        """Encode the response; it leaves once the log keeps the promise."""
        return Answer(encode_response(self.api_key, self.version, self.correlation_id, entity), promise)


# Of a request that may have much to do: a generator, which yields wherever the loop may turn (`work.py`). It yields the
# number of bytes of its answer that it has built so far; None means that the number has not changed.
Steps = Generator[Any, None, Answer | None]


# The API keys that ApiVersions lists, each with its lowest and its highest version.
AdvertisedVersions = tuple[tuple[int, int, int], ...]


def join_promises(first: Promise | None, second: Promise | None) -> Promise | None:
    """The promise that covers both."""
    if first is None or second is None:
        return first or second
    return Promise(max(first.end, second.end), first.durable or second.durable)
