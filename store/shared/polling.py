"""The class Polling: which slots a follower asks for, and when. It sends nothing and knows no clock.

An owner writes a slot at least once in every *beat*: a third of `cluster.takeover_ms`, or a twelfth while the store is
slow for it. A follower asks for each slot shortly after it should be there:

    the store answers within a beat      one slot at a time: asked a little less than a beat after the last one that was
                                         there was to be asked for; a tenth of a beat later if it was empty. So one of
                                         BEATS_OF_A_MISS requests comes too early, which says when slots are written
    it is slower                         all slots that may be written in a round trip, and two more. A small one is
                                         asked for again after every two beats, whatever was not answered yet
    slots with units, or many that       as many at a time as were there, without pauses, up to AHEAD_MAX
    were there

So a follower needs hardly more requests than the owner as long as the store is fast. While it is slow, a follower is
two beats and one way of an answer behind. If it asked for a slot again only after the answer that it is empty, it would
be a whole round trip behind.
"""

from collections import deque
from typing import Final, NamedTuple

from duolog.store.shared.uploader import BEATS, BEATS_IF_SLOW, SLOW_SHARE
from duolog.store.shared.wal.wal_object import HEADER_SIZE

BEATS_OF_A_MISS: Final = 30  # Beats from one empty slot to the next, while the owner writes one slot in each.
HITS_MAX: Final = 40  # Slots in a row that were there, after which the next is asked for at once: is the owner faster?
MISSES_MAX: Final = 3  # Empty slots in a row, after which the owner is not faster than the beat.
AHEAD_FIRST: Final = 4  # Slots that are asked for at a time at the start,
AHEAD_MAX: Final = 32  # and at most,
AHEAD_BYTES: Final = 32 << 20  # and their size, if they are as large as the last one.
AGAIN_BEATS: Final = 2  # Between two requests for a slot while the store is slow,
AGAIN_BYTES: Final = 64 << 10  # unless slots are larger than this.
LATENCIES: Final = 3  # Newest round trips, whose shortest one counts.


class _Newest(NamedTuple):
    """The newest slot that was there."""

    sequence: int
    asked_mono_ms: int
    planned_mono_ms: int  # When it was to be asked for. Requests that are late do not move those after them.


class Polling:
    """Slots are numbers. `due` returns those to ask for now; `found` or `missed` takes the answer of each request.

    The class has more than 15 fields, because it keeps what was asked for, and what that says about the owner.
    """

    def __init__(self, takeover_ms: int, sequence: int) -> None:
        self._takeover_ms = takeover_ms
        self._latencies = deque([0], LATENCIES)
        self._asked_mono_ms: int | None = None  # When slots were asked for last.
        self._is_fast_owner = False  # It writes more slots than its beats.
        self._is_probing = False  # The next slot is asked for at once, which says whether it does.
        self._is_busy = False  # The last slot had units, or this follower is behind, so that more may be there.
        self._is_small = True  # The last slot that was there was small.
        self.is_doubtful = True  # This follower was away: an empty slot may have had an object.
        self.was_away = False  # So a slot may have another object than the one that counted.
        self.restart(sequence)

    def restart(self, sequence: int) -> None:
        """Go on with this slot. Answers to requests that are under way must not be given any more."""
        self._first = self._next = sequence  # Slots below the first were found; from the next on, none was asked for.
        self._is_behind = True  # No slot was empty since this follower may have fallen behind.
        self._due: dict[int, int] = {}  # Slots that are to be asked for again, and when.
        self._found: set[int] = set()  # Slots above the first one that were found.
        self._empty: dict[
            int, int
        ] = {}  # Slots that were empty with no doubt after that, and when they were asked for.
        self._found_mono_ms: deque[int] = deque()  # When slots were found, for the time of a round trip.
        self._ahead, self._grown, self._ahead_max = AHEAD_FIRST, 0, AHEAD_MAX
        self._hits = self._misses = 0  # In a row.
        self._planned: dict[int, int] = {}  # Slots that were asked for last, and when that was to be.
        self._newest = _Newest(sequence, 0, 0)

    # -- What is known

    @property
    def latency_ms(self) -> int:
        """The shortest one of the last round trips."""
        return min(self._latencies)

    @property
    def is_at_end(self) -> bool:
        """Whether the next slot was empty in a request that began after the one that found the newest slot.

        One that began with it says little if many slots are asked for at a time: the next answer comes a round trip
        later.
        """
        return self._empty.get(self._first, 0) > self._newest.asked_mono_ms

    @property
    def asks_again(self) -> bool:
        """Whether slots are asked for again before an answer has come."""
        return self._is_pipelined and self._is_small and not self._is_behind

    @property
    def _beat_ms(self) -> int:
        is_slow = self._is_fast_owner or self.latency_ms * SLOW_SHARE > self._takeover_ms
        return self._takeover_ms // (BEATS_IF_SLOW if is_slow else BEATS)

    @property
    def _pause_ms(self) -> int:
        """How long after it was asked for an empty slot is asked for again."""
        return max(self._beat_ms // 10, self.latency_ms)

    @property
    def _is_pipelined(self) -> bool:
        """Whether a round trip is longer than a beat."""
        return self.latency_ms > self._beat_ms

    @property
    def _until_known_ms(self) -> int:
        """How long after a slot was written it is known, at most, while the store is slow."""
        return self.latency_ms + AGAIN_BEATS * self._beat_ms

    @property
    def _room(self) -> int:
        """How many further slots may be asked for at a time."""
        at_a_time = self._ahead if self._is_busy else 1
        if self._is_pipelined:
            at_a_time = self._ahead if self._is_behind else 1
            at_a_time = max(at_a_time, self._until_known_ms // self._beat_ms + 2, len(self._found_mono_ms) + 2)
        return min(at_a_time, self._ahead_max) - (self._next - self._first)

    @property
    def _next_new_ms(self) -> int:
        """When a slot is to be asked for that was never asked for, if there is room."""
        if self._is_busy or self._is_pipelined or self._is_probing:
            return 0
        return self._regular_ms(self._next)

    def _regular_ms(self, sequence: int) -> int:
        """When a slot is to be asked for if the owner writes one in each beat."""
        beats = sequence - self._newest.sequence
        return self._newest.planned_mono_ms + beats * self._beat_ms - beats * self._pause_ms // BEATS_OF_A_MISS

    # -- Requests

    def next_ms(self) -> int | None:
        """Return the monotonic time at which `due` must be called next; None if only an answer changes anything."""
        times = [*self._due.values()]
        if self._room > 0:
            times.append(self._next_new_ms)
        return min(times, default=None)

    def due(self, mono_ms: int) -> list[int]:
        """Return the slots to ask for now."""
        away_ms = 2 * self._takeover_ms // BEATS + self.latency_ms
        if self._asked_mono_ms is not None and mono_ms - self._asked_mono_ms > away_ms:
            self.doubt()
            self._is_behind = self._is_busy = self.was_away = True
        asked = {sequence: due_ms for sequence, due_ms in self._due.items() if due_ms <= mono_ms}
        while self._room > 0 and self._next_new_ms <= mono_ms:
            if self._next not in self._found:
                asked[self._next] = self._next_new_ms
            self._next += 1
        for sequence in asked:
            self._due.pop(sequence, None)
            if self.asks_again:
                self._due[sequence] = mono_ms + AGAIN_BEATS * self._beat_ms
        if asked:
            self._asked_mono_ms = mono_ms
            self._planned = {sequence: max(at_ms, mono_ms - self._pause_ms) for sequence, at_ms in asked.items()}
        return list(asked)

    def doubt(self) -> None:
        """Take no slot for empty that was so until now."""
        self.is_doubtful = True
        self._empty.clear()

    def settle(self, mono_ms: int) -> None:
        """End the doubt: the slots that were empty were never used."""
        self.is_doubtful = False
        self._asked_mono_ms = mono_ms  # This follower was not away while it looked.

    # -- Answers

    def found(self, sequence: int, size: int, asked_mono_ms: int, mono_ms: int) -> None:
        """Note that a slot has an object of this size. Only one with a payload says that more may follow at once."""
        self._latencies.append(mono_ms - asked_mono_ms)
        self._due.pop(sequence, None)
        if sequence in self._empty:
            del self._empty[sequence]
            self.is_doubtful = False  # It was the end of the log when it was empty.
        if sequence < self._first or sequence in self._found:
            return
        self._found.add(sequence)
        while self._first in self._found:
            self._found.remove(self._first)
            self._first += 1
        self._next = max(self._next, self._first)
        if sequence >= self._newest.sequence:
            self._newest = _Newest(sequence, asked_mono_ms, self._planned.get(sequence, asked_mono_ms))
        self._misses = 0
        if self._is_probing:
            self._is_behind = self._is_fast_owner = True
        self._is_small = size <= AGAIN_BYTES
        self._ahead_max = max(2, min(AHEAD_MAX, AHEAD_BYTES // size))
        if self._is_busy:
            self._grow()
        self._is_busy = self._is_behind or size > HEADER_SIZE
        self._hits = 0 if self._is_busy or self._is_pipelined else self._hits + 1
        self._is_probing = self._hits == HITS_MAX
        self._found_mono_ms.append(mono_ms)
        while self._found_mono_ms[0] < mono_ms - self._until_known_ms:
            self._found_mono_ms.popleft()

    def _grow(self) -> None:
        """Ask for more slots at a time: twice as many in a round trip while this follower is behind, else one more."""
        self._grown += 1
        if self._is_behind or self._grown >= self._ahead:
            self._ahead, self._grown = min(self._ahead + 1, AHEAD_MAX), 0

    def missed(self, sequence: int, asked_mono_ms: int, mono_ms: int) -> None:
        """Note that a slot is empty."""
        self._latencies.append(mono_ms - asked_mono_ms)
        if not self._first <= sequence < self._next or sequence in self._found:
            return
        self._empty[sequence] = max(asked_mono_ms, self._empty.get(sequence, 0))
        if self._is_probing:
            self._is_probing, self._hits = False, 0
            self._next, self._due[sequence] = sequence + 1, self._regular_ms(sequence)
            return
        self._hits, self._misses = 0, self._misses + 1
        self._is_busy = self._is_behind = False
        self._ahead, self._grown = max(1, self._ahead - 1), 0
        if self._misses >= MISSES_MAX:
            self._is_fast_owner = False
        beat_ms = self._beat_ms
        if self._is_pipelined:
            self._due.setdefault(sequence, mono_ms)
            return
        self._next = sequence + 1  # Slots above an empty one are asked for later.
        again_ms = max(mono_ms, asked_mono_ms + (self._pause_ms if self._misses == 1 else beat_ms))
        self._due = {each: at_ms for each, at_ms in self._due.items() if each < self._next}
        self._due[sequence] = min(self._due.get(sequence, again_ms), again_ms)
