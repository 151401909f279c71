"""Transactional producers: InitProducerId 0..5, AddPartitionsToTxn 0..3, AddOffsetsToTxn 0..4, TxnOffsetCommit 0..5,
EndTxn 0..5; for operators DescribeProducers 0, DescribeTransactions 0, ListTransactions 0..1, WriteTxnMarkers 1
(KIP-664).

    version 1   FindCoordinator, InitProducerId, { AddPartitionsToTxn, Produce .. 11, AddOffsetsToTxn, TxnOffsetCommit
                .. 4, EndTxn .. 4 }
    version 2   the same, but the first Produce 12 or TxnOffsetCommit 5 adds its partition or group itself, and EndTxn 5
                gives a new epoch (KIP-890). Clients use it because the feature `transaction.version` says so.

A producer that has lost its transactional id to a newer one is told PRODUCER_FENCED; by versions that do not know it,
INVALID_PRODUCER_EPOCH. AddPartitionsToTxn 4 and 5 are between brokers and not served. WriteTxnMarkers is what tools
abort a hanging transaction with; a part of a transaction is never ended alone, so all of it is aborted.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from bridge.answers import Answer
from bridge.families import Family
from bridge.kafka.errors import ANSWERABLE, code_of
from bridge.kafka.group_coordinator import NAME_CHARACTERS_MAX
from bridge.kafka.offsets import Partitions, by_topic, sort_out
from bridge.kafka.request import NO_THROTTLE, Request, later
from bridge.transactions import Transaction
from protocol.kafka.api import ErrorCode, milliseconds
from store.entry import Promise
from store.queue import Queue
from txn.coordinator import NO_EPOCH, NO_PRODUCER, Producer, State

if TYPE_CHECKING:
    from bridge.broker import Broker
    from bridge.kafka.connection import KafkaConnection

_FENCED_FROM = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
_RENEWS_FROM = 5  # EndTxn whose answer has a new epoch
_ADDS_GROUPS_FROM = 5  # TxnOffsetCommit that adds its group
_COORDINATOR_EPOCH = 0
_NO_OFFSET = -1


def _code(error: Exception, request: str, version: int) -> ErrorCode:
    """The code for an ANSWERABLE exception, by one that the version knows."""
    code = code_of(error)
    if code is ErrorCode.producer_fenced and version < _FENCED_FROM[request]:
        return ErrorCode.invalid_producer_epoch
    return code


# -- Producers


def init_producer_id(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Give a producer id: a fresh one; or a transactional id's own, which fences all that had it before.

    Without a transactional id, timeout, id and epoch in the request mean nothing.
    """
    body, types, promise = request.body, request.types, None
    producer, error = Producer(NO_PRODUCER, NO_EPOCH), ErrorCode.none
    now_ms = broker.clock.now_ms()
    try:
        if body.transactional_id is None:
            number, promise = broker.producers.allocate(now_ms)
            producer = Producer(number, 0)
        elif not 0 < len(body.transactional_id) <= NAME_CHARACTERS_MAX:
            error = ErrorCode.invalid_request
        else:
            timeout_ms = milliseconds(body.transaction_timeout)
            producer, promise = broker.transactions.init(body.transactional_id, timeout_ms, _claimed(body), now_ms)
    except ANSWERABLE as refusal:
        error = _code(refusal, "InitProducerId", request.version)
    entity = types.InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=producer.id, producer_epoch=producer.epoch
    )
    return request.answer(entity, promise)


def _claimed(body: Any) -> Producer | None:
    number, epoch = getattr(body, "producer_id", NO_PRODUCER), getattr(body, "producer_epoch", NO_EPOCH)
    return None if number == NO_PRODUCER else Producer(number, epoch)


# -- What becomes part of a transaction


def add_partitions_to_txn(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Add all of the partitions, or none if one of them does not exist."""
    body, types, promise = request.body, request.types, None
    places = [(topic.name, index) for topic in body.v3_and_below_topics for index in topic.partitions]
    found = [(place, _key(broker, *place)) for place in places]
    if all(key is not None for _, key in found):
        producer = Producer(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        keys = [key for _, key in found if key is not None]
        error = ErrorCode.none
        try:
            promise = broker.transactions.add_queues(
                body.v3_and_below_transactional_id, producer, keys, broker.clock.now_ms()
            )
        except ANSWERABLE as refusal:
            error = _code(refusal, "AddPartitionsToTxn", request.version)
        results = dict.fromkeys(places, error)
    else:
        missing, others = ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted
        results = {place: missing if key is None else others for place, key in found}
    topics = tuple(
        types.AddPartitionsToTxnTopicResult(
            name=name,
            results_by_partition=tuple(
                types.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=result)
                for index, result in partitions.items()
            ),
        )
        for name, partitions in by_topic(results).items()
    )
    entity = types.AddPartitionsToTxnResponse(throttle_time=NO_THROTTLE, results_by_topic_v3_and_below=topics)
    return request.answer(entity, promise)


def _key(broker: "Broker", name: str, index: int) -> int | None:
    topic = broker.topics.by_kafka_name(name)
    if topic is None or not 0 <= index < topic.queue_count or not topic.may_produce:
        return None
    return topic.key(index)


def add_offsets_to_txn(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Say that positions of a group will come; version 2 leaves this out."""
    body, promise, error = request.body, None, ErrorCode.none
    try:
        if not 0 < len(body.group_id) <= NAME_CHARACTERS_MAX:
            error = ErrorCode.invalid_group_id
        else:
            producer = Producer(body.producer_id, body.producer_epoch)
            now_ms = broker.clock.now_ms()
            promise = broker.transactions.add_group(body.transactional_id, producer, body.group_id, now_ms)
    except ANSWERABLE as refusal:
        error = _code(refusal, "AddOffsetsToTxn", request.version)
    return request.answer(request.types.AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=error), promise)


def txn_offset_commit(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Take positions that become the group's with the commit."""
    body, types, promise = request.body, request.types, None
    asked = [(topic.name, partition) for topic in body.topics for partition in topic.partitions]
    error = _check_committer(broker, body)
    results: Partitions
    if error is not ErrorCode.none:
        results = {(name, partition.partition_index): error for name, partition in asked}
    else:
        results, positions = sort_out(broker, asked)
        try:
            if positions:  # Else nothing of it is right, and it opens no transaction.
                promise = broker.transactions.add_positions(
                    body.transactional_id,
                    Producer(body.producer_id, body.producer_epoch),
                    body.group_id,
                    positions,
                    broker.clock.now_ms(),
                    adds_itself=request.version >= _ADDS_GROUPS_FROM,
                )
        except ANSWERABLE as refusal:
            code = code_of(refusal)
            results = {place: code if result is ErrorCode.none else result for place, result in results.items()}
    topics = tuple(
        types.TxnOffsetCommitResponseTopic(
            name=name,
            partitions=tuple(
                types.TxnOffsetCommitResponsePartition(partition_index=index, error_code=result)
                for index, result in partitions.items()
            ),
        )
        for name, partitions in by_topic(results).items()
    )
    return request.answer(types.TxnOffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics), promise)


def _check_committer(broker: "Broker", body: Any) -> ErrorCode:
    """Whether the consumer that the producer speaks for may commit; older versions do not say who that is."""
    if not 0 < len(body.group_id) <= NAME_CHARACTERS_MAX:
        return ErrorCode.invalid_group_id
    if not broker.families.admits(body.group_id, Family.KAFKA):
        return ErrorCode.unknown_member_id
    generation, member_id = getattr(body, "generation_id", -1), getattr(body, "member_id", "")
    instance_id = getattr(body, "group_instance_id", None)
    if generation < 0 and not member_id and instance_id is None:
        return ErrorCode.none
    return broker.kafka_groups.check_commit(body.group_id, member_id, instance_id, generation, broker.clock.mono_ms())


# -- The end


def end_txn(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Commit or abort; the answer waits until the log keeps it."""
    body, promise, error = request.body, None, ErrorCode.none
    producer = Producer(NO_PRODUCER, NO_EPOCH)
    try:
        producer, promise = broker.transactions.end(
            body.transactional_id,
            Producer(body.producer_id, body.producer_epoch),
            broker.clock.now_ms(),
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


def write_txn_markers(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Abort the transactions that tools name by a partition and a producer (`Admin.abortTransaction`)."""
    types = request.types
    promise: Promise | None = broker.ledger.barrier()
    results = []
    for asked in request.body.markers:
        outcome: dict[tuple[str, int], ErrorCode] = {}
        for name, index in ((topic.name, index) for topic in asked.topics for index in topic.partition_indexes):
            try:
                outcome[name, index], aborted = _abort(broker, asked, _key(broker, name, index))
                promise = later(promise, aborted)
            except ANSWERABLE as refusal:
                outcome[name, index] = code_of(refusal)
        topics = tuple(
            types.WritableTxnMarkerTopicResult(
                name=name,
                partitions=tuple(
                    types.WritableTxnMarkerPartitionResult(partition_index=index, error_code=result)
                    for index, result in partitions.items()
                ),
            )
            for name, partitions in by_topic(outcome).items()
        )
        results.append(types.WritableTxnMarkerResult(producer_id=asked.producer_id, topics=topics))
    return request.answer(types.WriteTxnMarkersResponse(markers=tuple(results)), promise)


def _abort(broker: "Broker", asked: Any, key: int | None) -> tuple[ErrorCode, Promise | None]:
    if key is None:
        return ErrorCode.unknown_topic_or_partition, None
    if asked.transaction_result:
        return ErrorCode.cluster_authorization_failed, None  # Only who owns a transaction can commit it.
    transaction = broker.transactions.coordinator.of_producer(asked.producer_id)
    if transaction is None or not broker.isolation.is_open(key, asked.producer_id):
        return ErrorCode.none, None  # There is nothing to abort: somebody was faster.
    if asked.producer_epoch < transaction.producer.epoch:
        return ErrorCode.invalid_producer_epoch, None
    return ErrorCode.none, broker.transactions.fence(transaction, broker.clock.now_ms())


def list_transactions(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """List transactional ids by state, producer and how long their transaction has been open."""
    body, types, now_ms = request.body, request.types, broker.clock.now_ms()
    titles = {state.title for state in State}
    producers = frozenset(body.producer_id_filters)
    duration_ms = getattr(body, "duration_filter", -1)

    def is_wanted(transaction: Transaction) -> bool:
        if body.state_filters and transaction.state.title not in body.state_filters:
            return False
        if producers and transaction.producer.id not in producers:
            return False
        if duration_ms < 0:
            return True
        return transaction.state is State.ONGOING and now_ms - transaction.started_ms > duration_ms

    states = tuple(
        types.TransactionState(
            transactional_id=each.name, producer_id=each.producer.id, transaction_state=each.state.title
        )
        for each in broker.transactions.coordinator
        if is_wanted(each)
    )
    entity = types.ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(name for name in body.state_filters if name not in titles),
        transaction_states=states,
    )
    return request.answer(entity, broker.ledger.barrier())


def describe_transactions(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Tell state, producer, start and partitions of transactional ids."""
    states = tuple(_described(broker, request, name) for name in request.body.transactional_ids)
    entity = request.types.DescribeTransactionsResponse(throttle_time=NO_THROTTLE, transaction_states=states)
    return request.answer(entity, broker.ledger.barrier())


def _described(broker: "Broker", request: Request, name: str) -> Any:
    types = request.types
    transaction = broker.transactions.coordinator.get(name)
    if transaction is None:
        transaction = Transaction(name, Producer(NO_PRODUCER, NO_EPOCH), 0, started_ms=0)
        error, title = ErrorCode.transactional_id_not_found, ""
    else:
        error, title = ErrorCode.none, transaction.state.title
    topics = tuple(
        types.TopicData(topic=topic, partitions=tuple(partitions))
        for topic, partitions in _partitions(broker, transaction.keys).items()
    )
    return types.TransactionState(
        error_code=error,
        transactional_id=name,
        transaction_state=title,
        transaction_timeout=timedelta(milliseconds=transaction.timeout_ms),
        transaction_start_time=datetime.fromtimestamp(transaction.started_ms / 1000, UTC),
        producer_id=transaction.producer.id,
        producer_epoch=transaction.producer.epoch,
        topics=topics,
    )


def _partitions(broker: "Broker", keys: Iterable[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key in sorted(keys):
        number, queue_id = Queue.split(key)
        topic = broker.topics.by_number(number)
        if topic is not None:
            found.setdefault(topic.kafka_name, []).append(queue_id)
    return found


def describe_producers(broker: "Broker", connection: "KafkaConnection", request: Request) -> Answer:
    """Tell which idempotent producers a partition remembers, and where their open transactions begin."""
    types = request.types
    topics: dict[str, list[Any]] = {}
    for name, index in ((topic.name, index) for topic in request.body.topics for index in topic.partition_indexes):
        key = _key(broker, name, index)
        partition = types.PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.none if key is not None else ErrorCode.unknown_topic_or_partition,
            error_message=None,
            active_producers=tuple(_active_producers(broker, types, key)) if key is not None else (),
        )
        topics.setdefault(name, []).append(partition)
    results = tuple(types.TopicResponse(name=name, partitions=tuple(partitions)) for name, partitions in topics.items())
    entity = types.DescribeProducersResponse(throttle_time=NO_THROTTLE, topics=results)
    return request.answer(entity, broker.ledger.barrier())


def _active_producers(broker: "Broker", types: Any, key: int) -> Iterable[Any]:
    isolation = broker.isolation.get(key)
    for producer_id, (epoch, last_sequence, stored_ms) in broker.producers.in_queue(key):
        first_offset = isolation.first_offset(producer_id) if isolation is not None else None
        yield types.ProducerState(
            producer_id=producer_id,
            producer_epoch=epoch,
            last_sequence=last_sequence,
            last_timestamp=stored_ms,
            coordinator_epoch=_COORDINATOR_EPOCH,
            current_txn_start_offset=_NO_OFFSET if first_offset is None else first_offset,
        )
