"""ListOffsets 1..10, OffsetForLeaderEpoch 2..4.

    timestamp   -1 latest · -2, -4 earliest · -3 the first record with the greatest timestamp · -5 last tiered: none
                t >= 0: the first record of that time or later
    no such record: offset -1 and timestamp -1, without an error

A search by time answers with the offset and the timestamp of a record, so the batch that holds the record is opened.
Where the batch is not in memory, the request waits for a reader thread before it looks up further partitions. Every
offset lies below the high watermark, and below the last stable offset if the request is read_committed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.time_search import FoundTime
from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.errors import ANSWERABLE, InvalidRequest, code_of
from duolog.bridge.kafka.requests.kafka_driver import answer_in_steps
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import Repeated, by_partition
from duolog.bridge.kafka.requests.request import (
    NO_THROTTLE,
    KafkaRequest,
    Steps,
)
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.connection import TURN_MS
from duolog.bridge.net.ordered_outbox import OutboxSlot
from duolog.bridge.net.waiting import Done, UntilNextTurn, UntilRead, WaitingSteps
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import UnknownTopic
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.response import Elements
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LAST_TIERED = -1, -2, -3, -4, -5
_NO_EPOCH = -1
_READ_COMMITTED = 1
LOOKED_UP_MAX = 500  # Partitions in one turn of the loop, even if time is left.


def partition_of(context: KafkaContext, name: str, index: int) -> tuple[Topic, Queue]:
    """Return the topic of a partition and its queue. Raises UnknownTopic."""
    topic = context.topics.by_kafka_name(name)
    if topic is None or not 0 <= index < topic.queue_count:
        raise UnknownTopic(f"topic {name} has no partition {index}, or does not exist")
    return topic, topic.queues[index]


def _epoch_error(topic: Topic, index: int, client_epoch: int) -> ErrorCode:
    """Return the error for a client with another leader epoch than the topic's; -1: the client names none."""
    epoch = topic.leader_epoch(index)
    if client_epoch in (_NO_EPOCH, epoch):
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if client_epoch < epoch else ErrorCode.unknown_leader_epoch


# -- ListOffsets


def list_offsets(
    context: KafkaContext, connection: OrderedConnection, request: KafkaRequest
) -> Answer | Steps | OutboxSlot | None:
    """Look up offsets by timestamp."""
    steps = _ListOffsets(context, request).steps()
    return answer_in_steps(connection, request, steps, context.purgatory, context.sliced_requests)


class Listed(NamedTuple):
    """The answer for one partition. The defaults are the answer where no record matches."""

    error: ErrorCode = ErrorCode.none
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = _NO_EPOCH


class _ColdLookup(NamedTuple):
    """A partition, by its index in the request, whose batch is not in memory."""

    number: int
    topic: Topic
    read: Later[FoundTime | None]


def _start_all(reads: Sequence[Later[FoundTime | None]], done: Done) -> None:
    """Start all reads, and call `done` with the list of their outcomes once the last one is done."""
    outcomes: list[FoundTime | StoreError | None] = [None] * len(reads)
    left = len(reads)

    def take(number: int, outcome: FoundTime | StoreError | None) -> None:
        nonlocal left
        outcomes[number] = outcome
        left -= 1
        if not left:
            done(outcomes)

    for number, read in enumerate(reads):
        read.start(partial(take, number))


class _ListOffsets:
    """One ListOffsets request. `steps` looks up the partitions, some in each turn of the loop."""

    __slots__ = ("_asked", "_context", "_repeated", "_request", "_results")

    def __init__(self, context: KafkaContext, request: KafkaRequest) -> None:
        self._context, self._request = context, request
        named = [(topic.name, part) for topic in request.body.topics for part in topic.partitions]
        self._repeated = Repeated((name, part.partition_index) for name, part in named)
        self._asked = [*{(name, part.partition_index): (name, part) for name, part in named}.values()]
        self._results: list[Listed] = []  # The results for the first partitions.

    def steps(self) -> WaitingSteps[Answer | Steps]:
        while True:
            reads = self._look_up_slice()
            if reads:
                found = yield UntilRead(partial(_start_all, [read for _, _, read in reads]))
                for (number, topic, _), outcome in zip(reads, found, strict=True):
                    self._results[number] = self._listed(number, topic, outcome)
            elif len(self._results) < len(self._asked):
                yield UntilNextTurn()
            if len(self._results) == len(self._asked):
                return self._answer()

    def _look_up_slice(self) -> list[_ColdLookup]:
        """Look up as many partitions as a turn has time for; return the reads that need a thread."""
        mono_ms = self._context.clock.mono_ms
        until_mono_ms = mono_ms() + TURN_MS
        reads: list[_ColdLookup] = []
        begun = len(self._results)
        for number, (name, part) in enumerate(self._asked[begun : begun + LOOKED_UP_MAX], begun):
            if mono_ms() > until_mono_ms:
                break
            try:
                self._repeated.check((name, part.partition_index), f"partition {part.partition_index} of {name}")
                topic, queue = partition_of(self._context, name, part.partition_index)
                found = self._look_up(topic, queue, part)
            except ANSWERABLE as error:
                found = Listed(code_of(error))
            if isinstance(found, Later):
                reads.append(_ColdLookup(number, topic, found))
                found = Listed()  # The result replaces it when the read is done.
            self._results.append(found)
        return reads

    def _look_up(self, topic: Topic, queue: Queue, part: Any) -> Listed | Later[FoundTime | None]:
        error = _epoch_error(topic, queue.queue_id, getattr(part, "current_leader_epoch", _NO_EPOCH))
        if error is not ErrorCode.none:
            return Listed(error)
        timestamp, end = part.timestamp, queue.visible_end
        if getattr(self._request.body, "isolation_level", 0) == _READ_COMMITTED:
            end = self._context.isolation.stable_end(queue)
        if timestamp == _LATEST:
            return Listed(offset=end, leader_epoch=topic.leader_epoch(queue.queue_id))
        if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
            start = queue.start_offset
            return Listed(offset=start, leader_epoch=topic.epoch_at(queue.queue_id, start)[0])
        if timestamp == _LAST_TIERED:
            return Listed()
        if timestamp == _MAX_TIMESTAMP:
            found = self._context.reader.find_latest_time(queue, topic, end)
        elif timestamp < 0:
            raise InvalidRequest(f"unknown timestamp {timestamp}")
        else:
            found = self._context.reader.find_time(queue, topic, timestamp, end)
        return found if isinstance(found, Later) else _listed(topic, queue.queue_id, found)

    def _listed(self, number: int, topic: Topic, outcome: FoundTime | Exception | None) -> Listed:
        if isinstance(outcome, Exception):
            return Listed(code_of(outcome))
        return _listed(topic, self._asked[number][1].partition_index, outcome)

    def _answer(self) -> Steps:
        types = self._request.types
        found = by_partition(
            (name, part.partition_index, listed)
            for (name, part), listed in zip(self._asked, self._results, strict=True)
        )
        topics = Elements(
            types.ListOffsetsTopicResponse(
                name=name,
                partitions=Elements(
                    types.ListOffsetsPartitionResponse(
                        partition_index=index,
                        error_code=listed.error,
                        timestamp=listed.timestamp_ms,
                        offset=listed.offset,
                        leader_epoch=listed.leader_epoch,
                    )
                    for index, listed in partitions.items()
                ),
            )
            for name, partitions in found.items()
        )
        entity = types.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=topics)
        return make_answer(self._request, (yield from encode_in_steps(self._context, self._request, entity)), None)


def _listed(topic: Topic, index: int, found: FoundTime | None) -> Listed:
    if found is None:
        return Listed()
    offset, timestamp_ms = found
    return Listed(ErrorCode.none, offset, timestamp_ms, topic.epoch_at(index, offset)[0])


# -- OffsetForLeaderEpoch


def offset_for_leader_epoch(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Return the end of a leader epoch, by which a consumer notices that records it has read were lost (KIP-320)."""
    types = request.types
    asked = by_partition(
        (topic.topic, part.partition, part) for topic in request.body.topics for part in topic.partitions
    )
    topics = Elements(
        types.OffsetForLeaderTopicResult(
            topic=name, partitions=Elements(_epoch_end(context, request, name, part) for part in partitions.values())
        )
        for name, partitions in asked.items()
    )
    entity = types.OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=topics)
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)


def _epoch_end(context: KafkaContext, request: KafkaRequest, name: str, asked: Any) -> Any:
    epoch = end_offset = -1
    try:
        topic, _ = partition_of(context, name, asked.partition)
        error = _epoch_error(topic, asked.partition, asked.current_leader_epoch)
        if error is ErrorCode.none:
            epoch, end_offset = topic.epoch_end(asked.partition, asked.leader_epoch)
    except ANSWERABLE as refusal:
        error = code_of(refusal)
    return request.types.EpochEndOffset(
        error_code=error, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
    )
