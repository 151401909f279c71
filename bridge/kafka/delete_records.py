"""DeleteRecords 0..2: raises the log start offsets of partitions.

    offset      -1: all records up to the high watermark
                n >= 0: the records below n, which must not lie above the high watermark

The answer waits until the new log start offsets are durable.
"""

from typing import Any, Final

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.list_offsets import partition_of
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import ANSWERABLE, InvalidRequest, code_of
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import by_partition
from duolog.bridge.kafka.requests.request import NO_THROTTLE, KafkaRequest, Steps, join_promises
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.response import Elements
from duolog.store.entry import Promise
from duolog.store.errors import OffsetOutOfRange

_HIGH_WATERMARK: Final = -1


def delete_records(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Raise log start offsets. The records below are deleted for both client protocols."""
    types = request.types
    promise: Promise | None = None
    asked = by_partition(
        (topic.name, part.partition_index, part.offset) for topic in request.body.topics for part in topic.partitions
    )

    def deleted(name: str, index: int, offset: int) -> Any:
        nonlocal promise
        low_watermark, error = -1, ErrorCode.none
        try:
            low_watermark, moved = _delete_records(context, name, index, offset)
            promise = join_promises(promise, moved)
        except ANSWERABLE as refusal:
            error = code_of(refusal)
        return types.DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark, error_code=error)

    topics = Elements(
        types.DeleteRecordsTopicResult(
            name=name, partitions=Elements(deleted(name, index, offset) for index, offset in partitions.items())
        )
        for name, partitions in asked.items()
    )
    entity = types.DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=topics)
    pieces = yield from encode_in_steps(context, request, entity)
    return make_answer(request, pieces, promise)


def _delete_records(context: KafkaContext, name: str, index: int, offset: int) -> tuple[int, Promise | None]:
    topic, queue = partition_of(context, name, index)
    end = queue.visible_end
    until = end if offset == _HIGH_WATERMARK else offset
    if not 0 <= until <= end:
        raise OffsetOutOfRange(str(queue), offset, queue.start_offset, end)
    if not topic.may_produce:
        raise InvalidRequest(f"topic {name} belongs to the broker, so its records cannot be deleted")
    if until <= queue.start_offset:
        return queue.start_offset, None
    context.store.retention.trim(queue, until, context.clock.now_ms())
    return queue.start_offset, context.store.promise()
