"""Leases of programs that read the log's files directly, such as Spark jobs: leased segments are not removed.

A lease holds the log from a position on. Segments from there on stay on disk even if retention has removed all their
records. Log start offsets still advance, so a lease delays only the release of disk space. A lease ends

    if it is not renewed     `lease_ms` after the last renewal, because its holder may have died
    in any case              `leases.hold_ms_max` after it was granted
    if it holds too much     when leases hold more than `leases.held_bytes_max`; the lease of the lowest position first
    with the broker          because leases are not in the log; a reader then reports that a file is missing

The id of a lease is random. To renew or end it, a client needs the right to read its topics (`http/api/leases.py`).
"""

import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from duolog.bridge.config import LeasesOptions
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.store.log.format import POSITION_MAX
from duolog.store.log.segment import Segment

LEASE_MS: Final = 10 * 60_000
ID_BYTES: Final = 18  # The number of random bytes in a lease's id.
CHECK_MS: Final = 10_000  # Between two checks of how many bytes leases hold.

log = logging.getLogger("state")


class TooManyLeases(Exception):
    """`leases.count_max` or `leases.per_address_max` is reached; the message says how long to wait."""


class HeldLog(Protocol):
    """What leases use of the store."""

    held_from: int

    @property
    def held_bytes(self) -> int: ...


@dataclass(slots=True)
class ReaderLease:
    """The lease of one reader."""

    id: str
    topics: Sequence[Topic]  # The topics that the holder reads.
    address: str  # The address of the client that took the lease.
    held_from: int
    lease_ms: int
    until_mono_ms: int  # Invariant: <= ends_mono_ms.
    ends_mono_ms: int  # The lease ends at this time even if it is renewed.

    def renew(self, mono_ms: int) -> None:
        """Extend the lease by its length, at most to `ends_mono_ms`."""
        self.until_mono_ms = min(mono_ms + self.lease_ms, self.ends_mono_ms)


class ReaderLeases:
    """The leases of one broker, by id."""

    def __init__(self, held_log: HeldLog, options: LeasesOptions) -> None:
        self._log, self._options = held_log, options
        self._leases: dict[str, ReaderLease] = {}
        self._by_address: Counter[str] = Counter()
        self._check_mono_ms = 0

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, lease_id: str) -> ReaderLease | None:
        """Return the lease with this id, or None if there is none or it has ended."""
        return self._leases.get(lease_id)

    def take(self, topics: Sequence[Topic], address: str, lease_ms: int, mono_ms: int) -> ReaderLease:
        """Grant a lease on the whole log; `narrow` then limits it to what is read. Raises TooManyLeases."""
        self._check_room(address, mono_ms)
        ends_mono_ms = mono_ms + self._options.hold_ms_max
        lease = ReaderLease(secrets.token_urlsafe(ID_BYTES), topics, address, 0, lease_ms, 0, ends_mono_ms)
        lease.renew(mono_ms)
        self._leases[lease.id] = lease
        self._by_address[address] += 1
        self._hold()
        return lease

    def narrow(self, lease: ReaderLease, held_from: int) -> None:
        """Limit a lease to the log from this position on."""
        lease.held_from = held_from
        self._hold()

    def release(self, lease: ReaderLease) -> None:
        """End a lease; does nothing if it has ended."""
        if self._leases.pop(lease.id, None) is None:
            return
        self._by_address[lease.address] -= 1
        if not self._by_address[lease.address]:
            del self._by_address[lease.address]
        self._hold()

    def _check_room(self, address: str, mono_ms: int) -> None:
        options = self._options
        if len(self._leases) >= options.count_max:
            what = f"there are {len(self._leases)} leases, leases.count_max={options.count_max}"
        elif self._by_address[address] >= options.per_address_max:
            what = f"{address} has {self._by_address[address]} leases, leases.per_address_max={options.per_address_max}"
        else:
            return
        raise TooManyLeases(f"{what}; the next ends within {self._next_end_mono_ms() - mono_ms} ms")

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Return the monotonic time at which a lease may end or the held bytes are checked; None without leases."""
        return min(self._next_end_mono_ms(), self._check_mono_ms) if self._leases else None

    def expire(self, mono_ms: int) -> None:
        """End the leases whose time is over, and leases that hold too many bytes."""
        for lease in [each for each in self._leases.values() if each.until_mono_ms <= mono_ms]:
            self.release(lease)
        if mono_ms >= self._check_mono_ms:
            self._check_mono_ms = mono_ms + CHECK_MS
            self._check_held_bytes()

    def _check_held_bytes(self) -> None:
        bytes_max = self._options.held_bytes_max
        while self._leases and (held_bytes := self._log.held_bytes) > bytes_max:
            lease = min(self._leases.values(), key=lambda each: each.held_from)
            log.warning(
                "lease ended early peer=%s held_bytes=%d leases.held_bytes_max=%d", lease.address, held_bytes, bytes_max
            )
            self.release(lease)

    def _next_end_mono_ms(self) -> int:
        return min(lease.until_mono_ms for lease in self._leases.values())

    def _hold(self) -> None:
        self._log.held_from = min((lease.held_from for lease in self._leases.values()), default=POSITION_MAX)


# -- Which segments a reader needs


def find_topics(topics: Topics, names: Sequence[str]) -> list[Topic]:
    """Find topics by their names in either client protocol, each once; raises KeyError with a name that is unknown."""
    found: dict[int, Topic] = {}
    for name in dict.fromkeys(names):
        topic = topics.get(name)
        if topic is None:
            raise KeyError(name)
        found[topic.number] = topic
    return [*found.values()]


def segments_from(segments: Sequence[Segment], starts: dict[int, int]) -> Iterator[Segment | None]:
    """Yield each segment that has records of these queues from these offsets on, and None for every other segment.

    `starts` maps queue keys to offsets.
    """
    for segment in segments:
        yield segment if not segment.is_gap and _holds(segment, starts) else None


def _holds(segment: Segment, starts: dict[int, int]) -> bool:
    """Return whether the segment has a record of one of the queues from its start offset on."""
    last_offsets = segment.last_offsets
    if len(last_offsets) < len(starts):
        return any(last >= starts.get(key, last + 1) for key, last in list(last_offsets.items()))
    return any(last_offsets.get(key, -1) >= start for key, start in starts.items())
