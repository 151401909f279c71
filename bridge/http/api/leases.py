"""/api/leases: leases for programs that read the log's files directly (`bridge/state/leases.py`).

    POST   /api/leases         {"topics": [...], "lease_ms"?}  ->  201 {"lease", "directory", "queues", "segments", ...}
    POST   /api/leases/{id}    renew the lease                 ->  200, or 410 if it has ended
    DELETE /api/leases/{id}    end the lease                   ->  200, or 410

Each request needs the right to read the topics of the lease (`bridge/http/access/readers.py`): 401 for an unknown
token, 403 for a token without this right. In an answer, `segments` has files and positions in them; `queues` has, by
queue key, the offsets that are visible and committed now, and the aborted transactions among them. The program must not
read anything else from the files. `backups.py` grants leases on the whole log.

The answer is computed while it is written, in slices. The offsets of a queue are those of the time when its row is
written. The segments are the last part, so they contain all these offsets. Until then the lease holds the whole log.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from duolog.bridge.http.access.gate import SESSION
from duolog.bridge.http.access.readers import Readers
from duolog.bridge.http.answers import (
    Listing,
    answer,
    array,
    object_with,
    to_json,
)
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import parsed
from duolog.bridge.records import frame_formats
from duolog.bridge.state.leases import (
    LEASE_MS,
    ReaderLease,
    TooManyLeases,
    find_topics,
    segments_from,
)
from duolog.bridge.state.topic_table import Topic


class NewLease(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/leases."""

    topics: list[str]
    lease_ms: int | None = None  # None: LEASE_MS, or `leases.lease_ms_max` if that is less.


class LeaseApi(ApiPart):
    """The routes. `readers` returns the table of tokens, which a reload of the settings replaces."""

    def __init__(self, context: HttpContext, io: RequestIo, readers: Callable[[], Readers]) -> None:
        super().__init__(context, io)
        self._readers = readers

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/leases", self._lease),
            web.post("/api/leases/{lease}", self._renew_lease),
            web.delete("/api/leases/{lease}", self._release_lease),
        ]

    async def _lease(self, request: web.Request) -> web.StreamResponse:
        wanted = parsed(await self._read(request), NewLease)
        await self._kept(self._context.state_log.barrier())
        return take(self._context, wanted, readers_of(request, self._readers), caller_of(request), request.remote or "")

    async def _renew_lease(self, request: web.Request) -> web.Response:
        lease = request.match_info["lease"]
        return answer(renew(self._context, lease, readers_of(request, self._readers), caller_of(request)))

    async def _release_lease(self, request: web.Request) -> web.Response:
        lease = request.match_info["lease"]
        return answer(release(self._context, lease, readers_of(request, self._readers), caller_of(request)))


def take(context: HttpContext, wanted: NewLease, readers: Readers, caller: str, address: str) -> Listing:
    """Grant a lease on the log for some topics, and return the answer.

    Raises HTTPException, UnknownReader, MayNotRead.
    """
    lease_ms = lease_ms_of(context, wanted.lease_ms)
    readers.check(caller, [])
    try:
        topics = find_topics(context.topics, wanted.topics)
    except KeyError as error:
        raise web.HTTPNotFound(text=f"there is no topic {str(error.args[0])[:300]}") from error
    readers.check(caller, topics)
    lease = grant(context, topics, address, lease_ms)
    return Listing(_plan(context, lease), 201, undo=partial(context.leases.release, lease))


def lease_ms_of(context: HttpContext, wanted_ms: int | None) -> int:
    """Return the length of a lease for which a client asks; None asks for the default. Raises HTTPBadRequest."""
    lease_ms_max = context.options.leases.lease_ms_max
    lease_ms = min(LEASE_MS, lease_ms_max) if wanted_ms is None else wanted_ms
    if not 0 < lease_ms <= lease_ms_max:
        raise web.HTTPBadRequest(text=f"lease_ms: expected 1 to leases.lease_ms_max={lease_ms_max}, got {lease_ms}")
    return lease_ms


def grant(context: HttpContext, topics: Sequence[Topic], address: str, lease_ms: int) -> ReaderLease:
    """Grant a client at this address a lease, which holds the whole log until `ReaderLeases.narrow` limits it.

    Without topics, it is one for a backup. Raises HTTPServiceUnavailable.
    """
    try:
        return context.leases.take(topics, address, lease_ms, context.clock.mono_ms())
    except TooManyLeases as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error


def renew(context: HttpContext, lease_id: str, readers: Readers, caller: str) -> dict[str, Any]:
    """Renew a lease, and return the answer. Raises HTTPException, UnknownReader, MayNotRead."""
    lease = _standing(context, lease_id, readers, caller)
    lease.renew(context.clock.mono_ms())
    return {"lease": lease.id, "lease_ms": lease.until_mono_ms - context.clock.mono_ms()}


def release(context: HttpContext, lease_id: str, readers: Readers, caller: str) -> dict[str, Any]:
    """End a lease, and return the answer. Raises HTTPException, UnknownReader, MayNotRead."""
    lease = _standing(context, lease_id, readers, caller)
    context.leases.release(lease)
    return {"released": lease.id}


def _standing(context: HttpContext, lease_id: str, readers: Readers, caller: str) -> ReaderLease:
    readers.check(caller, [])
    lease = context.leases.get(lease_id)
    if lease is None:
        raise web.HTTPGone(text=f"lease {lease_id[:60]} has ended; the segments that it held may have been removed")
    readers.check(caller, lease.topics)
    return lease


def readers_of(request: web.Request, readers: Callable[[], Readers]) -> Readers:
    """Return the table of readers for a request. A principal that has logged in may read all files."""
    return Readers(None) if SESSION in request else readers()


def caller_of(request: web.Request) -> str:
    """Return what `Readers` compares: the Authorization header of a request, or an empty string."""
    return request.headers.get("Authorization", "")


# -- The answer with queues and segments


def _plan(context: HttpContext, lease: ReaderLease) -> Iterator[bytes | None]:
    starts: dict[int, int] = {}
    yield to_json(_head(context, lease))[:-1] + b',"queues":['
    yield from _queues(context, lease, starts)
    yield b'],"segments":'
    yield from array(_segments(context, lease, starts))
    yield b"}"


def _head(context: HttpContext, lease: ReaderLease) -> dict[str, Any]:
    return {
        "lease": lease.id,
        "lease_ms": lease.lease_ms,
        "directory": os.path.abspath(context.options.store.directory),
        "stream": context.store.stream.hex(),
        "inflate_bytes_max": context.options.convert.inflate_bytes_max,
        "forms": {"kafka": frame_formats.KAFKA, "rocketmq": frame_formats.ROCKETMQ},
    }


def _queues(context: HttpContext, lease: ReaderLease, starts: dict[int, int]) -> Iterator[bytes | None]:
    """Yield the rows of the queues that have records; adds the log start offset of each to `starts`, by queue key."""
    separator = b""
    for topic in lease.topics:
        for queue in topic.queues:
            if queue.start_offset >= queue.visible_end:
                yield None
                continue
            starts[queue.key] = queue.start_offset
            isolation = context.messages.isolation.get(queue.key)
            aborted = iter(()) if isolation is None else isolation.copy_of_aborted()
            yield separator
            yield from object_with(
                {
                    "topic": topic.kafka_name,
                    "queue": queue.queue_id,
                    "key": queue.key,
                    "start": queue.start_offset,
                    "end": context.messages.isolation.stable_end(queue),
                    "log_append_time": topic.settings.log_append_time,
                },
                "aborted",
                aborted,
            )
            separator = b","


def _segments(context: HttpContext, lease: ReaderLease, starts: dict[int, int]) -> Iterator[dict[str, Any] | None]:
    """Yield the segments that contain records of these queues, and limit the lease to the log from the first one on."""
    store = context.store
    written = held_from = store.written
    for segment in segments_from(list(store.segments()), starts):
        if segment is None:
            yield None
            continue
        held_from = min(held_from, segment.start)
        yield {"start": segment.start, "end": min(segment.known_end, written), "path": segment.path}
    context.leases.narrow(lease, held_from)
