"""Asks Kafka's producers over HTTP what became of their half messages.

    POST <TRAN_MSG_CHECK_URL>   {"topic", "id", "queue", "checks"}
    200                         {"verdict": "commit" | "rollback" | "unknown"}

Only URLs that begin as `txn.check_urls` says are asked, redirects are not followed, and an answer has
`txn.check_timeout_ms`. Whatever else comes back, or nothing, is as good as `unknown`: the next look asks again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import msgspec

from bridge.half_verdicts import VERDICTS, Said
from txn.half import Verdict

ASKED_MAX: Final = 32  # At a time; others wait for their next look.
ANSWER_BYTES_MAX: Final = 1024

log = logging.getLogger("bridge")


class Callbacks:
    """The requests under way."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000)
        self._session: aiohttp.ClientSession | None = None  # Made when first needed.
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def has_room(self) -> bool:
        return len(self._asking) < ASKED_MAX

    def ask(self, url: str, question: dict[str, Any], done: Callable[[Verdict], None]) -> None:
        """Ask, and call `done` with a verdict if there is one."""
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
            log.warning("no verdict url=%s reason=%r", url, str(error) or type(error).__name__)
            return
        if verdict is not None:
            done(verdict)

    async def _answer(self, url: str, question: dict[str, Any]) -> Verdict | None:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        async with self._session.post(url, json=question, allow_redirects=False) as response:
            body = await response.content.read(ANSWER_BYTES_MAX)
            if response.status != 200:
                raise ValueError(f"status {response.status}")
        return VERDICTS.get(msgspec.json.decode(body, type=Said).verdict)  # DecodeError is a ValueError.
