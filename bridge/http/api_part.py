"""The class ApiPart: the base class of the parts of the HTTP API, each of which has some routes and their handlers."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web

from duolog.bridge.http.context import HttpContext
from duolog.store.entry import Promise


class RequestIo(NamedTuple):
    """What handlers wait for: a promise of the log, and the body of a request."""

    kept: Callable[[Promise], Awaitable[None]]
    read: Callable[[web.Request], Awaitable[bytes]]


class ApiPart:
    """A part of the API with what every part uses."""

    def __init__(self, context: HttpContext, io: RequestIo) -> None:
        self._context = context
        self._kept, self._read = io
