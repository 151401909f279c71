"""The HTTP port on aiohttp: metrics, health, and the JSON API behind the admin commands.

    api/status.py     /metrics, /healthz, /readyz,      api/timers.py         /api/timers: one delayed message
                      /api/status, segments, poison     api/pending.py        /api/timers: lists and numbers
    api/settings.py   /api/settings
    api/topics.py     /api/topics                       api/schedules.py      /api/schedules
    observation/      /api/history, warnings, clients, log
    api/messages.py   /api/topics/{name}/messages       api/transactions.py   /api/transactions
    api/groups.py     /api/groups                       api/leases.py         /api/leases
    access/users.py   /api/users                        api/backups.py        /api/backups
    access/rules.py   /api/acls

The status of an error is 4xx for invalid input, 503 if the store refuses, 500 for an unexpected exception; the body is
`{"error": "..."}`. `guard.py` decides which requests are accepted; `connections.py` limits what connections may use.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from importlib import import_module
from typing import Any, cast

from aiohttp import web

from duolog.bridge.data.publishing.pending_quota import PendingQuotaReached
from duolog.bridge.data.publishing.refusals import IllegalMessage, ProduceRefused
from duolog.bridge.http.access.gate import HttpGate, NotAllowed, NotLoggedIn, not_admitted
from duolog.bridge.http.access.pauses import Pauses
from duolog.bridge.http.access.quota_check import BODY_BYTES, AboveQuota, QuotaCheck
from duolog.bridge.http.access.quotas import QuotaApi
from duolog.bridge.http.access.readers import MayNotRead, Readers, UnknownReader
from duolog.bridge.http.access.requirements import LOGGED_IN, ROUTES, check_complete
from duolog.bridge.http.access.rules import AclApi
from duolog.bridge.http.access.users import UserApi
from duolog.bridge.http.answers import (
    Json,
    failure,
    send,
)
from duolog.bridge.http.api.backups import BackupApi
from duolog.bridge.http.api.groups import GroupApi
from duolog.bridge.http.api.leases import LeaseApi
from duolog.bridge.http.api.messages import Decompression, MessageApi
from duolog.bridge.http.api.pending import PendingApi
from duolog.bridge.http.api.schedules import ScheduleApi
from duolog.bridge.http.api.settings import OnlyInMemory, SettingsApi, SettingsChanges
from duolog.bridge.http.api.status import StatusApi
from duolog.bridge.http.api.timers import TimerApi
from duolog.bridge.http.api.topics import TopicApi
from duolog.bridge.http.api.transactions import TransactionApi, UnknownTransaction
from duolog.bridge.http.api_part import RequestIo
from duolog.bridge.http.connections import HttpConnection, HttpConnections, HttpServer, TooMuchHeld
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.guard import Guard
from duolog.bridge.http.local_api import BODY, LocalApi
from duolog.bridge.http.observation.routes import observation_routes
from duolog.bridge.monitoring.watchdog import measured
from duolog.bridge.net.futures import wait_for_callback
from duolog.bridge.rocketmq.consuming.group_configs import TooManyGroups
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.retry.redrive import RedriveRefused
from duolog.bridge.security.acls import TooManyRules
from duolog.bridge.security.quotas.entity import BadQuota
from duolog.bridge.security.quotas.stored_quotas import TooManyQuotas
from duolog.bridge.security.rules import BadRule
from duolog.bridge.security.user_changes import NotSuper, RightTakenAway
from duolog.bridge.security.users import TooManyUsers, UnknownUser, UserError, UserExists
from duolog.bridge.state.group_offsets import TooManyGroupOffsets
from duolog.bridge.state.idempotency_keys import IdempotencyKeyReused
from duolog.bridge.state.topic_configs import InvalidConfig
from duolog.bridge.state.topics import TopicError, TopicExists
from duolog.delay.recurring import BadSchedule
from duolog.delay.requested_delay import DelayRefused
from duolog.delay.tree.lookups import TooManyNamed
from duolog.protocol.kafka.record_batch import InvalidBatch
from duolog.store.entry import Promise
from duolog.store.errors import Fault, StoreError

BAD_TIMERS = (DelayRefused, BadSchedule, InvalidBatch, ProduceRefused)
REDRIVE_REFUSALS = (RedriveRefused, RequestRefused, TooManyGroups, TooManyGroupOffsets, IllegalMessage)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _always() -> bool:
    return True


async def _no_drain(wait_ms: int) -> int:
    raise web.HTTPServiceUnavailable(text="this broker cannot be drained")


class HttpPort:
    """The HTTP port of one broker; `connection` makes the protocol of an accepted socket.

    Raises ConfigError if the readers file cannot be used.
    """

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self.readers = Readers.load(context.options.http.readers_file)  # A reload of the settings replaces it.
        self.drain = _no_drain  # The broker replaces it.
        self.may_answer: Callable[[], bool] = _always  # A broker that shares its log replaces it.
        self.changes: SettingsChanges = OnlyInMemory(context.options.log)  # `duolog serve` replaces it.
        self._guard = Guard(context.options, context.monitoring.addresses.advertised_host)
        self._access = dict(ROUTES)  # What each route needs.
        self._pauses = Pauses(context.monitoring.server.timed_calls)
        is_enabled = context.security.is_enabled
        self._gate = HttpGate(context, self._access, self._pauses, self._is_reader) if is_enabled else None
        self._quotas = QuotaCheck(context.security.quotas, context.clock, self._access, self._pauses)
        self.connections = HttpConnections(context.options, context.clock)
        self.application = self._application()  # Every request passes `_serve`.
        self.local_api = LocalApi(self._serve_local, context.clock.mono_ms)
        self._server = HttpServer(self.application, self.connections)
        self.connection = self._server.connection

    def add_pages(self, routes: Sequence[web.RouteDef]) -> None:
        """Add routes that need only a login, because they ask `local_api` with the credentials of their request."""
        self.application.add_routes(routes)
        self._access.update(((route.method, route.path), LOGGED_IN) for route in routes)

    def _is_reader(self, authorization: str) -> bool:
        return self.readers.knows(authorization)

    async def start(self) -> None:
        check_complete(self._access, routes_of(self.application))
        await self._server.start()

    async def stop(self) -> None:
        """Finish the requests in work. Refusals whose answers wait are answered at once."""
        self._pauses.end()
        await self._server.stop()

    def _application(self) -> web.Application:
        context, io = self._context, RequestIo(self._kept, self.read)
        decompression = Decompression(context.options.convert.inflate_bytes_max)
        application = web.Application(middlewares=[self._serve])
        application.add_routes(
            [
                *observation_routes(context),
                *StatusApi(context, io, self._document, lambda wait_ms: self.drain(wait_ms)).routes(),
                *SettingsApi(context, io, lambda: self.changes).routes(),
                *TopicApi(context, io, decompression).routes(),
                *LeaseApi(context, io, lambda: self.readers).routes(),
                *BackupApi(context, io, lambda: self.readers).routes(),
                *GroupApi(context, io).routes(),
                *TransactionApi(context, io).routes(),
                *PendingApi(context, io).routes(),
                *TimerApi(context, io).routes(),
                *ScheduleApi(context, io).routes(),
                *MessageApi(context, io, decompression).routes(),
                *UserApi(context, io).routes(),
                *AclApi(context, io).routes(),
                *QuotaApi(context, io).routes(),
            ]
        )
        return application

    def _document(self) -> Json:
        """Return the OpenAPI document; its modules are imported for the first request only, because few clients ask."""
        openapi = import_module("duolog.bridge.http.openapi.document")
        return cast(Json, openapi.document(openapi.api_routes(routes_of(self.application))))

    async def read(self, request: web.Request) -> bytes:
        """Return the body of a request. Raises HTTPException if it is too large or incomplete, and TooMuchHeld."""
        given: bytes | None = request.get(BODY)
        if given is not None:
            return given
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
        except Exception as error:  # aiohttp raises RuntimeError, among others, for a closed connection
            raise web.HTTPBadRequest(text=f"the body is incomplete: {error or type(error).__name__}") from error
        request[BODY_BYTES] = len(body)
        return bytes(body)

    async def _kept(self, promise: Promise) -> None:
        """Wait until the log keeps the promise of an answer. Raises StoreError."""
        store = self._context.store
        if store.kept(promise):
            return
        await wait_for_callback(partial(store.when, promise))

    async def _serve_local(self, request: web.Request) -> web.StreamResponse:
        """Return the answer to a request of `local_api`, which aiohttp gives to `_serve` with its route."""
        return await self._server.server.request_handler(request)

    @web.middleware
    async def _serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request of any route, or of none: check it, call the handler, and write the answer.

        `local_api` reads the answer itself.
        """
        if BODY in request:
            return await self._answer(request, handler)
        connection, mono_ms = cast(HttpConnection, request.protocol), self._context.clock.mono_ms
        connection.begin()
        try:
            response = await self._answer(request, handler)
            if response.status >= HTTPStatus.BAD_REQUEST:
                self._context.monitoring.metrics.errors["http", str(response.status)] += 1
            try:
                leaving = send(request, response, connection, mono_ms)  # A Listing is made while it is written.
                return await measured(
                    leaving, self._context.monitoring.watchdog, _kind_of(request), self._quotas.time_use(request)
                )
            except TooMuchHeld as error:
                return await send(request, failure(str(error), 503), connection, mono_ms)
        except ConnectionError:
            raise  # The client has disconnected, which aiohttp handles.
        except Exception as error:
            self._contain(error, request)
            connection.abort("its answer could not be completed")
            raise ConnectionResetError("a fault in an answer that was partly sent") from error
        finally:
            connection.end()

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await self._answer_errors(request, handler)
        if not self.may_answer() and request.path.startswith("/api/"):
            return failure("the object store does not answer, so another broker may be the owner", 503)
        return response

    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the answer to an exception. An exception that is not in this table is a fault, and has status 500."""
        try:
            self._guard.check(request)
            if self._gate is not None:
                await self._gate.admit(request, self.read)
            rate = self._quotas.begin(request)
            work = cast("Coroutine[Any, Any, web.StreamResponse]", handler(request))
            response: web.StreamResponse | None = None
            try:
                response = await measured(
                    work, self._context.monitoring.watchdog, _kind_of(request), self._quotas.time_use(request)
                )
            finally:
                if rate is not None:
                    self._quotas.count(request, response, rate)
            return response
        except web.HTTPMethodNotAllowed as error:
            return failure(
                f"{error.method} is not allowed here; expected {', '.join(sorted(error.allowed_methods))}", 405
            )
        except web.HTTPException as error:
            if error is request.match_info.http_exception:
                return failure(f"there is no path {request.path[:80]}; GET /openapi.json lists all paths", error.status)
            return failure(error.text or error.reason, error.status)
        except (NotLoggedIn, NotAllowed) as error:
            return not_admitted(error)
        except UnknownReader as error:
            if self._gate is not None:
                await self._gate.note_unknown_reader(request, str(error))
            response = failure(str(error), 401)
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        except AboveQuota as error:
            return await self._quotas.refusal(error)
        except PendingQuotaReached as error:
            return await self._quotas.pending_refusal(request, error)
        except (MayNotRead, NotSuper, RightTakenAway) as error:
            return failure(str(error), 403)
        except (TopicExists, UserExists, TooManyUsers, TooManyRules, TooManyQuotas) as error:
            return failure(str(error), 409)
        except UnknownUser as error:
            return failure(str(error), 404)
        except (TopicError, InvalidConfig, UserError, BadRule, BadQuota, *BAD_TIMERS) as error:
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
            return failure("an internal error occurred; the broker's log describes it", 500)

    def _contain(self, error: Exception, request: web.Request) -> None:
        self._context.monitoring.faults.contain(error, _kind_of(request), request.remote or "")


def routes_of(application: web.Application) -> Iterator[tuple[str, str]]:
    """Yield the method and path of each route. HEAD is omitted, because every GET route also serves HEAD."""
    for route in application.router.routes():
        if route.resource is not None and route.method != "HEAD":
            yield route.method, route.resource.canonical


def _kind_of(request: web.Request) -> str:
    """Return the kind of a request: its route and method, without any text that the client may choose."""
    route = request.match_info.route.resource
    return f"http {request.method} {route.canonical}" if route is not None else "http"


def _too_large(bytes_max: int) -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(bytes_max, text=f"the body exceeded http.body_bytes_max={bytes_max}")
