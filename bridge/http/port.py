"""The HTTP port: metrics, health, and the JSON API behind the admin commands. A small door, on aiohttp.

    GET  /metrics               Prometheus text              GET    /api/topics          all topics
    GET  /healthz               200 while the loop turns     POST   /api/topics          {"name", "queues"?, "configs"?}
    GET  /readyz                200 while all is served      GET    /api/topics/{name}   queues, offsets, configs
    GET  /api/openapi.json      this API (`openapi/`)
    GET  /api/status            the broker and its log       DELETE /api/topics/{name}
    GET  /api/segments          the files of the log         PATCH  /api/topics/{name}   {"configs"}; null: the default
    GET  /api/poison            records set aside            GET    /api/topics/{name}/sums   counts, checksums
    /api/leases  bridge/http/leases.py                       /api/groups  bridge/http/groups.py
    GET  /api/transactions      of both families             POST   /api/transactions/{topic}/{id}   {"verdict"}
    /api/topics/{name}/messages: bridge/http/messages.py
    /api/timers, /api/schedules, /api/topics/{name}/pause: bridge/http/timers.py

Bad input is answered 4xx with `{"error": "..."}`, a log that refuses with 503, a fault of ours with 500. What the
answers contain is in `bridge/http/views.py`; which requests are taken at all in `bridge/http/guard.py`, what
connections may cost in `bridge/http/connections.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from http import HTTPStatus
from importlib import import_module
from typing import Any, cast

import msgspec
from aiohttp import web

from duolog.bridge.data.delay_headers import DelayRefused
from duolog.bridge.data.far_timers import TooManyNamed
from duolog.bridge.data.publishing.refusals import IllegalMessage, ProduceRefused
from duolog.bridge.http import (
    leases,
    sums,
    transactions,
    views,
)
from duolog.bridge.http.answers import (
    Listing,
    answer,
    array,
    failure,
    send,
)
from duolog.bridge.http.connections import HttpConnection, HttpConnections, TooMuchHeld
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.groups import GroupApi
from duolog.bridge.http.guard import Guard
from duolog.bridge.http.messages import Inflating, MessageApi
from duolog.bridge.http.readers import Readers
from duolog.bridge.http.requests import (
    Text,
    parsed,
    text_of,
    topic_named,
)
from duolog.bridge.http.timers import TimerApi
from duolog.bridge.http.transactions import UnknownTransaction
from duolog.bridge.monitoring.watchdog import measured
from duolog.bridge.net.futures import awaited
from duolog.bridge.rocketmq.consuming.group_configs import TooManyGroups
from duolog.bridge.rocketmq.requests.errors import Refused
from duolog.bridge.rocketmq.retry.redrive import RedriveRefused
from duolog.bridge.state import topic_configs
from duolog.bridge.state.idempotency_keys import IdempotencyKeyReused
from duolog.bridge.state.positions import TooManyPositions
from duolog.bridge.state.topic_configs import InvalidConfig
from duolog.bridge.state.topics import Topic, TopicError, TopicExists
from duolog.delay.recurring import BadSchedule
from duolog.protocol.kafka.record_batch import InvalidBatch
from duolog.store.entry import Promise
from duolog.store.errors import Fault, StoreError

STOP_S = 0.5  # Given to requests in work when the broker stops; aiohttp's own is a minute.

BAD_TIMERS = (DelayRefused, BadSchedule, InvalidBatch, ProduceRefused)
REDRIVE_REFUSALS = (RedriveRefused, Refused, TooManyGroups, TooManyPositions, IllegalMessage)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/topics."""

    name: str
    queues: int | None = None
    configs: dict[str, Text] = {}


class NewConfigs(msgspec.Struct, forbid_unknown_fields=True):
    """The body of PATCH /api/topics/{name}; what is not named stays."""

    configs: dict[str, Text | None]


class HttpPort:
    """Serves one broker; `connection` makes the protocol of each accepted socket. Making it may raise ConfigError."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self.readers = Readers.load(context.options.http.readers_file)  # `bridge/reload.py` replaces them.
        self._inflating = Inflating(context.options.convert.inflate_bytes_max)
        self._guard = Guard(context.options, context.monitoring.addresses.advertised_host)
        self.connections = HttpConnections(context.options, context.clock)
        self.application = self._application()  # Each of its routes passes `_serve`.
        self._runner = web.AppRunner(self.application, handle_signals=False, shutdown_timeout=STOP_S)

    async def start(self) -> None:
        await self._runner.setup()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def connection(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None, "the HTTP port is not started"
        return self.connections.accept(server)

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._serve])
        application.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/api/openapi.json", self._openapi),
                web.get("/api/status", self._status),
                web.get("/api/segments", self._segments),
                web.get("/api/poison", self._poison),
                web.get("/api/topics", self._topics),
                web.post("/api/topics", self._create_topic),
                web.get("/api/topics/{name}", self._topic),
                web.patch("/api/topics/{name}", self._configure_topic),
                web.delete("/api/topics/{name}", self._delete_topic),
                web.get("/api/topics/{name}/sums", self._sums),
                web.post("/api/leases", self._lease),
                web.post("/api/leases/{lease}", self._renew_lease),
                web.delete("/api/leases/{lease}", self._release_lease),
                *GroupApi(self._context, self._kept, self._read).routes(),
                web.get("/api/transactions", self._transactions),
                web.get("/api/transactions/{id}", self._transaction),
                web.delete("/api/transactions/{id}", self._abort_transaction),
                web.post("/api/transactions/{topic}/{id}", self._decide),
                *TimerApi(self._context, self._kept, self._read).routes(),
                *MessageApi(self._context, self._inflating, self._kept, self._read).routes(),
            ]
        )
        return application

    # -- Health and metrics

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reason = self._context.monitoring.not_ready_reason()
        return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        # prometheus-client takes 100 ms to import, and few scrape: so a thread does it, at the first scrape.
        http_metrics = await asyncio.to_thread(import_module, "duolog.bridge.http.metrics")
        lags = await http_metrics.group_lags(self._context)
        body = http_metrics.render(self._context, lags)
        return web.Response(body=body, headers={"Content-Type": http_metrics.CONTENT_TYPE})

    async def _openapi(self, request: web.Request) -> web.Response:
        openapi = import_module("duolog.bridge.http.openapi.document")  # It imports this module, and few need it.
        return answer(openapi.document(openapi.routes(self.application)))

    # -- The broker

    async def _status(self, request: web.Request) -> web.Response:
        return answer(views.status(self._context))

    async def _segments(self, request: web.Request) -> web.StreamResponse:
        return Listing(array(views.segments(self._context)))

    async def _poison(self, request: web.Request) -> web.Response:
        return answer(views.poison(self._context))

    # -- Topics

    async def _topics(self, request: web.Request) -> web.StreamResponse:
        await self._kept(self._context.state_log.barrier())
        return Listing(array(views.topics(self._context)))

    async def _topic(self, request: web.Request) -> web.StreamResponse:
        topic = self._topic_named(request)
        await self._kept(self._context.state_log.barrier())
        return Listing(views.topic(self._context, topic))

    async def _create_topic(self, request: web.Request) -> web.StreamResponse:
        context = self._context
        wanted = parsed(await self._read(request), NewTopic)
        queue_count = context.options.topics.queues if wanted.queues is None else wanted.queues
        configs = {name: text_of(value) for name, value in wanted.configs.items()}
        topic, promise = context.topics.create(wanted.name, queue_count, configs, context.clock.now_ms())
        await self._kept(promise)
        return Listing(views.topic(self._context, topic), status=201)

    async def _configure_topic(self, request: web.Request) -> web.StreamResponse:
        topic = self._topic_named(request)
        wanted = parsed(await self._read(request), NewConfigs).configs
        changes = {name: None if value is None else text_of(value) for name, value in wanted.items()}
        configs = topic_configs.changed(topic.configs, changes)
        await self._kept(self._context.topics.configure(topic, configs, self._context.clock.now_ms()))
        return Listing(views.topic(self._context, topic))

    async def _delete_topic(self, request: web.Request) -> web.Response:
        topic = self._topic_named(request)
        await self._kept(self._context.topics.delete(topic, self._context.clock.now_ms()))
        return answer({"deleted": topic.name})

    async def _sums(self, request: web.Request) -> web.Response:
        return answer(await sums.sums(self._context, self._inflating, self._topic_named(request), dict(request.query)))

    # -- Leases

    async def _lease(self, request: web.Request) -> web.StreamResponse:
        wanted = parsed(await self._read(request), leases.NewLease)
        await self._kept(self._context.state_log.barrier())
        return leases.take(self._context, wanted, self.readers, _caller(request), request.remote or "")

    async def _renew_lease(self, request: web.Request) -> web.Response:
        lease = request.match_info["lease"]
        return answer(leases.renew(self._context, lease, self.readers, _caller(request)))

    async def _release_lease(self, request: web.Request) -> web.Response:
        lease = request.match_info["lease"]
        return answer(leases.release(self._context, lease, self.readers, _caller(request)))

    def _topic_named(self, request: web.Request) -> Topic:
        return topic_named(self._context, request.match_info["name"])

    # -- Transactions

    async def _transactions(self, request: web.Request) -> web.StreamResponse:
        await self._kept(self._context.state_log.barrier())
        return Listing(array(transactions.transactions(self._context)))

    async def _transaction(self, request: web.Request) -> web.Response:
        await self._kept(self._context.state_log.barrier())
        return answer(transactions.transaction(self._context, request.match_info["id"]))

    async def _abort_transaction(self, request: web.Request) -> web.Response:
        await self._kept(transactions.abort(self._context, request.match_info["id"]))
        return answer({"aborted": request.match_info["id"]})

    async def _decide(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        topic, id = request.match_info["topic"], request.match_info["id"]
        decided, promise = await self._context.transactions.decide(topic, id, body)
        await self._kept(promise)
        return answer(decided)

    async def _read(self, request: web.Request) -> bytes:
        """Give the body; what goes wrong on its way is the client's fault."""
        options = self._context.options
        bytes_max = options.http.body_bytes_max
        if (request.content_length or 0) > bytes_max:
            raise _too_large(bytes_max)
        body = bytearray()
        try:
            async with asyncio.timeout(options.limits.first_request_ms / 1000):
                while chunk := await request.content.readany():
                    body += chunk
                    if len(body) > bytes_max:
                        raise _too_large(bytes_max)
        except web.HTTPException:
            raise
        except Exception as error:  # aiohttp raises RuntimeError, among others, for a connection that has gone
            raise web.HTTPBadRequest(text=f"the body did not come whole: {error or type(error).__name__}") from error
        return bytes(body)

    async def _kept(self, promise: Promise) -> None:
        """Wait until what the answer reports is as durable as promised; raises StoreError."""
        store = self._context.store
        if store.kept(promise):
            return
        await awaited(partial(store.when, promise))

    @web.middleware
    async def _serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request of any route, also of none: check where it comes from, and see its answer off."""
        connection, mono_ms = cast(HttpConnection, request.protocol), self._context.clock.mono_ms
        connection.begin()
        try:
            response = await self._answer_errors(request, handler)
            if response.status >= HTTPStatus.BAD_REQUEST:
                self._context.monitoring.metrics.errors["http", str(response.status)] += 1
            try:
                leaving = send(request, response, connection, mono_ms)  # A listing is made while it is written.
                return await measured(leaving, self._context.monitoring.watchdog, _kind_of(request))
            except TooMuchHeld as error:
                return await send(request, failure(str(error), 503), connection, mono_ms)
        except ConnectionError:
            raise  # The client has gone; aiohttp knows.
        except Exception as error:
            self._contain(error, request)
            connection.abort("its answer could not be made whole")
            raise ConnectionResetError("a fault in an answer that had begun") from error
        finally:
            connection.end()

    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The one table from our exceptions to HTTP's statuses; what is not in it is a fault, and answered with 500."""
        try:
            self._guard.check(request)
            work = cast("Coroutine[Any, Any, web.StreamResponse]", handler(request))
            return await measured(work, self._context.monitoring.watchdog, _kind_of(request))
        except web.HTTPMethodNotAllowed as error:
            return failure(
                f"{error.method} is not allowed here; expected {', '.join(sorted(error.allowed_methods))}", 405
            )
        except web.HTTPException as error:
            if error is request.match_info.http_exception:
                return failure(
                    f"there is no path {request.path[:80]}; GET /api/openapi.json lists all paths", error.status
                )
            return failure(error.text or error.reason, error.status)
        except TopicExists as error:
            return failure(str(error), 409)
        except (TopicError, InvalidConfig, *BAD_TIMERS) as error:
            return failure(str(error), 400)
        except IdempotencyKeyReused as error:
            return failure(str(error), 422)
        except UnknownTransaction as error:
            return failure(str(error), 404)
        except (TooManyNamed, *REDRIVE_REFUSALS) as error:
            return failure(str(error), 409)
        except StoreError as error:
            return failure(str(error), 500 if isinstance(error, Fault) else 503)
        except TooMuchHeld as error:
            return failure(str(error), 503)
        except Exception as error:  # noqa: BLE001 - contained
            self._contain(error, request)
            return failure("the broker has a bug; its log describes it", 500)

    def _contain(self, error: Exception, request: web.Request) -> None:
        self._context.monitoring.faults.contain(error, _kind_of(request), request.remote or "")


def _kind_of(request: web.Request) -> str:
    """Name a request by its route: nothing of what the client says but a method that the route has."""
    route = request.match_info.route.resource
    return f"http {request.method} {route.canonical}" if route is not None else "http"


def _caller(request: web.Request) -> str:
    return request.headers.get("Authorization", "")


def _too_large(bytes_max: int) -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(bytes_max, text=f"the body exceeded http.body_bytes_max={bytes_max}")
