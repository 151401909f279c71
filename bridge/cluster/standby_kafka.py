"""The connection of a Kafka client to a standby.

ApiVersions, Metadata, FindCoordinator, DescribeCluster   answered; they name the owner
Produce, Fetch and what else needs a leader               NOT_LEADER_OR_FOLLOWER
groups and transactions                                   NOT_COORDINATOR
all others                                                NOT_CONTROLLER

A client that gets one of these errors asks for Metadata, and goes to the owner. What a client may ask any broker for is
sent on to the owner (`owner_requests.py`): Metadata that may create a topic, and producer ids without a transactional
id, for which librdkafka asks the same broker until it gets one.
"""

import asyncio
from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final

from duolog.bridge.cluster.owner_requests import OwnerRequests
from duolog.bridge.cluster.standby_context import StandbyContext
from duolog.bridge.kafka import TABLE, metadata
from duolog.bridge.kafka.cluster import api_versions
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests import fault_answers
from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.bridge.kafka.requests.sliced_requests import SlicedRequests
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.nodes import Address
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode, decode_header, decode_request

OF_LEADERS: Final = frozenset(
    {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DELETE_RECORDS}
    | {ApiKey.DESCRIBE_PRODUCERS, ApiKey.WRITE_TXN_MARKERS}
)
OF_CONTROLLERS: Final = frozenset(
    {ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS}
    | {
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
    }
    | {ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.LIST_CONFIG_RESOURCES}
    | {ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_QUORUM, ApiKey.LIST_PARTITION_REASSIGNMENTS}
    | {ApiKey.DESCRIBE_TOPIC_PARTITIONS}
)


def error_for(key: int) -> ErrorCode:
    """Return the error that sends a client with such a request to the owner."""
    if key in OF_LEADERS:
        return ErrorCode.not_leader_or_follower
    return ErrorCode.not_controller if key in OF_CONTROLLERS else ErrorCode.not_coordinator


def is_for_any_broker(request: KafkaRequest) -> bool:
    """Return whether this request asks for a producer id that belongs to no transactional id."""
    return request.api_key == ApiKey.INIT_PRODUCER_ID and request.body.transactional_id is None


class StandbyKafkaConnection(KafkaConnection):
    """One client that has connected to a standby. Once the broker is the owner, its requests are served.

    The connection stays open at a takeover, because clients wait longer and longer before they connect again.
    """

    __slots__ = ("_is_served", "_owner_requests", "_serving", "_sliced_requests", "_standby")

    def __init__(
        self,
        context: StandbyContext,
        sliced_requests: SlicedRequests,
        owner_requests: OwnerRequests,
        serving: Callable[[], KafkaContext | None],
    ) -> None:
        """`serving` returns the context of the handlers once this broker is the owner."""
        OrderedConnection.__init__(self, context.server, context.log, context.options.store.directory)
        self._standby = context
        self._sliced_requests, self._owner_requests = sliced_requests, owner_requests
        self._serving = serving
        self._is_served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        OrderedConnection.connection_made(self, transport)

    def received(self, frame: memoryview) -> None:
        if not self._is_served:
            context = self._serving()
            if context is None:
                self._received_by_standby(frame)
                return
            self.use(context)
            self._is_served = True
        super().received(frame)

    def _received_by_standby(self, frame: memoryview) -> None:
        key, version, correlation_id, client_id, body_at = decode_header(frame)
        context = self._standby
        api, kafka = TABLE.get(key), context.options.kafka
        if api is None or not api.min_version <= version <= api.max_version:
            if key != ApiKey.API_VERSIONS:
                raise ProtocolError(f"request with key {key} and version {version} of client {client_id[:100]!r}")
            self.outbox.add(api_versions.unsupported(context.advertised_versions, correlation_id))
            return
        if len(frame) > kafka.request_bytes_max and key != ApiKey.PRODUCE:
            raise ProtocolError(f"{api.key.name} request of {len(frame)} bytes; kafka.request_bytes_max is exceeded")
        self.doing = f"standby {api.key.name.lower()}"
        body = decode_request(key, version, frame, body_at, kafka.elements_max)
        context.metrics.requests[api.metric] += 1
        request = KafkaRequest(key, version, correlation_id, client_id, body, len(frame))
        owner = context.nodes.owner
        if owner is not None and (self._may_create(request) or is_for_any_broker(request)):
            slot = self.outbox.reserve()
            if not self._owner_requests.begin(self._ask(slot, owner.endpoints.kafka, bytes(frame))):
                self.close("too many requests wait for the owner")
            return
        answer = self._answered(request)
        if isinstance(answer, GeneratorType):
            answer = self._sliced_requests.begin(self, request, answer)
        if isinstance(answer, Answer):
            self.outbox.add(answer)

    def _answered(self, request: KafkaRequest) -> Any:
        context = self._standby
        match request.api_key:
            case ApiKey.API_VERSIONS:
                return api_versions.api_versions(context, self, request)
            case ApiKey.METADATA:
                return self._metadata(request)
            case ApiKey.FIND_COORDINATOR:
                return metadata.find_coordinator(context, self, request)
            case ApiKey.DESCRIBE_CLUSTER:
                return metadata.describe_cluster(context, self, request)
        return self._refusal(request)

    def _metadata(self, request: KafkaRequest) -> Steps:
        entity = metadata.describe(self._standby, request, metadata.asked_names(request))
        return make_answer(request, (yield from encode_in_steps(self._standby, request, entity)), None)

    def _may_create(self, request: KafkaRequest) -> bool:
        """Return whether this is a Metadata request that creates a topic, if an owner gets it."""
        topics = self._standby.topics
        if request.api_key != ApiKey.METADATA or not topics.auto_create:
            return False
        names = metadata.asked_names(request) or ()
        is_allowed = getattr(request.body, "allow_auto_topic_creation", True)
        return is_allowed and any(name and topics.by_kafka_name(name) is None for name, _ in names)

    async def _ask(self, slot: OutboxSlot, owner: Address, frame: bytes) -> None:
        """Fill the slot with the owner's answer. Without one, the connection is closed: the client tries another."""
        try:
            self.outbox.fill(slot, Answer([await self._owner_requests.ask(owner, frame)]))
        except (OSError, TimeoutError) as error:
            self.close(f"the owner has not answered: {error or type(error).__name__}")

    def _refusal(self, request: KafkaRequest) -> Answer | None:
        error = error_for(request.api_key)
        self._standby.metrics.errors["kafka", error.name] += 1
        if request.api_key == ApiKey.FETCH:
            return fault_answers.fetch_answer_of(request, error)
        answer = fault_answers.answer_of(request, self._log_directory, error, "this broker is not the owner")
        if answer is None and not (request.api_key == ApiKey.PRODUCE and request.body.acks == 0):
            self.close("this broker is not the owner, and the answer has no place for an error")
        return answer
