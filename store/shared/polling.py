"""The class Polling: which slots a follower asks for, and when. It sends nothing and knows no clock.

An owner writes a slot at least once in every *heartbeat interval*: a third of `cluster.takeover_ms`, or a twelfth while
its creates are slow. The follower takes the interval for a twelfth while the owner may write often: while the store is
slow for the follower, the owner is not idle (ACTIVE_MISSES), or it writes more slots than heartbeats (HITS_MAX). The
follower asks for each slot shortly after the owner should have written it:

    round trip of the store              requests of the follower
    shorter than a heartbeat interval    One slot at a time, about a heartbeat interval after the request for the slot
                                         before. If the slot is empty, the follower asks again after a *pause*, until
                                         the slot has an object. If the owner may write often, the follower asks after
                                         one pause, and then once in each interval.
    longer                               All slots that the owner may write during a round trip and two intervals, and
                                         two more. The follower repeats the request for a small slot every two
                                         intervals, although earlier requests have no answer yet.
    any; the last found slot had units,  Several slots at a time, without pauses. Their number grows with the slots that
    or the follower is behind            are found, up to AHEAD_MAX.

A pause is a tenth of a heartbeat interval, or a round trip if that is longer. To find out when the owner writes, the
follower sends each request by 1/30 of a pause (HEARTBEATS_PER_MISS) earlier than one interval after the request before.
So about one request in 30 finds its slot empty, and the time of the next requests moves back by the pause.

While requests have no answer, the time since the last answer counts as the round trip if it is longer, so that the
requests are those for a slow store before it answers. If no answer comes for `cluster.takeover_ms`, the follower sends
no further request until one has come.

While the store is fast and the owner is idle, a follower sends hardly more requests than the owner, and finds a slot up
to a heartbeat interval late. A takeover from an owner that has just written units would be late by as much, so the
follower asks more often then. While the store is slow, a follower is two heartbeat intervals and one way of an answer
late. If it repeated a request only after the answer that the slot is empty, it would be a whole round trip late.
"""

from collections import deque
from typing import Final, NamedTuple

from duolog.store.shared.uploader import HEARTBEATS, HEARTBEATS_IF_SLOW, SLOW_SHARE
from duolog.store.shared.wal.wal_object import HEADER_SIZE

HEARTBEATS_PER_MISS: Final = 30  # One request in so many finds its slot empty while the owner writes only heartbeats.
# After so many found slots in a row, one request is sent early. If its slot has an object, the owner is *fast*: it
# writes more than one slot in an interval.
HITS_MAX: Final = 40
ACTIVE_MISSES: Final = 10  # After so many answers "empty" since the last slot with units, the owner counts as idle.
MISSES_MAX: Final = 3  # After so many answers "empty" in a row, the owner no longer counts as fast.
AHEAD_FIRST: Final = 4  # The number of slots that a follower asks for at a time at the start.
AHEAD_MAX: Final = 32  # The greatest number of slots that a follower asks for at a time.
AHEAD_BYTES: Final = 32 << 20  # The greatest size of these slots together, estimated by the size of the last one.
REPEAT_HEARTBEATS: Final = 2  # The heartbeat intervals between two requests for a slot while the store is slow.
REPEAT_BYTES: Final = 64 << 10  # A request for a slot is not repeated before its answer if slots are larger than this.
LATENCIES: Final = 3  # The number of newest round trips whose shortest one is `latency_ms`.


class _Newest(NamedTuple):
    """The newest slot that was found."""

    sequence: int
    asked_mono_ms: int
    planned_mono_ms: int  # The planned time of the request. A late request does not delay the requests after it.


class Polling:
    """Slots are numbers. `due` returns those to ask for now; `found` or `missed` takes the answer of each request.

    The class has more than 20 methods and 15 fields because it has the state of the requests and what their answers say
    about the owner.
    """

    def __init__(self, takeover_ms: int, sequence: int) -> None:
        self._takeover_ms = takeover_ms
        self._latencies = deque([0], LATENCIES)
        self._unanswered = 0  # The number of requests without an answer.
        # The time from which the wait for an answer counts: that of the last answer, or that of the next request if no
        # request was unanswered then.
        self._waits_since_mono_ms = 0
        self._waited_ms = 0  # The length of this wait at the last call of `due`.
        self._asked_mono_ms: int | None = None  # The time of the newest request.
        self._is_fast_owner = False  # The owner writes more slots than one in a heartbeat interval.
        self._idle_misses = ACTIVE_MISSES  # The answers "empty" since the last slot with units.
        self._is_probing = False  # The next request is sent early, to see whether the owner is fast.
        self._expects_more = False  # The last found slot had units, or this follower is behind.
        self._is_small = True  # The newest slot that was found was at most REPEAT_BYTES long.
        # This follower sent no request for so long that objects may have been written and deleted meanwhile.
        self.is_doubtful = True  # A slot that is empty now may have had an object.
        self.was_away = False  # A slot may have another object now than the one that counted.
        self.restart(sequence)

    def restart(self, sequence: int) -> None:
        """Go on with this slot. The caller must not pass on answers to requests that are under way."""
        self._unanswered = self._waited_ms = 0
        # All slots below `_first` were found. No slot from `_next` on was asked for.
        self._first = self._next = sequence
        self._is_behind = True  # Invariant: no requested slot was empty since this became true.
        self._due: dict[int, int] = {}  # The slots to ask for again, and the time of the request.
        self._found: set[int] = set()  # The found slots above `_first`.
        self._empty: dict[int, int] = {}  # The slots found empty since the last doubt, and the time of the request.
        self._found_mono_ms: deque[int] = deque()  # The times of the slots found within about one round trip.
        self._ahead = AHEAD_FIRST  # The slots that are asked for at a time while `_expects_more`.
        self._found_since_growth = 0  # The slots found since `_ahead` grew or shrank.
        self._ahead_max = AHEAD_MAX
        self._hits = self._misses = 0  # The slots found in a row, and the answers "empty" in a row.
        # The slots of the newest call of `due`, and the planned time of each request.
        self._planned: dict[int, int] = {}
        self._newest = _Newest(sequence, 0, 0)

    # -- What is known

    @property
    def latency_ms(self) -> int:
        """The shortest one of the last round trips, or how long no answer has come, if that is longer."""
        return max(self._round_trip_ms, self._waited_ms)

    @property
    def _round_trip_ms(self) -> int:
        return min(self._latencies)

    @property
    def is_behind(self) -> bool:
        """Whether this follower may lack much of the log: no requested slot was empty since the last `restart`.

        The follower may also have fallen behind because it sent no request for long, or because the owner is faster
        than it was.
        """
        return self._is_behind

    @property
    def is_slow(self) -> bool:
        """Whether the store is slow, so that the owner writes its slots closer together than a round trip takes."""
        return self.latency_ms * SLOW_SHARE > self._takeover_ms

    @property
    def is_at_end(self) -> bool:
        """Whether the next slot was empty in a request that began after the one that found the newest slot.

        Of slots that are requested at the same time, one is the first empty one. So a request that began together with
        the one that found the newest slot does not show that the owner has stopped writing.
        """
        return self._empty.get(self._first, 0) > self._newest.asked_mono_ms

    def is_silent_since(self, mono_ms: int) -> bool:
        """Whether the store has said that the next slot was empty at this time or later."""
        return self._empty.get(self._first, -1) >= mono_ms - self._round_trip_ms

    @property
    def asks_again(self) -> bool:
        """Whether a request for a slot is repeated before its answer has come."""
        return self._is_pipelined and self._is_small and not self._is_behind

    @property
    def _is_store_away(self) -> bool:
        """Whether the store has answered no request for the time of a takeover."""
        return self._waited_ms > self._takeover_ms

    @property
    def _heartbeat_ms(self) -> int:
        return self._takeover_ms // (HEARTBEATS_IF_SLOW if self._may_write_often else HEARTBEATS)

    @property
    def _may_write_often(self) -> bool:
        """Whether the owner may write more than one slot in a third of `cluster.takeover_ms`."""
        return self._is_fast_owner or self._idle_misses < ACTIVE_MISSES or self.is_slow

    @property
    def _pause_ms(self) -> int:
        """The time from a request that finds a slot empty to the next request for the slot."""
        return max(self._heartbeat_ms // 10, self.latency_ms)

    @property
    def _is_pipelined(self) -> bool:
        """Whether a round trip is longer than a heartbeat interval."""
        return self.latency_ms > self._heartbeat_ms

    @property
    def _until_known_ms(self) -> int:
        """The longest time from the write of a slot until this follower has found it, while the store is slow."""
        return self.latency_ms + REPEAT_HEARTBEATS * self._heartbeat_ms

    @property
    def _room(self) -> int:
        """The number of further slots that may be asked for now."""
        at_a_time = self._ahead if self._expects_more else 1
        if self._is_pipelined:
            at_a_time = self._ahead if self._is_behind else 1
            at_a_time = max(at_a_time, self._until_known_ms // self._heartbeat_ms + 2, len(self._found_mono_ms) + 2)
        return min(at_a_time, self._ahead_max) - (self._next - self._first)

    @property
    def _next_new_ms(self) -> int:
        """The time of the next request for a slot that was never asked for, if there is room."""
        if self._expects_more or self._is_pipelined or self._is_probing:
            return 0
        return self._regular_ms(self._next)

    def _regular_ms(self, sequence: int) -> int:
        """Return the time of the request for a slot if the owner writes one slot in each heartbeat interval."""
        count = sequence - self._newest.sequence
        return self._newest.planned_mono_ms + count * self._heartbeat_ms - count * self._pause_ms // HEARTBEATS_PER_MISS

    # -- Requests

    def next_ms(self) -> int | None:
        """Return the monotonic time at which `due` must be called next; None if only an answer changes anything."""
        if self._is_store_away:
            return None
        times = [*self._due.values()]
        if self._room > 0:
            times.append(self._next_new_ms)
        if self._unanswered:  # A store that has become slow is noticed before it answers.
            times.append(self._waits_since_mono_ms + self._waited_ms + self._heartbeat_ms)
        return min(times, default=None)

    def due(self, mono_ms: int) -> list[int]:
        """Return the slots to ask for now."""
        if self._unanswered:
            self._waited_ms = mono_ms - self._waits_since_mono_ms
        if self._is_store_away:
            return []  # More requests would only wait with those that are under way.
        away_ms = 2 * self._takeover_ms // HEARTBEATS + self._round_trip_ms
        if self._asked_mono_ms is not None and mono_ms - self._asked_mono_ms > away_ms:
            self.doubt()
            self._is_behind = self._expects_more = self.was_away = True
        asked = {sequence: due_ms for sequence, due_ms in self._due.items() if due_ms <= mono_ms}
        while self._room > 0 and self._next_new_ms <= mono_ms:
            if self._next not in self._found:
                asked[self._next] = self._next_new_ms
            self._next += 1
        for sequence in asked:
            self._due.pop(sequence, None)
            if self.asks_again:
                self._due[sequence] = mono_ms + REPEAT_HEARTBEATS * self._heartbeat_ms
        if asked:
            if not self._unanswered:
                self._waits_since_mono_ms = mono_ms
            self._unanswered += len(asked)
            self._asked_mono_ms = mono_ms
            self._planned = {sequence: max(at_ms, mono_ms - self._pause_ms) for sequence, at_ms in asked.items()}
        return list(asked)

    def doubt(self) -> None:
        """Forget which slots were empty: they may have had objects that were deleted."""
        self.is_doubtful = True
        self._empty.clear()

    def ask_at_once(self) -> None:
        """Ask for the next slot without a pause, because the caller knows that it has an object."""
        self._due = dict.fromkeys(self._due, 0)
        self._expects_more = True

    def end_doubt(self, mono_ms: int) -> None:
        """Note that the empty slots never had an object."""
        self.is_doubtful = False
        self._asked_mono_ms = mono_ms  # The follower has sent other requests meanwhile, so it was not away.

    # -- Answers

    def found(self, sequence: int, size: int, asked_mono_ms: int, mono_ms: int) -> None:
        """Note that a slot has an object of this size. An object with a payload means that more slots may be there."""
        self._note_answer(asked_mono_ms, mono_ms)
        if size > HEADER_SIZE:
            self._idle_misses = 0
        self._due.pop(sequence, None)
        if sequence in self._empty:
            del self._empty[sequence]
            self.is_doubtful = False  # The slot was the end of the log when it was found empty.
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
        self._is_small = size <= REPEAT_BYTES
        self._ahead_max = max(2, min(AHEAD_MAX, AHEAD_BYTES // size))
        if self._expects_more:
            self._grow()
        self._expects_more = self._is_behind or size > HEADER_SIZE
        self._hits = 0 if self._expects_more or self._is_pipelined else self._hits + 1
        self._is_probing = self._hits == HITS_MAX
        self._found_mono_ms.append(mono_ms)
        while self._found_mono_ms[0] < mono_ms - self._until_known_ms:
            self._found_mono_ms.popleft()

    def _note_answer(self, asked_mono_ms: int, mono_ms: int) -> None:
        self._latencies.append(mono_ms - asked_mono_ms)
        self._unanswered -= 1
        self._waits_since_mono_ms, self._waited_ms = mono_ms, 0

    def _grow(self) -> None:
        """Ask for more slots at a time: twice as many in a round trip while this follower is behind, else one more."""
        self._found_since_growth += 1
        if self._is_behind or self._found_since_growth >= self._ahead:
            self._ahead, self._found_since_growth = min(self._ahead + 1, AHEAD_MAX), 0

    def missed(self, sequence: int, asked_mono_ms: int, mono_ms: int) -> None:
        """Note that a slot is empty."""
        self._note_answer(asked_mono_ms, mono_ms)
        self._idle_misses += 1
        if not self._first <= sequence < self._next or sequence in self._found:
            return
        self._empty[sequence] = max(asked_mono_ms, self._empty.get(sequence, 0))
        if self._is_probing:
            self._is_probing, self._hits = False, 0
            self._next, self._due[sequence] = sequence + 1, self._regular_ms(sequence)
            return
        self._hits, self._misses = 0, self._misses + 1
        self._expects_more = self._is_behind = False
        self._ahead, self._found_since_growth = max(1, self._ahead - 1), 0
        if self._misses >= MISSES_MAX:
            self._is_fast_owner = False
        if self._is_pipelined:
            self._due.setdefault(sequence, mono_ms)
            return
        self._next = sequence + 1  # Slots above an empty one are asked for later.
        wait_ms = self._heartbeat_ms if self._may_write_often and self._misses > 1 else self._pause_ms
        again_ms = max(mono_ms, asked_mono_ms + wait_ms)
        self._due = {each: at_ms for each, at_ms in self._due.items() if each < self._next}
        self._due[sequence] = min(self._due.get(sequence, again_ms), again_ms)
