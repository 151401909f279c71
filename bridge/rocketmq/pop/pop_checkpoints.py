"""Pop checkpoints: the messages that groups have popped and not acknowledged, one checkpoint for each pop of a queue.

    state of a checkpoint   event                                      next state
    taken                   all its messages are acknowledged          settled
    taken                   it is due: its messages go to the retry    settled
                            topic (`revive.py`)
    taken                   a consumer changes the due time of one     taken; that message has a checkpoint of its own
                            message

An *ordered pop* takes the messages of a queue in their order (RocketMQ's orderly consumption). For a queue with ordered
pops, a group has one checkpoint at a time. The group pops no message of the queue until all messages of the checkpoint
that are not acknowledged are due. Then it pops from the first one of them on. An ordered pop with the attempt id of the
pop before gets the same messages again.

The name of a checkpoint is its group, queue, first offset and pop time, which are in each message's receipt. Methods
return the records of a decision, and only replay changes the state. If a crash loses the last records, messages are
popped again. So a pop does not wait for the log, but an acknowledgement does.
Source for ordered pops: ConsumerOrderInfoManager.java.
"""

import sys
from array import array
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import GroupDeleted
from duolog.bridge.records.pop import PopDelayed, PopSettled, PopTaken
from duolog.bridge.state.deleted_topics import IsDeleted, in_slices
from duolog.delay.wheel import Wheel, WheelTimer
from duolog.store.entry import EntrySlot
from duolog.store.state_log import StateLog

INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
CHECKPOINT_BYTES: Final = 1000  # The size of a checkpoint with its name and timer, measured with CPython 3.11.
OFFSET_BYTES: Final = 8  # The size of each offset, if the offsets are not a range.
ENTRY_BYTES: Final = 100  # The size of each entry of `PopCheckpoint.changed_due_ms` and `PopCheckpoint.failures`.
MOVES_MAX: Final = 256  # Timers that the wheel moves in one turn of the loop.


class TooManyPopped(Exception):
    """The checkpoints take `rocketmq.popped_bytes_max` bytes."""


class CheckpointName(NamedTuple):
    """The name of a checkpoint."""

    group: str  # The group's Kafka spelling, as in committed offsets.
    key: int  # The key of the queue.
    start_offset: int
    pop_ms: int


class PopCheckpoint:
    """One pop of one queue. Times are wall-clock milliseconds."""

    __slots__ = (
        "_pending", "attempt_id", "changed_due_ms", "counted_bytes", "due_ms", "failures", "is_ordered", "name",
        "next_offset", "offsets", "timer",
    )  # fmt: skip

    def __init__(self, name: CheckpointName, offsets: Sequence[int], due_ms: int, next_offset: int) -> None:
        self.name = name
        self.offsets = _packed(offsets)  # The offsets of all messages of the pop, ascending.
        self._pending = (1 << len(offsets)) - 1  # Bit n is set while the n-th message is not acknowledged.
        self.due_ms = due_ms
        # Only for ordered pops: the group's committed offset once all messages are acknowledged.
        self.next_offset = next_offset
        self.is_ordered = False
        self.changed_due_ms: dict[int, int] = {}  # Only for ordered pops: due times that consumers changed, by offset.
        # Only for ordered pops, by offset: how often a message became due without an acknowledgement before this pop.
        self.failures: Mapping[int, int] = {}
        self.timer: WheelTimer[PopCheckpoint] | None = None  # Pending until the checkpoint is due.
        self.attempt_id = ""  # An ordered pop with the same attempt id gets the same messages.
        self.counted_bytes = 0  # The size that `PopCheckpoints` counts for the checkpoint.

    # -- Messages that are not acknowledged

    @property
    def pending(self) -> list[int]:
        return [offset for bit, offset in enumerate(self.offsets) if self._pending >> bit & 1]

    @property
    def pending_count(self) -> int:
        return self._pending.bit_count()

    def is_pending(self, offset: int) -> bool:
        return bool(self._bit(offset) & self._pending)

    def remove_pending(self, offsets: Iterable[int]) -> None:
        changed_due_ms = self.changed_due_ms
        for offset in offsets:
            self._pending &= ~self._bit(offset)
            if changed_due_ms:
                changed_due_ms.pop(offset, None)

    def _bit(self, offset: int) -> int:
        try:
            return 1 << self.offsets.index(offset)
        except ValueError:
            return 0

    # -- Ordered pops

    @property
    def next_due_ms(self) -> int:
        """The time at which all messages that are not acknowledged may be popped again."""
        if not self.changed_due_ms:
            return self.due_ms
        return max((self.changed_due_ms.get(offset, self.due_ms) for offset in self.pending), default=self.due_ms)

    def may_be_popped_again(self, now_ms: int, attempt_id: str | None) -> bool:
        """Return whether an ordered pop may take the messages again: they are due, or the attempt id is the same."""
        return self.is_attempt(attempt_id) or self.next_due_ms <= now_ms

    def is_attempt(self, attempt_id: str | None) -> bool:
        return bool(attempt_id) and attempt_id == self.attempt_id

    def failures_after(self, offsets: Iterable[int], attempt_id: str | None) -> dict[int, int]:
        """Return how often each offset has failed if it is popped now; a pop of the same attempt is no failure."""
        if self.is_attempt(attempt_id):
            return {offset: self.failures[offset] for offset in offsets if offset in self.failures}
        return {offset: self.failures.get(offset, 0) + 1 for offset in offsets if offset in self.offsets}

    # -- Size

    @property
    def memory_bytes(self) -> int:
        """The approximate memory of the checkpoint."""
        offset_bytes = 0 if isinstance(self.offsets, range) else OFFSET_BYTES * len(self.offsets)
        entry_bytes = ENTRY_BYTES * (len(self.changed_due_ms) + len(self.failures))
        return CHECKPOINT_BYTES + offset_bytes + entry_bytes + len(self.attempt_id)


def _packed(offsets: Sequence[int]) -> Sequence[int]:
    """Return the offsets as a range, whose memory does not grow with their number, or else as an array."""
    if offsets and offsets[-1] - offsets[0] + 1 == len(offsets):
        return range(offsets[0], offsets[-1] + 1)
    return array("q", offsets)


class PopCheckpoints:
    """The checkpoints of all groups."""

    def __init__(self, state_log: StateLog, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0  # Invariant: the sum of `counted_bytes`, which is `memory_bytes`, of all checkpoints.
        self._checkpoints: dict[CheckpointName, PopCheckpoint] = {}
        self.find = self._checkpoints.get
        self._ordered: dict[tuple[str, int], PopCheckpoint] = {}  # By group and queue key.
        self.of_group: dict[str, set[CheckpointName]] = {}  # By the group's Kafka name.
        self._wheel: Wheel[PopCheckpoint] = Wheel()
        self._due: deque[PopCheckpoint] = deque()  # Due, and not taken yet; some may be settled.
        for record_type, replay in (
            (PopTaken, self._replay_taken),
            (PopSettled, self._replay_settled),
            (PopDelayed, self._replay_delayed),
            (GroupDeleted, self._replay_group_deleted),
        ):
            state_log.own(record_type, replay)  # type: ignore[arg-type]
        self._snapshot_copies = state_log.on_copied_snapshot(
            lambda: self._checkpoints, lambda name: _records_of(self._checkpoints.get(name))
        )

    # -- Queries

    def __len__(self) -> int:
        return len(self._checkpoints)

    def in_order(self, group: str, key: int) -> PopCheckpoint | None:
        """Return the checkpoint of the group's last ordered pop of the queue, unless it is settled."""
        return self._ordered.get((group, key))

    def settling_records(self, group: str, keys: Iterable[int]) -> list[Record]:
        """Return the records that settle the group's ordered pops of these queues.

        A tool's request that sets the group's committed offsets appends these records in the same unit.
        """
        found = filter(None, (self._ordered.get((group, key)) for key in keys))
        return [settled(each.name, each.pending) for each in found]

    def unused_pop_ms(self, group: str, starts: Iterable[tuple[int, int]], now_ms: int) -> int:
        """Return the first pop time from `now_ms` on that is in no checkpoint's name together with one of `starts`.

        `starts` are the queue keys and first offsets of the checkpoints that the caller is about to make.
        """
        checkpoints, pop_ms = self._checkpoints, now_ms
        while True:
            for key, offset in starts:
                if (group, key, offset, pop_ms) in checkpoints:
                    break
            else:
                return pop_ms
            pop_ms += 1

    def check_room(self) -> None:
        """Raise TooManyPopped if there is no memory for another checkpoint."""
        if self._bytes >= self._bytes_max:
            raise TooManyPopped(
                f"{len(self._checkpoints)} pops are not acked, {self._bytes} bytes;"
                f" rocketmq.popped_bytes_max is {self._bytes_max}"
            )

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Return a time before which no checkpoint is due; it may be a little early."""
        return self._due[0].due_ms if self._due else self._wheel.next_deadline_ms()

    def take_due(self, now_ms: int, count_max: int) -> list[PopCheckpoint]:
        """Return the next due checkpoints. Each is returned once, unless `retry_at` makes it due again."""
        if not self._due:
            self._due.extend(self._wheel.advance(now_ms, MOVES_MAX))
        taken_of = [self._due.popleft() for _ in range(min(count_max, len(self._due)))]
        return [each for each in taken_of if self._checkpoints.get(each.name) is each and each.next_due_ms <= now_ms]

    def clock_was_set_back(self, now_ms: int) -> Iterator[int]:
        """Limit due times to those of a pop at `now_ms`, because the clock of earlier pops may have been ahead.

        Yields the number of checkpoints after each slice.
        """
        for names in in_slices(self._checkpoints):
            for name in names:
                if (checkpoint := self._checkpoints.get(name)) is not None:
                    self._limit_due_times(checkpoint, now_ms)
            yield len(names)

    def _limit_due_times(self, checkpoint: PopCheckpoint, now_ms: int) -> None:
        pop_ms, before_ms = checkpoint.name.pop_ms, checkpoint.next_due_ms
        due_ms = _limited(checkpoint.due_ms, pop_ms, now_ms)
        changed_due_ms = {
            offset: _limited(each_ms, pop_ms, now_ms) for offset, each_ms in checkpoint.changed_due_ms.items()
        }
        if due_ms == checkpoint.due_ms and changed_due_ms == checkpoint.changed_due_ms:
            return
        self._snapshot_copies.before_change(checkpoint.name)
        checkpoint.due_ms, checkpoint.changed_due_ms = due_ms, changed_due_ms
        if checkpoint.next_due_ms != before_ms:
            self._schedule(checkpoint)

    def retry_at(self, checkpoint: PopCheckpoint, until_ms: int) -> None:
        """Make a checkpoint due again whose messages could not be revived. The log has no record of it."""
        if self._checkpoints.get(checkpoint.name) is checkpoint:
            self._snapshot_copies.before_change(checkpoint.name)
            checkpoint.due_ms = until_ms
            self._schedule(checkpoint)

    def _schedule(self, checkpoint: PopCheckpoint) -> None:
        if checkpoint.timer is not None:
            self._wheel.cancel(checkpoint.timer)
        checkpoint.timer = self._wheel.add(checkpoint.next_due_ms, checkpoint)

    # -- Replay

    def _replay_taken(self, record: PopTaken, slot: EntrySlot) -> None:
        name = CheckpointName(sys.intern(record.group), record.key, record.start_offset, record.pop_ms)
        if name in self._checkpoints:
            return  # A snapshot repeats the record.
        offsets = [record.start_offset + delta for delta in record.deltas]
        checkpoint = PopCheckpoint(name, offsets, record.due_ms, record.next_offset)
        checkpoint.is_ordered, checkpoint.attempt_id = record.is_ordered, record.attempt_id
        if record.failures:
            failures = zip(offsets, record.failures, strict=False)
            checkpoint.failures = {offset: count for offset, count in failures if count}
        if record.is_ordered:
            before = self._ordered.get((record.group, record.key))
            if before is not None:
                self._remove(before)
            self._ordered[name.group, name.key] = checkpoint
        self._add(checkpoint)

    def _replay_settled(self, record: PopSettled, slot: EntrySlot) -> None:
        checkpoint = self._checkpoints.get(CheckpointName(record.group, record.key, record.start_offset, record.pop_ms))
        if checkpoint is None:
            return
        self._snapshot_copies.before_change(checkpoint.name)
        due_ms, had_changed = checkpoint.next_due_ms, bool(checkpoint.changed_due_ms)
        checkpoint.remove_pending([record.start_offset + delta for delta in record.deltas])
        if not checkpoint.pending_count:
            self._remove(checkpoint)
        elif had_changed:  # Otherwise neither the size of the checkpoint nor its due time has changed.
            self._count(checkpoint)
            if checkpoint.next_due_ms != due_ms:
                self._schedule(checkpoint)

    def _replay_delayed(self, record: PopDelayed, slot: EntrySlot) -> None:
        checkpoint = self._checkpoints.get(CheckpointName(record.group, record.key, record.start_offset, record.pop_ms))
        if checkpoint is None or not checkpoint.is_pending(record.offset):
            return
        self._snapshot_copies.before_change(checkpoint.name)
        if checkpoint.is_ordered:
            checkpoint.changed_due_ms[record.offset] = record.due_ms
            self._count(checkpoint)
            self._schedule(checkpoint)
            return
        checkpoint.remove_pending([record.offset])
        if not checkpoint.pending_count:
            self._remove(checkpoint)
        name = CheckpointName(checkpoint.name.group, record.key, record.offset, record.new_pop_ms)
        self._add(PopCheckpoint(name, (record.offset,), record.due_ms, record.offset + 1))

    def _replay_group_deleted(self, record: GroupDeleted, slot: EntrySlot) -> None:
        for name in [*self.of_group.get(record.group, ())]:
            self._remove(self._checkpoints[name])

    def sweep(self, is_deleted: IsDeleted) -> Iterator[int]:
        """Remove the checkpoints of deleted topics. Until then, those that become due are ignored."""
        for names in in_slices(self._checkpoints):
            for name in names:
                if is_deleted(name.key) and (checkpoint := self._checkpoints.get(name)) is not None:
                    self._remove(checkpoint)
            yield len(names)

    def _add(self, checkpoint: PopCheckpoint) -> None:
        name = checkpoint.name
        self._checkpoints[name] = checkpoint
        self.of_group.setdefault(name.group, set()).add(name)
        self._count(checkpoint)
        self._schedule(checkpoint)

    def _count(self, checkpoint: PopCheckpoint) -> None:
        """Count the checkpoint's memory, which may have changed."""
        before_bytes, checkpoint.counted_bytes = checkpoint.counted_bytes, checkpoint.memory_bytes
        self._bytes += checkpoint.counted_bytes - before_bytes

    def _remove(self, checkpoint: PopCheckpoint) -> None:
        name = checkpoint.name
        self._snapshot_copies.before_change(name)
        del self._checkpoints[name]
        self._bytes -= checkpoint.counted_bytes
        if checkpoint.timer is not None:
            self._wheel.cancel(checkpoint.timer)
        names = self.of_group[name.group]
        names.discard(name)
        if not names:
            del self.of_group[name.group]
        if self._ordered.get((name.group, name.key)) is checkpoint:
            del self._ordered[name.group, name.key]


def _limited(due_ms: int, pop_ms: int, now_ms: int) -> int:
    return min(due_ms, now_ms + max(0, min(due_ms - pop_ms, INVISIBLE_MS_MAX)))


def pending_of(checkpoints: PopCheckpoints, group: str) -> Generator[None, None, Counter[int]]:
    """Return how many messages of each queue, by key, a group has popped and not acknowledged.

    The loop may turn at each None.
    """
    found: Counter[int] = Counter()
    for names in in_slices(checkpoints.of_group.get(group, ())):
        for name in names:
            checkpoint = checkpoints.find(name)
            if checkpoint is not None:
                found[name.key] += checkpoint.pending_count
        yield None
    return found


# -- Records


def taken(
    name: CheckpointName,
    offsets: Sequence[int],
    due_ms: int,
    next_offset: int,
    *,
    is_ordered: bool = False,
    failures: Mapping[int, int] | None = None,
    attempt_id: str = "",
) -> PopTaken:
    deltas = [offset - name.start_offset for offset in offsets]
    counts = [failures.get(offset, 0) for offset in offsets] if failures else []
    return PopTaken(*name, deltas, due_ms, next_offset, is_ordered, counts, attempt_id)


def settled(name: CheckpointName, offsets: Iterable[int]) -> PopSettled:
    return PopSettled(*name, [offset - name.start_offset for offset in offsets])


def _records_of(each: PopCheckpoint | None) -> list[Record] | None:
    """Return the records that restore a checkpoint; None if it no longer exists."""
    if each is None:
        return None
    name = each.name
    offsets = each.offsets if each.is_ordered else each.pending
    records: list[Record] = [
        taken(
            name, offsets, each.due_ms, each.next_offset, is_ordered=each.is_ordered, failures=each.failures,
            attempt_id=each.attempt_id,
        )
    ]  # fmt: skip
    if each.pending_count < len(offsets):
        records.append(settled(name, [offset for offset in offsets if not each.is_pending(offset)]))
    records += (PopDelayed(*name, offset, name.pop_ms, due_ms) for offset, due_ms in each.changed_due_ms.items())
    return records
