"""When clients are told to wait: SYSTEM_BUSY, at once and before anything is done, so that they can go elsewhere.

    kind           is in work while it waits for       settings
    SEND           the log                             `sends_max`, `busy_ms`, `unsynced_bytes_max`
    TRANSACTION    the log: END_TRANSACTION            `transactions_max`, `busy_ms`
    ACK            the log: acks, positions            `acks_max`, `busy_ms`
    PULL           the disk, to read messages          `pulls_max`
    QUERY          the disk: by key, by id             `queries_max`
    CLIENT, ADMIN  its turn, or the log                `clients_max`, `admin_max`, `wait_ms`; `background_requests.py`

    [OVERLOAD]             so many requests of the kind are in work; or one connection has `rocketmq.unanswered_max`
    [TIMEOUT_CLEAN_QUEUE]  the log has kept none of the promises that answers wait for, for `rocketmq.busy_ms`; or the
                           request's turn did not come within `rocketmq.wait_ms`
    [REJECTREQUEST]        `rocketmq.unsynced_bytes_max` bytes of the log are not on disk yet

Apache RocketMQ has an executor with a queue for each kind; here one loop does the work of all, so what is counted is
what piles up. No kind takes the room of another: each may wait for reader threads only so often that the others find
some free (`pulls_max`; `queries_max` for each other kind). Requests that nobody answers are not refused, but dropped if
they would have to wait for the disk. What was stored before stays stored, and is answered when the log has it: only who
comes now is refused. The texts are those that users of Apache RocketMQ look for (BrokerFastFailure.java,
NettyRemotingAbstract.java).

Whether the log moves is looked at every LOOK_MS while answers wait, so a send pays for no clock.
"""

from enum import IntEnum
from typing import Final, Protocol

from duolog.bridge.config import RocketmqOptions

LOOK_MS: Final = 100
AT_ONCE_MS: Final = 0


_OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while"


class Kind(IntEnum):
    """Of requests: those of one kind share their limits."""

    SEND = 0
    TRANSACTION = 1
    ACK = 2
    PULL = 3
    QUERY = 4
    CLIENT = 5
    ADMIN = 6


LIMITED: Final = (Kind.TRANSACTION, Kind.ACK, Kind.QUERY)  # Looked at before each request; sends look by themselves.


class LogProgress(Protocol):
    """What is asked of the store."""

    @property
    def durable(self) -> int: ...

    @property
    def next_position(self) -> int: ...


class Busy(Exception):
    """The sender shall try again later, or another broker."""


def waited_too_long(waited_ms: int, size: int) -> Busy:
    """Say it as BrokerFastFailure.java does."""
    return Busy(
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while,"
        f" period in queue: {waited_ms}ms, size of queue: {size}"
    )


class Admission:
    """What waits for the log, and whether that moves. Times are monotonic."""

    def __init__(self, options: RocketmqOptions) -> None:
        self.waiting = 0  # Answers of all connections that wait for the log; these count it,
        self.in_work = [0] * len(Kind)  # and by kind all that waits for something but messages.
        self.reading = [0] * len(Kind)  # Those that wait for a reader thread, or a search.
        self._limits = [0] * len(Kind)
        self._reads_max = [0] * len(Kind)
        self.limit(Kind.SEND, options.sends_max)
        self.limit(Kind.TRANSACTION, options.transactions_max)
        self.limit(Kind.ACK, options.acks_max)
        self.limit(Kind.PULL, options.pulls_max)
        self.limit(Kind.QUERY, options.queries_max)
        self.limit(Kind.CLIENT, options.clients_max)
        self.limit(Kind.ADMIN, options.admin_max)
        self._busy_ms = options.busy_ms
        self._unsynced_bytes_max = options.unsynced_bytes_max
        self._log: LogProgress | None = None
        self._durable = -1  # At the last look,
        self._moved_mono_ms = 0  # when it was last seen to have moved,
        self._look_mono_ms: int | None = None  # and when to look again; None: nothing waited then.
        self._stalled_ms = 0  # How long it has not moved; 0: not too long.

    def limit_of(self, kind: Kind) -> int:
        return self._limits[kind]

    def limit(self, kind: Kind, count: int) -> None:
        """Have another limit from now on; what is in work already stays so."""
        self._limits[kind] = count
        for each in Kind:
            if kind is (Kind.PULL if each is Kind.PULL else Kind.QUERY):
                self._reads_max[each] = count

    def attach(self, log: LogProgress) -> None:
        """Name the log, once it is recovered."""
        self._log = log

    def check_send(self) -> None:
        """Raise Busy if nothing more should be stored now."""
        self.check(Kind.SEND)
        log = self._log
        assert log is not None, "the log is not open"
        if log.next_position - log.durable > self._unsynced_bytes_max:
            raise Busy("[REJECTREQUEST]system busy, start flow control for a while")

    def check(self, kind: Kind) -> None:
        """Raise Busy if no more of this kind should be begun."""
        if self._stalled_ms and kind is not Kind.QUERY:
            raise waited_too_long(self._stalled_ms, self.in_work[kind])
        if self.in_work[kind] >= self._limits[kind]:
            raise Busy(_OVERLOAD)

    def begin(self, kind: Kind) -> None:
        """Count a request that begins to wait; raises Busy."""
        if self.in_work[kind] >= self._limits[kind]:
            raise Busy(_OVERLOAD)
        self.in_work[kind] += 1

    def begin_read(self, kind: Kind) -> None:
        """Count a request that begins to wait for a reader thread; raises Busy."""
        if self.reading[kind] >= self._reads_max[kind]:
            raise Busy(_OVERLOAD)
        self.reading[kind] += 1
        self.in_work[kind] += 1

    def end_read(self, kind: Kind) -> None:
        self.reading[kind] -= 1
        self.in_work[kind] -= 1

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
