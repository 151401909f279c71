"""Health, metrics, and the status of the broker.

GET  /metrics                   Prometheus text
GET  /healthz                   200 while the event loop runs
GET  /readyz                    200 while requests are served
GET  /openapi.json              the OpenAPI document (`openapi/`)
GET  /api/status                the broker and its log
GET  /api/segments              the files of the log
GET  /api/poison                records that were set aside
POST /api/poison/acknowledge    marks such records as dealt with
POST /api/drain                 lets the clients leave, and stops the broker
"""

import asyncio
import os
import resource
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Any, cast

import msgspec
from aiohttp import web
from msgspec import structs

from duolog.bridge.http.answers import (
    Json,
    Listing,
    answer,
    array,
)
from duolog.bridge.http.api.group_views import known_groups
from duolog.bridge.http.api_part import ApiPart, RequestIo
from duolog.bridge.http.connections import HttpConnection
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.requests import parsed
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.net.nodes import Nodes

DRAIN_MS_MAX = 3_600_000
_PAGE_BYTES = resource.getpagesize()


class NewAcknowledgement(msgspec.Struct, forbid_unknown_fields=True):
    """Which records that were set aside are acknowledged; null stands for all."""

    kind: str | None = None
    place: str | None = None


class NewDrain(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/drain."""

    wait_ms: int = 10_000  # How long clients may take to leave.


class StatusApi(ApiPart):
    """The routes.

    `document` returns the OpenAPI document. `drain` begins to drain the broker for some milliseconds, and returns the
    number of open client connections.
    """

    def __init__(
        self, context: HttpContext, io: RequestIo, document: Callable[[], Json], drain: Callable[[int], Awaitable[int]]
    ) -> None:
        super().__init__(context, io)
        self._document, self._drain_for = document, drain

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/metrics", self._metrics),
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/openapi.json", self._openapi),
            web.get("/api/status", self._status),
            web.get("/api/segments", self._segments),
            web.get("/api/poison", self._poison),
            web.post("/api/poison/acknowledge", self._acknowledge),
            web.post("/api/drain", self._drain),
        ]

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reason = self._context.monitoring.not_ready_reason()
        warning = self._context.security.warning_of(self._context.monitoring.addresses.listening.values())
        return web.Response(text=f"{reason or 'ready'}\n{warning}", status=503 if reason else 200)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        # A thread imports prometheus-client at the first scrape, because the import takes 100 ms.
        exposition = await asyncio.to_thread(import_module, "duolog.bridge.http.metrics.exposition")
        scrape = exposition.new_scrape(self._context)
        cast(HttpConnection, request.protocol).hold(scrape.memory_bytes_max)
        return Listing(exposition.parts(self._context, scrape), content_type=exposition.CONTENT_TYPE)

    async def _openapi(self, request: web.Request) -> web.Response:
        return answer(self._document())

    async def _status(self, request: web.Request) -> web.Response:
        return answer(status_view(self._context))

    async def _segments(self, request: web.Request) -> web.StreamResponse:
        return Listing(array(segment_views(self._context)))

    async def _poison(self, request: web.Request) -> web.Response:
        return answer(poison_view(self._context))

    async def _acknowledge(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        wanted = parsed(body, NewAcknowledgement) if body else NewAcknowledgement()
        poison_records, now_ms = self._context.monitoring.poison_records, self._context.clock.now_ms()
        count, promise = poison_records.acknowledge(wanted.kind, wanted.place, now_ms)
        await self._kept(promise)
        return answer({"acknowledged": count})

    async def _drain(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        wait_ms = (parsed(body, NewDrain) if body else NewDrain()).wait_ms
        if not 0 <= wait_ms <= DRAIN_MS_MAX:
            raise web.HTTPBadRequest(text=f"wait_ms: expected 0 to {DRAIN_MS_MAX}, got {wait_ms}")
        return answer({"wait_ms": wait_ms, "connections": await self._drain_for(wait_ms)}, 202)


def status_view(context: HttpContext) -> Json:
    """Return the answer of GET /api/status."""
    store, server = context.store, context.monitoring.server
    return {
        "version": _version(),
        "pid": os.getpid(),
        "cluster_id": context.monitoring.cluster_id,
        "role": "owner",
        "owner": owner_view(context.monitoring.nodes),
        "epoch": store.epoch,
        "ready": context.monitoring.not_ready_reason() or "yes",
        "uptime_ms": context.clock.mono_ms() - context.monitoring.started_mono_ms,
        "listeners": {
            name: endpoint(host, port) for name, (host, port) in context.monitoring.addresses.listening.items()
        },
        "log": {
            "next_position": store.next_position,
            "written": store.written,
            "durable": store.durable,
            "flush": context.options.store.flush,
        },
        "recovery": store.recovery._asdict(),
        "topics": len(context.topics),
        "groups": len(known_groups(context)),
        "connections": len(server.connections),
        "overdue_ms": context.delayed.delays.timers.overdue_ms(context.clock.now_ms()),
        "memory_bytes": resident_bytes(),
        "disk_bytes": dict(zip(("used", "total"), store.write_state.usage, strict=True)),
    }


def owner_view(nodes: Nodes) -> Json | None:
    """Return the addresses of the owner, by the names of its ports; null while none is known."""
    if nodes.owner is None:
        return None
    return {name: endpoint(*address) for name, address in structs.asdict(nodes.owner.endpoints).items()}


@cache
def _version() -> str:
    return installed_version("duolog")


def poison_view(context: HttpContext) -> dict[str, Any]:
    """Return the records that were set aside, in this run and before: the number by kind, and the newest records."""
    return {
        "counts": context.monitoring.poison_records.counts,
        "records": [each._asdict() for each in context.monitoring.poison_records.all()],
    }


def segment_views(context: HttpContext) -> Iterator[Json]:
    """Yield the files of the log; the last one is written to. A gap stands for files that retention removed."""
    for segment in list(context.store.segments()):
        yield {"start": segment.start, "end": segment.end, "is_gap": segment.is_gap, "path": segment.path}


def resident_bytes() -> dict[str, int]:
    """Return the resident memory of this process, in all and without file pages; nothing if there is no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            _, resident, shared = map(int, statm.read().split()[:3])
    except FileNotFoundError:
        resident = shared = 0
    return {"resident": resident * _PAGE_BYTES, "anonymous": (resident - shared) * _PAGE_BYTES}
