"""/api/topics/{name}/messages: messages of either client protocol, read and written as JSON.

    GET    ?queue=0 and offset= or time_ms=, limit=   committed messages of a queue, by default from its log start;
           only those that the filters match (`message_filters.py`)
           200 {"queue", "start", "end", "next", "messages": [{"offset", "timestamp_ms", "key", "headers", "tag",
           "value"}]}; `next` is the offset of the next request. Bytes that are not UTF-8 are in `key_base64` and
           `value_base64`.
    POST   {"value", "key"?, "headers"?, "tag"?, "queue"?, "at_ms" or "delay_ms"?}, or {"messages": [...]} of those
           (up to LIMIT_MAX, DELAYED_MAX of them with a time)
           201 {"messages": [{"queue", "offset"} or {"queue", "id", "due_ms"}]}: durable as configured for the topic

/api/messages/{id}: one message by its offsetMsgId, which RocketMQ's clients and dead letters name.

All messages of a request are checked before the first one is written. The messages for a queue are appended in order,
as batches of a Kafka producer. If the store fails in between, some of them may be stored. An answer to GET ends after
LIMIT_MAX messages, ANSWER_BYTES_MAX of JSON, or READ_BYTES_MAX of batches. A longer value is cut, and `value_bytes` is
its size.
"""

import asyncio
import base64
from codecs import utf_8_decode
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from duolog.bridge.data.publishing.produced_batches import HTTP_ORIGIN
from duolog.bridge.data.publishing.publisher import Publisher, check_record
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import is_hidden
from duolog.bridge.http import message_filters
from duolog.bridge.http.access.gate import check_found
from duolog.bridge.http.access.quota_check import quota_client
from duolog.bridge.http.answers import (
    Json,
    Listing,
    answer,
    object_with,
)
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.message_forms import TAG, MessageForm, record_of
from duolog.bridge.http.requests import check_query, due_ms_of, number, parsed, topic_named
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.security.quotas.entity import QuotaClient
from duolog.bridge.security.rules import Operation
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.tracing.trace_context import TRACEPARENT
from duolog.delay.requested_delay import RequestedDelay
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.batch_builder import BatchBuilder, encoded_headers
from duolog.protocol.kafka.record_batch import Record, read_header
from duolog.protocol.kafka.record_reader import FIRST, OpenBatch, open_batch, read_records, records_in_slice
from duolog.protocol.rocketmq.messages.message_id import parse_message_id
from duolog.store.entry import Buffer, Promise
from duolog.store.errors import OffsetOutOfRange
from duolog.store.index.queue import Queue

LIMIT_MAX: Final = 1000  # The number of messages in one answer, and in one request.
ANSWER_BYTES_MAX: Final = 1 << 20
VALUE_BYTES_MAX: Final = 256 << 10
READ_BYTES: Final = 256 << 10  # The size of one read.
READ_BYTES_MAX: Final = 16 << 20  # The size of all reads for one answer.
RECORDS_IN_SLICE: Final = 64
SLICE_BYTES: Final = 1 << 20  # Larger batches are decoded in slices of this size.
DELAYED_MAX: Final = 100  # Messages with a time in one request; each of them is a unit of its own.
# Batches that are decompressed at a time for all HTTP requests; each may need `convert.inflate_bytes_max`.
DECOMPRESSIONS_MAX: Final = 2
RECORD_OVERHEAD_BYTES: Final = 40  # More than the varints of a record take.
TIME_MAX_MS: Final = 1 << 62
OFFSET_MAX: Final = (1 << 63) - 1


class NewMessage(MessageForm, forbid_unknown_fields=True, kw_only=True):
    """One message; with a time it is a delayed message."""

    at_ms: int | None = None
    delay_ms: int | None = None


class NewMessages(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[NewMessage]


class Decompression:
    """Decompresses batches in threads, a few at a time, because each may need `convert.inflate_bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._places = asyncio.Semaphore(DECOMPRESSIONS_MAX)

    @asynccontextmanager
    async def opened(self, batch: Buffer) -> AsyncIterator[OpenBatch]:
        """Decompress a batch, and limit the memory until its records were read. Raises ProtocolError."""
        if not read_header(batch).codec:
            yield open_batch(batch, self._bytes_max)
            return
        async with self._places:
            yield await asyncio.to_thread(open_batch, batch, self._bytes_max)


class MessageApi(ApiPart):
    """The routes. `decompression` opens batches."""

    def __init__(self, context: HttpContext, io: RequestIo, decompression: Decompression) -> None:
        super().__init__(context, io)
        self._decompression = decompression

    def routes(self) -> list[web.RouteDef]:
        path = "/api/topics/{name}/messages"
        return [web.get(path, self._list), web.post(path, self._write), web.get("/api/messages/{id}", self._by_id)]

    # -- Reading

    async def _list(self, request: web.Request) -> web.StreamResponse:
        check_query(request, {"queue", "offset", "time_ms", "limit", *message_filters.NAMES})
        topic = topic_named(self._context, request.match_info["name"])
        queue = topic.queues[number(request, "queue", 0, topic.queue_count - 1)]
        limit = number(request, "limit", 100, LIMIT_MAX, lowest=1)
        end = self._context.messages.isolation.stable_end(queue)
        matches = await message_filters.filter_of(request)
        found = _Found(await self._start(request, topic, queue, end), end, limit, matches)
        try:
            await self._gather(topic, queue, found)
        except OffsetOutOfRange as error:
            raise web.HTTPGone(text=str(error)) from error
        except ProtocolError as error:
            raise web.HTTPConflict(
                text=f"{topic.name}/{queue.queue_id} has no readable messages at {found.at}: {error}"
            ) from error
        head = {"queue": queue.queue_id, "start": queue.start_offset, "end": end, "next": found.at}
        return Listing(object_with(head, "messages", found.messages))

    async def _by_id(self, request: web.Request) -> web.Response:
        text = request.match_info["id"]
        try:
            _, position = parse_message_id(text)
        except ProtocolError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        missing = web.HTTPNotFound(
            text=f"there is no message with the offsetMsgId {text}: retention may have removed it; "
            "an id that the producer made (getMsgId, UNIQ_KEY) is found by mqadmin queryMsgByUniqueKey"
        )
        place = await wait_for_callback(partial(self._context.store.reader.find_address, position))
        topic = None if place is None else self._context.topics.by_number(place.queue.topic)
        if topic is None:
            raise missing
        check_found(self._context, request, topic, Operation.READ)
        end = self._context.messages.isolation.stable_end(place.queue)
        found = _Found(place.offset, min(end, place.offset + 1), 1)
        try:
            await self._gather(topic, place.queue, found)
        except (OffsetOutOfRange, ProtocolError) as error:
            raise missing from error
        if not found.messages:
            raise missing
        shown = msgspec.json.decode(found.messages[0])
        return answer({"topic": topic.name, "queue": place.queue.queue_id} | shown)

    async def _start(self, request: web.Request, topic: Topic, queue: Queue, end: int) -> int:
        """Return the first offset of the answer."""
        if "time_ms" in request.query:
            if "offset" in request.query:
                raise web.HTTPBadRequest(text="expected either offset or time_ms")
            time_ms = number(request, "time_ms", 0, TIME_MAX_MS)
            found = self._context.messages.reader.find_time(queue, topic, time_ms, end)
            place = await wait_for_callback(found.start) if isinstance(found, Later) else found
            return end if place is None else place[0]
        offset = number(request, "offset", queue.start_offset, OFFSET_MAX)
        if "offset" in request.query and not queue.start_offset <= offset <= queue.visible_end:
            raise web.HTTPGone(
                text=f"offset {offset} is outside {topic.name}/{queue.queue_id}, {queue.start_offset} to {end}"
            )
        return offset

    async def _gather(self, topic: Topic, queue: Queue, found: "_Found") -> None:
        room = READ_BYTES_MAX
        # The state of now, like `end`: all transactions below it are decided.
        isolation = self._context.messages.isolation.get(queue.key)
        while not found.is_done() and room > 0:
            read = self._context.messages.reader.read_for_kafka(
                queue, topic, found.at, READ_BYTES, queue.visible_end, "http"
            )
            batches = await wait_for_callback(read.start) if isinstance(read, Later) else read
            if not batches:
                return
            for batch in batches:
                room -= len(batch)
                header = read_header(batch)
                if not is_hidden(batch, header.base_offset, isolation):
                    async with self._decompression.opened(batch) as opened:
                        await _add(found, opened)
                if found.is_done():
                    return
                found.skip_to(header.last_offset + 1)

    # -- Writing

    async def _write(self, request: web.Request) -> web.Response:
        if "Idempotency-Key" in request.headers:  # The key has no effect here, so the client must not rely on it.
            raise web.HTTPBadRequest(text="Idempotency-Key: only POST /api/timers takes it")
        body = await self._read(request)
        topic = topic_named(self._context, request.match_info["name"])
        wanted = _messages_in(body)
        now_ms = self._context.clock.now_ms()
        traceparent = request.headers.get(TRACEPARENT, "")
        plans = [self._plan(topic, each, now_ms, traceparent) for each in wanted]
        written, promise = _append(self._context, topic, plans, now_ms, quota_client(self._context, request))
        await self._kept(promise)
        return answer({"messages": written}, status=201)

    def _plan(self, topic: Topic, wanted: NewMessage, now_ms: int, traceparent: str) -> "_Plan":
        """Check a message, and return how it will be appended."""
        queue_id, record = record_of(topic, wanted, now_ms, traceparent=traceparent)
        check_record(topic, record)
        if wanted.at_ms is None and wanted.delay_ms is None:
            return queue_id, record, None
        due_ms = due_ms_of(wanted.at_ms, wanted.delay_ms, now_ms)
        return queue_id, record, self._context.delayed.delay_parser.limits.check_due_time(due_ms, now_ms)


_Plan = tuple[int, Record, RequestedDelay | None]


def _messages_in(body: bytes) -> Sequence[NewMessage]:
    raw = parsed(body, dict[str, msgspec.Raw])
    wanted = parsed(body, NewMessages).messages if "messages" in raw else [parsed(body, NewMessage)]
    if not 0 < len(wanted) <= LIMIT_MAX:
        raise web.HTTPBadRequest(text=f"messages: expected 1 to {LIMIT_MAX}, got {len(wanted)}")
    delayed = sum(each.at_ms is not None or each.delay_ms is not None for each in wanted)
    if delayed > DELAYED_MAX:
        raise web.HTTPBadRequest(text=f"messages: expected up to {DELAYED_MAX} with at_ms or delay_ms, got {delayed}")
    return wanted


def _append(
    context: HttpContext, topic: Topic, plans: Sequence[_Plan], now_ms: int, client: QuotaClient | None
) -> tuple[list[Json], Promise]:
    """Append checked messages: each delayed message in a unit of its own, the others in batches of their queues.

    `client` is whose quota the delayed messages count in.
    """
    written: list[Json] = [{"queue": queue_id} for queue_id, _, _ in plans]
    delayed = sum(delay is not None for _, _, delay in plans)
    context.delayed.delays.timers.check_room(delayed)
    context.messages.publisher.pending_quota.check_room(client, delayed)
    promise = context.state_log.barrier()
    by_queue: defaultdict[int, list[int]] = defaultdict(list)
    for place, (queue_id, record, delay) in enumerate(plans):
        if delay is None:
            by_queue[queue_id].append(place)
            continue
        timer_id, kept = context.messages.publisher.publish_delayed(
            topic, queue_id, record, delay, now_ms, replaces=False, client=client
        )
        promise = promise.and_also(kept)
        written[place] |= {"id": context.delayed.commands.text_ids.text_of(timer_id), "due_ms": delay.due_ms}
    for queue_id, places in by_queue.items():
        for run in _runs([plans[place][1] for place in places], topic.settings.max_message_bytes):
            base_offset, kept = _append_run(context.messages.publisher, topic, queue_id, run, now_ms)
            promise = promise.and_also(kept)
            for index, place in enumerate(places[: len(run)]):
                written[place]["offset"] = base_offset + index
            del places[: len(run)]
    return written, promise


def _runs(records: Sequence[Record], bytes_max: int) -> list[list[Record]]:
    """Divide records into batches that are not larger than the topic allows."""
    runs: list[list[Record]] = []
    size = bytes_max
    for record in records:
        record_bytes = len(record.key or b"") + len(record.value or b"") + len(encoded_headers(record.headers))
        size += record_bytes + RECORD_OVERHEAD_BYTES
        if size > bytes_max or not runs:
            runs.append([])
            size = BatchBuilder().size + record_bytes + RECORD_OVERHEAD_BYTES
        runs[-1].append(record)
    return runs


def _append_run(
    publisher: Publisher, topic: Topic, queue_id: int, run: Sequence[Record], now_ms: int
) -> tuple[int, Promise]:
    builder = BatchBuilder()
    for delta, record in enumerate(run):
        builder.append(delta, record.timestamp_ms, record.key, record.value, record.headers)
    published = publisher.publish_batch(topic, queue_id, builder.finish(0, 0), now_ms, HTTP_ORIGIN)
    return published.base_offset, published.promise


# -- JSON views


class _Found:
    """The messages of an answer so far; `at` is the next offset."""

    def __init__(self, at: int, end: int, limit: int, matches: message_filters.Matches | None = None) -> None:
        self._matches = matches  # None: all messages are wanted.
        self.at = at
        self.messages: list[Any] = []
        self._end, self._limit, self._room = end, limit, ANSWER_BYTES_MAX

    def is_done(self) -> bool:
        return self.at >= self._end or len(self.messages) >= self._limit or self._room <= 0

    def skip_to(self, offset: int) -> None:
        self.at = max(self.at, min(offset, self._end))

    def add(self, record: Record) -> None:
        if self.is_done() or record.offset < self.at:
            return
        if record.offset >= self._end:
            self.at = self._end
            return
        if self._matches is not None and not self._matches(record):
            self.at = record.offset + 1
            return
        shown = msgspec.Raw(msgspec.json.encode(message_view(record)))
        if len(shown) > self._room and self.messages:
            self._room = 0  # The next answer begins with this message.
            return
        self._room -= len(shown)
        self.messages.append(shown)
        self.at = record.offset + 1


async def _add(found: _Found, opened: OpenBatch) -> None:
    mark, count = FIRST, records_in_slice(opened, RECORDS_IN_SLICE, SLICE_BYTES)
    while mark.skipped < opened.header.record_count and not found.is_done():
        records, mark = read_records(opened, mark, count)
        for record in records:
            found.add(record)
        await asyncio.sleep(0)


def message_view(record: Record) -> Json:
    """Return the JSON view of a record."""
    headers = headers_view(record)
    shown = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    shown |= bytes_view("key", record.key) | {"headers": headers, "tag": headers.get(TAG)}
    return shown | value_view(record.value, VALUE_BYTES_MAX)


def headers_view(record: Record) -> dict[str, str]:
    """Return the headers of a record as text; bytes that are not UTF-8 are replaced."""
    return {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}


def value_view(value: Buffer | None, bytes_max: int) -> Json:
    """Return the value of a message; of a longer value its size and the first bytes."""
    if value is None or len(value) <= bytes_max:
        return bytes_view("value", value)
    return {"value_bytes": len(value)} | bytes_view("value", value[:bytes_max], is_cut=True)


def bytes_view(name: str, value: Buffer | None, *, is_cut: bool = False) -> Json:
    """Return a field with the bytes as text, or in base64 if they are not UTF-8.

    With `is_cut` the bytes are the beginning of more; the part of a last character that they may end with is left out.
    """
    if value is None:
        return {name: None}
    try:
        return {name: utf_8_decode(value, "strict", not is_cut)[0]}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
