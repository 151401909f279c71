"""What groups have popped and not acked yet: checkpoints, one for each pop of a queue.

    pop ──> taken: invisible until due ──┬── every message acked ──> settled
                                         ├── due ──> given back to the retry topic (`revive.py`) ──> settled
                                         └── a consumer asks for more time ──> that message alone, due later

    in order: one checkpoint of a queue at a time. While it is not due, the queue gives nothing; when it is, the same
    messages are popped again, and the group's position moves only when all are acked.

A checkpoint is named by group, queue, its first offset and the time of the pop: that is in each message's receipt. The
object is pure: it says which records a decision is, and only replay changes it. Losing the last of them in a crash
pops messages again; so a pop need not wait for the log, and an ack does.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bridge.ledger import Ledger
from bridge.records import GroupDeleted, PopDelayed, PopSettled, PopTaken, Record, TopicDeleted
from store.entry import Slot

INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
CHECKPOINTS_MAX: Final = 200_000  # Of all groups, some 500 bytes each; beyond, nothing is popped.
_STALE_MAX: Final = 1000  # Dates of the heap that mean nothing any more, beside as many as mean something.


class TooManyPopped(Exception):
    """CHECKPOINTS_MAX pops are not acked."""


class Name(NamedTuple):
    """Of a checkpoint."""

    group: str  # by its Kafka spelling, as positions know it
    key: int  # of the queue
    start_offset: int
    pop_ms: int


class Checkpoint:
    """One pop of one queue; times are wall milliseconds."""

    __slots__ = ("attempt_id", "due_ms", "failures", "is_ordered", "name", "next_offset", "pending")

    def __init__(self, name: Name, pending: Iterable[int], due_ms: int, next_offset: int) -> None:
        self.name = name
        self.pending = set(pending)  # Offsets of the messages that are not acked.
        self.due_ms = due_ms
        self.next_offset = next_offset  # Of the group's position, once an ordered one is settled.
        self.is_ordered = False
        self.failures = 0  # How often these messages came due, in order.
        self.attempt_id = ""  # By which a client that lost the answer pops the same again.

    def may_be_popped_again(self, now_ms: int, attempt_id: str | None) -> bool:
        """Say whether what was popped in order may be popped once more: it is due, or its answer was lost."""
        return self.due_ms <= now_ms or bool(attempt_id and attempt_id == self.attempt_id)


class Popped:
    """The checkpoints of all groups."""

    def __init__(self, ledger: Ledger, checkpoints_max: int = CHECKPOINTS_MAX) -> None:
        self._checkpoints_max = checkpoints_max
        self._checkpoints: dict[Name, Checkpoint] = {}
        self._ordered: dict[tuple[str, int], Checkpoint] = {}  # by group and queue
        self._dates: list[tuple[int, Name]] = []  # A heap; a date counts if it is still its checkpoint's.
        for record_type, replay in (
            (PopTaken, self._replay_taken),
            (PopSettled, self._replay_settled),
            (PopDelayed, self._replay_delayed),
            (GroupDeleted, self._replay_group_deleted),
            (TopicDeleted, self._replay_topic_deleted),
        ):
            ledger.own(record_type, replay)  # type: ignore[arg-type]
        ledger.on_snapshot(self._snapshot)

    # -- Asking

    def __len__(self) -> int:
        return len(self._checkpoints)

    def find(self, name: Name) -> Checkpoint | None:
        return self._checkpoints.get(name)

    def in_order(self, group: str, key: int) -> Checkpoint | None:
        """Give what the group popped of the queue in order and has not acked."""
        return self._ordered.get((group, key))

    def forgetting(self, group: str, keys: Iterable[int]) -> list[Record]:
        """Give what settles the group's ordered pops of these queues: it is moved, and their acks shall not move it."""
        found = filter(None, (self._ordered.get((group, key)) for key in keys))
        return [settled(each.name, sorted(each.pending)) for each in found]

    def check_room(self) -> None:
        """Raise TooManyPopped if nothing more may be popped."""
        if len(self._checkpoints) >= self._checkpoints_max:
            raise TooManyPopped(f"{len(self._checkpoints)} pops are not acked; {self._checkpoints_max} are allowed")

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """When the next unordered checkpoint is due."""
        dates = self._dates
        while dates and not self._counts(*dates[0]):
            heapq.heappop(dates)
        return dates[0][0] if dates else None

    def take_due(self, now_ms: int, count_max: int) -> list[Checkpoint]:
        """Give the next due checkpoints; each once, unless it is put off again."""
        due: list[Checkpoint] = []
        while len(due) < count_max and (deadline := self.next_deadline_ms()) is not None and deadline <= now_ms:
            due.append(self._checkpoints[heapq.heappop(self._dates)[1]])
        return due

    def clock_was_set_back(self, now_ms: int) -> None:
        """Let nothing be invisible longer than if it were popped now: it was, perhaps, by a clock that was ahead."""
        for checkpoint in self._checkpoints.values():
            invisible_ms = max(0, min(checkpoint.due_ms - checkpoint.name.pop_ms, INVISIBLE_MS_MAX))
            if checkpoint.due_ms > now_ms + invisible_ms:
                checkpoint.due_ms = now_ms + invisible_ms
                self._remember_date(checkpoint)

    def put_off(self, checkpoint: Checkpoint, until_ms: int) -> None:
        """Have a checkpoint that could not be given back come due again; nothing that the log need know."""
        if self._checkpoints.get(checkpoint.name) is checkpoint:
            checkpoint.due_ms = until_ms
            heapq.heappush(self._dates, (until_ms, checkpoint.name))

    def _counts(self, due_ms: int, name: Name) -> bool:
        checkpoint = self._checkpoints.get(name)
        return checkpoint is not None and checkpoint.due_ms == due_ms

    # -- Replay

    def _replay_taken(self, record: PopTaken, slot: Slot) -> None:
        name = Name(record.group, record.key, record.start_offset, record.pop_ms)
        if name in self._checkpoints:
            return  # A snapshot that was appended again.
        offsets = [record.start_offset + delta for delta in record.deltas]
        checkpoint = Checkpoint(name, offsets, record.due_ms, record.next_offset)
        checkpoint.is_ordered, checkpoint.failures = record.is_ordered, record.failures
        checkpoint.attempt_id = record.attempt_id
        if record.is_ordered:
            before = self._ordered.get((record.group, record.key))
            if before is not None:
                self._remove(before)
            self._ordered[record.group, record.key] = checkpoint
        self._checkpoints[name] = checkpoint
        self._remember_date(checkpoint)

    def _replay_settled(self, record: PopSettled, slot: Slot) -> None:
        checkpoint = self._checkpoints.get(Name(record.group, record.key, record.start_offset, record.pop_ms))
        if checkpoint is not None:
            checkpoint.pending.difference_update(record.start_offset + delta for delta in record.deltas)
            if not checkpoint.pending:
                self._remove(checkpoint)

    def _replay_delayed(self, record: PopDelayed, slot: Slot) -> None:
        checkpoint = self._checkpoints.get(Name(record.group, record.key, record.start_offset, record.pop_ms))
        if checkpoint is None:
            return
        if checkpoint.is_ordered:
            checkpoint.due_ms = record.due_ms
            return
        checkpoint.pending.discard(record.offset)
        if not checkpoint.pending:
            self._remove(checkpoint)
        name = Name(record.group, record.key, record.offset, record.new_pop_ms)
        alone = self._checkpoints[name] = Checkpoint(name, (record.offset,), record.due_ms, record.offset + 1)
        self._remember_date(alone)

    def _replay_group_deleted(self, record: GroupDeleted, slot: Slot) -> None:
        for checkpoint in [each for each in self._checkpoints.values() if each.name.group == record.group]:
            self._remove(checkpoint)

    def _replay_topic_deleted(self, record: TopicDeleted, slot: Slot) -> None:
        for checkpoint in [each for each in self._checkpoints.values() if each.name.key >> 16 == record.number]:
            self._remove(checkpoint)

    def _remember_date(self, checkpoint: Checkpoint) -> None:
        if checkpoint.is_ordered:
            return  # Nothing happens by itself when it is due.
        heapq.heappush(self._dates, (checkpoint.due_ms, checkpoint.name))
        if len(self._dates) > 2 * len(self._checkpoints) + _STALE_MAX:
            self._dates = [date for date in self._dates if self._counts(*date)]
            heapq.heapify(self._dates)

    def _remove(self, checkpoint: Checkpoint) -> None:
        name = checkpoint.name
        del self._checkpoints[name]
        if self._ordered.get((name.group, name.key)) is checkpoint:
            del self._ordered[name.group, name.key]

    def _snapshot(self) -> Iterable[Record]:
        for checkpoint in self._checkpoints.values():
            yield taken(
                checkpoint.name,
                sorted(checkpoint.pending),
                checkpoint.due_ms,
                checkpoint.next_offset,
                is_ordered=checkpoint.is_ordered,
                failures=checkpoint.failures,
                attempt_id=checkpoint.attempt_id,
            )


# -- Records


def taken(
    name: Name,
    offsets: Sequence[int],
    due_ms: int,
    next_offset: int,
    *,
    is_ordered: bool = False,
    failures: int = 0,
    attempt_id: str = "",
) -> PopTaken:
    deltas = [offset - name.start_offset for offset in offsets]
    return PopTaken(*name, deltas, due_ms, next_offset, is_ordered, failures, attempt_id)


def settled(name: Name, offsets: Iterable[int]) -> PopSettled:
    return PopSettled(*name, [offset - name.start_offset for offset in offsets])
