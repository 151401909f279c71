"""/api/transactions: the transactions of both client protocols, and the abort of a Kafka transaction.

There is a row for each transactional id of a Kafka producer, then one for each open half message of either client
protocol; at most the ROWS_MAX oldest of them. The id of a half message is its topic and the id that its producer chose,
which is the unique key of a RocketMQ message. `age_ms` counts from the begin of the transaction; -1: no transaction is
open.
"""

import asyncio
from collections.abc import Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Final

from aiohttp import web

from duolog.bridge.data.reading.later import Later
from duolog.bridge.http.access.quota_check import quota_client
from duolog.bridge.http.answers import SLICE_MS, Json, Listing, answer, array
from duolog.bridge.http.api.verdicts import decide_by_id, decide_by_offset
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.bridge.transactions.kafka_transactions import Transaction
from duolog.protocol.rocketmq.messages import message, properties
from duolog.store.entry import Promise, Stored
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue
from duolog.txn.coordinator import State
from duolog.txn.half import Half, UnknownHalf

ROWS_MAX: Final = 1000
# The length of a RocketMQ id, which is kept in memory. Unique keys of stock clients have 32.
ID_CHARACTERS_MAX: Final = 300


class UnknownTransaction(Exception):
    """No Kafka producer has this transactional id."""


class TransactionApi(ApiPart):
    """The routes."""

    def __init__(self, context: HttpContext, io: RequestIo) -> None:
        super().__init__(context, io)
        self._rocketmq_ids = RocketMQHalfIds(context)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/transactions", self._transactions),
            web.get("/api/transactions/{id}", self._transaction),
            web.delete("/api/transactions/{id}", self._abort_transaction),
            web.post("/api/transactions/{topic}/{id}", self._decide),
            web.post("/api/half-messages/{offset}", self._decide_rocketmq),
        ]

    async def _transactions(self, request: web.Request) -> web.StreamResponse:
        await self._kept(self._context.state_log.barrier())
        ids = await self._rocketmq_ids.read()
        return Listing(array(transactions(self._context, ids)))

    async def _transaction(self, request: web.Request) -> web.Response:
        await self._kept(self._context.state_log.barrier())
        return answer(transaction(self._context, request.match_info["id"]))

    async def _abort_transaction(self, request: web.Request) -> web.Response:
        await self._kept(abort(self._context, request.match_info["id"]))
        return answer({"aborted": request.match_info["id"]})

    async def _decide(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        topic, id = request.match_info["topic"], request.match_info["id"]
        decisions, client = self._context.transactions.half_decisions, quota_client(self._context, request)
        decided, promise = await decide_by_id(decisions, topic, id, body, client)
        await self._kept(promise)
        return answer(decided)

    async def _decide_rocketmq(self, request: web.Request) -> web.Response:
        body, offset = await self._read(request), request.match_info["offset"]
        if not (offset.isascii() and offset.isdecimal() and len(offset) < 19):
            raise web.HTTPBadRequest(text=f"expected an offset of the half topic, got {offset[:40]!r}")
        decided, promise = await decide_by_offset(self._context.transactions, int(offset), body)
        await self._kept(promise)
        return answer(decided)


class RocketMQHalfIds:
    """The ids of the half messages of RocketMQ producers, TOPIC/UNIQUE-KEY, which only the half messages contain.

    An id never changes. So the ids of the last listing are kept, and a page that is shown again reads only new ones.
    """

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._known: Mapping[int, str] = {}  # By offset in the half topic. Invariant: at most ROWS_MAX.

    async def read(self) -> Mapping[int, str]:
        """Return the ids of the oldest ROWS_MAX half messages by their offsets, without those of Kafka producers.

        The id of a half message that cannot be read is its offset. The loop runs after each SLICE_MS.
        """
        halves, clock = self._context.transactions.halves, self._context.clock
        known, found = self._known, dict[int, str]()
        until_mono_ms = clock.mono_ms() + SLICE_MS
        for half in list(islice(halves.state.open(), ROWS_MAX)):
            if halves.ids.id_of(half.offset) is None:
                found[half.offset] = known.get(half.offset) or await _rocketmq_id(halves, half.offset)
            if clock.mono_ms() >= until_mono_ms:
                await asyncio.sleep(0)
                until_mono_ms = clock.mono_ms() + SLICE_MS
        self._known = {offset: id for offset, id in found.items() if id != str(offset)}
        return found


async def _rocketmq_id(halves: HalfMessageLog, offset: int) -> str:
    try:
        read = halves.read(offset)
        stored: Stored = await wait_for_callback(read.start) if isinstance(read, Later) else read
    except (UnknownHalf, StoreError):  # Also if it was decided meanwhile; then no row shows the id.
        return str(offset)
    raw = message.properties_of(stored.frame)
    return f"{properties.get(raw, properties.REAL_TOPIC)}/{properties.get(raw, properties.UNIQ_KEY)}"[
        :ID_CHARACTERS_MAX
    ]


def transactions(context: HttpContext, rocketmq_ids: Mapping[int, str]) -> Iterator[Json | None]:
    """Yield the open ones of both client protocols, the oldest first, then transactional ids without a transaction.

    Half messages of RocketMQ producers without an id are left out: they were sent after the ids had been read.
    """
    now_ms = context.clock.now_ms()
    room = ROWS_MAX
    coordinator = context.transactions.kafka.coordinator
    for each in nsmallest(room, list(coordinator.open), key=attrgetter("started_ms")):
        yield _kafka_row(each, now_ms)
        room -= 1
    for half in list(islice(context.transactions.halves.state.open(), room)):
        given = context.transactions.halves.ids.id_of(half.offset)
        if given is not None:
            yield _half_row(context, "kafka", "/".join(given), half)
            room -= 1
        elif half.offset in rocketmq_ids:
            yield _half_row(context, "rocketmq", rocketmq_ids[half.offset], half)
            room -= 1
    for each in list(coordinator):
        if not room:
            return
        is_at_rest = each.state is not State.ONGOING
        yield _kafka_row(each, now_ms) if is_at_rest else None
        room -= is_at_rest


def _half_row(context: HttpContext, kind: str, id: str, half: Half) -> Json:
    now_ms = context.clock.now_ms()
    waits_for = f"its producer's verdict, asked for in {_seconds_until(half.due_ms, now_ms)}"
    return {
        "kind": kind,
        "id": id,
        "half_offset": half.offset,
        "state": "half",
        "age_ms": now_ms - half.stored_ms,
        "producer": half.target,
        "checks": half.checks,
        "last_asked": context.transactions.halves.asked.of(half.offset),
        "waits_for": waits_for if half.target else "a verdict",
    }


def _kafka_row(transaction: Transaction, now_ms: int) -> Json:
    is_open = transaction.state is State.ONGOING
    return {
        "kind": "kafka",
        "id": transaction.name,
        "state": transaction.state.kafka_name,
        "age_ms": now_ms - transaction.started_ms if is_open else -1,
        "producer": f"{transaction.producer.id} epoch {transaction.producer.epoch}",
        "checks": 0,  # There are no check-backs for Kafka transactions.
        "last_asked": "",
        "waits_for": f"the end, for {_seconds_until(transaction.deadline_ms, now_ms)} at most" if is_open else "",
    }


def _seconds_until(due_ms: int, now_ms: int) -> str:
    return f"{max(0, due_ms - now_ms + 999) // 1000} s"


def transaction(context: HttpContext, transactional_id: str) -> Json:
    """Return the description of a Kafka producer's transaction, or the row of its half message.

    Raises UnknownTransaction.
    """
    named = _half_named(context, transactional_id)
    if named is not None:
        return _half_row(context, "kafka", *named)
    found = _find(context, transactional_id)
    queues = []
    for key in sorted(found.keys):
        number, queue_id = Queue.split(key)
        topic, isolation = context.topics.by_number(number), context.messages.isolation.get(key)
        if topic is None:
            continue
        first_offset = isolation.first_offset(found.producer.id) if isolation is not None else None
        end = context.messages.isolation.stable_end(topic.queues[queue_id])
        queues.append({"topic": topic.name, "queue": queue_id, "first_offset": first_offset, "stable_end": end})
    return _kafka_row(found, context.clock.now_ms()) | {
        "timeout_ms": found.timeout_ms,
        "queues": queues,
        "groups": {group: len(offsets) for group, offsets in found.offsets.items()},
    }


def abort(context: HttpContext, transactional_id: str) -> Promise:
    """Abort the open transaction, and fence its producer. Raises UnknownTransaction, StoreError."""
    return context.transactions.kafka.fence(_find(context, transactional_id), context.clock.now_ms())


def _half_named(context: HttpContext, name: str) -> tuple[str, Half] | None:
    """Return the open half message with the id of a Kafka producer's row, after its id.

    Returns None if there is none, or a transactional id has the same spelling.
    """
    if context.transactions.kafka.coordinator.get(name) is not None:
        return None
    topic_name, _, id = name.partition("/")  # The name of a topic contains no slash.
    topic = context.topics.get(topic_name)
    offset = None if topic is None else context.transactions.halves.ids.offset_of(topic.name, id)
    half = None if offset is None else context.transactions.halves.state.find(offset)
    return None if half is None or topic is None else (f"{topic.name}/{id}", half)


def _find(context: HttpContext, transactional_id: str) -> Transaction:
    found = context.transactions.kafka.coordinator.get(transactional_id)
    if found is None:
        raise UnknownTransaction(f"there is no transactional id {transactional_id[:300]}")
    return found
