"""What clients were promised and what readers saw, and whether both are true at the end.

    history.sending(value)                      before a send: the value may be stored, once
    history.in_order(producer, values)          before a send: the values are stored in the order of these calls
    history.stored(value, place)                after its answer: it is there exactly once, at this place
    history.delayed(value, partition, ...)      after its answer, too: it is there once it is due, and soon after
    history.never(value)                        a rollback was answered: committed readers never see it
    history.cancelling(value)                   before the request; then one of the next two, if it is answered
    history.cancelled(value)                    nobody ever sees it
    history.not_cancelled(value)                it is still there, or was delivered
    history.saw(reader, place, epoch, value, decided_ms)    a committed reader got it
    history.check()                             the violations

A *place* is topic, partition and offset. Each value is sent under one name only: a client that sends it again after no
answer either repeats the same request (idempotent) or makes a new value.

Due times are wall times, and each broker's wall clock may be wrong. A message is early if no owner's wall clock has
shown its due time yet. It is late if a reader does not find it LATE_MS after an owner had to deliver it (`owed`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Place = tuple[str, int, int]

SHARED: Final = "orders"  # Its `flush.mode` is `shared`: what was answered survives the loss of a machine.
LOCAL: Final = "local"  # Its `flush.mode` is `sync`: a takeover may lose what was answered.
KAFKA, ROCKETMQ = READERS = ("Kafka", "RocketMQ")  # Each sees all of SHARED.
# The ticker compares the wall clock with due times every 100 ms; a unit is uploaded 100 ms after it was written, and
# the store answers within 8 ms. Messages that are due when an owner begins are read and delivered in its first turns.
LATE_MS: Final = 1_000


class Delayed(NamedTuple):
    """A delayed message that was answered."""

    partition: int
    due_ms: int
    answered_mono_ms: int


class History:
    """The promises to all clients."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.acknowledged = 0
        self._sent: set[bytes] = set()
        self._turns: dict[bytes, tuple[str, int]] = {}  # The producer, and a number that rises with each value.
        self._stored: dict[bytes, Place | None] = {}  # None: the client did not learn the place.
        self._answered_at: dict[Place, bytes] = {}
        self._never: set[bytes] = set()
        self._due_ms: dict[bytes, int] = {}
        self._delayed: dict[bytes, Delayed] = {}  # What no reader has seen.
        self._maybe_cancelled: set[bytes] = set()  # The cancellation may have been stored, or not.
        self._seen: dict[tuple[Place, int], bytes] = {}
        self._places: dict[bytes, set[Place]] = defaultdict(set)
        self._seen_by: dict[str, set[bytes]] = {reader: set() for reader in READERS}
        self._positions: dict[int, bytes] = {}
        self.retries, self.members = Retries(), MemberOffsets()

    # -- What clients were promised

    def sending(self, value: bytes, due_ms: int = 0) -> None:
        self._sent.add(value)
        self._due_ms[value] = due_ms

    def in_order(self, producer: str, values: Iterable[bytes]) -> None:
        for value in values:
            self._turns[value] = producer, len(self._turns)

    def stored(self, value: bytes, place: Place | None) -> None:
        """Note an answer. At most one record is acknowledged at any place, by whichever owner."""
        self.acknowledged += 1
        self._stored[value] = place
        if place is not None:
            self._answered(self._answered_at, place, value)

    def delayed(self, value: bytes, partition: int, due_ms: int, mono_ms: int) -> None:
        """Note an answer. Readers may have seen the message before it, if the standby that sent it on was paused."""
        if value not in self._places:
            self._delayed[value] = Delayed(partition, due_ms, mono_ms)

    def never(self, value: bytes) -> None:
        self._never.add(value)

    def cancelling(self, value: bytes) -> None:
        self._maybe_cancelled.add(value)

    def cancelled(self, value: bytes) -> None:
        self._never.add(value)

    def not_cancelled(self, value: bytes) -> None:
        self._maybe_cancelled.discard(value)

    def appended_at(self, position: int, value: bytes) -> None:
        """Note the position in the log of an answered send: at most one owner acknowledges at any position."""
        self._answered(self._positions, position, value)

    def _answered(self, answers: dict[Any, bytes], at: Any, value: bytes) -> None:
        other = answers.setdefault(at, value)
        if other != value:
            self.violations.append(f"{at} was answered for {value!r} and for {other!r}")

    # -- What readers saw

    def saw(self, reader: str, place: Place, epoch: int, value: bytes, decided_ms: int) -> None:
        """Note what a reader got. `decided_ms` is the latest wall time at which an owner has decided something."""
        # A local topic may have another record at the same offset, but only with a higher leader epoch.
        other = self._seen.setdefault((place, epoch if place[0] == LOCAL else 0), value)
        if other != value:
            self.violations.append(f"{place} of epoch {epoch} had {other!r}, and has {value!r}")
        if decided_ms < self._due_ms.get(value, 0):
            self.violations.append(f"{value!r} is early by {self._due_ms[value] - decided_ms} ms")
        self._places[value].add(place)
        self._seen_by[reader].add(value)
        self._delayed.pop(value, None)

    def owed(self, partition: int, wall_ms: int, mono_ms: int) -> list[bytes]:
        """Return what an owner must have delivered that has served for LATE_MS, and whose wall clock shows this."""
        return [
            value
            for value, each in self._delayed.items()
            if each.partition == partition
            and each.due_ms + LATE_MS <= wall_ms
            and each.answered_mono_ms + LATE_MS <= mono_ms
        ]

    def read_to_the_end(self, owed: Iterable[bytes]) -> None:
        """Note that a reader has read to the end of a partition what was there when these messages were `owed`."""
        for value in owed:
            if value in self._delayed and value not in self._maybe_cancelled and value not in self._never:
                self.violations.append(f"{value!r} is late: {self._delayed[value]}")

    # -- The end

    @property
    def last_due_ms(self) -> int:
        return max(self._due_ms.values(), default=0)

    def unseen(self) -> list[bytes]:
        """Return the values that must be there and that some reader has not seen."""
        seen = set.intersection(*self._seen_by.values())
        return [value for value in self._stored if value not in seen and value not in self._maybe_cancelled]

    def check(self) -> list[str]:
        """Return all violations, also those of what the readers saw as a whole."""
        found = [*self.violations]
        for value, places in self._places.items():
            of_shared = {each for each in places if each[0] == SHARED}
            if len(of_shared) > 1:
                found.append(f"{value!r} is stored more than once: {sorted(of_shared)}")
            if value in self._never:
                found.append(f"{value!r} was rolled back or cancelled, and is at {places}")
            if value not in self._sent:
                found.append(f"{value!r} was never sent")
        found += [f"{value!r} was acknowledged at {self._stored[value]}, and is lost" for value in self.unseen()]
        for value, place in self._stored.items():
            if place is not None and value in self._places and place not in self._places[value]:
                found.append(f"{value!r} was acknowledged at {place}, and is at {self._places[value]}")
        return found + self._out_of_order() + self.retries.check() + self.members.violations

    def _out_of_order(self) -> list[str]:
        """Return where the values of a producer are not in their order within a partition."""
        found, last = [], dict[tuple[str, int], bytes]()
        for (topic, partition, _), value in sorted((place, value) for (place, _), value in self._seen.items()):
            if topic == SHARED and value in self._turns:
                producer, turn = self._turns[value]
                before = last.get((producer, partition))
                if before is not None and self._turns[before][1] > turn:
                    found.append(f"{value!r} is behind {before!r} in partition {partition}")
                last[producer, partition] = value
        return found


@dataclass
class Retries:
    """Failed messages that a RocketMQ consumer sends back, each once at most: they come again, exactly once."""

    _violations: list[str] = field(default_factory=list)
    _sent: dict[bytes, bool] = field(default_factory=dict)  # Whether the request was answered.
    _found: dict[int, bytes] = field(default_factory=dict)  # By the offset in the retry topic.

    def begin(self, value: bytes) -> bool:
        """Note that a message is sent back; False: it was sent back before."""
        return value not in self._sent and not self._sent.setdefault(value, False)

    def answered(self, value: bytes) -> None:
        self._sent[value] = True

    def found(self, offset: int, value: bytes) -> None:
        other = self._found.setdefault(offset, value)
        if other != value:
            self._violations.append(f"offset {offset} of the retry topic had {other!r}, and has {value!r}")

    def missing(self) -> list[bytes]:
        """Return what was sent back and has not come again."""
        found = {*self._found.values()}
        return [value for value, is_answered in self._sent.items() if is_answered and value not in found]

    def check(self) -> list[str]:
        counts = Counter(self._found.values())
        return [
            *self._violations,
            *(f"{value!r} was sent back, and is lost" for value in self.missing()),
            *(f"{value!r} came back {count} times" for value, count in counts.items() if count > 1),
        ]


@dataclass
class MemberOffsets:
    """The offsets that the members of one Kafka group commit, by partition. Each commits a higher one than it finds."""

    violations: list[str] = field(default_factory=list)
    commits: int = 0
    _committed: dict[int, int] = field(default_factory=dict)

    def committed(self, partition: int, offset: int) -> None:
        self.commits += 1
        self._committed[partition] = max(offset, self._committed.get(partition, -1))

    def answered(self, partition: int) -> int:
        """Return the highest offset whose commit was answered."""
        return self._committed.get(partition, -1)

    def found(self, partition: int, offset: int, least: int) -> None:
        """Note the offset of the group; `least` is what was `answered` when it was asked for."""
        if offset < least:
            self.violations.append(f"members committed {least} of partition {partition}, and it is {offset}")


class Positions:
    """The committed offsets of a consumer's group, by partition: they never go back behind what was answered.

    A commit without an answer may be done much later, by a broker that was paused, after a higher offset was committed.
    So the consumer then goes on with another group.
    """

    def __init__(self, history: History, name: str) -> None:
        self._history, self._name, self._number = history, name, 0
        self._answered: dict[int, int] = {}
        self._is_waiting = False  # For the answer to a commit.

    @property
    def group(self) -> str:
        return f"{self._name}-{self._number}"

    def committing(self, offsets: dict[int, int]) -> str:
        """Return the group in which these offsets may be committed now; a reader of LOCAL may have to read again."""
        if self._is_waiting:
            self._number += 1
            self._answered.clear()
        self._is_waiting = True
        for partition, offset in offsets.items():
            self._answered[partition] = min(offset, self._answered.get(partition, -1))
        return self.group

    def answered(self, offsets: dict[int, int]) -> None:
        self._is_waiting = False
        self._answered |= offsets

    def found(self, partition: int, offset: int) -> None:
        answered = self._answered.get(partition, -1)
        if offset < answered:
            self._history.violations.append(f"{self.group}: offset {answered} of {partition} went back to {offset}")
