"""Asks Kafka's producers over HTTP what became of their half messages.

    POST <TRAN_MSG_CHECK_URL>   {"topic", "id", "queue", "checks"}
    200                         {"verdict": "commit" | "rollback" | "unknown"}

Only URLs below a prefix of `txn.check_urls` are called (`bridge/config/check_urls.py`), redirects are not
followed, and an answer has `txn.check_timeout_ms`. Every other answer, and none, counts as `unknown`: the next check
asks again.

Each host has places of its own, so that a slow one holds up nobody but itself; there are as many as the settings name.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import aiohttp

from duolog.bridge.transactions.verdict_body import read_verdict
from duolog.txn.half import Verdict

ASKED_MAX: Final = 32  # Of one host, at a time; others of its half messages wait, and no look of theirs is counted.
ANSWER_BYTES_MAX: Final = 1024
QUIET_S: Final = 1.0  # Between two lines of the log.

log = logging.getLogger("bridge")


class Callbacks:
    """The requests under way."""

    def __init__(self, timeout_ms: int, contain: Callable[[Exception], None]) -> None:
        self._contain = contain
        self._timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000)
        self._session: aiohttp.ClientSession | None = None  # Made when first needed.
        self._asking: set[asyncio.Task[None]] = set()
        self._asked: Counter[str] = Counter()  # by host
        self.failed = 0  # since the start
        self._is_quiet = False  # A failure was logged just now.

    def room(self, url: str) -> int:
        """Say how many more may be asked at the host of this URL."""
        return ASKED_MAX - self._asked[host_of(url)]

    def ask(self, url: str, question: dict[str, Any], done: Callable[[Verdict], None]) -> None:
        """Ask, and call `done` with a verdict if there is one."""
        self._asked[host_of(url)] += 1
        task = asyncio.get_running_loop().create_task(self._ask(url, question, done))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def stop(self) -> None:
        for task in self._asking:
            task.cancel()
        if self._session is not None:
            await self._session.close()

    async def _ask(self, url: str, question: dict[str, Any], done: Callable[[Verdict], None]) -> None:
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
        if not self._is_quiet:
            self._is_quiet = True
            asyncio.get_running_loop().call_later(QUIET_S, self._may_speak)
            log.warning("no verdict url=%s reason=%r in_all=%d", url, reason, self.failed)

    def _may_speak(self) -> None:
        self._is_quiet = False

    async def _answer(self, url: str, question: dict[str, Any]) -> Verdict | None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout,
                connector=aiohttp.TCPConnector(limit=0),  # `room` limits it, for each host.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # A kilobyte may inflate to a megabyte.
                headers={"Accept-Encoding": "identity"},
            )
        body = b""
        async with self._session.post(url, json=question, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            while more := await response.content.read(ANSWER_BYTES_MAX + 1 - len(body)):
                body += more
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError(f"answer of more than {ANSWER_BYTES_MAX} bytes")
        return read_verdict(body)  # DecodeError is a ValueError.


def host_of(url: str) -> str:
    """Give scheme, host and port of a URL."""
    return "/".join(url.split("/", 3)[:3])
