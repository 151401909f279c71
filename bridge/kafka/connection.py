"""A Kafka client's connection: header, row of the table, handler, answer in request order.

    unknown key, or version outside of the row    closed; ApiVersions: answered with what there is (KIP-511)
    malformed header or body                      closed
    handler gives an answer                       it leaves after those of earlier requests
    handler gives a slot                          the same, once somebody fills it; later requests are handled meanwhile
    handler gives None                            no answer (acks=0)

Kafka itself handles one request of a connection at a time. Here the next one is handled at once, in order of arrival:
only the answers wait for each other. What was produced is appended before the next request is looked at.
"""

from typing import TYPE_CHECKING

from bridge.answers import Answer
from bridge.kafka import TABLE, versions
from bridge.kafka.request import Request
from bridge.server import Connection, OrderedOutbox
from protocol.errors import ProtocolError
from protocol.kafka.api import ApiKey, decode_header, decode_request

if TYPE_CHECKING:
    from bridge.broker import Broker

_METRICS = {key: api.metric for key, api in TABLE.items()}


class KafkaConnection(Connection):
    """One client of the Kafka port."""

    wire = "kafka"

    __slots__ = ("outbox",)

    def __init__(self, broker: "Broker") -> None:
        super().__init__(broker)
        self.outbox = OrderedOutbox(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.outbox.drop()

    def received(self, frame: memoryview) -> None:
        header = decode_header(frame)
        key, version, correlation_id, client_id, body_at = header
        api = TABLE.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            if key != ApiKey.API_VERSIONS:
                raise ProtocolError(f"request with key {key} and version {version} of client {client_id[:100]!r}")
            self.outbox.add(versions.unsupported(correlation_id))
            return
        body = decode_request(key, version, frame, body_at)
        self.broker.metrics.requests[_METRICS[key]] += 1
        answer = api.handler(self.broker, self, Request(key, version, correlation_id, client_id, body))
        if isinstance(answer, Answer):
            self.outbox.add(answer)
