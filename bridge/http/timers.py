"""The JSON API of delayed and recurring messages. Times are wall milliseconds; a verdict is durable before it is told.

    POST   /api/timers                    a message for later: NewTimer; gives its id. With an `Idempotency-Key` it may
                                          be sent again, and is answered the same (`bridge/state/idempotency_keys.py`)
    GET    /api/timers                    pending ones in due order; ?topic= key= from_ms= until_ms= after= limit=
    DELETE /api/timers?topic=&key=        cancel all with this key
    GET    /api/timers/count              how many; ?topic= key= from_ms= until_ms=
    GET    /api/timers/histogram          how many are due when; ?topic= from_ms= until_ms= bins=
    POST   /api/timers/reschedule         {"topic", "key", "at_ms" or "delay_ms"}: all with this key
    GET    /api/timers/{id}               the message itself
    DELETE /api/timers/{id}               cancel
    POST   /api/timers/{id}/reschedule    {"at_ms" or "delay_ms"}
    POST   /api/timers/{id}/now           deliver now
    POST   /api/topics/{name}/pause       hold its deliveries back; /resume

    POST   /api/schedules                 NewSchedule: created, unchanged or replaced
    GET    /api/schedules, /{name}        with the next run
    DELETE /api/schedules/{name}

What is in memory is filed in slices, between which the loop turns; then a look costs what it finds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web

from duolog.bridge.data import frame_formats
from duolog.bridge.data.delay_headers import DelayRefused, RequestedDelay
from duolog.bridge.data.delays import Decision, TimerView
from duolog.bridge.data.publishing.publisher import check_record
from duolog.bridge.data.schedules import Outcome, RecurringMessage, Standing
from duolog.bridge.http.answers import Listing, answer, array
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.messages import bytes_view
from duolog.bridge.http.requests import (
    Content,
    NewTime,
    Text,
    check_query,
    due_ms_of,
    number,
    parsed,
    record_of,
    required,
    text_of,
    topic_named,
)
from duolog.bridge.net.futures import awaited
from duolog.bridge.state.idempotency_keys import KEY_CHARACTERS_MAX, Answered, IdempotencyKey
from duolog.bridge.state.topics import QUEUE_ID_BITS, Topic
from duolog.delay.recurring import (
    BadSchedule,
    Cron,
    Every,
    Missed,
    Schedule,
)
from duolog.delay.rows import Timer
from duolog.protocol.kafka import record_batch
from duolog.protocol.kafka.record_batch import BatchBuilder, Record
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import properties
from duolog.store.entry import Buffer, Promise
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue

Json = dict[str, Any]
Form = TypeVar("Form")

LIST_MAX = 1_000
SHOWN_VALUE_BYTES = 200  # Of a message in a list.
BINS_MAX = 1_000
FOREVER_MS = 1 << 62
IDEMPOTENCY_KEY = "Idempotency-Key"
FILTERS = {"topic", "key", "from_ms", "until_ms"}
FORM_NAMES = {frame_formats.KAFKA: "kafka", frame_formats.ROCKETMQ: "rocketmq"}

_PLACE_MAX: Final = (1 << 63) - 1  # Rows hold due times and addresses, and the place behind, in 64 bits.
_PLACE_CHARACTERS_MAX: Final = 41


class NewTimer(Content, forbid_unknown_fields=True, kw_only=True):
    at_ms: int | None = None
    delay_ms: int | None = None
    replace: bool = False  # those that wait with the same key


class NewTimeByKey(NewTime, forbid_unknown_fields=True, kw_only=True):
    topic: str
    key: Text


class NewSchedule(Content, forbid_unknown_fields=True, kw_only=True):
    """Either `every_ms`, from now or from `start_ms`, or `cron`, in UTC or in `zone`."""

    name: str
    every_ms: int | None = None
    start_ms: int | None = None
    cron: str | None = None
    zone: str | None = None
    until_ms: int | None = None
    count: int | None = None
    missed: str = Missed.ONCE.value


class TimerApi:
    """The routes; `kept` waits for a promise, `read` reads a request's body."""

    def __init__(
        self,
        context: HttpContext,
        kept: Callable[[Promise], Awaitable[None]],
        read: Callable[[web.Request], Awaitable[bytes]],
    ) -> None:
        self._context, self._kept, self._read = context, kept, read

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/timers", self._add),
            web.get("/api/timers", self._list),
            web.delete("/api/timers", self._cancel_named),
            web.get("/api/timers/count", self._count),
            web.get("/api/timers/histogram", self._histogram),
            web.post("/api/timers/reschedule", self._reschedule_named),
            web.get("/api/timers/{id}", self._view),
            web.delete("/api/timers/{id}", self._cancel),
            web.post("/api/timers/{id}/reschedule", self._reschedule),
            web.post("/api/timers/{id}/now", self._now),
            web.post("/api/topics/{name}/pause", self._pause),
            web.post("/api/topics/{name}/resume", self._resume),
            web.post("/api/schedules", self._register),
            web.get("/api/schedules", self._schedules),
            web.get("/api/schedules/{name}", self._schedule),
            web.delete("/api/schedules/{name}", self._remove),
        ]

    # -- One timer

    async def _add(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        context, wanted = self._context, parsed(body, NewTimer)
        now_ms = context.clock.now_ms()
        key = _request_key(request, body)
        known = None if key is None else context.delayed.idempotency_keys.find(key, now_ms)
        if known is not None:
            await self._kept(context.state_log.barrier())
            return self._answer_again(known, wanted)
        topic, queue_id, record = self._message(wanted)
        if wanted.replace and not record.key:
            raise web.HTTPBadRequest(text="replace: it is about what waits with the same key; the request has no key")
        wish = context.delayed.delay_parser.parse_time(due_ms_of(wanted.at_ms, wanted.delay_ms, now_ms), now_ms)
        replaces = wanted.replace and wish is not None
        wish = wish or RequestedDelay(now_ms)  # A time that has passed means now.
        timer_id, promise = context.messages.publisher.publish_delayed(
            topic, queue_id, record, wish, now_ms, replaces=replaces, request=key
        )
        await self._kept(promise)
        return _added(context.delayed.delays.text_of(timer_id), topic.name, queue_id, wish.due_ms)

    def _answer_again(self, known: Answered, wanted: NewTimer) -> web.Response:
        number, queue_id = Queue.split(known.key)
        topic = self._context.topics.by_number(number)
        text_id = self._context.delayed.delays.text_of((known.due_ms, known.address))
        response = _added(text_id, wanted.topic if topic is None else topic.name, queue_id, known.due_ms)
        response.headers["Idempotent-Replayed"] = "true"
        return response

    async def _view(self, request: web.Request) -> web.Response:
        found = await self._found(request.match_info["id"])
        await self._kept(self._context.state_log.barrier())
        if found is None:
            raise web.HTTPNotFound(text=f"no message waits under the id {request.match_info['id'][:80]}")
        return answer(_timer_view(found))

    async def _found(self, text: str) -> TimerView | None:
        """Give the pending message of an id, if there is one."""
        delays = self._context.delayed.delays

        def view(done: Callable[[TimerView | StoreError | None], None]) -> None:
            delays.at_hand(text, lambda error: delays.view(text, done) if error is None else done(error))

        found: TimerView | None = await awaited(view)
        return found

    async def _cancel(self, request: web.Request) -> web.Response:
        delays, text = self._context.delayed.delays, request.match_info["id"]
        return await self._decided(partial(delays.at_hand, text), lambda: delays.cancel(text, self._now_ms()))

    async def _reschedule(self, request: web.Request) -> web.Response:
        wanted = parsed(await self._read(request), NewTime)
        return await self._moved(request, due_ms_of(wanted.at_ms, wanted.delay_ms, self._now_ms()))

    async def _now(self, request: web.Request) -> web.Response:
        return await self._moved(request, self._now_ms())

    async def _moved(self, request: web.Request, due_ms: int) -> web.Response:
        delays, text = self._context.delayed.delays, request.match_info["id"]
        return await self._decided(
            partial(delays.at_hand, text), lambda: delays.reschedule(text, due_ms, self._now_ms())
        )

    async def _decided(
        self, bring: Callable[[Callable[[StoreError | None], None]], None], decide: Callable[[], Decision]
    ) -> web.Response:
        """Decide as soon as what it is about is at hand, in the same turn."""

        def start(done: Callable[[Decision | DelayRefused | StoreError], None]) -> None:
            def then(error: StoreError | None) -> None:
                if error is not None:
                    done(error)
                    return
                try:
                    done(decide())
                except (DelayRefused, StoreError) as refusal:
                    done(refusal)

            bring(then)

        decision: Decision | DelayRefused = await awaited(start)
        if isinstance(decision, DelayRefused):
            raise decision
        await self._kept(decision.promise)
        counted = {} if decision.messages is None else {"messages": decision.messages}
        return answer({"verdict": decision.verdict.value} | counted)

    # -- By the sender's key

    async def _cancel_named(self, request: web.Request) -> web.Response:
        check_query(request, {"topic", "key"})
        delays = self._context.delayed.delays
        topic, key = self._topic(required(request, "topic")), required(request, "key").encode()
        return await self._decided(
            partial(delays.named_at_hand, topic, key), lambda: delays.cancel_named(topic, key, self._now_ms())
        )

    async def _reschedule_named(self, request: web.Request) -> web.Response:
        wanted = parsed(await self._read(request), NewTimeByKey)
        delays, topic, key = self._context.delayed.delays, self._topic(wanted.topic), text_of(wanted.key).encode()
        due_ms = due_ms_of(wanted.at_ms, wanted.delay_ms, self._now_ms())
        return await self._decided(
            partial(delays.named_at_hand, topic, key),
            lambda: delays.reschedule_named(topic, key, due_ms, self._now_ms()),
        )

    # -- Many timers

    async def _list(self, request: web.Request) -> web.Response:
        """Give a page; `next` is what to give as `after` for the one that follows. `paused`: topics that are held.

        With `content=true` each row has key and headers of its message, and the beginning of its value.
        """
        check_query(request, {*FILTERS, "limit", "after", "content"})
        if request.query.get("content", "false") not in ("true", "false"):
            raise web.HTTPBadRequest(text=f"content: expected true or false, got {request.query['content'][:40]!r}")
        limit = number(request, "limit", 100, LIST_MAX, lowest=1)
        after = self._after(request)
        start_ms, until_ms = self._span(request)
        topic, named = self._wanted_topic(request), await self._named(request, start_ms, until_ms)
        if named is not None:
            found = [timer for timer in named if after is None or timer[:2] > after]
        else:
            start = max((start_ms, 0), (0, 0) if after is None else (after[0], after[1] + 1))
            await self._filed(topic, start[0], until_ms)
            # Both look at this moment, so each timer is in one of them.
            near = self._context.delayed.delays.near(topic, start, until_ms, limit + 1)
            far = await awaited(partial(self._context.delayed.delays.far.page, topic, start, until_ms, limit + 1))
            found = sorted([*near, *far])
        page = found[:limit]
        await self._kept(self._context.state_log.barrier())
        rows = [self._timer_row(timer) for timer in page]
        if request.query.get("content") == "true":
            for row in rows:
                row |= _beginning(await self._found(row["id"]))
                await asyncio.sleep(0)
        following = f"{page[-1].due_ms}-{page[-1].address}" if len(found) > limit else None
        paused = [each.name for each in self._context.delayed.delays.paused() if topic in (None, each)]
        return answer({"timers": rows, "next": following, "paused": paused})

    async def _count(self, request: web.Request) -> web.Response:
        check_query(request, FILTERS)
        start_ms, until_ms = self._span(request)
        topic, named = self._wanted_topic(request), await self._named(request, start_ms, until_ms)
        if named is not None:
            count = len(named)
        elif set(request.query) <= {"topic"}:
            count = len(self._context.delayed.delays) if topic is None else self._context.delayed.delays.count(topic)
        else:
            (count,) = await self._counts(topic, [start_ms, max(start_ms, until_ms)])
        await self._kept(self._context.state_log.barrier())
        return answer({"count": count})

    async def _histogram(self, request: web.Request) -> web.Response:
        """Count what is due in each of equal spans of time; by default from now on for an hour."""
        check_query(request, {"topic", "from_ms", "until_ms", "bins"})
        start_ms = number(request, "from_ms", self._now_ms(), FOREVER_MS)
        until_ms = number(request, "until_ms", start_ms + 3_600_000, FOREVER_MS)
        bins = number(request, "bins", 60, BINS_MAX, lowest=1)
        if until_ms <= start_ms:
            raise web.HTTPBadRequest(
                text=f"until_ms {until_ms} is not after from_ms {start_ms}, which is now if not given"
            )
        step_ms = -(-(until_ms - start_ms) // bins)
        edges_ms = [min(start_ms + number * step_ms, until_ms) for number in range(bins + 1)]
        counts = await self._counts(self._wanted_topic(request), edges_ms)
        return answer({"from_ms": start_ms, "step_ms": step_ms, "counts": counts})

    async def _counts(self, topic: Topic | None, edges_ms: list[int]) -> list[int]:
        """Count the pending timers between each two neighbours of these times."""
        await self._filed(topic, edges_ms[0], edges_ms[-1])
        near = self._context.delayed.delays.histogram(topic, edges_ms)  # as of the same moment as the next
        far = await awaited(partial(self._context.delayed.delays.far.histogram, topic, edges_ms))
        return [count + beyond for count, beyond in zip(near, far, strict=True)]

    async def _filed(self, topic: Topic | None, start_ms: int, until_ms: int) -> None:
        """Have what is in memory filed for a look, which must follow before the loop turns."""
        while self._context.delayed.delays.file(topic, start_ms, until_ms):  # noqa: ASYNC110 (it is this that does the work)
            await asyncio.sleep(0)

    async def _named(self, request: web.Request, start_ms: int, until_ms: int) -> list[Timer] | None:
        """Give the pending timers with the key that is asked for, in due order; None if none is."""
        if (key := request.query.get("key")) is None:
            return None
        delays, topic = self._context.delayed.delays, self._topic(required(request, "topic"))

        def find(done: Callable[[list[Timer] | StoreError], None]) -> None:
            delays.named_at_hand(
                topic,
                key.encode(),
                lambda error: done(delays.pending_named(topic, key.encode()) if error is None else error),
            )

        return sorted(timer for timer in await awaited(find) if start_ms <= timer.due_ms < until_ms)

    def _span(self, request: web.Request) -> tuple[int, int]:
        return number(request, "from_ms", 0, FOREVER_MS), number(request, "until_ms", FOREVER_MS, FOREVER_MS)

    def _after(self, request: web.Request) -> tuple[int, int] | None:
        text = request.query.get("after")
        if text is None:
            return None
        due_ms, _, address = text.partition("-")
        is_place = due_ms.isdecimal() and address.isdecimal() and len(text) <= _PLACE_CHARACTERS_MAX
        if not is_place or max(int(due_ms), int(address)) > _PLACE_MAX:
            raise web.HTTPBadRequest(text=f"after: expected what `next` gave, got {text[:60]!r}")
        return int(due_ms), int(address)

    def _timer_row(self, timer: Timer) -> Json:
        topic = self._context.topics.by_number(timer.topic)
        return {
            "id": self._context.delayed.delays.text_id_of(timer),
            "topic": topic.name if topic is not None else None,  # It may be deleted while the rows are gathered.
            "queue": timer.key & (1 << QUEUE_ID_BITS) - 1,
            "due_ms": timer.due_ms,
            "form": FORM_NAMES[timer.form],
            "bytes": timer.size,
        }

    # -- Topics

    async def _pause(self, request: web.Request) -> web.Response:
        topic = self._topic(request.match_info["name"])
        if not topic.may_produce:
            raise web.HTTPBadRequest(text=f"{topic.name} is the broker's own: nothing is delivered to it")
        await self._kept(self._context.delayed.delays.pause(topic, self._now_ms()))
        return answer({"topic": topic.name, "is_paused": True})

    async def _resume(self, request: web.Request) -> web.Response:
        topic = self._topic(request.match_info["name"])
        await self._kept(self._context.delayed.delays.resume(topic, self._now_ms()))
        return answer({"topic": topic.name, "is_paused": False})

    # -- Schedules

    async def _register(self, request: web.Request) -> web.Response:
        context = self._context
        wanted = parsed(await self._read(request), NewSchedule)
        topic, queue_id, record = self._message(wanted, wanted.name)
        check_record(topic, record)
        builder = BatchBuilder()  # The same bytes whoever asks: each run stamps its own time.
        builder.append(0, 0, record.key, record.value, record.headers)
        message = RecurringMessage(topic.key(queue_id), frame_formats.KAFKA, bytes(builder.finish(0, 0)))
        now_ms = self._now_ms()
        expires = context.delayed.expiry_parser.parse_headers(record.headers, now_ms) is not None
        records = context.delayed.expiring_queues.records_for(message.key) if expires else []
        outcome, promise = context.delayed.schedules.register(wanted.name, _schedule(wanted), message, now_ms, records)
        standing = context.delayed.schedules.get(wanted.name)
        assert standing is not None, "it was registered"
        view = self._schedule_view(standing)  # While we wait, somebody else may remove it.
        await self._kept(promise)
        return answer({"outcome": outcome.value} | view, 201 if outcome is Outcome.CREATED else 200)

    async def _schedules(self, request: web.Request) -> web.StreamResponse:
        await self._kept(self._context.state_log.barrier())
        return Listing(array(map(self._schedule_view, list(self._context.delayed.schedules.all()))))

    async def _schedule(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        standing = self._context.delayed.schedules.get(name)
        await self._kept(self._context.state_log.barrier())
        if standing is None:
            raise web.HTTPNotFound(text=f"there is no schedule {name[:300]}")
        message = standing.message
        return answer(self._schedule_view(standing) | _message_view(message.form, message.frame))

    async def _remove(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        outcome, promise = self._context.delayed.schedules.remove(name, self._now_ms())
        await self._kept(promise)
        if outcome is Outcome.NOT_FOUND:
            raise web.HTTPNotFound(text=f"there is no schedule {name[:300]}")
        return answer({"outcome": outcome.value})

    def _schedule_view(self, standing: Standing) -> Json:
        schedule, run = standing.schedule, standing.run
        topic = self._context.topics.by_number(standing.topic)
        plan = schedule.plan
        if isinstance(plan, Every):
            asked: Json = {"every_ms": plan.period_ms, "start_ms": plan.start_ms}
        else:
            asked = {"cron": plan.expression, "zone": plan.zone}
        return {
            "name": standing.name,
            "topic": topic.name if topic is not None else None,
            "queue": standing.message.key & (1 << QUEUE_ID_BITS) - 1,
            **asked,
            "until_ms": schedule.until_ms,
            "count": schedule.count,
            "missed": schedule.missed.value,
            "next_ms": None if run is None else run.due_ms,
            "runs": None if run is None else run.number - 1,
        }

    # -- What requests name

    def _message(self, wanted: Content, spread_by: str = "") -> tuple[Topic, int, Record]:
        topic = self._topic(wanted.topic)
        return topic, *record_of(topic, wanted, self._now_ms(), spread_by)

    def _wanted_topic(self, request: web.Request) -> Topic | None:
        name = request.query.get("topic")
        return None if name is None else self._topic(name)

    def _topic(self, name: str) -> Topic:
        return topic_named(self._context, name)

    def _now_ms(self) -> int:
        return self._context.clock.now_ms()


# -- In


def _schedule(wanted: NewSchedule) -> Schedule:
    if (wanted.every_ms is None) == (wanted.cron is None):
        raise BadSchedule("expected either every_ms or cron")
    if wanted.cron is not None and wanted.start_ms is not None:
        raise BadSchedule("start_ms goes with every_ms")
    if wanted.cron is None and wanted.zone is not None:
        raise BadSchedule("zone goes with cron")
    if wanted.missed not in {rule.value for rule in Missed}:
        raise BadSchedule(f"missed: expected skip, once or all, got {wanted.missed[:40]!r}")
    plan: Every | Cron
    if wanted.cron is None:
        plan = Every(wanted.every_ms or 0, wanted.start_ms)
    else:
        plan = Cron(wanted.cron, "UTC" if wanted.zone is None else wanted.zone)
    return Schedule(plan, wanted.until_ms, wanted.count, Missed(wanted.missed))


def _request_key(request: web.Request, body: bytes) -> IdempotencyKey | None:
    given = request.headers.getall(IDEMPOTENCY_KEY, [])
    if not given:
        return None
    if len(given) != 1 or not 0 < len(given[0]) <= KEY_CHARACTERS_MAX:
        raise web.HTTPBadRequest(text=f"{IDEMPOTENCY_KEY}: expected one of 1 to {KEY_CHARACTERS_MAX} characters")
    return IdempotencyKey.of(given[0], body)


# -- Out


def _added(timer_id: str, topic: str, queue_id: int, due_ms: int) -> web.Response:
    return answer({"id": timer_id, "topic": topic, "queue": queue_id, "due_ms": due_ms}, status=201)


def _beginning(found: TimerView | None) -> Json:
    """Show key, headers and the first bytes of a message; nothing of one that was delivered meanwhile."""
    return {} if found is None else _message_view(found.form, found.frame, SHOWN_VALUE_BYTES)


def _timer_view(found: TimerView) -> Json:
    shown: Json = {"id": found.id, "topic": found.topic, "queue": found.queue_id, "due_ms": found.due_ms}
    return shown | _message_view(found.form, found.frame)


def _message_view(form: int, frame: Buffer, bytes_max: int | None = None) -> Json:
    """Show key, headers and value of a frame as it is parked; of a longer value the first bytes."""
    if form == frame_formats.KAFKA:
        (record,) = record_batch.records(frame, len(frame))
        headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
        return bytes_view("key", record.key) | {"headers": headers} | _value_view(record.value, bytes_max)
    message = rocketmq_message.decode(frame)
    named = properties.parse(message.properties)
    return {"key": named.get(properties.KEYS), "headers": named} | _value_view(message.body, bytes_max)


def _value_view(value: Buffer | None, bytes_max: int | None) -> Json:
    if value is None or bytes_max is None or len(value) <= bytes_max:
        return bytes_view("value", value)
    shown = bytes(value[:bytes_max])
    text = shown.decode(errors="ignore")  # A character may be cut in two.
    return {"value_bytes": len(value)} | bytes_view("value", text.encode() if len(text) > bytes_max // 4 else shown)
