"""Check-backs over HTTP: asks Kafka producers for the verdict on their half messages.

    POST <TRAN_MSG_CHECK_URL>   {"topic", "id", "queue", "checks"}
    200                         {"verdict": "commit" | "rollback" | "unknown"}

Only URLs that begin with a prefix of `txn.check_urls` are called (`bridge/config/check_urls.py`). Redirects are
not followed. An answer must come within `txn.check_timeout_ms`. Any other answer, or none, counts as `unknown`, and a
later check-back asks again.

Requests to one host are limited to ASKED_MAX, so that a slow host does not delay check-backs to other hosts.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import aiohttp

from duolog.bridge.transactions.verdict_body import read_verdict
from duolog.txn.half_verdicts import HalfVerdict

ASKED_MAX: Final = 32  # Requests to one host at a time. Further check-backs to the host are postponed, and not counted.
ANSWER_BYTES_MAX: Final = 1024
QUIET_S: Final = 1.0  # Between two log lines about failures.

log = logging.getLogger("transactions")


class CheckCallbacks:
    """The requests in progress. `contain` takes an exception of a request's callback.

    `tls` returns what verifies the servers of https URLs; None: the CAs of the system.
    """

    def __init__(
        self,
        timeout_ms: int,
        contain: Callable[[Exception], None],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self._contain, self._tls = contain, tls
        self._timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000)
        self._session: aiohttp.ClientSession | None = None  # Created for the first request.
        self._system: ssl.SSLContext | None = None  # Trusts the CAs of the system. Created for the first https URL.
        self._asking: set[asyncio.Task[None]] = set()
        self._asked: Counter[str] = Counter()  # The number of requests in progress by host.
        self.failed = 0  # The number of failures since the start.
        self._is_logged_lately = False  # A failure was logged within the last QUIET_S.

    def room(self, url: str) -> int:
        """Return how many more requests may be sent to the host of this URL now."""
        return ASKED_MAX - self._asked[host_of(url)]

    def ask(self, url: str, question: dict[str, Any], done: Callable[[HalfVerdict], None]) -> None:
        """Send a check-back, and call `done` with the verdict if the answer has one."""
        self._asked[host_of(url)] += 1
        task = asyncio.get_running_loop().create_task(self._ask(url, question, done))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def stop(self) -> None:
        """Cancel the requests in progress."""
        for task in self._asking:
            task.cancel()
        if self._session is not None:
            await self._session.close()

    async def _ask(self, url: str, question: dict[str, Any], done: Callable[[HalfVerdict], None]) -> None:
        try:
            verdict = await self._answer(url, question)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._fail(url, str(error) or type(error).__name__)
            return
        finally:
            self._release(host_of(url))
        if verdict is not None:
            try:
                done(verdict)
            except Exception as error:  # noqa: BLE001 - contained
                self._contain(error)

    def _release(self, host: str) -> None:
        self._asked[host] -= 1
        if not self._asked[host]:
            del self._asked[host]

    def _fail(self, url: str, reason: str) -> None:
        self.failed += 1
        if not self._is_logged_lately:
            self._is_logged_lately = True
            asyncio.get_running_loop().call_later(QUIET_S, self._log_again)
            log.warning("check-back without answer url=%s reason=%r in_all=%d", url, reason, self.failed)

    def _log_again(self) -> None:
        self._is_logged_lately = False

    async def _answer(self, url: str, question: dict[str, Any]) -> HalfVerdict | None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout,
                connector=aiohttp.TCPConnector(limit=0),  # `room` limits the requests to each host.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # A compressed answer of 1 KiB may decompress to 1 MiB.
                headers={"Accept-Encoding": "identity"},
            )
        body, tls = b"", self._tls() or await self._system_tls(url)
        async with self._session.post(url, json=question, allow_redirects=False, ssl=tls) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            while more := await response.content.read(ANSWER_BYTES_MAX + 1 - len(body)):
                body += more
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError(f"answer of more than {ANSWER_BYTES_MAX} bytes")
        return read_verdict(body)  # DecodeError is a ValueError.

    async def _system_tls(self, url: str) -> ssl.SSLContext | bool:
        """Return what verifies the server of a URL by the CAs of the system; a URL without TLS needs nothing.

        `duolog serve` keeps aiohttp from reading the CAs at its import. A thread reads them for the first https URL,
        because that takes 30 ms.
        """
        if url[:6].lower() != "https:":
            return True
        if self._system is None:
            self._system = await asyncio.to_thread(ssl.create_default_context)
        return self._system


def host_of(url: str) -> str:
    """Return scheme, host and port of a URL."""
    return "/".join(url.split("/", 3)[:3])
