"""One API that the broker serves: its versions and its handler."""

from collections.abc import Callable
from typing import Any, NamedTuple

from duolog.bridge.kafka.requests.access import Access
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.protocol.kafka.api_messages import ApiKey

Handler = Callable[[Any, Any, KafkaRequest], Answer | OutboxSlot | Steps | None]
"""A handler gets the `KafkaContext`, or that of a standby, the connection, and the request. It returns an answer; the
slot that `connection.outbox.reserve()` gave, which `connection.outbox.fill` fills later; a generator that returns one
of these; or None for a request without an answer."""


class KafkaApi(NamedTuple):
    """Versions `min_version` to `max_version` are served, and advertised unless `advertised_from` is lower."""

    key: ApiKey
    min_version: int
    max_version: int
    handler: Handler
    access: Access
    advertised_from: int | None = None

    @property
    def metric(self) -> tuple[str, str]:
        """The label by which `Metrics.requests` counts the API."""
        return "kafka", self.key.name.lower()

    @property
    def advertised(self) -> tuple[int, int]:
        return self.min_version if self.advertised_from is None else self.advertised_from, self.max_version
