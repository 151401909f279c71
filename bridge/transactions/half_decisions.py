"""Verdicts on half messages of Kafka's producers, given over HTTP.

    POST /api/transactions/{topic}/{id}   {"verdict": "commit" | "rollback"}
        200 decided so, now or before;  404 no such topic or half message, or forgotten;  409 decided otherwise, or its
        topic is gone;  400 another body

A verdict is durable before it is answered. RocketMQ's producers decide theirs by END_TRANSACTION alone.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from duolog.bridge.clock import Clock
from duolog.bridge.data.delay_headers import DelayRefused
from duolog.bridge.data.half_frames import final_record, read_half
from duolog.bridge.data.publishing.publisher import Publisher
from duolog.bridge.data.reading import Later
from duolog.bridge.net.futures import awaited
from duolog.bridge.state.records import Record
from duolog.bridge.state.topics import Topics
from duolog.bridge.transactions.half_messages import HalfMessageLog
from duolog.bridge.transactions.op_messages import HalfDecision
from duolog.store.entry import Promise, Stored
from duolog.store.store import Store
from duolog.store.unit import Frame
from duolog.txn.half import AlreadyDecided, UnknownHalf, Verdict

VERDICTS: Final = {"commit": Verdict.COMMITTED, "rollback": Verdict.ROLLED_BACK}
_STATES: Final = {Verdict.COMMITTED: "committed", Verdict.ROLLED_BACK: "rolled back", Verdict.GIVEN_UP: "given up"}


class VerdictBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a verdict; also what a producer answers when it is asked, where `unknown` is an answer too."""

    verdict: str


# -- Deciding


@dataclass(frozen=True, slots=True)
class HalfDecisions:
    """What it takes to decide the half messages of Kafka's producers."""

    clock: Clock
    store: Store
    topics: Topics
    halves: HalfMessageLog
    publisher: Publisher


def decide(context: HalfDecisions, half: Stored, verdict: Verdict) -> Promise | None:
    """Carry out a verdict on a Kafka producer's half message; None if its topic is gone, and nothing is changed.

    Raises UnknownHalf, AlreadyDecided, StoreError, DelayRefused if `delay.max_days` was more once.
    """
    now_ms = context.clock.now_ms()
    if not context.halves.state.judge(half.base_offset, verdict):
        return context.store.promise()  # The same verdict once more.
    frames: list[Frame] = []
    records: list[Record] = []
    _, name, queue_id, record = read_half(half.frame)
    if verdict is Verdict.COMMITTED:
        topic = context.topics.get(name)
        if topic is None:
            return None
        final = final_record(record)
        plan = context.publisher.batches.plan_committed(
            topic, queue_id % topic.queue_count, final, now_ms, sent_ms=half.stored_ms
        )
        frames = [planned.frame for planned in plan.frames]
        records = context.publisher.records_of(plan, now_ms)
    return context.halves.end(half.base_offset, HalfDecision(verdict, name, half.stored_ms, frames), now_ms, records)


async def decide_by_id(context: HalfDecisions, topic: str, id: str, body: bytes) -> tuple[dict[str, str], Promise]:
    """Answer a POST; raises HTTPException, StoreError."""
    try:
        verdict = VERDICTS[msgspec.json.decode(body, type=VerdictBody).verdict]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise web.HTTPBadRequest(text='expected {"verdict": "commit"} or {"verdict": "rollback"}') from error
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
            promise = decide(context, await _read(context, offset), verdict)
    except UnknownHalf as error:
        raise web.HTTPNotFound(text=str(error)) from error
    except AlreadyDecided as error:
        raise web.HTTPConflict(text=f"half message {id[:300]!r} was {_STATES[error.verdict]}") from error
    except DelayRefused as error:
        raise web.HTTPConflict(text=str(error)) from error
    if promise is None:
        raise web.HTTPConflict(text=f"there is no topic {topic[:300]} any more")
    return {"topic": topic, "id": id, "state": _STATES[verdict]}, promise


async def _read(context: HalfDecisions, offset: int) -> Stored:
    found = context.halves.read(offset)
    return await awaited(found.start) if isinstance(found, Later) else found
