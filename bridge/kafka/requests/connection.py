"""The connection of a Kafka client: it decodes a request, calls the handler of its API, and keeps answers in order.

    unknown API key, or version that is not served    the connection is closed; ApiVersions is answered (KIP-511)
    malformed header or body                          the connection is closed
    request larger than `kafka.request_bytes_max`,
    or with more elements than `kafka.elements_max`   the connection is closed before the request is decoded
    the handler returns an answer                     it leaves after the answers of earlier requests
    the handler returns a slot                        the same, once the slot is filled; later requests are handled
    the handler returns a generator                   it runs in slices (`sliced_requests.py`); later requests wait
    the handler returns None                          there is no answer (acks=0)
    the handler raises an unexpected exception        UNKNOWN_SERVER_ERROR (`fault_answers.py`), or closed

Kafka handles one request of a connection at a time. Here the next request is handled at once, in order of arrival, and
only the answers wait for each other. A produced batch is appended before the next request is handled.
"""

from functools import partial
from types import GeneratorType

from duolog.bridge.kafka import TABLE, api_versions
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import TurnIsFull
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
        except TurnIsFull:
            context.metrics.requests[_METRICS[key]] -= 1  # It is counted when it is received again.
            raise
        except Exception as error:  # noqa: BLE001 - contained
            self.report(request, error)
            if self.outbox.reserved_count == reserved_count:
                self.answer_fault(request, self.outbox.add)
            elif self.outbox.reserved is not None:
                self.answer_fault(request, partial(self.outbox.fail, self.outbox.reserved))
