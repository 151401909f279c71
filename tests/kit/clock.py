"""A clock that changes only when the test moves it; it replaces `bridge.clock.SystemClock`."""

START_NOW_MS = 1_700_000_000_000
START_MONO_MS = 1_000_000


class ManualClock:
    """Implements `bridge.clock.Clock`. Monotonic time only increases; wall time may be set to any value."""

    def __init__(self, now_ms: int = START_NOW_MS, mono_ms: int = START_MONO_MS) -> None:
        self._mono_us = mono_ms * 1_000
        self._wall_us = now_ms * 1_000 - self._mono_us  # The wall time at monotonic time 0.

    def now_ms(self) -> int:
        return (self._wall_us + self._mono_us) // 1_000

    def mono_ms(self) -> int:
        return self._mono_us // 1_000

    def mono_us(self) -> int:
        return self._mono_us

    def pass_ms(self, ms: int) -> None:
        """Advance both clocks."""
        self.pass_us(ms * 1_000)

    def pass_us(self, us: int) -> None:
        assert us >= 0, f"{us} us: monotonic time never goes back"
        self._mono_us += us

    def set_now_ms(self, now_ms: int) -> None:
        """Set the wall clock, as an operator or NTP does; the monotonic clock does not change."""
        self._wall_us = now_ms * 1_000 - self._mono_us
