"""QUERY_MESSAGE (12): finds messages by a key or by their unique key in a range of store times, newest first.

A RocketMQ message is found by its UNIQ_KEY and by each word of its KEYS; a Kafka record by its header UNIQ_KEY and by
each word of its key. A thread searches (`store/index/key_index.py`). If a long part of the log was never searched, the
search may stop before it is complete: the answer then has the messages found so far, or, if there are none, asks the
client to repeat the request. Source: QueryMessageProcessor.java, IndexService.java.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from duolog.bridge.data.reading.rocketmq_reader import place_of
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import Done, UntilRead, WaitingSteps
from duolog.bridge.records import frame_formats
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.convert import to_rocketmq
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka import record_batch, record_reader
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import QueryAnswer, QueryRequest
from duolog.protocol.rocketmq.messages import properties
from duolog.protocol.rocketmq.messages.message import properties_of
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer, Stored
from duolog.store.index.key_index import Search
from duolog.store.index.queue import Queue
from duolog.txn.isolation import QueueIsolation

MESSAGES_MAX: Final = 64  # `maxMsgsNumBatch`
BYTES_MAX: Final = 4 << 20  # The size of one answer; one message alone may be larger.

_NOT_FOUND: Final = "can not find message, maybe time range not correct"
_NOT_YET: Final = "the keys of older messages are still being collected; ask again"


class FoundMessage(NamedTuple):
    """A message in the form in which a pull returns it."""

    stored_ms: int
    record: Buffer
    queue_key: int
    base_offset: int
    producer_id: int | None = None  # The producer id, if a Kafka producer sent the message in a transaction.


class SearchedQueue(NamedTuple):
    """A queue, and the state of its transactions when the search began; all messages found were decided then."""

    queue: Queue
    isolation: QueueIsolation | None


def query_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer QUERY_MESSAGE after a thread has searched."""
    request = QueryRequest.parse(command.ext)
    topic = context.topics.by_rocketmq_name(request.topic)
    if topic is None:
        raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND)
    inflate_bytes_max = context.options.convert.inflate_bytes_max
    search = Search(
        request.key.encode(),
        max(request.begin_timestamp, 0),
        min(request.end_timestamp, (1 << 62)),
        min(max(request.max_num, 1), MESSAGES_MAX),
        partial(keys_of, inflate_bytes_max),
        _matcher(topic, request.key.encode(), context.messages.reader.store_host, inflate_bytes_max),
    )
    where = [(queue, context.messages.isolation.stable_end(queue)) for queue in topic.queues]
    decided = {queue.key: SearchedQueue(queue, context.messages.isolation.get(queue.key)) for queue in topic.queues}
    start = partial(context.store.reader.search, where, search)
    return answer_in_steps(connection, command, _steps(context, command, decided, start))


def _steps(
    context: RocketMQContext,
    command: RemotingCommand,
    decided: Mapping[int, SearchedQueue],
    start: Callable[[Done], None],
) -> WaitingSteps[Answer]:
    return _answer(context, command, decided, (yield UntilRead(start)))


def _answer(
    context: RocketMQContext,
    command: RemotingCommand,
    decided: Mapping[int, SearchedQueue],
    found: Search[FoundMessage],
) -> Answer:
    seen = [each for each in found.found if not _is_aborted(decided[each.queue_key], each)]
    newest = sorted(seen, key=lambda each: each.stored_ms, reverse=True)[: found.max_count]
    if not newest:
        if found.is_complete:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND)
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, _NOT_YET)
    records: list[Buffer] = []
    for each in newest:
        if records and sum(map(len, records)) + len(each.record) > BYTES_MAX:
            break
        records.append(each.record)
    header = QueryAnswer(
        index_last_update_timestamp=newest[0].stored_ms, index_last_update_phyoffset=context.store.written
    )
    return answer(command, ext=header.to_ext(), body=records)


def _is_aborted(decided: SearchedQueue, found: FoundMessage) -> bool:
    queue, isolation = decided
    if isolation is None or found.producer_id is None:
        return False
    # Retention may have removed the record meanwhile, and with it the knowledge about its transaction.
    return found.base_offset < queue.start_offset or isolation.is_aborted(found.producer_id, found.base_offset)


# -- Keys of entries. The search thread calls these functions.


def keys_of(inflate_bytes_max: int, entry: Stored) -> Iterable[bytes] | None:
    """Return all keys of an entry; None if it cannot be decompressed or decoded."""
    try:
        if entry.form == frame_formats.ROCKETMQ:
            return _keys_in(properties_of(entry.frame))
        if record_batch.read_header(entry.frame).is_control:
            return ()
        records = record_reader.records(entry.frame, inflate_bytes_max)
        return {key for record in records for key in _keys_in(to_rocketmq.properties_of(record))}
    except ProtocolError:
        return None


def _keys_in(raw: bytes) -> list[bytes]:
    keys = (properties.get(raw, properties.KEYS) or "").encode().split(b" ")
    keys.append((properties.get(raw, properties.UNIQ_KEY) or "").encode())
    return [key for key in keys if key]


def _matcher(
    topic: Topic, key: bytes, store_host: bytes, inflate_bytes_max: int
) -> Callable[[Queue, Stored], list[FoundMessage]]:
    """Return a function that returns the records of an entry that have the key, newest first."""

    def matches(queue: Queue, entry: Stored) -> list[FoundMessage]:
        try:
            if entry.form == frame_formats.ROCKETMQ:
                has_key = key in _keys_in(properties_of(entry.frame))
                return [FoundMessage(entry.stored_ms, entry.frame, queue.key, entry.base_offset)] if has_key else []
            header = record_batch.read_header(entry.frame)
            if header.is_control:
                return []
            records = [
                record
                for record in record_reader.records(entry.frame, inflate_bytes_max)
                if key in _keys_in(to_rocketmq.properties_of(record))
            ]
        except ProtocolError:
            return []
        del records[:-MESSAGES_MAX]
        place = place_of(topic, queue, entry, store_host)
        producer_id = header.producer_id if header.is_transactional else None
        return [
            FoundMessage(entry.stored_ms, record, queue.key, entry.base_offset, producer_id)
            for record in reversed(to_rocketmq.rocketmq_records(records, place))
        ]

    return matches
