"""The object stores of `benchmarks/shared.py`, and what one client without a broker gets out of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.slow_store import LATENCY_PATH
from duolog.store.objects.opening import open_objects
from duolog.store.objects.options import ObjectStoreOptions
from tests.kit.broker import free_ports
from tests.kit.eventually import eventually

OBJECT_BYTES, OBJECTS, AT_ONCE = 8 << 20, 40, 4  # What a client without a broker stores and reads.
WITHIN_S = 60.0


@contextmanager
def slow_store(latency_ms: float, *, forgets: bool = False) -> Iterator[str]:
    """Run a store; yields its endpoint. With `forgets` it is only for brokers that read nothing back."""
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.slow_store", str(port), str(latency_ms), *["--forget"] * forgets]
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        eventually("the store", lambda: answer_of(f"{endpoint}/bench?list-type=2"), bool, WITHIN_S)
        yield endpoint
    finally:
        process.kill()
        process.wait()


def set_latency(endpoint: str, latency_ms: float) -> None:
    """Change the time of the later answers of a slow store."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}{LATENCY_PATH}{latency_ms}", method="PUT")).close()


def answer_of(url: str) -> bytes:
    """Return what a GET is answered with; empty without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: bytes = answer.read()
            return found
    except OSError:
        return b""


def alone_mb_s(endpoint: str) -> tuple[float, float]:
    """Return how fast one client stores objects and reads them. No broker on these cores can be faster."""
    objects = open_objects(ObjectStoreOptions("s3://bench/alone", endpoint=endpoint))
    body = os.urandom(OBJECT_BYTES)

    async def all_of(request: Callable[[str], Coroutine[Any, Any, object]]) -> float:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                await request(f"{number}")

        begun_s = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(OBJECTS)))
        return OBJECTS * OBJECT_BYTES / 1e6 / (time.perf_counter() - begun_s)

    stored_mb_s = asyncio.run(all_of(lambda key: objects.create(key, body)))
    return stored_mb_s, asyncio.run(all_of(lambda key: objects.get_range(key, 0, OBJECT_BYTES)))
