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

from functools import partial
from types import GeneratorType

from duolog.bridge.kafka import TABLE, api_versions
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.server import Server
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import ApiKey, decode_header, decode_request
from duolog.store.entry import new_tuple

_METRICS = {key: api.metric for key, api in TABLE.items()}
_KINDS = {key: " ".join(api.metric) for key, api in TABLE.items()}


class KafkaConnection(OrderedConnection):
    """One client of the Kafka port."""

    __slots__ = ("_context", "_elements_max", "_request_bytes_max")

    def __init__(self, server: Server, context: KafkaContext) -> None:
        options = context.options
        super().__init__(server, context.store, options.store.directory)
        self._context = context
        self._elements_max = options.kafka.elements_max
        self._request_bytes_max = options.kafka.request_bytes_max

    def received(self, frame: memoryview) -> None:
        header = decode_header(frame)
        key, version, correlation_id, client_id, body_at = header
        api = TABLE.get(key)
        context = self._context
        if api is None or not api.min_version <= version <= api.max_version:
            if key != ApiKey.API_VERSIONS:
                raise ProtocolError(f"request with key {key} and version {version} of client {client_id[:100]!r}")
            self.outbox.add(api_versions.unsupported(context.advertised_versions, correlation_id))
            return
        self.doing = _KINDS[key]
        if len(frame) > self._request_bytes_max and key != ApiKey.PRODUCE:
            raise ProtocolError(
                f"{api.key.name} request of {len(frame)} bytes; kafka.request_bytes_max is {self._request_bytes_max}"
            )
        body = decode_request(key, version, frame, body_at, self._elements_max)
        context.metrics.requests[_METRICS[key]] += 1
        request = new_tuple(KafkaRequest, (key, version, correlation_id, client_id, body, len(frame)))
        reserved_count = self.outbox.reserved_count
        try:
            answer = api.handler(context, self, request)
            if isinstance(answer, GeneratorType):
                answer = context.sliced_requests.begin(self, request, answer)
            if isinstance(answer, Answer):
                self.outbox.add(answer)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - contained
            self.report(request, error)
            if self.outbox.reserved_count == reserved_count:
                self.answer_fault(request, self.outbox.add)
            elif self.outbox.reserved is not None:
                self.answer_fault(request, partial(self.outbox.fail, self.outbox.reserved))
