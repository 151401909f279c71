"""Pauses before the answers to HTTP requests that were refused: above a quota, or after a login that has failed.

A connection has one at most, because its requests are served one after the other.
"""

import asyncio
from functools import partial

from duolog.bridge.net.timed_calls import TimedCalls


class Pauses:
    """The pauses of one port."""

    def __init__(self, timed_calls: TimedCalls) -> None:
        self._timed_calls = timed_calls
        self._waiting = set[asyncio.Future[None]]()
        self._has_ended = False

    async def wait(self, pause_ms: int) -> None:
        """Return after a time, or at once when the port stops."""
        if self._has_ended:
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(over)
        self._timed_calls.wait(pause_ms, partial(_end, over))
        try:
            await over
        finally:
            self._waiting.discard(over)

    def end(self) -> None:
        """End all pauses, because the port stops: no timed call is made any more, and the stop waits for answers.

        This does not speed up guessing of passwords, because a stopping port closes each connection after its request.
        """
        self._has_ended = True
        for over in self._waiting:
            _end(over)


def _end(over: asyncio.Future[None], _: None = None) -> None:
    if not over.done():
        over.set_result(None)
