"""What the machine takes at the moment, for tests that look at milliseconds: others use its cores and its disk, too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 40
REST_S = 0.01  # between two, so that whoever waits has to be woken


def sync_ms(folder: Path) -> float:
    """Say how long it takes to make a small write durable."""
    with (folder / "synced").open("wb") as file:

        def sync() -> None:
            file.write(bytes(512))
            file.flush()
            os.fdatasync(file.fileno())

        return quarter_ms(sync)


def quarter_ms(do: Callable[[], object]) -> float:
    """Say how long the fastest quarter of some rounds takes."""
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        do()
        taken.append(time.perf_counter() - start)
        time.sleep(REST_S)
    return sorted(taken)[ROUNDS // 4] * 1000
