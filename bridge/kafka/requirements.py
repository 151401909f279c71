"""What each Kafka API needs, as Apache's KafkaApis.scala asks its authorizer. The table's rows name them."""

from collections.abc import Iterator
from typing import Any, Final

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.access import Access, Items, Remembered
from duolog.bridge.security.audit.audit_log import CHANGES
from duolog.bridge.security.needs import AnyOf, Need, cluster, group, topic, transactional_id
from duolog.bridge.security.resources import Needs
from duolog.bridge.security.rules import CLUSTER_NAME, Operation, ResourceType
from duolog.bridge.security.session import Session

_TOPIC_CONFIGS, _GROUP_CONFIGS = 2, 32  # ConfigResource.java#Type
_GROUP_KEY, _TRANSACTION_KEY = 0, 1  # FindCoordinatorRequest.java#CoordinatorType


# -- The declarations of rows

NOTHING: Final = Access()
"""Requests that each client needs before or after its login, and that say nothing about data."""


def of_cluster(operation: Operation) -> Access:
    """Declare that a request needs an operation on the broker as a whole."""
    return Access(lambda context, body: (cluster(operation),), is_change=operation in CHANGES)


def of_topics(operation: Operation, array: str = "topics", name: str = "name") -> Access:
    """Declare that each topic of an array needs an operation."""
    return Access(items=(topics_in(operation, array, name),), is_change=operation in CHANGES)


def topics_in(operation: Operation, array: str = "topics", name: str = "name", *, is_atomic: bool = False) -> Items:
    """Declare the array of topics, whose names are in the field `name`; an item may also be the name itself."""

    def needs(context: KafkaContext, item: Any, body: Any) -> Needs:
        named = item if isinstance(item, str) else _topic_name(context, item, name)
        return context.security.resources.topic(named, operation)

    return Items(array, needs, is_atomic)


def _topic_name(context: KafkaContext, item: Any, field: str) -> str:
    """Return the name of the topic of an item, which may have an id instead."""
    topic_id = getattr(item, "topic_id", None)
    if topic_id is not None:
        known = context.topics.by_id(topic_id)
        return "" if known is None else known.kafka_name
    return getattr(item, field) or ""


def of_group(operation: Operation) -> Access:
    """Declare that a request needs an operation on the group that it names."""
    return Access(lambda context, body: (group(body.group_id, operation),), is_change=operation in CHANGES)


def of_groups(operation: Operation, array: str) -> Access:
    """Declare that each group of an array needs an operation."""
    items = Items(array, lambda context, item, body: (group(item, operation),))
    return Access(items=(items,), is_change=operation in CHANGES)


def of_transactional_id(operation: Operation) -> Access:
    """Declare that a request needs an operation on the transactional id that it names."""
    return Access(lambda context, body: (transactional_id(body.transactional_id, operation),))


# -- Declarations of single APIs


def _of_producer(context: KafkaContext, body: Any) -> Iterator[AnyOf]:
    if body.transactional_id is not None:
        yield transactional_id(body.transactional_id, Operation.WRITE)


def _may_produce(session: Session, body: Any) -> bool:
    writable = session.writable
    for partition in body.partitions:
        if partition[0] not in writable:
            return False
    return body.transactional_id is None


def _may_fetch(session: Session, body: Any) -> bool:
    readable = session.readable
    for partition in body.partitions:  # noqa: SIM110 - a generator costs 0.3 us more
        if partition[0] not in readable:
            return False
    return True


PRODUCE: Final = Access(
    _of_producer,
    (topics_in(Operation.WRITE, "partitions", "topic"),),
    remembered=Remembered(_may_produce, lambda session: session.writable),
)
FETCH: Final = Access(
    items=(topics_in(Operation.READ, "partitions", "topic"),),
    remembered=Remembered(_may_fetch, lambda session: session.readable),
)


def _of_new_producer(context: KafkaContext, body: Any) -> Iterator[AnyOf]:
    if body.transactional_id is not None:
        yield transactional_id(body.transactional_id, Operation.WRITE)
    else:
        any_topic = Need(ResourceType.TOPIC, None, Operation.WRITE)
        yield (Need(ResourceType.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE), any_topic)


INIT_PRODUCER_ID: Final = Access(_of_new_producer)


METADATA: Final = Access(items=(topics_in(Operation.DESCRIBE),), is_seen=True)


def _of_key(key_type: int, key: str) -> AnyOf:
    if key_type == _TRANSACTION_KEY:
        return transactional_id(key, Operation.DESCRIBE)
    return group(key, Operation.DESCRIBE)


def _of_coordinator(context: KafkaContext, body: Any) -> Iterator[AnyOf]:
    if hasattr(body, "key"):
        yield _of_key(getattr(body, "key_type", _GROUP_KEY), body.key)


FIND_COORDINATOR: Final = Access(
    _of_coordinator, (Items("coordinator_keys", lambda context, item, body: (_of_key(body.key_type, item),)),)
)

OFFSET_COMMIT: Final = Access(
    lambda context, body: (group(body.group_id, Operation.READ),), (topics_in(Operation.READ),)
)


def _of_offset_fetch(context: KafkaContext, body: Any) -> Iterator[AnyOf]:
    if hasattr(body, "group_id"):
        yield group(body.group_id, Operation.DESCRIBE)


OFFSET_FETCH: Final = Access(
    _of_offset_fetch,
    (
        Items("groups", lambda context, item, body: (group(item.group_id, Operation.DESCRIBE),)),
        topics_in(Operation.DESCRIBE),
    ),
    is_seen=True,
)
OFFSET_DELETE: Final = Access(
    lambda context, body: (group(body.group_id, Operation.DELETE),), (topics_in(Operation.READ),), is_change=True
)


def _of_new_topic(context: KafkaContext, item: Any, body: Any) -> Needs:
    return ((*topic(item.name, Operation.CREATE), *cluster(Operation.CREATE)),)


CREATE_TOPICS: Final = Access(items=(Items("topics", _of_new_topic),), is_change=True)
DELETE_TOPICS: Final = Access(
    items=(topics_in(Operation.DELETE), topics_in(Operation.DELETE, "topic_names")), is_change=True
)

ADD_PARTITIONS_TO_TXN: Final = Access(
    lambda context, body: (transactional_id(body.v3_and_below_transactional_id, Operation.WRITE),),
    (topics_in(Operation.WRITE, "v3_and_below_topics", is_atomic=True),),
)
ADD_OFFSETS_TO_TXN: Final = Access(
    lambda context, body: (
        transactional_id(body.transactional_id, Operation.WRITE),
        group(body.group_id, Operation.READ),
    )
)
TXN_OFFSET_COMMIT: Final = Access(ADD_OFFSETS_TO_TXN.whole, (topics_in(Operation.READ),))
DESCRIBE_TRANSACTIONS: Final = Access(
    items=(Items("transactional_ids", lambda context, item, body: (transactional_id(item, Operation.DESCRIBE),)),)
)
SEEN: Final = Access(is_seen=True)


def _of_config_resource(operation: Operation) -> Items:
    def needs(context: KafkaContext, item: Any, body: Any) -> Needs:
        kind = int(item.resource_type)
        if kind == _TOPIC_CONFIGS:
            return context.security.resources.topic(item.resource_name, operation)
        return (group(item.resource_name, operation) if kind == _GROUP_CONFIGS else cluster(operation),)

    return Items("resources", needs)


DESCRIBE_CONFIGS: Final = Access(items=(_of_config_resource(Operation.DESCRIBE_CONFIGS),))
ALTER_CONFIGS: Final = Access(items=(_of_config_resource(Operation.ALTER_CONFIGS),), is_change=True)
