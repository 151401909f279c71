"""Admission limits: requests are answered SYSTEM_BUSY at once, before they have any effect, when too many are in work.

    kind           waits for                           settings
    SEND           the log                             `sends_max`, `busy_ms`, `unsynced_bytes_max`
    TRANSACTION    the log: END_TRANSACTION            `transactions_max`, `busy_ms`
    ACK            the log: acks, committed offsets    `acks_max`, `busy_ms`
    PULL           the disk, to read messages          `pulls_max`
    QUERY          the disk: queries by key and id     `queries_max`
    CLIENT, ADMIN  its turn, or the log                `clients_max`, `admin_max`, `wait_ms`; `background_requests.py`

    the remark begins with   because
    [OVERLOAD]               the limit of the kind is reached, or a connection has `rocketmq.unanswered_max` requests
    [TIMEOUT_CLEAN_QUEUE]    no promise of the log was kept for `rocketmq.busy_ms`, or the turn of the request did not
                             come within `rocketmq.wait_ms`
    [REJECTREQUEST]          `rocketmq.unsynced_bytes_max` bytes of the log are not synced yet

Apache RocketMQ has a thread pool with a queue for each kind. Here one event loop does all work, so the limits count
requests that wait. The kinds do not take room from each other: each kind may use only some of the reader threads'
capacity (`pulls_max` for PULL, `queries_max` for each other kind). One-way requests are dropped, not refused, if they
would have to wait for the disk. Requests that were admitted are answered when the log keeps their promise; only new
requests are refused. The remarks are those of Apache RocketMQ, for which its users search (BrokerFastFailure.java,
NettyRemotingAbstract.java).

While answers wait, the duty `check_progress` compares the durable position of the log every CHECK_MS, so that sends
need not read a clock.
"""

from enum import IntEnum
from typing import Final, Protocol

from duolog.bridge.config import RocketmqOptions

CHECK_MS: Final = 100
AT_ONCE_MS: Final = 0


_OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while"


class Kind(IntEnum):
    """Kinds of requests. Requests of one kind share their limits."""

    SEND = 0
    TRANSACTION = 1
    ACK = 2
    PULL = 3
    QUERY = 4
    CLIENT = 5
    ADMIN = 6


_SEND: Final = Kind.SEND  # The lookup of a member of an enumeration takes as long as a call.

# Checked before each request of the kind. Sends call `check_send`.
LIMITED: Final = (Kind.TRANSACTION, Kind.ACK, Kind.QUERY)


class LogProgress(Protocol):
    """What admission uses of the store."""

    @property
    def durable(self) -> int: ...

    @property
    def next_position(self) -> int: ...


class Busy(Exception):
    """The request is refused because of load; its client may try again later, or use another broker."""


def waited_too_long(waited_ms: int, size: int) -> Busy:
    """Return a refusal with the text of BrokerFastFailure.java."""
    return Busy(
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while,"
        f" period in queue: {waited_ms}ms, size of queue: {size}"
    )


class Admission:
    """Counts the requests that wait, and checks whether the log makes progress. Times are monotonic."""

    def __init__(self, options: RocketmqOptions) -> None:
        self.waiting = 0  # Answers of all connections that wait for the log.
        self.in_work = [0] * len(Kind)  # By kind, requests that wait for something other than new messages.
        self.reading = [0] * len(Kind)  # By kind, requests that wait for a reader thread or a search.
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
        self._durable = -1  # The durable position at the last check.
        self._moved_mono_ms = 0  # The time of the last check that found a greater durable position.
        self._check_mono_ms: int | None = None  # The time of the next check; None: no answer waited at the last check.
        self._stalled_ms = 0  # How long the log has made no progress; 0 if less than `busy_ms`.

    def limit_of(self, kind: Kind) -> int:
        """Return the limit of a kind."""
        return self._limits[kind]

    def limit(self, kind: Kind, count: int) -> None:
        """Set a new limit of a kind; requests in work are not affected."""
        self._limits[kind] = count
        for each in Kind:
            if kind is (Kind.PULL if each is Kind.PULL else Kind.QUERY):
                self._reads_max[each] = count

    def attach(self, log: LogProgress) -> None:
        """Set the log, after it is recovered."""
        self._log = log

    def check_send(self) -> None:
        """Raise Busy if no further message may be stored now."""
        if self._stalled_ms or self.in_work[_SEND] >= self._limits[_SEND]:
            self.check(_SEND)
        log = self._log
        assert log is not None, "the log is not open"
        if log.next_position - log.durable > self._unsynced_bytes_max:
            raise Busy("[REJECTREQUEST]system busy, start flow control for a while")

    def check(self, kind: Kind) -> None:
        """Raise Busy if no further request of this kind may begin now."""
        if self._stalled_ms and kind is not Kind.QUERY:
            raise waited_too_long(self._stalled_ms, self.in_work[kind])
        if self.in_work[kind] >= self._limits[kind]:
            raise Busy(_OVERLOAD)

    def begin(self, kind: Kind) -> None:
        """Count a request that begins to wait. Raises Busy."""
        if self.in_work[kind] >= self._limits[kind]:
            raise Busy(_OVERLOAD)
        self.in_work[kind] += 1

    def begin_read(self, kind: Kind) -> None:
        """Count a request that begins to wait for a reader thread. Raises Busy."""
        if self.reading[kind] >= self._reads_max[kind]:
            raise Busy(_OVERLOAD)
        self.reading[kind] += 1
        self.in_work[kind] += 1

    def end_read(self, kind: Kind) -> None:
        """Count a request whose reader thread has finished."""
        self.reading[kind] -= 1
        self.in_work[kind] -= 1

    # -- Time

    def next_deadline_mono_ms(self) -> int | None:
        """Return when to check again: at once when answers begin to wait, then every CHECK_MS until none wait."""
        return AT_ONCE_MS if self._check_mono_ms is None and self.waiting else self._check_mono_ms

    def check_progress(self, mono_ms: int) -> None:
        """Check whether the log made progress since the last check."""
        assert self._log is not None, "the log is not open"
        durable = self._log.durable
        if not self.waiting:
            self._check_mono_ms, self._stalled_ms = None, 0
            return
        if durable != self._durable or self._check_mono_ms is None:
            self._durable, self._moved_mono_ms = durable, mono_ms
        stalled_ms = mono_ms - self._moved_mono_ms
        self._stalled_ms = stalled_ms if stalled_ms >= self._busy_ms else 0
        self._check_mono_ms = mono_ms + CHECK_MS
