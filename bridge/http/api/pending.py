"""/api/timers, /count, /histogram: pending messages, in pages, numbers and histograms.

    GET    /api/timers                    in due order; ?topic= key= from_ms= until_ms= after= limit=
    GET    /api/timers/count              the number; ?topic= key= from_ms= until_ms=
    GET    /api/timers/histogram          numbers by due time; ?topic= from_ms= until_ms= bins=

A worker reads the messages in memory and in sorted tables (`delay/tree/lists.py`).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from aiohttp import web

from duolog.bridge.data.delayed.delay_commands import TimerView
from duolog.bridge.http.answers import Json, answer
from duolog.bridge.http.api.timers import pending_message, pending_message_view
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import (
    check_query,
    number,
    required,
    topic_named,
)
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.records import frame_formats
from duolog.bridge.state.topic_table import Topic
from duolog.delay.rows import Timer
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue

LIST_MAX = 1_000
SHOWN_VALUE_BYTES = 200  # The part of a message's value that a list shows.
BINS_MAX = 1_000
FOREVER_MS = 1 << 62
FILTERS = {"topic", "key", "from_ms", "until_ms"}
FORM_NAMES = {frame_formats.KAFKA: "kafka", frame_formats.ROCKETMQ: "rocketmq"}

_PLACE_MAX: Final = (1 << 63) - 1  # A row has its due time and address in 64 bits each.
_PLACE_CHARACTERS_MAX: Final = 41


class PendingApi(ApiPart):
    """The routes."""

    def __init__(self, context: HttpContext, io: RequestIo) -> None:
        super().__init__(context, io)
        self._lists, self._pending = context.delayed.lists, context.delayed.delays.timers.pending

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/timers", self._list),
            web.get("/api/timers/count", self._count),
            web.get("/api/timers/histogram", self._histogram),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        """Answer a page of pending messages; `next` is the value of `after` for the next page, `paused` lists topics.

        With `content=true` each row has the key and headers of its message, and the beginning of its value.
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
            found = await wait_for_callback(partial(self._lists.page, _number_of(topic), start, until_ms, limit + 1))
        page = found[:limit]
        await self._kept(self._context.state_log.barrier())
        rows = [self._timer_row(timer) for timer in page]
        if request.query.get("content") == "true":
            for row in rows:
                row |= _beginning(await pending_message(self._context.delayed.commands, row["id"]))
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
            count = len(self._context.delayed.delays.timers) if topic is None else self._lists.count(topic.number)
        else:
            (count,) = await self._counts(topic, [start_ms, max(start_ms, until_ms)])
        await self._kept(self._context.state_log.barrier())
        return answer({"count": count})

    async def _histogram(self, request: web.Request) -> web.Response:
        """Answer the number of pending messages in each of `bins` equal spans of time; by default of the next hour."""
        check_query(request, {"topic", "from_ms", "until_ms", "bins"})
        start_ms = number(request, "from_ms", self._context.clock.now_ms(), FOREVER_MS)
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
        """Return the number of pending messages between each pair of neighbouring times."""
        counts: list[int] = await wait_for_callback(partial(self._lists.histogram, _number_of(topic), edges_ms))
        return counts

    async def _named(self, request: web.Request, start_ms: int, until_ms: int) -> list[Timer] | None:
        """Return the pending messages with the key in the request, in due order; None if the request has no key."""
        if (key := request.query.get("key")) is None:
            return None
        commands, topic = self._context.delayed.commands, topic_named(self._context, required(request, "topic"))

        def find(done: Callable[[list[Timer] | StoreError], None]) -> None:
            commands.load_named(
                topic,
                key.encode(),
                lambda error: done(commands.named(topic, key.encode()) if error is None else error),
            )

        return sorted(timer for timer in await wait_for_callback(find) if start_ms <= timer.due_ms < until_ms)

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
            "id": self._context.delayed.commands.text_ids.text_of(self._pending.ids.id_at(timer[:2])),
            "topic": topic.name if topic is not None else None,  # The topic may be deleted while the rows are read.
            "queue": Queue.split(timer.queue_key)[1],
            "due_ms": timer.due_ms,
            "form": FORM_NAMES[timer.form],
            "bytes": timer.size,
        }

    def _wanted_topic(self, request: web.Request) -> Topic | None:
        name = request.query.get("topic")
        return None if name is None else topic_named(self._context, name)


def _number_of(topic: Topic | None) -> int | None:
    return None if topic is None else topic.number


def _beginning(found: TimerView | None) -> Json:
    """Return the key, headers and first bytes of a message; nothing if it was delivered in the meantime."""
    return {} if found is None else pending_message_view(found.form, found.frame, SHOWN_VALUE_BYTES)
