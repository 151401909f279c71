"""Quotas of RocketMQ clients: sends above a quota are delayed, or refused with SYSTEM_BUSY.

    a send exceeds its quota by   result
    less than DELAY_MS_MIN        it is handled at once, so that sends of one read are handled together
    up to DELAY_MS_MAX            it is counted at once, and handled after that time
    more than DELAY_MS_MAX        it is refused

A pull above a quota is always refused, because the size of its answer is not known yet. A client above its request time
is not read from either, for at most DELAY_MS_MAX after each read; beyond that, its sends and pulls are refused, too.
Time is counted when a request was handled: the time of its first step, as for Kafka.

Java's client repeats a refused send at once and creates an exception each time, which costs both sides more than a
send. While sends are delayed, the connection is not read, so a client whose threads wait for answers slows down without
a refusal. Each send is counted and has its own time. DELAY_MS_MAX is the limit for all sends of one read; with the time
before the read, a send is delayed for at most twice as long. The limit is this low because clients abandon a send after
3 seconds (`sendMsgTimeout`), and would repeat it although it is stored later.

After a refusal the connection is not read until the client is below its quota, for at most PAUSE_MS, and until the time
of its refusals is over (`Rate.refused`). Requests of the same read as a refused or delayed one are handled before the
pause, so heartbeats and acknowledgements are delayed for at most DELAY_MS_MAX.

A RocketMQ request contains no client id, so only quotas of users apply, and quotas for any client id with an empty one.
Pulled messages are counted when they are sent, so a pull is refused because of earlier pulls. Pending delayed messages
are counted when they are appended (`bridge/data/publishing/pending_quota.py`); after a refusal of them, the connection
is not read until the time of its refusals is over.
"""

from functools import partial
from typing import Any, Final

from duolog.bridge.net.connection import Connection
from duolog.bridge.rocketmq.requests.admission import Busy, Kind
from duolog.bridge.security.quotas.entity import (
    ANONYMOUS,
    CONNECTION_RATE,
    DELAYED,
    FETCHED,
    PRODUCED,
    REQUEST_TIME,
    QuotaClient,
)
from duolog.bridge.security.quotas.quotas import Meter, Quotas
from duolog.protocol.rocketmq.remoting import RemotingCommand

DELAY_MS_MIN: Final = 2
DELAY_MS_MAX: Final = 1000
PAUSE_MS: Final = 100
_NO_CLIENT_ID: Final = ""
_KEYS: Final = {Kind.SEND: PRODUCED, Kind.PULL: FETCHED}


class Delayed(Exception):
    """A request must wait, because its client is ahead of its quota. It was counted, so it is not checked again."""

    def __init__(self, until_mono_ms: int) -> None:
        super().__init__()
        self.until_mono_ms = until_mono_ms


class ReadPause:
    """The end of a pause in which a connection is not read because of a quota; it begins after the present read."""

    __slots__ = ("until_mono_ms",)

    def __init__(self) -> None:
        self.until_mono_ms = 0  # 0: the connection is read.

    def extend(self, until_mono_ms: int) -> None:
        """Extend the pause to this time if it would end earlier."""
        self.until_mono_ms = max(self.until_mono_ms, until_mono_ms)

    def begin(self, connection: Connection) -> None:
        """Stop reading until the end of the pause."""
        connection.mute(self.until_mono_ms)
        self.until_mono_ms = 0


def check_quotas(quotas: Quotas, connection: Any, command: RemotingCommand, kind: Kind) -> None:
    """Count the messages of a request. Raises Delayed or Busy if its client is above a quota."""
    mono_ms = command.received_mono_ms
    user = ANONYMOUS if connection.session is None else connection.session.name
    if connection.meter is None:
        _admit(quotas, connection, user, mono_ms)
    meter = connection.meter = quotas.meter(connection.meter, user, _NO_CLIENT_ID, mono_ms)
    key = _KEYS.get(kind)
    if key is None:
        return
    if meter.request_time is not None:
        _refuse_above(quotas, connection, REQUEST_TIME, meter, DELAY_MS_MAX, mono_ms)
    rate = meter.rate(key)
    if rate is None:
        return
    wait_ms = _refuse_above(quotas, connection, key, meter, DELAY_MS_MAX if kind is Kind.SEND else 0, mono_ms)
    if kind is Kind.SEND:
        rate.use(len(command.body), mono_ms)
        if wait_ms >= DELAY_MS_MIN:
            quotas.throttled["rocketmq", key] += 1
            raise Delayed(mono_ms + wait_ms)


def _refuse_above(quotas: Quotas, connection: Any, key: str, meter: Meter, limit_ms: int, mono_ms: int) -> int:
    """Return how far the client is ahead of a quota. Raises Busy if that is more than the limit."""
    rate = meter.rate(key)
    wait_ms = 0 if rate is None else rate.wait_ms(mono_ms)
    if rate is not None and wait_ms > limit_ms:
        quotas.throttled["rocketmq", key] += 1
        connection.pause.extend(max(mono_ms + min(wait_ms, PAUSE_MS), rate.refused(mono_ms)))
        raise Busy(f"[OVERLOAD]system busy, start flow control for a while, quota {key} of {meter.user}")
    return wait_ms


def count_time(quotas: Quotas, connection: Any, used_ms: float, mono_ms: int) -> None:
    """Count the time that a request has taken of the loop, and pause the connection while its client is above it."""
    rate = None if connection.meter is None else connection.meter.request_time
    if rate is None:
        return
    rate.use(used_ms, mono_ms)
    wait_ms = rate.wait_ms(mono_ms)
    if wait_ms >= DELAY_MS_MIN:
        quotas.throttled["rocketmq", REQUEST_TIME] += 1
        connection.pause.extend(mono_ms + min(wait_ms, DELAY_MS_MAX))


def pause_refused(quotas: Quotas, connection: Any, mono_ms: int) -> None:
    """Pause a connection whose delayed messages were refused, because too many are pending."""
    client = quota_client(connection)
    if client is not None:
        connection.pause.extend(quotas.refused(DELAYED, client.user, _NO_CLIENT_ID, mono_ms))


def quota_client(connection: Any) -> QuotaClient | None:
    """Return the client in whose quota the delayed messages of a request count; None if no quota is set."""
    quotas: Quotas = connection.context.quotas
    return quotas.client(connection.wire, connection.session)


def count_pulled(meter: Meter, size: int, mono_ms: int) -> None:
    """Count an answer with messages."""
    if meter.fetched is not None:
        meter.fetched.use(size, mono_ms)


def _admit(quotas: Quotas, connection: Any, user: str, mono_ms: int) -> None:
    admitted = quotas.admit(user, _NO_CLIENT_ID, mono_ms)
    if admitted.refusal:
        connection.close(admitted.refusal)
        raise Busy(admitted.refusal)
    if admitted.key is not None:
        connection.on_close.append(partial(quotas.closed, admitted.key))
    if admitted.wait_ms:
        quotas.throttled["rocketmq", CONNECTION_RATE] += 1
        connection.mute(mono_ms + admitted.wait_ms)
