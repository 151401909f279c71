"""The only place that asks the time. Everything else takes `now_ms` (wall) or `mono_ms` (monotonic) as an argument."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored or due at a date; monotonic time for sessions and long polls."""

    def now_ms(self) -> int: ...

    def mono_ms(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
