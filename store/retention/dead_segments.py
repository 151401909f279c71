"""Which segments may be removed: sealed ones in which nothing is live.

A segment is *dead* when every queue with entries in it was deleted or has its log start above them; a dead segment
never becomes live again. It is removed once a checkpoint behind it is in place (`store/recovery/checkpointer.py`), and
not while a lease holds it: `held_from` is the lowest position that a reader of files holds (`bridge/state/leases.py`).
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from duolog.store.index.queues import Queues
from duolog.store.log.format import POSITION_MAX
from duolog.store.log.segment import Segment, Segments

KEYS_IN_SLICE = 20_000  # Queue keys of segments that are checked in one slice, at about 0.1 us each.


class DeadSegments:
    """Finds the dead segments of one log and says which of them may be removed."""

    def __init__(self, segments: Segments, queues: Queues) -> None:
        self.held_from = POSITION_MAX  # The segment that holds this position and all later ones are not removed.
        self._segments = segments
        self._queues = queues

    def find(self) -> Iterator[None]:
        """Mark the sealed segments in which nothing is live, in slices of the loop."""
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
        """Return the dead segments that were found and are not held."""
        return self.not_held(segment for segment in self._segments if segment.is_dead)

    def not_held(self, dead: Iterable[Segment]) -> list[Segment]:
        """Return those of the given dead segments that are not held."""
        return [segment for segment in dead if segment.known_end <= self.held_from]

    @property
    def held_bytes(self) -> int:
        """Bytes of the segments that were found dead and are on disk only because they are held."""
        return sum(
            segment.known_end - segment.start
            for segment in self._segments
            if segment.is_dead and segment.known_end > self.held_from
        )
