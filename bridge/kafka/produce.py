"""Produce 3..12 (advertised from 0).

Each partition's batch is checked and appended on its own, in order of arrival. The answer waits until the log keeps all
batches: written or synced, as each topic's `flush.mode` says. With one broker, acks=1 and acks=-1 mean the same. The
request's timeout is ignored, because there is no replica to wait for.

A request shares the loop with all other clients, so its batches may decompress to `convert.inflate_bytes_max` bytes in
sum. The batches beyond are refused with an error on which clients send them again.

    version 8     the answer names the records for which a batch is refused (KIP-467); clients send the others again
    acks=0        there is no answer; after an error the connection is closed, as in Kafka (KafkaApis.scala)
    repetition    a batch of an idempotent producer that is in the log already gets success, with its offset there
    version 12    a transactional batch adds its partition to the transaction; below, AddPartitionsToTxn must do so
"""

import logging
from collections.abc import Generator, Sequence

from duolog.bridge.data.publishing.produced_batches import RECORDS_AT_ONCE, BatchOrigin
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.errors import (
    ANSWERABLE,
    MESSAGE_CHARACTERS_MAX,
    code_of,
    message_of,
)
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps, join_promises
from duolog.bridge.net.answers import Answer
from duolog.bridge.security.quotas.entity import PRODUCED
from duolog.bridge.security.quotas.quotas import Quotas
from duolog.protocol.kafka import produce as wire
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.produce import PartitionProduced, PartitionRecords, ProduceRequest
from duolog.protocol.kafka.record_batch import HEADER_BYTES, InvalidBatch, RecordError
from duolog.store.entry import Promise, new_tuple

_ZSTD_FROM = 7
_ADDS_PARTITIONS_FROM = 12
_ACKS = (-1, 0, 1)
AT_ONCE = 4  # Partitions that are handled without reading the clock. A batch of 32 schedules takes 9 ms.

log = logging.getLogger("kafka")


# The result of one partition, the promise that the answer must wait for, and the size of the decompressed batch.
_Outcome = tuple[PartitionProduced, Promise | None, int]


def produce(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Answer | Steps | None:
    """Check and append the batch of each partition."""
    asked: ProduceRequest = request.body
    if len(asked.partitions) > AT_ONCE or _has_many_records(asked.partitions):
        return _in_slices(context, connection, request)
    now_ms, opened_bytes = context.clock.now_ms(), 0
    outcomes: list[_Outcome] = []
    for partition in asked.partitions:
        found = _append(context, connection, request, partition, now_ms, opened_bytes)
        opened_bytes += found[2]
        outcomes.append(found)
    return _answer(context, connection, request, outcomes)


def _has_many_records(partitions: Sequence[PartitionRecords]) -> bool:
    """Whether the header of a batch counts more than RECORDS_AT_ONCE records."""
    for _, _, records in partitions:
        if records is None or len(records) < HEADER_BYTES:
            continue
        # The count is the last field of the header.
        if records[60] > RECORDS_AT_ONCE or records[59] or records[58] or records[57]:
            return True
    return False


def _in_slices(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Check and append many partitions or records; the loop may turn at each yield."""
    asked: ProduceRequest = request.body
    now_ms, opened_bytes = context.clock.now_ms(), 0
    outcomes: list[_Outcome] = []
    for partition in asked.partitions:
        if outcomes:
            yield
        steps = _append_in_slices(context, connection, request, partition, now_ms, opened_bytes)
        found = yield from steps
        opened_bytes += found[2]
        outcomes.append(found)
    return _answer(context, connection, request, outcomes)


def _answer(
    context: KafkaContext, connection: OrderedConnection, request: KafkaRequest, outcomes: list[_Outcome]
) -> Answer | None:
    quotas, throttle_ms = context.security.quotas, 0
    if quotas.has_any:
        mono_ms = context.clock.mono_ms()
        throttle_ms = connection.throttle(quotas, PRODUCED, request.size, request.client_id, mono_ms)
    if len(outcomes) == 1 and request.body.acks != 0 and request.refused is None:  # The most frequent case.
        result, promise, _ = outcomes[0]
        return Answer(wire.encode_response(request.version, request.correlation_id, [result], throttle_ms), promise)
    results = [result for result, _, _ in outcomes]
    if request.refused is not None:
        for error, body in request.refused.bodies.items():
            request.count_error(error, len(body.partitions))
            results += [PartitionProduced(each.topic, each.partition, error) for each in body.partitions]
    if request.body.acks == 0:
        _close_after_error(connection, results)
        return None
    whole: Promise | None = None
    for _, promise, _ in outcomes:
        whole = join_promises(whole, promise)
    buffers = wire.encode_response(request.version, request.correlation_id, results, throttle_ms)
    return Answer(buffers, whole)


def _append(
    context: KafkaContext,
    connection: OrderedConnection,
    request: KafkaRequest,
    partition: PartitionRecords,
    now_ms: int,
    opened_bytes: int,
) -> _Outcome:
    """Check and append the batch of one partition."""
    name, index, records = partition
    asked: ProduceRequest = request.body
    topic = context.topics.by_kafka_name(name)
    is_sound = asked.acks in _ACKS and opened_bytes < context.options.convert.inflate_bytes_max
    if not is_sound or topic is None or not 0 <= index < topic.queue_count:
        return _refuse_unread(context, request, partition, opened_bytes), None, 0
    checker = context.publisher.checker
    opened_before = checker.opened_bytes
    try:
        base_offset, log_append_ms, promise = context.publisher.publish_batch(
            topic, index, records or b"", now_ms, _origin(context.security.quotas, connection, request)
        )
    except ANSWERABLE as error:
        return _failed(request, partition, error), None, checker.opened_bytes - opened_before
    start = topic.queues[index].start_offset
    result = new_tuple(PartitionProduced, (name, index, 0, base_offset, log_append_ms, start, None, ()))
    return result, promise, checker.opened_bytes - opened_before


def _append_in_slices(
    context: KafkaContext,
    connection: OrderedConnection,
    request: KafkaRequest,
    partition: PartitionRecords,
    now_ms: int,
    opened_bytes: int,
) -> Generator[None, None, _Outcome]:
    """Check and append the batch of one partition, which may have many records."""
    name, index, records = partition
    asked: ProduceRequest = request.body
    topic = context.topics.by_kafka_name(name)
    is_sound = asked.acks in _ACKS and opened_bytes < context.options.convert.inflate_bytes_max
    if not is_sound or topic is None or not 0 <= index < topic.queue_count:
        return _refuse_unread(context, request, partition, opened_bytes), None, 0
    checker = context.publisher.checker
    origin = _origin(context.security.quotas, connection, request)
    steps = context.publisher.publish_batch_in_slices(topic, index, records or b"", now_ms, origin)
    cost_bytes = 0
    while True:
        opened_before = checker.opened_bytes  # Other requests decompress batches between two steps.
        try:
            next(steps)
        except StopIteration as done:
            base_offset, log_append_ms, promise = done.value
            break
        except ANSWERABLE as error:
            return _failed(request, partition, error), None, cost_bytes + checker.opened_bytes - opened_before
        cost_bytes += checker.opened_bytes - opened_before
        yield
        if topic.number not in context.topics:
            return _refused(request, partition, ErrorCode.unknown_topic_or_partition, None), None, cost_bytes
    start = topic.queues[index].start_offset
    result = PartitionProduced(name, index, 0, base_offset, log_append_ms, start)
    return result, promise, cost_bytes + checker.opened_bytes - opened_before


def _origin(quotas: Quotas, connection: OrderedConnection, request: KafkaRequest) -> BatchOrigin:
    """Return what the request says about all its batches."""
    version = request.version
    adds_partition, allows_zstd = version >= _ADDS_PARTITIONS_FROM, version >= _ZSTD_FROM
    client = quotas.client(connection.wire, connection.session, request.client_id) if quotas.has_any else None
    fields = (connection, request.body.transactional_id, adds_partition, allows_zstd, client, "kafka")
    return new_tuple(BatchOrigin, fields)


def _refuse_unread(
    context: KafkaContext, request: KafkaRequest, partition: PartitionRecords, opened_bytes: int
) -> PartitionProduced:
    """Return the error of a partition whose batch is not read."""
    acks = request.body.acks
    if acks not in _ACKS:
        return _refused(request, partition, ErrorCode.invalid_required_acks, f"acks is {acks}; it must be -1, 0 or 1")
    bytes_max = context.options.convert.inflate_bytes_max
    if opened_bytes >= bytes_max:
        message = f"the request's batches decompress to more than convert.inflate_bytes_max={bytes_max} bytes"
        return _refused(request, partition, ErrorCode.kafka_storage_error, message)
    return _refused(request, partition, ErrorCode.unknown_topic_or_partition, None)


def _failed(request: KafkaRequest, partition: PartitionRecords, error: Exception) -> PartitionProduced:
    """Return the error of a partition whose batch was refused, and log an invalid record."""
    code = code_of(error)
    if code is ErrorCode.invalid_record:  # Many clients do not show the reason.
        log.warning(
            "record refused topic=%s queue=%d reason=%r", partition.topic, partition.partition, message_of(error)
        )
    record_errors = error.record_errors if isinstance(error, InvalidBatch) else ()
    return _refused(request, partition, code, message_of(error), record_errors)


def _refused(
    request: KafkaRequest,
    partition: PartitionRecords,
    error: ErrorCode,
    message: str | None,
    record_errors: Sequence[RecordError] = (),
) -> PartitionProduced:
    request.count_error(error)
    shortened = [record._replace(message=record.message[:MESSAGE_CHARACTERS_MAX]) for record in record_errors]
    return PartitionProduced(
        partition.topic, partition.partition, error, error_message=message, record_errors=shortened
    )


def _close_after_error(connection: OrderedConnection, results: list[PartitionProduced]) -> None:
    for result in results:
        if result.error:
            error = ErrorCode(result.error).name
            connection.close(f"produced with acks=0 to {result.topic}/{result.partition}: {error}")
            return
