"""Idempotent and transactional producers: InitProducerId 0..5, AddPartitionsToTxn 0..3, AddOffsetsToTxn 0..4,
TxnOffsetCommit 0..5, EndTxn 0..5. For operators (KIP-664): DescribeProducers 0, DescribeTransactions 0,
ListTransactions 0..1, WriteTxnMarkers 1.

    version 1   FindCoordinator, InitProducerId, { AddPartitionsToTxn, Produce .. 11, AddOffsetsToTxn, TxnOffsetCommit
                .. 4, EndTxn .. 4 }
    version 2   the same, but the first Produce 12 or TxnOffsetCommit 5 adds its partition or group itself, and EndTxn 5
                gives a new epoch (KIP-890). Clients use it because the feature `transaction.version` says so.

A producer whose transactional id a newer producer has taken over gets PRODUCER_FENCED or, in versions that lack this
error, INVALID_PRODUCER_EPOCH. AddPartitionsToTxn 4 and 5 are sent between brokers and not served. Tools abort a hanging
transaction in one partition with WriteTxnMarkers; this broker then aborts the transaction in all its partitions.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.group_offsets import (
    Results,
    check_partitions,
    requested_offsets,
    with_error,
)
from duolog.bridge.kafka.groups.coordinator import NAME_CHARACTERS_MAX
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import ANSWERABLE, code_of
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import by_partition, unique
from duolog.bridge.kafka.requests.request import (
    NO_THROTTLE,
    KafkaRequest,
    Steps,
    join_promises,
)
from duolog.bridge.net.answers import Answer
from duolog.bridge.security.needs import transactional_id
from duolog.bridge.security.rules import Operation
from duolog.bridge.state.client_protocols import ClientProtocol
from duolog.bridge.state.producers import ProducerStatus
from duolog.bridge.transactions.kafka_transactions import Transaction
from duolog.protocol.kafka.api_messages import ErrorCode, milliseconds
from duolog.protocol.kafka.response import Elements
from duolog.store.entry import Promise
from duolog.store.index.queue import Queue
from duolog.txn.coordinator import (
    NO_EPOCH,
    NO_PRODUCER,
    Producer,
    State,
)

_FENCED_FROM = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
_RENEWS_FROM = 5  # From this version of EndTxn on, the answer has a new producer epoch.
_ADDS_GROUPS_FROM = 5  # From this version of TxnOffsetCommit on, the request adds its group.
_COORDINATOR_EPOCH = 0
_NO_OFFSET = -1


def _code(error: Exception, request: str, version: int) -> ErrorCode:
    """Return the error code of an ANSWERABLE exception that this version of the request has."""
    code = code_of(error)
    if code is ErrorCode.producer_fenced and version < _FENCED_FROM[request]:
        return ErrorCode.invalid_producer_epoch
    return code


# -- Producers


def init_producer_id(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """Return a new producer id or, for a transactional id, its producer id, and fence its earlier producers.

    Without a transactional id, the request's timeout, producer id and epoch have no meaning.
    """
    body, types, promise = request.body, request.types, None
    producer, error = Producer(NO_PRODUCER, NO_EPOCH), ErrorCode.none
    now_ms = context.clock.now_ms()
    try:
        if body.transactional_id is None:
            number, promise = context.producers.allocate(now_ms)
            producer = Producer(number, 0)
        elif not 0 < len(body.transactional_id) <= NAME_CHARACTERS_MAX:
            error = ErrorCode.invalid_request
        else:
            timeout_ms = milliseconds(body.transaction_timeout)
            producer, promise = context.transactions.init(body.transactional_id, timeout_ms, _claimed(body), now_ms)
    except ANSWERABLE as refusal:
        error = _code(refusal, "InitProducerId", request.version)
    entity = types.InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=producer.id, producer_epoch=producer.epoch
    )
    return request.answer(entity, promise)


def _claimed(body: Any) -> Producer | None:
    number, epoch = getattr(body, "producer_id", NO_PRODUCER), getattr(body, "producer_epoch", NO_EPOCH)
    return None if number == NO_PRODUCER else Producer(number, epoch)


# -- Adding to a transaction


def add_partitions_to_txn(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Add all partitions to the transaction, or none if one of them does not exist."""
    body, types, promise = request.body, request.types, None
    asked = by_partition((topic.name, index, None) for topic in body.v3_and_below_topics for index in topic.partitions)
    results: Results = {}
    keys: list[int | None] = []
    for name, indexes in asked.items():
        found = {index: _key(context, name, index) for index in indexes}
        missing, others = ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted
        results[name] = {index: missing if key is None else others for index, key in found.items()}
        keys += found.values()
        yield
    known = [key for key in keys if key is not None]
    if len(known) == len(keys):
        producer = Producer(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        error = ErrorCode.none
        try:
            promise = context.transactions.add_queues(
                body.v3_and_below_transactional_id, producer, known, context.clock.now_ms()
            )
        except ANSWERABLE as refusal:
            error = _code(refusal, "AddPartitionsToTxn", request.version)
        results = {name: dict.fromkeys(indexes, error) for name, indexes in asked.items()}
    topics = Elements(
        types.AddPartitionsToTxnTopicResult(
            name=name,
            results_by_partition=Elements(
                types.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=result)
                for index, result in partitions.items()
            ),
        )
        for name, partitions in results.items()
    )
    entity = types.AddPartitionsToTxnResponse(throttle_time=NO_THROTTLE, results_by_topic_v3_and_below=topics)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), promise)


def _key(context: KafkaContext, name: str, index: int) -> int | None:
    topic = context.topics.by_kafka_name(name)
    if topic is None or not 0 <= index < topic.queue_count or not topic.may_produce:
        return None
    return topic.key(index)


def add_offsets_to_txn(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """Add a group to the transaction before its offsets; transactions of version 2 do not need this."""
    body, promise, error = request.body, None, ErrorCode.none
    try:
        if not 0 < len(body.group_id) <= NAME_CHARACTERS_MAX:
            error = ErrorCode.invalid_group_id
        else:
            producer = Producer(body.producer_id, body.producer_epoch)
            now_ms = context.clock.now_ms()
            promise = context.transactions.add_group(body.transactional_id, producer, body.group_id, now_ms)
    except ANSWERABLE as refusal:
        error = _code(refusal, "AddOffsetsToTxn", request.version)
    return request.answer(request.types.AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=error), promise)


def txn_offset_commit(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Add offsets to the transaction, which its commit makes the committed offsets of the group."""
    body, types, promise = request.body, request.types, None
    asked = requested_offsets(body)
    results, offsets = yield from check_partitions(context, asked)
    error = _check_committer(context, body)
    if error is not ErrorCode.none:
        results = {name: dict.fromkeys(partitions, error) for name, partitions in asked.items()}
    elif offsets:  # Without a valid offset the request must not open a transaction.
        try:
            promise = context.transactions.add_offsets(
                body.transactional_id,
                Producer(body.producer_id, body.producer_epoch),
                body.group_id,
                offsets,
                context.clock.now_ms(),
                adds_itself=request.version >= _ADDS_GROUPS_FROM,
            )
        except ANSWERABLE as refusal:
            results = with_error(results, code_of(refusal))
    topics = Elements(
        types.TxnOffsetCommitResponseTopic(
            name=name,
            partitions=Elements(
                types.TxnOffsetCommitResponsePartition(partition_index=index, error_code=result)
                for index, result in partitions.items()
            ),
        )
        for name, partitions in results.items()
    )
    entity = types.TxnOffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), promise)


def _check_committer(context: KafkaContext, body: Any) -> ErrorCode:
    """Check that the group member for which the producer commits may commit; older versions do not name a member."""
    if not 0 < len(body.group_id) <= NAME_CHARACTERS_MAX:
        return ErrorCode.invalid_group_id
    if not context.client_protocols.admits(body.group_id, ClientProtocol.KAFKA):
        return ErrorCode.unknown_member_id
    generation, member_id = getattr(body, "generation_id", -1), getattr(body, "member_id", "")
    instance_id = getattr(body, "group_instance_id", None)
    if generation < 0 and not member_id and instance_id is None:
        return ErrorCode.none
    return context.groups.check_commit(body.group_id, member_id, instance_id, generation, context.clock.mono_ms())


# -- Ending a transaction


def end_txn(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer:
    """Commit or abort the transaction; the answer waits until the log keeps the decision."""
    body, promise, error = request.body, None, ErrorCode.none
    producer = Producer(NO_PRODUCER, NO_EPOCH)
    try:
        producer, promise = context.transactions.end(
            body.transactional_id,
            Producer(body.producer_id, body.producer_epoch),
            context.clock.now_ms(),
            is_commit=body.committed,
            renews=request.version >= _RENEWS_FROM,
        )
    except ANSWERABLE as refusal:
        error = _code(refusal, "EndTxn", request.version)
    entity = request.types.EndTxnResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=producer.id, producer_epoch=producer.epoch
    )
    return request.answer(entity, promise)


# -- For operators


def write_txn_markers(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Abort the transactions that a tool names by partition and producer (`Admin.abortTransaction`).

    Where a request repeats a producer, its last entry counts.
    """
    types = request.types
    promise: Promise | None = context.barrier()

    def aborted(asked: Any, name: str, index: int) -> Any:
        nonlocal promise
        try:
            error, kept = _abort(context, asked, _key(context, name, index))
            promise = join_promises(promise, kept)
        except ANSWERABLE as refusal:
            error = code_of(refusal)
        return types.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)

    def of_producer(asked: Any) -> Any:
        places = by_partition((topic.name, index, None) for topic in asked.topics for index in topic.partition_indexes)
        topics = Elements(
            types.WritableTxnMarkerTopicResult(
                name=name, partitions=Elements(aborted(asked, name, index) for index in indexes)
            )
            for name, indexes in places.items()
        )
        return types.WritableTxnMarkerResult(producer_id=asked.producer_id, topics=topics)

    markers = {asked.producer_id: asked for asked in request.body.markers}
    entity = types.WriteTxnMarkersResponse(markers=Elements(map(of_producer, markers.values())))
    pieces = yield from encode_in_steps(context, request, entity)
    return make_answer(request, pieces, promise)


def _abort(context: KafkaContext, asked: Any, key: int | None) -> tuple[ErrorCode, Promise | None]:
    if key is None:
        return ErrorCode.unknown_topic_or_partition, None
    if asked.transaction_result:
        return ErrorCode.cluster_authorization_failed, None  # Only its producer may commit a transaction.
    transaction = context.transactions.coordinator.of_producer(asked.producer_id)
    if transaction is None or not context.isolation.is_open(key, asked.producer_id):
        return ErrorCode.none, None  # The transaction has ended in the meantime.
    if asked.producer_epoch < transaction.producer.epoch:
        return ErrorCode.invalid_producer_epoch, None
    return ErrorCode.none, context.transactions.fence(transaction, context.clock.now_ms())


def list_transactions(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """List transactional ids by state, by producer, and by how long their transaction has been open."""
    body, types, now_ms = request.body, request.types, context.clock.now_ms()
    names = {state.kafka_name for state in State}
    wanted_names, producers = frozenset(body.state_filters), frozenset(body.producer_id_filters)
    duration_ms = getattr(body, "duration_filter", -1)

    def is_wanted(transaction: Transaction) -> bool:
        if wanted_names and transaction.state.kafka_name not in wanted_names:
            return False
        if producers and transaction.producer.id not in producers:
            return False
        if duration_ms < 0:
            return True
        return transaction.state is State.ONGOING and now_ms - transaction.started_ms > duration_ms

    def listed(transaction: Transaction) -> Any:
        if not is_wanted(transaction) or not request.sees(transactional_id(transaction.name, Operation.DESCRIBE)):
            return None
        return types.TransactionState(
            transactional_id=transaction.name,
            producer_id=transaction.producer.id,
            transaction_state=transaction.state.kafka_name,
        )

    entity = types.ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(name for name in unique(body.state_filters) if name not in names),
        transaction_states=Elements(map(listed, [*context.transactions.coordinator])),
    )
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def describe_transactions(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Describe transactional ids: state, producer, start and partitions."""
    states = Elements(_described(context, request, name) for name in unique(request.body.transactional_ids))
    entity = request.types.DescribeTransactionsResponse(throttle_time=NO_THROTTLE, transaction_states=states)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def _described(context: KafkaContext, request: KafkaRequest, name: str) -> Any:
    types = request.types
    transaction = context.transactions.coordinator.get(name)
    if transaction is None:
        transaction = Transaction(name, Producer(NO_PRODUCER, NO_EPOCH), 0, began_ms=0)
        error, state = ErrorCode.transactional_id_not_found, ""
    else:
        error, state = ErrorCode.none, transaction.state.kafka_name
    topics = Elements(
        types.TopicData(topic=topic, partitions=tuple(partitions))
        for topic, partitions in _partitions(context, transaction.keys).items()
    )
    return types.TransactionState(
        error_code=error,
        transactional_id=name,
        transaction_state=state,
        transaction_timeout=timedelta(milliseconds=transaction.timeout_ms),
        transaction_start_time=datetime.fromtimestamp(transaction.started_ms / 1000, UTC),
        producer_id=transaction.producer.id,
        producer_epoch=transaction.producer.epoch,
        topics=topics,
    )


def _partitions(context: KafkaContext, keys: Iterable[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key in sorted(keys):
        number, queue_id = Queue.split(key)
        topic = context.topics.by_number(number)
        if topic is not None:
            found.setdefault(topic.kafka_name, []).append(queue_id)
    return found


def describe_producers(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Describe the idempotent producers of partitions, and the first offsets of their open transactions."""
    types = request.types
    named = ((topic.name, index) for topic in request.body.topics for index in topic.partition_indexes)
    asked = by_partition((name, index, _key(context, name, index)) for name, index in named)
    wanted = {key for keys in asked.values() for key in keys.values() if key is not None}
    producers = yield from context.producers.in_queues(wanted)

    def described(index: int, key: int | None) -> Any:
        return types.PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.none if key is not None else ErrorCode.unknown_topic_or_partition,
            error_message=None,
            active_producers=Elements(() if key is None else _active_producers(context, types, key, producers[key])),
        )

    topics = Elements(
        types.TopicResponse(name=name, partitions=Elements(described(index, key) for index, key in keys.items()))
        for name, keys in asked.items()
    )
    entity = types.DescribeProducersResponse(throttle_time=NO_THROTTLE, topics=topics)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def _active_producers(
    context: KafkaContext, types: Any, key: int, producers: Iterable[tuple[int, ProducerStatus]]
) -> Iterator[Any]:
    isolation = context.isolation.get(key)
    for producer_id, (epoch, last_sequence, stored_ms) in producers:
        first_offset = isolation.first_offset(producer_id) if isolation is not None else None
        yield types.ProducerState(
            producer_id=producer_id,
            producer_epoch=epoch,
            last_sequence=last_sequence,
            last_timestamp=stored_ms,
            coordinator_epoch=_COORDINATOR_EPOCH,
            current_txn_start_offset=_NO_OFFSET if first_offset is None else first_offset,
        )
