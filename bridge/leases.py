"""Leases of whoever reads the log's files beside the broker: what they name is not removed while they last.

A lease holds the log from a position on; what retention makes dead there stays on disk. It ends by itself `lease_ms`
after it was last renewed, for its holder may die; and with the broker, for a lease is not in the log: a reader then
finds its file gone, and says so. Log starts move as ever, so retention is late in disk space only.
"""

from typing import Final, NamedTuple, Protocol

from bridge.topics import Topic, Topics
from store.format import POSITION_MAX
from store.segment import Segment
from txn.isolation import Isolation

LEASES_MAX: Final = 256
LEASE_MS: Final = 10 * 60_000
LEASE_MS_MAX: Final = 24 * 3_600_000


class TooManyLeases(Exception):
    """The table is full; the text says how long to wait."""


class HeldLog(Protocol):
    """What a lease asks of the store."""

    held_from: int


class _Lease(NamedTuple):
    held_from: int
    lease_ms: int
    until_mono_ms: int


class Leases:
    """The leases of one broker, by number."""

    def __init__(self, log: HeldLog) -> None:
        self._log = log
        self._leases: dict[int, _Lease] = {}
        self._next_number = 1

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, held_from: int, lease_ms: int, mono_ms: int) -> int:
        """Hold the log from a position on; returns the lease's number. Raises TooManyLeases."""
        if len(self._leases) >= LEASES_MAX:
            raise TooManyLeases(f"there are {LEASES_MAX} leases; the next ends within {self._next_end_ms(mono_ms)} ms")
        number = self._next_number
        self._next_number += 1
        self._leases[number] = _Lease(held_from, lease_ms, mono_ms + lease_ms)
        self._hold()
        return number

    def renew(self, number: int, mono_ms: int) -> bool:
        """Let it begin anew; false if it has ended."""
        lease = self._leases.get(number)
        if lease is None:
            return False
        self._leases[number] = lease._replace(until_mono_ms=mono_ms + lease.lease_ms)
        return True

    def release(self, number: int) -> bool:
        """End it; false if it has ended already."""
        ended = self._leases.pop(number, None)
        self._hold()
        return ended is not None

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Monotonic."""
        if not self._leases:
            return None
        return min(lease.until_mono_ms for lease in self._leases.values())

    def expire(self, mono_ms: int) -> None:
        for number in [number for number, lease in self._leases.items() if lease.until_mono_ms <= mono_ms]:
            del self._leases[number]
        self._hold()

    def _next_end_ms(self, mono_ms: int) -> int:
        return min(lease.until_mono_ms for lease in self._leases.values()) - mono_ms

    def _hold(self) -> None:
        self._log.held_from = min((lease.held_from for lease in self._leases.values()), default=POSITION_MAX)


# -- What is to be read


class Scan(NamedTuple):
    """Where the records of some topics lie: the answer to who wants to read them from the files."""

    held_from: int
    segments: list[dict[str, object]]
    queues: list[dict[str, object]]


def plan(topics: list[Topic], segments: list[Segment], written: int, isolation: Isolation) -> Scan:
    """Say which segments hold what is visible now of these topics, and which of it was aborted."""
    queues = [(topic, queue) for topic in topics for queue in topic.queues if queue.start_offset < queue.visible_end]
    starts = {queue.key: queue.start_offset for _, queue in queues}
    wanted = [segment for segment in segments if not segment.is_gap and _holds(segment, starts)]
    return Scan(
        wanted[0].start if wanted else written,
        [{"start": each.start, "end": min(each.known_end, written), "path": each.path} for each in wanted],
        [
            {
                "topic": topic.kafka_name,
                "queue": queue.queue_id,
                "key": queue.key,
                "start": queue.start_offset,
                "end": isolation.stable_end(queue),
                "log_append_time": topic.settings.log_append_time,
                "aborted": _aborted(isolation, queue.key),
            }
            for topic, queue in queues
        ],
    )


def _holds(segment: Segment, starts: dict[int, int]) -> bool:
    """Tell whether a record of one of the queues lies in the segment."""
    last_offsets = segment.last_offsets
    return any(last_offsets.get(key, -1) >= start for key, start in starts.items())


def _aborted(isolation: Isolation, key: int) -> list[tuple[int, int, int]]:
    """(producer id, first offset, offset of the marker) of each aborted transaction."""
    found = isolation.get(key)
    return (
        [] if found is None else [(each.producer_id, each.first_offset, each.marker_offset) for each in found.aborted]
    )


def named(topics: Topics, names: list[str]) -> list[Topic]:
    """Find topics by their names, in either spelling. Raises KeyError with the name that is none."""
    found = []
    for name in names:
        topic = topics.get(name)
        if topic is None:
            raise KeyError(name)
        found.append(topic)
    return found
