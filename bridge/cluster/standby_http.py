"""The HTTP port of a standby.

GET /healthz        200 while the event loop runs
GET /readyz         503, for this broker serves no messages; 200 with `?role=any`
GET /metrics        requests to the object store, role, epoch
GET /api/status     role, owner, epoch, positions
any other           307 to the owner; 503 while no owner is known

With `security.enabled`, these requests need what they need on an owner. Those that are sent on to the owner need a
login, and the owner decides about them. The owner also checks the tokens of `http.readers_file`.
"""

import asyncio
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Any, Final, cast

from aiohttp import web
from msgspec import structs

from duolog.bridge.cluster.standby_context import StandbyContext
from duolog.bridge.http.access.gate import HttpGate, NotAllowed, NotLoggedIn, not_admitted
from duolog.bridge.http.access.pauses import Pauses
from duolog.bridge.http.access.requirements import LOGGED_IN, ROUTES
from duolog.bridge.http.answers import answer, failure
from duolog.bridge.http.connections import HttpConnection, HttpConnections, HttpServer
from duolog.bridge.http.guard import Guard
from duolog.bridge.net.addresses import Addresses, endpoint
from duolog.store.errors import StoreError

OWN: Final = ("/healthz", "/readyz", "/metrics", "/api/status")  # Paths that a standby answers itself.
ANY_PATH: Final = "/{path:.*}"
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ACCESS: Final = {("GET", path): ROUTES["GET", path] for path in OWN} | {
    (method, "/{path}"): LOGGED_IN._replace(has_readers=True) for method in METHODS
}


class StandbyHttpPort:
    """The HTTP port of one standby. `position` returns where the copied log ends, and `epoch` the owner's epoch."""

    def __init__(
        self, context: StandbyContext, addresses: Addresses, position: Callable[[], int], epoch: Callable[[], int]
    ) -> None:
        self._context, self._addresses = context, addresses
        self._position, self._epoch = position, epoch
        self._guard = Guard(context.options, addresses.advertised_host)
        self._pauses = Pauses(context.server.timed_calls)
        is_enabled = context.security.is_enabled
        self._gate = HttpGate(context, ACCESS, self._pauses, _may_be_reader) if is_enabled else None
        application = web.Application(middlewares=[self._serve])
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/api/status", self._status),
                *(web.route(method, ANY_PATH, self._elsewhere) for method in METHODS),
            ]
        )
        self._server = HttpServer(application, HttpConnections(context.options, context.clock))
        self.start, self.connection = self._server.start, self._server.connection

    async def stop(self) -> None:
        """Finish the requests in work, as `HttpPort.stop` does."""
        self._pauses.end()
        await self._server.stop()

    @web.middleware
    async def _serve(self, request: web.Request, handler: Any) -> web.StreamResponse:
        connection = cast(HttpConnection, request.protocol)
        connection.begin()
        try:
            self._guard.check(request)
            if self._gate is not None:
                await self._gate.admit(request, web.Request.read)
            found: web.StreamResponse = await handler(request)
            return found
        except web.HTTPException as error:
            return failure(error.text or error.reason, error.status)
        except (NotLoggedIn, NotAllowed) as error:
            return not_admitted(error)
        except StoreError as error:  # Too many logins wait for a thread.
            return failure(str(error), 503)
        finally:
            connection.end()

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        is_enough = request.query.get("role") == "any"
        warning = self._context.security.warning_of(self._addresses.listening.values())
        return web.Response(text=f"{'ready' if is_enough else 'standby'}\n{warning}", status=200 if is_enough else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        # A thread imports prometheus-client at the first scrape, because the import takes 100 ms.
        module = await asyncio.to_thread(import_module, "duolog.bridge.cluster.standby_metrics")
        body = module.exposition(self._context.metrics, self._epoch())
        return web.Response(body=body, headers={"Content-Type": module.CONTENT_TYPE})

    async def _status(self, request: web.Request) -> web.Response:
        context, owner = self._context, self._context.nodes.owner
        addresses = None if owner is None else structs.asdict(owner.endpoints)
        return answer(
            {
                "version": installed_version("duolog"),
                "pid": os.getpid(),
                "cluster_id": context.cluster_id,
                "role": "standby",
                "owner": addresses and {name: endpoint(*each) for name, each in addresses.items()},
                "epoch": self._epoch(),
                "ready": "standby",
                "listeners": {name: endpoint(*each) for name, each in self._addresses.listening.items()},
                "log": {"next_position": self._position()},
                "topics": len(context.topics),
                "connections": len(context.server.connections),
            }
        )

    async def _elsewhere(self, request: web.Request) -> web.Response:
        owner = self._context.nodes.owner
        if owner is None:
            return failure("this broker is a standby, and the stream has no owner at present: try again", 503)
        scheme = "http" if cast(HttpConnection, request.protocol).tls is None else "https"
        location = f"{scheme}://{endpoint(*owner.endpoints.http)}{request.rel_url}"
        redirect = failure(f"this broker is a standby; the owner is {endpoint(*owner.endpoints.http)}", 307)
        redirect.headers["Location"] = location
        return redirect


def _may_be_reader(authorization: str) -> bool:
    """Whether a token may be one of `http.readers_file`: the owner, which has the file, decides."""
    return True
