"""Idempotency keys of POST /api/timers: the answer to each request that had an `Idempotency-Key`.

    key unknown              the timer and TimerRequested are appended in one unit, so both are stored or neither
    key known, same body     the first answer is repeated; nothing is appended
    key known, other body    IdempotencyKeyReused

A client that got no answer, for example because the broker was killed, sends the request again and has one timer. A key
is remembered for `http.request_key_ms`, also if the timer is delivered or cancelled before. A full table refuses new
keys: if a key were forgotten early, a repeated request could make a second timer.
"""

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

from duolog.bridge.config import HttpOptions
from duolog.bridge.records.timers import TimerRequested, TimerRequestsKnown
from duolog.store.entry import EntrySlot
from duolog.store.errors import StoreError
from duolog.store.state_log import StateLog

KEY_CHARACTERS_MAX: Final = 255
ROWS_IN_RECORD: Final = 1000
_HASH_BYTES: Final = 16


class IdempotencyKeyReused(Exception):
    """The Idempotency-Key was used before for a request with another body."""


class TooManyIdempotencyKeys(StoreError):
    """`http.request_keys_max` is reached; the client may try again later, or send no key."""


class IdempotencyKey(NamedTuple):
    """The hashes that identify a request."""

    request: bytes  # BLAKE2 of the key.
    body: bytes  # BLAKE2 of the body.

    @classmethod
    def of(cls, key: str, body: bytes) -> "IdempotencyKey":
        """Return the hashes of a key and a body."""
        return cls(_hash(key.encode("utf-8", "surrogateescape")), _hash(body))


class Answered(NamedTuple):
    """The answer to a request: the id of the timer and the key of its queue."""

    body: bytes
    due_ms: int
    address: int
    key: int
    at_ms: int


class IdempotencyKeys:
    """The table of remembered keys, in the order of their requests."""

    def __init__(self, state_log: StateLog, options: HttpOptions) -> None:
        self._count_max, self._life_ms = options.request_keys_max, options.request_key_ms
        self._answered: OrderedDict[bytes, Answered] = OrderedDict()
        state_log.own(TimerRequested, self._replay)
        state_log.own(TimerRequestsKnown, self._replay_known)
        state_log.on_sliced_snapshot(self._snapshot)

    def __len__(self) -> int:
        return len(self._answered)

    def find(self, key: IdempotencyKey, now_ms: int) -> Answered | None:
        """Return the answer to an earlier request with this key, or None if there was none.

        Raises IdempotencyKeyReused and TooManyIdempotencyKeys.
        """
        self._forget(now_ms)
        found = self._answered.get(key.request)
        if found is None:
            if len(self._answered) >= self._count_max:
                raise TooManyIdempotencyKeys(
                    f"{len(self._answered)} keys of requests are remembered, http.request_keys_max={self._count_max}, "
                    f"each for http.request_key_ms={self._life_ms}; send it later, or without Idempotency-Key"
                )
            return None
        if found.body != key.body:
            raise IdempotencyKeyReused("Idempotency-Key: it was sent before with another body")
        return found

    def _forget(self, now_ms: int) -> None:
        while self._answered and now_ms - next(iter(self._answered.values())).at_ms >= self._life_ms:
            self._answered.popitem(last=False)

    # -- Replay

    def _replay(self, record: TimerRequested, slot: EntrySlot) -> None:
        self._answered[record.request] = Answered(
            record.body, record.due_ms, slot.position - record.behind, record.key, record.at_ms
        )

    def _replay_known(self, record: TimerRequestsKnown, slot: EntrySlot) -> None:
        for row in record.rows:
            self._answered.setdefault(row[0], Answered(*row[1:]))

    def _snapshot(self) -> Iterable[TimerRequestsKnown]:
        table = zip([*self._answered], [*self._answered.values()], strict=True)
        rows = ((request, *answered) for request, answered in table)
        return map(TimerRequestsKnown, iter(lambda: [*islice(rows, ROWS_IN_RECORD)], []))


def _hash(text: bytes) -> bytes:
    return blake2b(text, digest_size=_HASH_BYTES).digest()
