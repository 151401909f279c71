"""Quotas of HTTP requests: a request above a quota has status 429.

    producer_byte_rate, consumer_byte_rate    requests that send or read messages
    request_percentage                        all requests but those that anybody may send, such as `/healthz`
    delayed_messages_pending                  requests that add a delayed message

What a request has used is counted when it was handled, so a request is refused because of those before it. The
answer waits until the time of the user's refusals is over (`Rate.refused`), so that a client which does not wait for
`Retry-After` takes little of the loop, over however many connections. Like a RocketMQ client, an HTTP client has no
client id: quotas of users hold, and those of any client id for the empty one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from aiohttp import web

from duolog.bridge.clock import Clock
from duolog.bridge.data.publishing.pending_quota import PendingQuotaReached
from duolog.bridge.http.access.gate import SESSION
from duolog.bridge.http.access.pauses import Pauses
from duolog.bridge.http.access.requirements import RouteAccess, access_of
from duolog.bridge.http.answers import Listing, failure
from duolog.bridge.http.context import HttpContext
from duolog.bridge.http.local_api import BODY
from duolog.bridge.security.quotas.entity import ANONYMOUS, DELAYED, FETCHED, REQUEST_TIME, QuotaClient
from duolog.bridge.security.quotas.quotas import Quotas, Rate

_NO_CLIENT_ID = ""
TIME: web.RequestKey[Rate] = web.RequestKey("time", Rate)  # The rate in which the request's time is counted.
BODY_BYTES: web.RequestKey[int] = web.RequestKey("body_bytes", int)  # The size of a body that was read.


def quota_client(context: HttpContext, request: web.Request) -> QuotaClient | None:
    """Return whose quota the delayed messages of a request count in; None: no quota is set."""
    return context.security.quotas.client("http", request.get(SESSION))


class AboveQuota(Exception):
    """The client has used up a quota; status 429."""

    def __init__(self, key: str, user: str, wait_ms: int, pause_ms: int) -> None:
        self.wait_s = math.ceil(wait_ms / 1000)
        super().__init__(f"the quota {key} of {user} is used up: try again in {self.wait_s} s")
        self.pause_ms = pause_ms  # The answer waits for so long.


class QuotaCheck:
    """Asks and counts for each request; `table` has a row for each route."""

    def __init__(
        self,
        quotas: Quotas,
        clock: Clock,
        table: Mapping[tuple[str, str], RouteAccess],
        pauses: Pauses,
    ) -> None:
        self._quotas, self._clock, self._table, self._pauses = quotas, clock, table, pauses

    def begin(self, request: web.Request) -> Rate | None:
        """Return the rate in which the request's messages are to be counted; None: there is none. Raises AboveQuota."""
        access = access_of(self._table, request) if self._quotas.has_any else None
        if access is None or access.is_open:
            return None
        user, mono_ms = _user_of(request), self._clock.mono_ms()
        meter = self._quotas.meter(None, user, _NO_CLIENT_ID, mono_ms)
        for key in filter(None, (REQUEST_TIME, access.quota)):
            rate = meter.rate(key)
            wait_ms = 0 if rate is None else rate.wait_ms(mono_ms)
            if rate is not None and wait_ms:
                self._quotas.throttled["http", key] += 1
                raise AboveQuota(key, user, wait_ms, rate.refused(mono_ms) - mono_ms)
        if meter.request_time is not None:
            request[TIME] = meter.request_time
        return meter.rate(access.quota) if access.quota else None

    def time_use(self, request: web.Request) -> Callable[[float], None] | None:
        """Return what counts the seconds that the request takes of the loop; None: there is no quota."""
        rate, mono_ms = request.get(TIME), self._clock.mono_ms
        return None if rate is None else lambda seconds: rate.use(seconds * 1000, mono_ms())

    async def refusal(self, error: AboveQuota) -> web.Response:
        """Return the answer to a request above a quota, after its pause."""
        await self._pauses.wait(error.pause_ms)
        response = failure(str(error), 429)
        response.headers["Retry-After"] = str(error.wait_s)
        return response

    async def pending_refusal(self, request: web.Request, error: PendingQuotaReached) -> web.Response:
        """Return the answer to a request above the quota of pending messages, after its pause.

        The answer has no Retry-After, because the time at which there is room again is not known.
        """
        mono_ms = self._clock.mono_ms()
        await self._pauses.wait(self._quotas.refused(DELAYED, _user_of(request), _NO_CLIENT_ID, mono_ms) - mono_ms)
        return failure(str(error), 429)

    def count(self, request: web.Request, response: web.StreamResponse | None, rate: Rate) -> None:
        """Count what a request has sent, or what its answer has; of a Listing, while it is written.

        What a refused request has sent counts, too; its `response` is None.
        """
        access = access_of(self._table, request)
        if access is None or access.quota != FETCHED:
            given = request.get(BODY)
            rate.use(request.get(BODY_BYTES, 0) if given is None else len(given), self._clock.mono_ms())
        elif isinstance(response, Listing):
            response.parts = self._counted(response.parts, rate)
        elif isinstance(response, web.Response) and isinstance(response.body, bytes):
            rate.use(len(response.body), self._clock.mono_ms())

    def _counted(self, parts: Iterable[bytes | None], rate: Rate) -> Iterator[bytes | None]:
        for part in parts:
            if part:
                rate.use(len(part), self._clock.mono_ms())
            yield part


def _user_of(request: web.Request) -> str:
    session = request.get(SESSION)
    return ANONYMOUS if session is None else session.name
