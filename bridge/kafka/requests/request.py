"""A decoded request, and the steps of a handler."""

from collections import defaultdict
from collections.abc import Generator
from typing import Any, NamedTuple

from duolog.bridge.net.answers import Answer
from duolog.bridge.security.needs import AnyOf
from duolog.bridge.security.rights import Rights
from duolog.bridge.security.rules import Operation
from duolog.protocol.kafka.api_messages import (
    NO_THROTTLE,
    ErrorCode,
    ResponseTypes,
    encode_response,
    response_types,
)
from duolog.protocol.kafka.response import error_codes
from duolog.store.entry import Promise

__all__ = ("NO_THROTTLE", "KafkaRequest", "Steps", "join_promises")


class KafkaRequest(NamedTuple):
    """A decoded request. `decode_request` in `protocol/kafka/api_messages.py` makes `body`."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: Any
    errors: defaultdict[tuple[str, str], int]  # `Metrics.errors`, in which the errors of its answer are counted.
    size: int = 0  # The size of its frame in bytes.
    rights: Rights | None = None  # None: security is off, and everything is allowed.
    refused: Any = None  # The items of the request that were refused before the handler: `access.RefusedItems`.

    @property
    def held_bytes(self) -> int:
        """The memory that the waiting request takes at most: its objects are some ten times as large as its frame."""
        return 10 * self.size

    @property
    def without_body(self) -> "KafkaRequest":
        """Return a copy without the body, for a request that waits long; its answer needs only the other fields."""
        return self._replace(body=None, size=0)

    def sees_topic(self, name: str) -> bool:
        """Whether the session may know of the topic."""
        return self.rights is None or self.rights.has_topic(name, Operation.DESCRIBE)

    def sees(self, need: AnyOf) -> bool:
        """Whether the session has what it needs to know of something."""
        return self.rights is None or self.rights.has(need)

    @property
    def types(self) -> ResponseTypes:
        """The classes of this version's response; their constructors ignore fields that the version lacks."""
        return response_types(self.api_key, self.version)

    def answer(self, entity: Any, promise: Promise | None = None) -> Answer:
        """Encode a response, which leaves once the log keeps the promise, and count its errors."""
        self.count_errors(entity)
        return Answer(encode_response(self.api_key, self.version, self.correlation_id, entity), promise)

    def count_errors(self, entity: Any) -> None:
        """Count the errors of a response, or of an element of one."""
        for error in error_codes(entity):
            self.count_error(error)

    def count_error(self, error: int, count: int = 1) -> None:
        """Count an error of an answer, or of some of its items."""
        self.errors["kafka", ErrorCode(error).name.upper()] += count


# The steps of a handler that may have much to do. The generator yields wherever the loop may turn; it yields the number
# of bytes of its answer that it has built so far, or None if the number has not changed (`sliced_requests.py`).
Steps = Generator[Any, None, Answer | None]


# The API keys that ApiVersions lists, each with its lowest and its highest version.
AdvertisedVersions = tuple[tuple[int, int, int], ...]


def join_promises(first: Promise | None, second: Promise | None) -> Promise | None:
    """Return a promise that is kept when both are."""
    if first is None or second is None:
        return first or second
    return first.and_also(second)
