"""/api/groups: consumer groups of both client protocols, their offsets and dead letters.

    GET    /api/groups, /api/groups/{name}
    GET    /api/groups/{name}/dead-letters    ?offset=, limit=, reason=, topic=, key=, tag=
    POST   /api/groups/{name}/redrive         {"to": "retry" or "topic", "offsets"?; or "reason"?, "topic"?, "key"?,
                                              "tag"?}?   `redrive.py`
    POST   /api/groups/{name}/reset           {"to": "earliest" or "latest"; or "time_ms"; or "offset"; then "topics"?,
                                              "execute"?}
    DELETE /api/groups/{name}                 ?execute=true   its committed offsets, its RocketMQ config

The last two change nothing unless `execute` is true, and answer what they would do. They are refused with 409 while the
group has members, as in Kafka, because members would commit their own offsets again. A reset without `topics` does not
change offsets in retry and dead-letter topics.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from duolog.bridge.data.reading.later import Later
from duolog.bridge.http.access.gate import NotAllowed, check_found, is_seen
from duolog.bridge.http.answers import (
    Json,
    Listing,
    answer,
    array,
)
from duolog.bridge.http.api import group_views
from duolog.bridge.http.api.messages import OFFSET_MAX, value_view
from duolog.bridge.http.api_part import ApiPart
from duolog.bridge.http.requests import (
    check_query,
    number,
    parsed,
    topic_named,
)
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.retry import failed_attempts
from duolog.bridge.rocketmq.retry.dead_letters import EXPIRED_AT, REASON
from duolog.bridge.rocketmq.retry.failed_attempts import FAILED_ATTEMPTS
from duolog.bridge.rocketmq.retry.failed_copies import ORIGIN_PLACE
from duolog.bridge.rocketmq.retry.redrive import WAYS
from duolog.bridge.security.needs import group
from duolog.bridge.security.rules import Operation
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.errors import ProtocolError
from duolog.protocol.names import group_of_rocketmq, rocketmq_group
from duolog.protocol.rocketmq.messages import (
    compression,
    flags,
    message,
    properties,
)
from duolog.protocol.rocketmq.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUPS,
    dead_letter_topic,
)
from duolog.store.entry import Buffer, Promise
from duolog.store.index.queue import Queue

LETTERS_MAX: Final = 1000  # The number of dead letters in one answer.
LETTERS_BYTES_MAX: Final = 1 << 20
# The part of a body that is shown. The whole body can be read by the offset in the dead-letter topic.
LETTER_BODY_BYTES_MAX: Final = 1000
QUEUES_AT_ONCE: Final = 64

LETTER_FILTERS: Final = ("reason", "topic", "key", "tag")  # `topic` is the one that a message came from.

FAILED: Final = (RETRY_PREFIX, DLQ_PREFIX)

EARLIEST, LATEST = PLACES = ("earliest", "latest")


class NewRedrive(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST .../redrive, which is optional."""

    to: str | None = None
    offsets: list[int] | None = None  # In the dead-letter topic; None: all dead letters that were not redriven.
    # As in LETTER_FILTERS: only those of all.
    reason: str | None = None
    topic: str | None = None
    key: str | None = None
    tag: str | None = None


class NewReset(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST .../reset: exactly one of the first three fields, and the others."""

    to: str | None = None
    time_ms: int | None = None
    offset: int | None = None  # The nearest offset that a queue has.
    topics: list[str] | None = None  # None: all topics in which the group has committed offsets.
    execute: bool = False


class GroupApi(ApiPart):
    """The routes."""

    def routes(self) -> list[web.RouteDef]:
        path = "/api/groups/{name}"
        return [
            web.get("/api/groups", self._list),
            web.get(path, self._describe),
            web.delete(path, self._delete),
            web.get(f"{path}/dead-letters", self._dead_letters),
            web.post(f"{path}/redrive", self._redrive),
            web.post(f"{path}/reset", self._reset),
        ]

    # -- Reading

    async def _list(self, request: web.Request) -> web.StreamResponse:
        check_query(request, {"search"})
        await self._kept(self._context.state_log.barrier())
        context, search = self._context, request.query.get("search", "").lower()
        seen = [
            name
            for name in sorted(group_views.known_groups(context))
            if search in name.lower() and is_seen(context, request, (group(name, Operation.DESCRIBE),))
        ]
        return Listing(array(group_views.groups(context, seen)))

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        await self._kept(self._context.state_log.barrier())
        if name not in group_views.known_groups(self._context):
            raise _no_group(name)
        return Listing(group_views.group(self._context, name))

    async def _dead_letters(self, request: web.Request) -> web.Response:
        check_query(request, {"offset", "limit", *LETTER_FILTERS})
        name = await self._known(request)
        limit = number(request, "limit", 100, LETTERS_MAX, lowest=1)
        topic_name = dead_letter_topic(rocketmq_group(group_of_rocketmq(name)))
        topic = self._context.topics.by_rocketmq_name(topic_name)
        if topic is None:
            return answer({"group": name, "topic": topic_name, "next": None, "dead_letters": []})
        queue = topic.queues[0]  # A dead-letter topic has one queue (`retry_topics.py`).
        offset = max(queue.start_offset, number(request, "offset", 0, OFFSET_MAX))
        wanted = {key: request.query[key] for key in LETTER_FILTERS if request.query.get(key)}
        end = self._context.messages.isolation.stable_end(queue)
        letters, following = await self._letters(topic, queue, offset, end, limit, wanted)
        redriven = self._context.groups.redriven_of(group_of_rocketmq(name), queue)
        for each in letters:
            each["is_redriven"] = each["offset"] in redriven
            each["is_original_stored"] = self._is_stored(each["origin"])
        return answer({"group": name, "topic": topic.name, "next": following, "dead_letters": letters})

    def _is_stored(self, origin: Json) -> bool:
        """Return whether retention still keeps the message at the place that a dead letter came from."""
        topic = self._context.topics.by_rocketmq_name(origin["topic"] or "")
        queue_id, offset = origin["queue"], origin["offset"]
        if topic is None or queue_id is None or offset is None or queue_id >= topic.queue_count:
            return False
        queue = topic.queues[queue_id]
        return bool(queue.start_offset <= offset < queue.visible_end)

    async def _letters(
        self, topic: Topic, queue: Queue, at: int, end: int, limit: int, wanted: Mapping[str, str]
    ) -> tuple[list[Json], int | None]:
        """Read dead letters up to `end`; return them and the next offset, or None if there are no more."""
        letters = list[Json]()
        room = LETTERS_BYTES_MAX
        while at < end and len(letters) < limit and room > 0:
            read = self._context.messages.reader.read_for_rocketmq(
                queue, topic, at, min(limit - len(letters), 64), room, end
            )
            found = await wait_for_callback(read.start) if isinstance(read, Later) else read
            letters += [letter for each in found.buffers if _matches(letter := _letter(each), wanted)]
            room -= sum(map(len, found.buffers))
            at = found.next_offset
            await asyncio.sleep(0)
        return letters, at if at < end else None

    # -- Changing

    async def _redrive(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        wanted = parsed(body, NewRedrive) if body else NewRedrive()
        way, offsets = wanted.to, wanted.offsets
        if way is not None and way not in WAYS:
            raise web.HTTPBadRequest(text=f"to: expected retry or topic, got {way[:40]!r}")
        if offsets is not None and not 0 < len(offsets) <= LETTERS_MAX:
            raise web.HTTPBadRequest(text=f"offsets: expected 1 to {LETTERS_MAX}, got {len(offsets)}")
        filters = {key: text for key in LETTER_FILTERS if (text := getattr(wanted, key))}
        if filters and offsets is not None:
            raise web.HTTPBadRequest(text=f"expected either offsets or {', '.join(filters)}")
        name = await self._known(request)

        def redrive(offsets: Sequence[int] | None) -> Awaitable[tuple[int, Promise]]:
            return self._context.groups.redrive(name, way, offsets, partial(self._may_write, request))

        sent = self._redrive_matching(name, filters, redrive) if filters else redrive(offsets)
        count, promise = await sent
        await self._kept(promise)
        return answer({"group": name, "redriven": count})

    async def _redrive_matching(
        self, name: str, filters: Mapping[str, str], redrive: Callable[[Sequence[int]], Awaitable[tuple[int, Promise]]]
    ) -> tuple[int, Promise]:
        """Redrive those of the present dead letters that match, LETTERS_MAX at a time, from the group's offset on."""
        context, group_name = self._context, group_of_rocketmq(name)
        topic = context.topics.by_rocketmq_name(dead_letter_topic(rocketmq_group(group_name)))
        count = 0
        if topic is not None:
            queue = topic.queues[0]
            redriven = context.groups.redriven_of(group_name, queue)
            at: int | None = redriven.position
            end = context.messages.isolation.stable_end(queue)
            while at is not None:
                letters, at = await self._letters(topic, queue, at, end, LETTERS_MAX, filters)
                if offsets := [each["offset"] for each in letters if each["offset"] not in redriven]:
                    count += (await redrive(offsets))[0]
        return count, context.state_log.barrier()

    def _may_write(self, request: web.Request, topic: Topic) -> bool:
        try:
            check_found(self._context, request, topic, Operation.WRITE)
        except NotAllowed:
            return False
        return True

    async def _reset(self, request: web.Request) -> web.Response:
        wanted = parsed(await self._read(request), NewReset)
        _check_target(wanted)
        name = request.match_info["name"] if wanted.topics else await self._known(request)
        group = self._without_members(name)
        rows: list[Json] = []
        positions: list[CommittedOffset] = []
        for topic, queue in self._queues(group, wanted.topics):
            offset = await self._target(topic, queue, wanted)
            before = self._context.groups.group_offsets.fetch(group, queue.key)
            positions.append(CommittedOffset(queue.key, offset))
            rows.append({
                "topic": topic.name, "queue": queue.queue_id, "from": before and before.offset, "to": offset,
            })  # fmt: skip
            if not len(rows) % QUEUES_AT_ONCE:
                await asyncio.sleep(0)
        if wanted.execute:
            self._without_members(name)  # Members may have joined while the disk was read.
            now_ms, context = self._context.clock.now_ms(), self._context
            records = context.groups.rocketmq_pop_checkpoints.settling_records(
                group, [position.key for position in positions]
            )
            changes = [*records, *context.groups.group_offsets.records(group, positions, now_ms)]
            await self._kept(context.state_log.commit(changes, now_ms).promise)
        return answer({"group": name, "executed": wanted.execute, "positions": rows})

    async def _delete(self, request: web.Request) -> web.Response:
        check_query(request, {"execute"})
        execute = request.query.get("execute", "false")
        if execute not in ("true", "false"):
            raise web.HTTPBadRequest(text=f"execute: expected true or false, got {execute[:40]!r}")
        name = await self._known(request)
        group = self._without_members(name)
        context, now_ms = self._context, self._context.clock.now_ms()
        if rocketmq_group(group) in SYSTEM_GROUPS:
            raise web.HTTPConflict(text=f"{name} is a group of the system's own")
        count = len(context.groups.group_offsets.reported(group, now_ms))
        if execute == "true":
            await self._kept(context.groups.group_offsets.delete_group(group, now_ms))
        return answer({"group": name, "executed": execute == "true", "positions": count})

    # -- The group and topics of a request

    async def _known(self, request: web.Request) -> str:
        name = request.match_info["name"]
        if not group_views.has_group(self._context, name):
            await self._kept(self._context.state_log.barrier())
            raise _no_group(name)
        return name

    def _without_members(self, name: str) -> str:
        group = group_of_rocketmq(name)
        active = self._context.groups.client_protocols.active(group)
        if active is not None:
            raise web.HTTPConflict(
                text=f"the group {name[:300]} has members in {active.value}: stop them, then ask again"
            )
        return group

    def _queues(self, group: str, names: list[str] | None) -> list[tuple[Topic, Queue]]:
        if names is not None:
            topics = [topic_named(self._context, name) for name in dict.fromkeys(names)]
            return [(topic, queue) for topic in topics for queue in topic.queues]
        found = [each for each in self._context.groups.lags.of_queues(group) if each is not None]
        return [(each.topic, each.queue) for each in found if not each.topic.rocketmq_name.startswith(FAILED)]

    async def _target(self, topic: Topic, queue: Queue, wanted: NewReset) -> int:
        start, end = queue.start_offset, self._context.messages.isolation.stable_end(queue)
        if wanted.offset is not None:
            return min(max(wanted.offset, start), end)
        if wanted.time_ms is None:
            return start if wanted.to == EARLIEST else end
        read = self._context.messages.reader.find_time(queue, topic, wanted.time_ms, end)
        found = await wait_for_callback(read.start) if isinstance(read, Later) else read
        return end if found is None else found[0]


def _check_target(wanted: NewReset) -> None:
    if sum(each is not None for each in (wanted.to, wanted.time_ms, wanted.offset)) != 1:
        raise web.HTTPBadRequest(text="expected one of to, time_ms, offset")
    if wanted.to not in (None, *PLACES):
        raise web.HTTPBadRequest(text=f"to: expected earliest or latest, got {wanted.to[:40]!r}")
    for name, value in (("time_ms", wanted.time_ms), ("offset", wanted.offset)):
        if value is not None and not 0 <= value <= OFFSET_MAX:
            raise web.HTTPBadRequest(text=f"{name}: expected 0 to {OFFSET_MAX}, got {value}")


def _no_group(name: str) -> web.HTTPNotFound:
    return web.HTTPNotFound(text=f"there is no group {name[:300]}")


def _letter(record: Buffer) -> Json:
    """Return the JSON view of a dead letter: its reason, its origin, and the beginning of its body."""
    letter = message.decode(record)
    found = properties.parse(properties.repaired(letter.properties))
    queue, _, offset = found.get(ORIGIN_PLACE, "").partition("/")
    expired_ms = found.get(EXPIRED_AT, "")
    shown: Json = {
        "offset": letter.queue_offset,
        "sent_ms": letter.born_ms,
        "stored_ms": letter.store_ms,
        "reason": found.get(REASON),
        "attempts": letter.reconsume_times,
        "failed_attempts": [
            {"attempt": each.number, "failed_ms": each.failed_ms, "consumer": each.consumer}
            for each in failed_attempts.parse(found.get(FAILED_ATTEMPTS, ""))
        ],
        "expired_ms": int(expired_ms) if expired_ms.isdecimal() else None,
        "origin": {
            "topic": found.get(properties.RETRY_TOPIC),
            "queue": int(queue) if queue.isdecimal() else None,
            "offset": int(offset) if offset.isdecimal() else None,
            "message_id": found.get(properties.ORIGIN_MESSAGE_ID),
        },
        "key": found.get(properties.KEYS),
        "tag": found.get(properties.TAGS),
    }
    body = _body(letter)
    return shown | {"value_bytes": len(body)} | value_view(body, LETTER_BODY_BYTES_MAX)


def _matches(letter: Json, wanted: Mapping[str, str]) -> bool:
    shown = letter | {"topic": letter["origin"]["topic"]}
    return all(shown[name] == value for name, value in wanted.items())


def _body(letter: Any) -> bytes:
    body = bytes(letter.body)
    if not letter.sys_flag & flags.COMPRESSED:
        return body
    try:
        return bytes(compression.inflate_body(body, letter.sys_flag, LETTERS_BYTES_MAX))
    except ProtocolError:
        return body
