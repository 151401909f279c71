"""The class DeadSegments: finds the segments that can be removed.

An entry is *live* if its queue exists and has its log start at or below the last offset of the entry. A sealed segment
is *dead* if no entry in it is live; it never becomes live again. A dead segment is removed once a checkpoint at a
higher position is in place (`store/recovery/checkpointer.py`), but not while a lease holds it: `held_from` is the
lowest position that a lease of a file reader holds (`bridge/state/leases.py`).
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from duolog.store.index.queues import Queues
from duolog.store.log.format import POSITION_MAX
from duolog.store.log.segment import Segment, Segments

KEYS_IN_SLICE = 20_000  # Queues that are checked in one slice, at about 0.1 us each.


class DeadSegments:
    """Finds the dead segments of one log, and returns those that no lease holds."""

    def __init__(self, segments: Segments, queues: Queues) -> None:
        self.held_from = POSITION_MAX  # The segment that contains this position and all later ones are not removed.
        self.removed_count = 0  # Segments that were removed since the start; a metric.
        self._segments = segments
        self._queues = queues

    def find(self) -> Iterator[None]:
        """Set `is_dead` of the sealed segments without a live entry. The caller lets the loop turn at each yield."""
        left = KEYS_IN_SLICE
        for segment in [*self._segments]:
            if segment.is_dead or not segment.is_sealed or segment.is_gap:
                continue
            keys = iter(segment.last_offsets)
            while some := [*islice(keys, max(1, left))]:
                left -= len(some)
                if any(self._is_live(key, segment) for key in some):
                    break
                if left <= 0:
                    yield
                    left = KEYS_IN_SLICE
            else:
                segment.is_dead = True
            left -= 1

    def _is_live(self, key: int, segment: Segment) -> bool:
        queue = self._queues.find(key)
        return queue is not None and segment.last_offsets[key] >= queue.start_offset

    def removable(self) -> list[Segment]:
        """Return the dead segments that `find` has found and no lease holds."""
        return self.not_held(segment for segment in self._segments if segment.is_dead)

    def not_held(self, dead: Iterable[Segment]) -> list[Segment]:
        """Return those of the given dead segments that no lease holds."""
        return [segment for segment in dead if segment.known_end <= self.held_from]

    @property
    def held_bytes(self) -> int:
        """The number of bytes in dead segments that are not removed because a lease holds them."""
        return sum(
            segment.known_end - segment.start
            for segment in self._segments
            if segment.is_dead and segment.known_end > self.held_from
        )
