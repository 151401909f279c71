"""When senders are told to wait: SYSTEM_BUSY, at once and before anything is stored, so that they can go elsewhere.

    [OVERLOAD]             `rocketmq.sends_max` answers of all connections wait for the log; or one connection has
                           `rocketmq.unanswered_max` requests in work
    [TIMEOUT_CLEAN_QUEUE]  the log has kept none of the promises that answers wait for, for `rocketmq.busy_ms`
    [REJECTREQUEST]        `rocketmq.unsynced_bytes_max` bytes of the log are not on disk yet

What was stored before stays stored, and is answered when the log has it: only who comes now is refused. Requests do not
queue for threads here, so what piles up is what waits for the disk: sends for its writes, which are limited here; pulls
and pops for its reads (`store.cold_reads_max`) or for messages (`limits.held_requests_max`). All other requests are
answered when they are read. The texts are those that users of Apache RocketMQ look for (BrokerFastFailure.java,
NettyRemotingAbstract.java).

Whether the log moves is looked at every LOOK_MS while answers wait, so a send pays for no clock.
"""

from typing import Final, Protocol

from bridge.config import RocketmqOptions

LOOK_MS: Final = 100
AT_ONCE_MS: Final = 0


class Log(Protocol):
    """What is asked of the store."""

    @property
    def durable(self) -> int: ...

    @property
    def next_position(self) -> int: ...


class Busy(Exception):
    """The sender shall try again later, or another broker."""


class Flow:
    """What waits for the log, and whether that moves. Times are monotonic."""

    def __init__(self, options: RocketmqOptions) -> None:
        self.waiting = 0  # Answers of all connections that wait for the log; these count it.
        self._sends_max, self._busy_ms = options.sends_max, options.busy_ms
        self._unsynced_bytes_max = options.unsynced_bytes_max
        self._log: Log | None = None
        self._durable = -1  # At the last look,
        self._moved_mono_ms = 0  # when it was last seen to have moved,
        self._look_mono_ms: int | None = None  # and when to look again; None: nothing waited then.
        self._stalled_ms = 0  # How long it has not moved; 0: not too long.

    def attach(self, log: Log) -> None:
        """Name the log, once it is recovered."""
        self._log = log

    def check_send(self) -> None:
        """Raise Busy if nothing more should be stored now."""
        if self._stalled_ms:
            raise Busy(
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while,"
                f" period in queue: {self._stalled_ms}ms, size of queue: {self.waiting}"
            )
        if self.waiting >= self._sends_max:
            raise Busy("[OVERLOAD]system busy, start flow control for a while")
        log = self._log
        assert log is not None, "the log is not open"
        if log.next_position - log.durable > self._unsynced_bytes_max:
            raise Busy("[REJECTREQUEST]system busy, start flow control for a while")

    # -- Time

    def next_deadline_mono_ms(self) -> int | None:
        """When to look: at once when answers begin to wait, then every LOOK_MS until none do."""
        return AT_ONCE_MS if self._look_mono_ms is None and self.waiting else self._look_mono_ms

    def look(self, mono_ms: int) -> None:
        """See whether the log has moved since the last look."""
        assert self._log is not None, "the log is not open"
        durable = self._log.durable
        if not self.waiting:
            self._look_mono_ms, self._stalled_ms = None, 0
            return
        if durable != self._durable or self._look_mono_ms is None:
            self._durable, self._moved_mono_ms = durable, mono_ms
        stalled_ms = mono_ms - self._moved_mono_ms
        self._stalled_ms = stalled_ms if stalled_ms >= self._busy_ms else 0
        self._look_mono_ms = mono_ms + LOOK_MS
