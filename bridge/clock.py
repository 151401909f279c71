"""The clocks of the broker: the only module that asks for the time. All other code takes times as arguments.

`now_ms` is wall time, in milliseconds since 1970; `mono_ms` is monotonic time, in milliseconds since an arbitrary
moment.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored or due at a date; monotonic time for sessions, long polls and intervals."""

    def now_ms(self) -> int: ...

    def mono_ms(self) -> int: ...


class SystemClock:
    """The clocks of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
