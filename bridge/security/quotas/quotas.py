"""The rates and connections of clients with quotas, and how long a client above its quota must wait.

Each unit, a byte for example, takes 1/rate of a second, and up to WINDOW_MS of unused time count in advance. So a
client gets its rate on average, whatever the size of its requests, and after a pause as much as in WINDOW_MS at once.
Times are monotonic milliseconds, which callers pass.

    use of the quota     effect
    below it             none
    above it, Kafka      the answer contains the time to wait, and the connection is not read until then (KIP-219)
    above it, RocketMQ   a send waits, or is refused with SYSTEM_BUSY, as a pull is; the connection is not read for some
                         time (`bridge/rocketmq/requests/quota_check.py`)
    above it, HTTP       the request is answered with status 429 and Retry-After
                         (`bridge/http/access/quota_check.py`)

`bridge/data/publishing/pending_quota.py` enforces the quotas of pending delayed messages. While no quota is set,
`has_any` is False, and callers need to ask for nothing else.
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
THROTTLE_MS_MAX: Final = 30_000  # The longest time to wait that a client gets. What it used beyond that still counts.
REFUSAL_MS: Final = 20  # The time between two refusals of the clients that share a rate, over all their connections.
PAUSE_MS_MAX: Final = 500  # The longest time for which a connection is not read after a refusal.
_Key = tuple[str, str | None, str | None]  # The key of a quota, and the user and the client id that share it.


class Rate:
    """The rate that some clients share, and how much of it they have used."""

    __slots__ = ("_ms_per_unit", "_refusals_until_mono_ms", "_until_mono_ms")

    def __init__(self, per_second: float, mono_ms: int) -> None:
        self._ms_per_unit = 1000 / per_second
        self._until_mono_ms = float(mono_ms - WINDOW_MS)  # The time at which all used units have taken their time.
        self._refusals_until_mono_ms = mono_ms  # The time at which all refusals have taken REFUSAL_MS each.

    def use(self, units: float, mono_ms: int) -> None:
        """Count the units of a request."""
        self._until_mono_ms = max(self._until_mono_ms, mono_ms - WINDOW_MS) + units * self._ms_per_unit

    def wait_ms(self, mono_ms: int) -> int:
        """Return how long the clients must wait; 0 if they have not exceeded the rate."""
        return max(0, min(THROTTLE_MS_MAX, math.ceil(self._until_mono_ms - mono_ms)))

    def refused(self, mono_ms: int) -> int:
        """Count a refusal, and return the time until which its connection is not read.

        A refusal takes time of the event loop, and clients repeat a refused request at once. The refusals of all
        connections follow each other at intervals of REFUSAL_MS, so opening more connections gives a client no more
        refusals in a second, unless each connection has waited for PAUSE_MS_MAX.
        """
        until_mono_ms = max(self._refusals_until_mono_ms, mono_ms) + REFUSAL_MS
        self._refusals_until_mono_ms = min(until_mono_ms, mono_ms + PAUSE_MS_MAX)
        return self._refusals_until_mono_ms

    def is_unused(self, mono_ms: int) -> bool:
        """Whether nothing that was used still counts, so that the object can be removed."""
        return self._until_mono_ms <= mono_ms - WINDOW_MS and self._refusals_until_mono_ms <= mono_ms


class Meter(NamedTuple):
    """The rates of one client, valid for one generation; a rate is None if the client has no such quota."""

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
    """The decision about a new connection: it waits for `wait_ms`, or is refused if `refusal` is not empty."""

    wait_ms: int = 0
    refusal: str = ""
    key: _Key | None = None  # The argument of `closed`; None if the number of connections is not limited.


class Quotas:
    """The quotas in force. `generation` increases with each change, which makes all meters invalid."""

    def __init__(self, state_log: StateLog, options: SecurityOptions) -> None:
        self.stored = StoredQuotas(state_log, options)
        self.stored.on_changed = self._changed
        self._clients_max = options.quota_clients_max
        self.has_any = False
        self.generation = 0
        self.throttled = defaultdict[tuple[str, str], int](int)  # A metric: throttled requests by (protocol, key).
        self._rates: dict[_Key, Rate] = {}
        self._pruned_mono_ms = -WINDOW_MS  # The time at which unused rates were last removed.
        self._connections: dict[_Key, int] = {}  # The numbers of open connections of clients that have a limit.

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
