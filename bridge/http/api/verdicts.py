"""Verdicts on half messages of Kafka producers, which clients send over HTTP.

    POST /api/transactions/{topic}/{id}   {"verdict": "commit" | "rollback"}
        200    the half message has this verdict, from now on or from before
        400    the body is invalid
        404    the topic or the half message is unknown, or was forgotten
        409    the half message has another verdict, or its topic was deleted

    POST /api/half-messages/{offset}      the same for a RocketMQ producer's half message, by its offset in the half
                                          topic: an operator decides instead of the producer

The answer waits until the verdict is durable. RocketMQ producers send theirs by END_TRANSACTION.
"""

from typing import Final

import msgspec
from aiohttp import web

from duolog.bridge.data.publishing.half_decisions import HalfDecisions
from duolog.bridge.data.reading.later import Later
from duolog.bridge.http.answers import Json
from duolog.bridge.http.context import TransactionContext
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.security.quotas.entity import QuotaClient
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.bridge.transactions.verdict_body import read_verdict
from duolog.delay.requested_delay import DelayRefused
from duolog.store.entry import Promise, Stored
from duolog.txn.half import AlreadyDecided, UnknownHalf
from duolog.txn.half_verdicts import HalfVerdict

_STATES: Final = {
    HalfVerdict.COMMITTED: "committed",
    HalfVerdict.ROLLED_BACK: "rolled back",
    HalfVerdict.GIVEN_UP: "given up",
}


async def decide_by_id(
    context: HalfDecisions, topic: str, id: str, body: bytes, client: QuotaClient | None = None
) -> tuple[dict[str, str], Promise]:
    """Decide the half message `id` of a topic by the body of a POST. Raises HTTPException, StoreError.

    `client` is whose quota a delayed message counts in that is committed.
    """
    verdict = _verdict(body)
    halves = context.halves
    found = context.topics.get(topic)
    offset = halves.ids.offset_of(found.name if found is not None else topic, id)
    try:
        if offset is None and found is None:
            raise web.HTTPNotFound(text=f"there is no topic {topic[:300]}")
        if offset is None:
            raise UnknownHalf(f"there is no half message {id[:300]!r} of topic {topic[:300]!r}")
        promise: Promise | None = context.store.promise()
        if halves.state.judge(offset, verdict):
            promise = context.decide(await _read(halves, offset), verdict, client)
    except UnknownHalf as error:
        raise web.HTTPNotFound(text=str(error)) from error
    except AlreadyDecided as error:
        raise web.HTTPConflict(text=f"half message {id[:300]!r} was {_STATES[error.verdict]}") from error
    except DelayRefused as error:
        raise web.HTTPConflict(text=str(error)) from error
    if promise is None:
        raise web.HTTPConflict(text=f"there is no topic {topic[:300]} any more")
    return {"topic": topic, "id": id, "state": _STATES[verdict]}, promise


def _verdict(body: bytes) -> HalfVerdict:
    try:
        verdict = read_verdict(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        verdict = None
    if verdict is None:
        raise web.HTTPBadRequest(text='expected {"verdict": "commit"} or {"verdict": "rollback"}')
    return verdict


async def decide_by_offset(context: TransactionContext, offset: int, body: bytes) -> tuple[Json, Promise]:
    """Decide a RocketMQ producer's half message by its offset in the half topic. Raises HTTPException, StoreError."""
    verdict = _verdict(body)
    try:
        promise = await context.decide_rocketmq(offset, verdict)
    except UnknownHalf as error:
        raise web.HTTPNotFound(text=str(error)) from error
    except AlreadyDecided as error:
        raise web.HTTPConflict(text=f"half message {offset} was {_STATES[error.verdict]}") from error
    except (DelayRefused, RequestRefused) as error:
        raise web.HTTPConflict(text=str(error)) from error
    return {"half_offset": offset, "state": _STATES[verdict]}, promise


async def _read(halves: HalfMessageLog, offset: int) -> Stored:
    found = halves.read(offset)
    return await wait_for_callback(found.start) if isinstance(found, Later) else found
