"""What each client has used of its quotas, and how long it must wait.

A rate is measured over a sliding window: each unit takes 1/rate of a second, and up to WINDOW_MS of time that was not
used counts in advance. So a client gets its rate on average, whatever the size of its requests, and a burst of one
window's worth after a pause. Times are monotonic milliseconds, which callers pass.

    under the quota      nothing happens
    above it, Kafka      the answer has the time to wait, and the connection is not read from until then (KIP-219)
    above it, RocketMQ   a send waits for a moment, or is refused with SYSTEM_BUSY as a pull is, and the connection is
                         not read for a while (`bridge/rocketmq/requests/quota_check.py`)
    above it, HTTP       the request has status 429, with Retry-After (`bridge/http/access/quota_check.py`)
    delayed messages     `bridge/data/publishing/pending_quota.py` counts them, and refuses those above the quota
    no quota is set      `has_any` is False, and nothing else is asked
"""

import math
from collections import defaultdict
from typing import Final, NamedTuple

from duolog.bridge.config import SecurityOptions
from duolog.bridge.security.quotas.entity import (
    ANONYMOUS,
    CONNECTION_RATE,
    CONNECTIONS,
    DELAYED,
    FETCHED,
    KEYS,
    PRODUCED,
    REQUEST_TIME,
    Entity,
    QuotaClient,
    candidates,
)
from duolog.bridge.security.quotas.stored_quotas import StoredQuotas
from duolog.bridge.security.session import Session
from duolog.store.state_log import StateLog

WINDOW_MS: Final = 1000
THROTTLE_MS_MAX: Final = 30_000  # A connection is not kept from being read for longer; its debt stays.
REFUSAL_MS: Final = 20  # The clients that share a rate have 50 refusals in a second, over all their connections.
PAUSE_MS_MAX: Final = 500  # A connection is not read for so long after a refusal, however many there were before.
_Key = tuple[str, str | None, str | None]  # The key of a quota, and the user and the client id that share it.


class Rate:
    """One rate of the clients that share it."""

    __slots__ = ("_ms_per_unit", "_refusals_until_mono_ms", "_until_mono_ms")

    def __init__(self, per_second: float, mono_ms: int) -> None:
        self._ms_per_unit = 1000 / per_second
        self._until_mono_ms = float(mono_ms - WINDOW_MS)  # What was used is paid for at this time.
        self._refusals_until_mono_ms = mono_ms  # Each refusal takes REFUSAL_MS; those until now end at this time.

    def use(self, units: float, mono_ms: int) -> None:
        """Count what a request has used."""
        self._until_mono_ms = max(self._until_mono_ms, mono_ms - WINDOW_MS) + units * self._ms_per_unit

    def wait_ms(self, mono_ms: int) -> int:
        """Return how long the clients must wait; 0: they are within the rate."""
        return max(0, min(THROTTLE_MS_MAX, math.ceil(self._until_mono_ms - mono_ms)))

    def refused(self, mono_ms: int) -> int:
        """Count a refusal, and return until when its connection is not read.

        A refusal takes time of the loop, and clients send again at once. As the refusals of all connections come one
        after another, more connections do not get more of them, unless each has waited for PAUSE_MS_MAX.
        """
        until_mono_ms = max(self._refusals_until_mono_ms, mono_ms) + REFUSAL_MS
        self._refusals_until_mono_ms = min(until_mono_ms, mono_ms + PAUSE_MS_MAX)
        return self._refusals_until_mono_ms

    def is_unused(self, mono_ms: int) -> bool:
        """Whether a new object would say the same."""
        return self._until_mono_ms <= mono_ms - WINDOW_MS and self._refusals_until_mono_ms <= mono_ms


class Meter(NamedTuple):
    """The quotas of one client, as of a generation; None: there is none."""

    generation: int
    user: str
    client_id: str
    produced: Rate | None
    fetched: Rate | None
    request_time: Rate | None

    def rate(self, key: str) -> Rate | None:
        """Return the rate of a key."""
        return self.produced if key == PRODUCED else self.fetched if key == FETCHED else self.request_time

    def wait_ms(self, mono_ms: int) -> int:
        """Return how long the client must wait for any of its quotas."""
        rates = (self.produced, self.fetched, self.request_time)
        return max((rate.wait_ms(mono_ms) for rate in rates if rate is not None), default=0)


class Admitted(NamedTuple):
    """What becomes of a new connection."""

    wait_ms: int = 0
    refusal: str = ""
    key: _Key | None = None  # To be given to `closed`; None: there is no limit of connections.


class Quotas:
    """The quotas in force. `generation` increases with each change, after which meters are asked for anew."""

    def __init__(self, state_log: StateLog, options: SecurityOptions) -> None:
        self.stored = StoredQuotas(state_log, options)
        self.stored.on_changed = self._changed
        self._clients_max = options.quota_clients_max
        self.has_any = False
        self.generation = 0
        self.throttled = defaultdict[tuple[str, str], int](int)  # By (protocol, key); a metric.
        self._rates: dict[_Key, Rate] = {}
        self._pruned_mono_ms = -WINDOW_MS  # When those that are unused were removed last.
        self._connections: dict[_Key, int] = {}  # Open connections, only of those that have a limit.

    def _changed(self) -> None:
        self.generation += 1
        self.has_any = len(self.stored) > 0
        self._rates.clear()

    def meter(self, known: Meter | None, user: str, client_id: str, mono_ms: int) -> Meter:
        """Return the meter of a client; `known` is the one that its connection has had."""
        if known is not None and known[:3] == (self.generation, user, client_id):
            return known
        produced, fetched, request_time = (
            self._rate(key, user, client_id, mono_ms) for key in (PRODUCED, FETCHED, REQUEST_TIME)
        )
        return Meter(self.generation, user, client_id, produced, fetched, request_time)

    def admit(self, user: str, client_id: str, mono_ms: int) -> Admitted:
        """Count a new connection of a client, unless it is above the limit."""
        rate, wait_ms = self._rate(CONNECTION_RATE, user, client_id, mono_ms), 0
        if rate is not None:
            rate.use(1, mono_ms)
            wait_ms = rate.wait_ms(mono_ms)
        key, limit = self._find(CONNECTIONS, user, client_id)
        if key is None:
            return Admitted(wait_ms)
        count = self._connections.get(key, 0)
        if count >= limit:
            return Admitted(0, f"{count} connections are open, and the quota {CONNECTIONS} is {limit:g}")
        self._connections[key] = count + 1
        return Admitted(wait_ms, "", key)

    def closed(self, key: _Key) -> None:
        """Take a connection that was admitted out of the count."""
        self._connections[key] -= 1
        if not self._connections[key]:
            del self._connections[key]

    # -- Delayed messages

    def client(self, wire: str, session: Session | None, client_id: str = "") -> QuotaClient | None:
        """Return who has sent a request; None: no quota is set."""
        return QuotaClient(wire, ANONYMOUS if session is None else session.name, client_id) if self.has_any else None

    def delayed_max(self, client: QuotaClient) -> tuple[str | None, str | None, float] | None:
        """Return the user and the client id that share the client's quota of pending messages, and the quota."""
        key, limit = self._find(DELAYED, client.user, client.client_id)
        return None if key is None else (key[1], key[2], limit)

    def refused(self, key: str, user: str, client_id: str, mono_ms: int) -> int:
        """Count a refusal because of a quota that is no rate, and return what `Rate.refused` does."""
        rate = self._rate(key, user, client_id, mono_ms)
        return mono_ms if rate is None else rate.refused(mono_ms)

    # -- Finding what holds

    def _find(self, key: str, user: str, client_id: str) -> tuple[_Key | None, float]:
        """Return whom the client shares its quota of this key with, and the quota."""
        for entity in candidates(user, client_id):
            limits = self.stored.get(entity)
            if limits is not None and key in limits:
                return _shared_by(key, entity, user, client_id), limits[key]
        return None, 0.0

    def _rate(self, key: str, user: str, client_id: str, mono_ms: int) -> Rate | None:
        shared, limit = self._find(key, user, client_id)
        if shared is None:
            return None
        rate = self._rates.get(shared)
        if rate is None:
            rate = Rate(limit * 10 if key == REQUEST_TIME else limit, mono_ms)  # 1 % of a second is 10 ms.
            if self._has_room(mono_ms):
                self._rates[shared] = rate  # Otherwise, the connection has a rate of its own.
        return rate

    def _has_room(self, mono_ms: int) -> bool:
        if len(self._rates) >= self._clients_max and mono_ms - self._pruned_mono_ms >= WINDOW_MS:
            self._pruned_mono_ms = mono_ms  # Not for each further client: it takes milliseconds.
            self._rates = {key: rate for key, rate in self._rates.items() if not rate.is_unused(mono_ms)}
        return len(self._rates) < self._clients_max


def _shared_by(key: str, entity: Entity, user: str, client_id: str) -> _Key:
    assert key in KEYS
    return key, None if entity.user is None else user, None if entity.client_id is None else client_id
