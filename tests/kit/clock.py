"""Clocks that change only when the test moves them; they replace `bridge.clock.SystemClock`."""

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


class HostClock:
    """The clocks of one host, which differ from the true ones: another rate of monotonic time, a wrong wall time.

    `gained_ppm` is by how many millionths the monotonic clock is faster; `ahead_ms` may be changed at any time.
    """

    def __init__(self, true: ManualClock, gained_ppm: int = 0, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        self._true, self._gained_ppm, self._begun_us = true, gained_ppm, true.mono_us()

    def now_ms(self) -> int:
        return self._true.now_ms() + self.ahead_ms

    def mono_ms(self) -> int:
        return self.mono_us() // 1_000

    def mono_us(self) -> int:
        us = self._true.mono_us()
        return us + (us - self._begun_us) * self._gained_ppm // 1_000_000 if self._gained_ppm else us

    def true_s(self, mono_s: float) -> float:
        """Return the true monotonic time at which this host's clock shows a time; not before it does."""
        begun_s = self._begun_us / 1e6
        return begun_s + (mono_s - begun_s) * 1e6 / (1_000_000 + self._gained_ppm) + 2e-6
