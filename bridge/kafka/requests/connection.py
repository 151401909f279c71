"""A Kafka client's connection: header, row of the table, handler, answer in request order.

    unknown key, or version outside of the row    closed; ApiVersions: answered with what there is (KIP-511)
    malformed header or body                      closed
    larger than `kafka.request_bytes_max`, or of
    more elements than `kafka.elements_max`       closed, before anything is made of it
    handler gives an answer                       it leaves after those of earlier requests
    handler gives a slot                          the same, once somebody fills it; later requests are handled meanwhile
    handler gives a generator                     it is worked on in slices (`work.py`); later requests wait for its end
    handler gives None                            no answer (acks=0)
    handler raises                                a fault: UNKNOWN_SERVER_ERROR (`fault_answers.py`), or closed

Kafka itself handles one request of a connection at a time. Here the next one is handled at once, in order of arrival:
only the answers wait for each other. What was produced is appended before the next request is looked at.
"""

from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING

from duolog.bridge.kafka import TABLE, api_versions
from duolog.bridge.kafka.requests import fault_answers
from duolog.bridge.kafka.requests.request import Request
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.server import (
    BUG,
    Connection,
    OrderedOutbox,
    OutboxSlot,
)
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import ApiKey, decode_header, decode_request
from duolog.store.entry import new_tuple

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker

_METRICS = {key: api.metric for key, api in TABLE.items()}
_KINDS = {key: " ".join(api.metric) for key, api in TABLE.items()}


class KafkaConnection(Connection):
    """One client of the Kafka port."""

    wire = "kafka"

    __slots__ = ("_elements_max", "_request_bytes_max", "broker", "outbox")

    def __init__(self, broker: "Broker") -> None:
        super().__init__(broker.server, broker.store)
        self.broker = broker
        self.outbox = OrderedOutbox(self)
        self._elements_max = broker.options.kafka.elements_max
        self._request_bytes_max = broker.options.kafka.request_bytes_max

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
            self.outbox.add(api_versions.unsupported(correlation_id))
            return
        self.doing = _KINDS[key]
        if len(frame) > self._request_bytes_max and key != ApiKey.PRODUCE:
            raise ProtocolError(
                f"{api.key.name} request of {len(frame)} bytes; kafka.request_bytes_max is {self._request_bytes_max}"
            )
        body = decode_request(key, version, frame, body_at, self._elements_max)
        self.broker.metrics.requests[_METRICS[key]] += 1
        request = new_tuple(Request, (key, version, correlation_id, client_id, body, len(frame)))
        reserved_count = self.outbox.reserved_count
        try:
            answer = api.handler(self.broker, self, request)
            if isinstance(answer, GeneratorType):
                answer = self.broker.kafka_sliced_requests.begin(self, request, answer)
            if isinstance(answer, Answer):
                self.outbox.add(answer)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - contained
            self.fault(error, _METRICS[key][1])
            if self.outbox.reserved_count == reserved_count:
                self._answer_fault(request, self.outbox.add)
            elif self.outbox.reserved is not None:
                self._answer_fault(request, partial(self.outbox.fail, self.outbox.reserved))

    def failed(self, request: Request, error: Exception, slot: OutboxSlot) -> None:
        """Report a fault of a request that waited, and answer it in its slot."""
        self.fault(error, _METRICS[request.api_key][1])
        self._answer_fault(request, partial(self.outbox.fail, slot))

    def _answer_fault(self, request: Request, answer_with: Callable[[Answer], None]) -> None:
        answer = fault_answers.answer_of(request, self.broker.options.store.directory)
        if answer is None:
            self.close(BUG, abort=True)
        else:
            answer_with(answer)
