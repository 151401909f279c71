"""The class Probe: asks again and again, at an interval, whether ports accept connections."""

import asyncio
from abc import ABC, abstractmethod

from duolog.bridge.net.nodes import Address


class Probe(ABC):
    """A task that calls `probe` every `interval_s`, from `begin` until `stop`."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._probing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._probing = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._probing is not None:
            self._probing.cancel()

    async def _run(self) -> None:
        while True:
            pause = asyncio.create_task(asyncio.sleep(self.interval_s))
            await self.probe()
            await pause

    @abstractmethod
    async def probe(self) -> None:
        """Probe once, and note the outcome."""

    async def connects(self, address: Address) -> bool:
        """Return whether a port accepts a connection within the interval. The connection is closed at once."""
        try:
            async with asyncio.timeout(self.interval_s):
                _, writer = await asyncio.open_connection(*address)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True
