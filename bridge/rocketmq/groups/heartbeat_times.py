"""The time of the last heartbeat of each RocketMQ connection, and the connections whose heartbeats stopped."""

from typing import Final, Generic

from duolog.bridge.rocketmq.groups.consumer_group import Channel

CHANNEL_MS: Final = 120_000  # ConsumerManager.java#CHANNEL_EXPIRED_TIMEOUT; clients send a heartbeat every 30 s.
SCAN_INTERVAL_MS: Final = 10_000


class HeartbeatTimes(Generic[Channel]):
    """The time of each connection's last heartbeat; times are monotonic."""

    def __init__(self) -> None:
        self._last_mono_ms: dict[Channel, int] = {}
        self._next_scan_mono_ms: int | None = None

    def note(self, channel: Channel, mono_ms: int) -> None:
        """Note a heartbeat of a connection."""
        self._last_mono_ms[channel] = mono_ms
        if self._next_scan_mono_ms is None:
            self._next_scan_mono_ms = mono_ms + SCAN_INTERVAL_MS

    def forget(self, channel: Channel) -> None:
        self._last_mono_ms.pop(channel, None)

    def last_mono_ms(self, channel: Channel) -> int | None:
        """Return the time of the last heartbeat; None if the connection has sent none."""
        return self._last_mono_ms.get(channel)

    def next_deadline_mono_ms(self) -> int | None:
        return self._next_scan_mono_ms

    def silent(self, mono_ms: int) -> list[Channel]:
        """Return the connections without a heartbeat for CHANNEL_MS, every SCAN_INTERVAL_MS; otherwise none."""
        if self._next_scan_mono_ms is None or mono_ms < self._next_scan_mono_ms:
            return []
        self._next_scan_mono_ms = mono_ms + SCAN_INTERVAL_MS if self._last_mono_ms else None
        return [channel for channel, last_mono_ms in self._last_mono_ms.items() if mono_ms - last_mono_ms >= CHANNEL_MS]
