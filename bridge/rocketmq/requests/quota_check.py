"""Quotas of RocketMQ clients: a send or a pull above them is refused with SYSTEM_BUSY, which clients try again.

Java's client does so at once, and a refusal costs the loop half as much as a send. So the connection is not read for a
moment after refusals: until the client is within its quota again, but PAUSE_MS_MIN at least, so that few of its
requests are refused, and PAUSE_MS_MAX at most, because its heartbeats and acknowledgements wait as well. Requests that
came with a refused one are handled before the pause, so what a client has sent at a time costs it one pause.

A RocketMQ request names no client id, so only the quotas of users hold, and those of any client id for the empty one.
What is pulled is counted when it is sent, so a pull is refused because of the pulls before it. Pending delayed messages
are counted where they are appended (`bridge/data/publishing/pending_quota.py`).
"""

from functools import partial
from typing import Any, Final

from duolog.bridge.rocketmq.requests.admission import Busy, Kind
from duolog.bridge.security.quotas.entity import ANONYMOUS, CONNECTION_RATE, FETCHED, PRODUCED, QuotaClient
from duolog.bridge.security.quotas.quotas import Meter, Quotas
from duolog.protocol.rocketmq.remoting import RemotingCommand

PAUSE_MS_MIN: Final = 2
PAUSE_MS_MAX: Final = 100
_NO_CLIENT_ID: Final = ""
_KEYS: Final = {Kind.SEND: PRODUCED, Kind.PULL: FETCHED}


def check_quotas(quotas: Quotas, connection: Any, command: RemotingCommand, kind: Kind) -> None:
    """Count what a request sends. Raises Busy if its client is above a quota."""
    mono_ms = command.received_mono_ms
    user = ANONYMOUS if connection.session is None else connection.session.name
    if connection.meter is None:
        _admit(quotas, connection, user, mono_ms)
    meter = connection.meter = quotas.meter(connection.meter, user, _NO_CLIENT_ID, mono_ms)
    key = _KEYS.get(kind)
    rate = None if key is None else meter.rate(key)
    if key is not None and rate is not None:
        if wait_ms := rate.wait_ms(mono_ms):
            quotas.throttled["rocketmq", key] += 1
            connection.pause_until_mono_ms = mono_ms + max(PAUSE_MS_MIN, min(wait_ms, PAUSE_MS_MAX))
            raise Busy(f"[OVERLOAD]system busy, start flow control for a while, quota {key} of {user}")
        if kind is Kind.SEND:
            rate.use(len(command.body), mono_ms)


def quota_client(connection: Any) -> QuotaClient | None:
    """Return whose quota the delayed messages of a request count in; None: no quota is set."""
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
