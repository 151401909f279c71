"""/api/topics: topics, their queues and configs, and the deliveries of their delayed messages.

    GET    /api/topics          all topics; ?search= after= limit= system=
    POST   /api/topics          {"name", "queues"?, "configs"?}
    GET    /api/topics/{name}   queues, offsets, configs  DELETE /api/topics/{name}
    PATCH  /api/topics/{name}   {"configs"}; null sets the default
    GET    /api/topics/{name}/groups   the groups that read it, with their lag
    GET    /api/topics/{name}/sums     checksums (`sums.py`)
    POST   /api/topics/{name}/pause    pauses the deliveries of delayed messages; /resume

Offsets count records; times are wall milliseconds.
"""

from collections.abc import Iterator
from heapq import nsmallest
from operator import attrgetter
from typing import Final

import msgspec
from aiohttp import web

from duolog.bridge.http.access.gate import is_seen
from duolog.bridge.http.answers import (
    Json,
    Listing,
    answer,
    array,
    object_with,
)
from duolog.bridge.http.api import group_views, sums
from duolog.bridge.http.api.messages import Decompression
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import (
    Text,
    boolean,
    check_query,
    number,
    parsed,
    text_of,
    topic_named,
)
from duolog.bridge.security.rules import Operation
from duolog.bridge.state import topic_configs
from duolog.bridge.state.topic_table import Topic

LIST_MAX: Final = 10_000  # The number of topics of a page.


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/topics."""

    name: str
    queues: int | None = None
    configs: dict[str, Text] = {}


class NewConfigs(msgspec.Struct, forbid_unknown_fields=True):
    """The body of PATCH /api/topics/{name}; configs that it does not name stay unchanged."""

    configs: dict[str, Text | None]


class TopicApi(ApiPart):
    """The routes. `decompression` opens batches."""

    def __init__(self, context: HttpContext, io: RequestIo, decompression: Decompression) -> None:
        super().__init__(context, io)
        self._decompression = decompression

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/topics", self._topics),
            web.post("/api/topics", self._create_topic),
            web.get("/api/topics/{name}", self._topic),
            web.patch("/api/topics/{name}", self._configure_topic),
            web.delete("/api/topics/{name}", self._delete_topic),
            web.get("/api/topics/{name}/groups", self._groups),
            web.get("/api/topics/{name}/sums", self._sums),
            web.post("/api/topics/{name}/pause", self._pause),
            web.post("/api/topics/{name}/resume", self._resume),
        ]

    async def _topics(self, request: web.Request) -> web.StreamResponse:
        check_query(request, {"search", "after", "limit", "system"})
        await self._kept(self._context.state_log.barrier())
        return Listing(array(topic_summary(self._context, topic) for topic in self._wanted_topics(request)))

    def _wanted_topics(self, request: web.Request) -> list[Topic]:
        """Return the topics that a request wants: all in the order of their creation; a page in that of their names."""
        search, after = request.query.get("search", "").lower(), request.query.get("after")
        has_system = boolean(request, "system", default=True)
        resources = self._context.security.resources
        found = [
            topic
            for topic in self._context.topics.all()
            if (has_system or topic.is_listed)
            and (not search or search in topic.name.lower() or search in topic.rocketmq_name.lower())
            and is_seen(self._context, request, resources.topic(topic.kafka_name, Operation.DESCRIBE))
        ]
        if after is None and "limit" not in request.query:
            return found
        limit = number(request, "limit", 100, LIST_MAX, lowest=1)
        ahead = found if after is None else (topic for topic in found if topic.name > after)
        return nsmallest(limit, ahead, key=attrgetter("name"))

    async def _topic(self, request: web.Request) -> web.StreamResponse:
        topic = self._topic_named(request)
        await self._kept(self._context.state_log.barrier())
        return Listing(topic_view(self._context, topic))

    async def _create_topic(self, request: web.Request) -> web.StreamResponse:
        context = self._context
        wanted = parsed(await self._read(request), NewTopic)
        queue_count = context.options.topics.queues if wanted.queues is None else wanted.queues
        configs = {name: text_of(value) for name, value in wanted.configs.items()}
        topic, promise = context.topics.create(wanted.name, queue_count, configs, context.clock.now_ms())
        await self._kept(promise)
        return Listing(topic_view(self._context, topic), status=201)

    async def _configure_topic(self, request: web.Request) -> web.StreamResponse:
        topic = self._topic_named(request)
        wanted = parsed(await self._read(request), NewConfigs).configs
        changes = {name: None if value is None else text_of(value) for name, value in wanted.items()}
        configs = topic_configs.changed(topic.configs, changes)
        await self._kept(self._context.topics.configure(topic, configs, self._context.clock.now_ms()))
        return Listing(topic_view(self._context, topic))

    async def _delete_topic(self, request: web.Request) -> web.Response:
        topic = self._topic_named(request)
        await self._kept(self._context.topics.delete(topic, self._context.clock.now_ms()))
        return answer({"deleted": topic.name})

    async def _groups(self, request: web.Request) -> web.StreamResponse:
        check_query(request, set())
        topic = self._topic_named(request)
        await self._kept(self._context.state_log.barrier())
        return Listing(array(group_views.groups_of_topic(self._context, topic)))

    async def _sums(self, request: web.Request) -> web.Response:
        return answer(await sums.sums(self._context, self._decompression, self._topic_named(request), request))

    async def _pause(self, request: web.Request) -> web.Response:
        topic = self._topic_named(request)
        if not topic.may_produce:
            raise web.HTTPBadRequest(text=f"{topic.name} is the broker's own: nothing is delivered to it")
        await self._kept(self._context.delayed.delays.pause(topic, self._context.clock.now_ms()))
        return answer({"topic": topic.name, "is_paused": True})

    async def _resume(self, request: web.Request) -> web.Response:
        topic = self._topic_named(request)
        await self._kept(self._context.delayed.delays.resume(topic, self._context.clock.now_ms()))
        return answer({"topic": topic.name, "is_paused": False})

    def _topic_named(self, request: web.Request) -> Topic:
        return topic_named(self._context, request.match_info["name"])


def topic_summary(context: HttpContext, topic: Topic) -> Json:
    """Return the row of a topic in a list."""
    return {
        "name": topic.name,
        "kafka_name": topic.kafka_name,
        "rocketmq_name": topic.rocketmq_name,
        "queues": topic.queue_count,
        "records": sum(queue.visible_end - queue.start_offset for queue in topic.queues),
        "size_bytes": sum(queue.size_bytes for queue in topic.queues),
        "records_per_second": context.monitoring.topic_rates.per_second(topic.number),
        "is_system": not topic.is_listed,
    }


def topic_view(context: HttpContext, topic: Topic) -> Iterator[bytes | None]:
    """Yield the parts of the description of a topic."""
    described = topic_summary(context, topic) | {
        "id": str(topic.id),
        "number": topic.number,
        "created_ms": topic.created_ms,
        "configs": dict(topic.configs),
        "is_paused": context.delayed.delays.is_paused(topic),
    }
    del described["queues"]  # The number of queues, which the array of queues replaces.
    return object_with(described, "queues", (_queue(topic, queue_id) for queue_id in range(topic.queue_count)))


def _queue(topic: Topic, queue_id: int) -> Json:
    queue = topic.queues[queue_id]
    return {
        "queue": queue_id,
        "start": queue.start_offset,
        "end": queue.visible_end,
        "size_bytes": queue.size_bytes,
        "epoch": topic.leader_epoch(queue_id),
    }
