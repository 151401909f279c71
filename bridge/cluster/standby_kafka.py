"""The connection of a Kafka client to a standby.

ApiVersions, SaslHandshake, SaslAuthenticate              answered: the standby knows the users, too
Metadata, FindCoordinator, DescribeCluster,               answered under the client's rights; they name the owner. A
DescribeTopicPartitions                                   standby that has not read the log yet closes the connection
                                                          instead of saying that a topic does not exist
Produce, Fetch and what else needs a leader               NOT_LEADER_OR_FOLLOWER
groups and transactions                                   NOT_COORDINATOR
all others                                                NOT_CONTROLLER

A client that gets one of these errors asks for Metadata, and goes to the owner. What a client may ask any broker for is
sent on to the owner (`owner_requests.py`) if the client has the right to all of it: Metadata that creates a topic, and
producer ids without a transactional id, for which librdkafka asks the same broker until it gets one.
"""

from collections.abc import Callable, Sequence
from typing import Final

from duolog.bridge.cluster.standby_context import StandbyContext
from duolog.bridge.kafka import TABLE, metadata, topic_pages
from duolog.bridge.kafka import requirements as needs
from duolog.bridge.kafka.cluster import api_versions, sasl
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests import fault_answers
from duolog.bridge.kafka.requests.api import Handler, KafkaApi
from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.nodes import Address
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode

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
)


def error_for(key: int) -> ErrorCode:
    """Return the error that sends a client with such a request to the owner."""
    if key in OF_LEADERS:
        return ErrorCode.not_leader_or_follower
    return ErrorCode.not_controller if key in OF_CONTROLLERS else ErrorCode.not_coordinator


class StandbyKafkaConnection(KafkaConnection):
    """One client that has connected to a standby. Once the broker is the owner, its requests are served.

    The connection stays open at a takeover, because clients wait longer and longer before they connect again. The class
    has more than 20 methods and 15 fields because it extends OrderedConnection.
    """

    __slots__ = ("_frame", "_serving", "_standby")

    def __init__(self, context: StandbyContext, serving: Callable[[], KafkaContext | None]) -> None:
        """`serving` returns the context of the handlers once this broker is the owner."""
        super().__init__(context.server, context, STANDBY_TABLE)
        self._standby: StandbyContext | None = context  # None: the broker is the owner.
        self._serving = serving
        self._frame = memoryview(b"")  # The frame of the request that is being handled.

    def received(self, frame: memoryview) -> None:
        if self._standby is not None:
            self._frame = frame
            context = self._serving()
            if context is not None:
                self.use(context)
                self._standby = None
        super().received(frame)

    # -- Requests that the owner answers

    def send_on(self, context: StandbyContext, owner: Address) -> OutboxSlot:
        """Ask the owner what the request that is being handled asks for."""
        slot = self.outbox.reserve()
        if not context.owner_requests.begin(self._ask(context, slot, owner, bytes(self._frame))):
            self.close("too many requests wait for the owner")
        return slot

    async def _ask(self, context: StandbyContext, slot: OutboxSlot, owner: Address, frame: bytes) -> None:
        """Fill the slot with the owner's answer. Without one, the connection is closed: the client tries another."""
        try:
            self.outbox.fill(slot, Answer([await context.owner_requests.ask(owner, frame)]))
        except (OSError, TimeoutError) as error:
            self.close(f"the owner has not answered: {error or type(error).__name__}")

    def refuse_as_standby(self, request: KafkaRequest) -> Answer | None:
        """Send the client to the owner."""
        error = error_for(request.api_key)
        if request.api_key == ApiKey.FETCH:
            return fault_answers.fetch_answer_of(request, error)
        answer = fault_answers.answer_of(request, self._log_directory, error, "this broker is not the owner")
        if answer is None and not (request.api_key == ApiKey.PRODUCE and request.body.acks == 0):
            self.close("this broker is not the owner, and the answer has no place for an error")
        return answer


# -- Handlers


def _refused(context: StandbyContext, connection: StandbyKafkaConnection, request: KafkaRequest) -> Answer | None:
    return connection.refuse_as_standby(request)


def _metadata(
    context: StandbyContext, connection: StandbyKafkaConnection, request: KafkaRequest
) -> Steps | OutboxSlot | None:
    owner = context.nodes.owner
    if owner is not None and _creates_topics(context, request):
        return connection.send_on(context, owner.endpoints.kafka)
    names = metadata.asked_names(request)
    if _may_lack(context, connection, None if names is None else [name for name, _ in names if name]):
        return None
    return _described(context, request)


def _described(context: StandbyContext, request: KafkaRequest) -> Steps:
    entity = metadata.describe(context, request, metadata.asked_names(request))
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)


def _topic_pages(context: StandbyContext, connection: StandbyKafkaConnection, request: KafkaRequest) -> Steps | None:
    if _may_lack(context, connection, [topic.name for topic in request.body.topics] or None):
        return None
    return _described_pages(context, request)


def _described_pages(context: StandbyContext, request: KafkaRequest) -> Steps:
    return make_answer(request, (yield from topic_pages.describe(context, request)), None)


def _may_lack(context: StandbyContext, connection: StandbyKafkaConnection, names: Sequence[str] | None) -> bool:
    """Return whether the log that this standby has not read may have these topics, or others if `names` is None.

    Then the connection is closed: librdkafka fails the messages of a topic that it is told not to exist, although it
    has seen it before.
    """
    if not context.is_behind() or (names is not None and all(map(context.topics.by_kafka_name, names))):
        return False
    connection.close("this standby has not read the log, which may have the topics that were asked for")
    return True


def _creates_topics(context: StandbyContext, request: KafkaRequest) -> bool:
    """Whether an owner creates topics for this Metadata request, and the client may ask for all that it names."""
    topics = context.topics
    if request.refused is not None or not topics.auto_create:
        return False
    if not getattr(request.body, "allow_auto_topic_creation", True):
        return False
    names = metadata.asked_names(request) or ()
    missing = [name for name, _ in names if name and topics.by_kafka_name(name) is None]
    return bool(missing) and all(metadata.may_create(request, name) for name in missing)


def _init_producer_id(
    context: StandbyContext, connection: StandbyKafkaConnection, request: KafkaRequest
) -> Answer | OutboxSlot | None:
    owner = context.nodes.owner
    if owner is None or request.body.transactional_id is not None:
        return connection.refuse_as_standby(request)
    return connection.send_on(context, owner.endpoints.kafka)


_HANDLERS: Final[dict[int, Handler]] = {
    ApiKey.API_VERSIONS: api_versions.api_versions,
    ApiKey.SASL_HANDSHAKE: sasl.sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl.sasl_authenticate,
    ApiKey.METADATA: _metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _topic_pages,
    ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
}


def _row(api: KafkaApi) -> KafkaApi:
    """Return the row of a standby. A refusal needs no right, because it says the same of everything."""
    if api.key in _HANDLERS:
        return api._replace(handler=_HANDLERS[api.key])
    return api._replace(handler=_refused, access=needs.NOTHING)


STANDBY_TABLE: Final = {key: _row(api) for key, api in TABLE.items()}
