"""/api/timers: delayed messages. Times are wall milliseconds. An answer waits until the change is durable.

    POST   /api/timers                    a delayed message: NewTimer; answers its id. A request with an
                                          `Idempotency-Key` may be repeated (`bridge/state/idempotency_keys.py`)
    DELETE /api/timers?topic=&key=        cancels all messages with this key
    POST   /api/timers/reschedule         {"topic", "key", "at_ms" or "delay_ms"}: all messages with this key
    GET    /api/timers/{id}               one pending message
    DELETE /api/timers/{id}               cancels it
    POST   /api/timers/{id}/reschedule    {"at_ms" or "delay_ms"}
    POST   /api/timers/{id}/now           delivers it now

Lists of pending messages are in `pending.py`.
"""

import sys
from collections.abc import Callable
from functools import partial

from aiohttp import web

from duolog.bridge.data.delayed.delay_commands import Decision, DelayCommands, TimerView
from duolog.bridge.http.access.gate import NotAllowed, check_found
from duolog.bridge.http.access.quota_check import quota_client
from duolog.bridge.http.answers import Json, answer
from duolog.bridge.http.api.messages import bytes_view, headers_view, value_view
from duolog.bridge.http.api_part import ApiPart
from duolog.bridge.http.message_forms import TopicMessageForm, record_of
from duolog.bridge.http.requests import NewTime, Text, check_query, due_ms_of, parsed, required, text_of, topic_named
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.records import frame_formats
from duolog.bridge.security.rules import Operation
from duolog.bridge.state.idempotency_keys import KEY_CHARACTERS_MAX, Answered, IdempotencyKey
from duolog.bridge.tracing.trace_context import TRACEPARENT
from duolog.delay.requested_delay import DelayRefused, RequestedDelay
from duolog.protocol.kafka import record_reader
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import properties
from duolog.store.entry import Buffer
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue

IDEMPOTENCY_KEY = "Idempotency-Key"


class NewTimer(TopicMessageForm, forbid_unknown_fields=True, kw_only=True):
    at_ms: int | None = None
    delay_ms: int | None = None
    replace: bool = False  # Cancels the pending messages with the same key.


class NewTimeByKey(NewTime, forbid_unknown_fields=True, kw_only=True):
    topic: str
    key: Text


class TimerApi(ApiPart):
    """The routes."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/timers", self._add),
            web.delete("/api/timers", self._cancel_named),
            web.post("/api/timers/reschedule", self._reschedule_named),
            web.get("/api/timers/{id}", self._view),
            web.delete("/api/timers/{id}", self._cancel),
            web.post("/api/timers/{id}/reschedule", self._reschedule),
            web.post("/api/timers/{id}/now", self._now),
        ]

    async def _add(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        context, wanted = self._context, parsed(body, NewTimer)
        now_ms = context.clock.now_ms()
        key = _request_key(request, body)
        known = None if key is None else context.delayed.idempotency_keys.find(key, now_ms)
        if known is not None:
            await self._kept(context.state_log.barrier())
            return self._answer_again(known, wanted)
        topic = topic_named(context, wanted.topic)
        queue_id, record = record_of(topic, wanted, now_ms, traceparent=request.headers.get(TRACEPARENT, ""))
        if wanted.replace and not record.key:
            raise web.HTTPBadRequest(text="replace: needs a key; it replaces pending messages with the same key")
        delay = context.delayed.delay_parser.limits.check_due_time(
            due_ms_of(wanted.at_ms, wanted.delay_ms, now_ms), now_ms
        )
        replaces = wanted.replace and delay is not None
        delay = delay or RequestedDelay(now_ms)  # A due time in the past means now.
        timer_id, promise = context.messages.publisher.publish_delayed(
            topic,
            queue_id,
            record,
            delay,
            now_ms,
            replaces=replaces,
            request=key,
            client=quota_client(context, request),
        )
        await self._kept(promise)
        return _added(context.delayed.commands.text_ids.text_of(timer_id), topic.name, queue_id, delay.due_ms)

    def _answer_again(self, known: Answered, wanted: NewTimer) -> web.Response:
        number, queue_id = Queue.split(known.key)
        topic = self._context.topics.by_number(number)
        text_id = self._context.delayed.commands.text_ids.text_of((known.due_ms, known.address))
        response = _added(text_id, wanted.topic if topic is None else topic.name, queue_id, known.due_ms)
        response.headers["Idempotent-Replayed"] = "true"
        return response

    async def _view(self, request: web.Request) -> web.Response:
        found = await pending_message(self._context.delayed.commands, request.match_info["id"])
        await self._kept(self._context.state_log.barrier())
        if found is None:
            raise web.HTTPNotFound(text=f"no pending message has the id {request.match_info['id'][:80]}")
        check_found(self._context, request, self._context.topics.get(found.topic), Operation.READ)
        return answer(_timer_view(found))

    async def _cancel(self, request: web.Request) -> web.Response:
        commands, text = self._context.delayed.commands, request.match_info["id"]

        def cancel() -> Decision:
            check_found(self._context, request, commands.topic_of(text), Operation.WRITE)
            return commands.cancel(text, self._now_ms())

        return await self._decided(partial(commands.load, text), cancel)

    async def _reschedule(self, request: web.Request) -> web.Response:
        wanted = parsed(await self._read(request), NewTime)
        return await self._moved(request, due_ms_of(wanted.at_ms, wanted.delay_ms, self._now_ms()))

    async def _now(self, request: web.Request) -> web.Response:
        return await self._moved(request, self._now_ms())

    async def _moved(self, request: web.Request, due_ms: int) -> web.Response:
        commands, text = self._context.delayed.commands, request.match_info["id"]

        def reschedule() -> Decision:
            check_found(self._context, request, commands.topic_of(text), Operation.WRITE)
            return commands.reschedule(text, due_ms, self._now_ms())

        return await self._decided(partial(commands.load, text), reschedule)

    async def _decided(
        self, load: Callable[[Callable[[StoreError | None], None]], None], decide: Callable[[], Decision]
    ) -> web.Response:
        """Load the pending message from its sorted table if necessary, then decide in the same turn."""

        def start(done: Callable[[Decision | DelayRefused | NotAllowed | StoreError], None]) -> None:
            def then(error: StoreError | None) -> None:
                if error is not None:
                    done(error)
                    return
                try:
                    done(decide())
                except (DelayRefused, NotAllowed, StoreError) as refusal:
                    done(refusal)

            load(then)

        decision: Decision | DelayRefused | NotAllowed = await wait_for_callback(start)
        if isinstance(decision, (DelayRefused, NotAllowed)):
            raise decision
        await self._kept(decision.promise)
        counted = {} if decision.messages is None else {"messages": decision.messages}
        return answer({"outcome": decision.outcome.value} | counted)

    async def _cancel_named(self, request: web.Request) -> web.Response:
        check_query(request, {"topic", "key"})
        commands = self._context.delayed.commands
        topic, key = topic_named(self._context, required(request, "topic")), required(request, "key").encode()
        return await self._decided(
            partial(commands.load_named, topic, key), lambda: commands.cancel_named(topic, key, self._now_ms())
        )

    async def _reschedule_named(self, request: web.Request) -> web.Response:
        wanted = parsed(await self._read(request), NewTimeByKey)
        commands, topic, key = (
            self._context.delayed.commands,
            topic_named(self._context, wanted.topic),
            text_of(wanted.key).encode(),
        )
        due_ms = due_ms_of(wanted.at_ms, wanted.delay_ms, self._now_ms())
        return await self._decided(
            partial(commands.load_named, topic, key),
            lambda: commands.reschedule_named(topic, key, due_ms, self._now_ms()),
        )

    def _now_ms(self) -> int:
        return self._context.clock.now_ms()


# -- Parts of requests and answers


def _request_key(request: web.Request, body: bytes) -> IdempotencyKey | None:
    given = request.headers.getall(IDEMPOTENCY_KEY, [])
    if not given:
        return None
    if len(given) != 1 or not 0 < len(given[0]) <= KEY_CHARACTERS_MAX:
        raise web.HTTPBadRequest(text=f"{IDEMPOTENCY_KEY}: expected one of 1 to {KEY_CHARACTERS_MAX} characters")
    return IdempotencyKey.of(given[0], body)


def _added(timer_id: str, topic: str, queue_id: int, due_ms: int) -> web.Response:
    return answer({"id": timer_id, "topic": topic, "queue": queue_id, "due_ms": due_ms}, status=201)


async def pending_message(commands: DelayCommands, text: str) -> TimerView | None:
    """Return the pending message with this id, or None."""

    def view(done: Callable[[TimerView | StoreError | None], None]) -> None:
        commands.load(text, lambda error: commands.view(text, done) if error is None else done(error))

    found: TimerView | None = await wait_for_callback(view)
    return found


def _timer_view(found: TimerView) -> Json:
    shown: Json = {"id": found.id, "topic": found.topic, "queue": found.queue_id, "due_ms": found.due_ms}
    return shown | pending_message_view(found.form, found.frame)


def pending_message_view(form: int, frame: Buffer, bytes_max: int = sys.maxsize) -> Json:
    """Return key, headers and value of a pending message's frame; of a longer value only the first bytes."""
    if form == frame_formats.KAFKA:
        (record,) = record_reader.records(frame, len(frame))
        shown = bytes_view("key", record.key) | {"headers": headers_view(record)}
        return shown | value_view(record.value, bytes_max)
    message = rocketmq_message.decode(frame)
    named = properties.parse(message.properties)
    return {"key": named.get(properties.KEYS), "headers": named} | value_view(message.body, bytes_max)
