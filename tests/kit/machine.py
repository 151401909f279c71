"""Measures the machine's present speed, for tests that judge milliseconds while other processes use cores and disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 40
REST_S = 0.01  # A pause between two writes, so that a waiting thread has to be woken.


def sync_ms(folder: Path) -> float:
    """Return the time in ms that a small durable write takes."""
    with (folder / "synced").open("wb") as file:

        def sync() -> None:
            file.write(bytes(512))
            file.flush()
            os.fdatasync(file.fileno())

        return quarter_ms(sync)


def quarter_ms(do: Callable[[], object]) -> float:
    """Return the time in ms of the fastest quarter of some rounds."""
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        do()
        taken.append(time.perf_counter() - start)
        time.sleep(REST_S)
    return sorted(taken)[ROUNDS // 4] * 1000
