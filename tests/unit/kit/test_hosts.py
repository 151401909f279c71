"""A killed process reports no error, even when the garbage collector runs before the end of the simulation."""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from tests.kit.clock import HostClock, ManualClock
from tests.kit.hosts import Process, run_hosts


async def _parts() -> AsyncGenerator[int, None]:
    while True:
        await asyncio.sleep(1)
        yield 1


async def _download() -> None:
    async with aclosing(_parts()) as parts:
        async for _ in parts:
            pass


def test_closing_the_coroutines_of_a_killed_process_reports_no_error() -> None:
    clock = ManualClock()

    async def main() -> None:
        process = Process("10.0.0.1", HostClock(clock))
        process.start(_download())
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(1)  # Until its timers are due, which know its tasks.
        gc.collect(0)

    reported: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, reported.append
    gc.disable()  # So that all objects of the test are of the youngest generation, and `collect` takes no longer.
    try:
        run_hosts(main(), clock, 1)
    finally:
        gc.enable()
        sys.unraisablehook = before
    assert reported == []
