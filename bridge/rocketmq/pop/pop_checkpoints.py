"""What groups have popped and not acked yet: checkpoints, one for each pop of a queue.

    pop ──> taken: invisible until due ──┬── every message acked ──> settled
                                         ├── due ──> given back to the retry topic (`revive.py`) ──> settled
                                         └── a consumer asks for more time ──> that message alone, due later

    in order: one checkpoint of a queue at a time. The queue gives nothing until each message that is not acked is due;
    then the group pops on from the first of them. A pop with the attempt id of the one before gets the same again.

A checkpoint is named by group, queue, its first offset and the time of the pop: that is in each message's receipt. The
object is pure: it says which records a decision is, and only replay changes it. Losing the last of them in a crash
pops messages again; so a pop need not wait for the log, and an ack does. Source of what happens in order:
ConsumerOrderInfoManager.java.
"""

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import GroupDeleted
from duolog.bridge.records.pop import PopDelayed, PopSettled, PopTaken
from duolog.bridge.state.deleted_topics import IsGone, in_slices
from duolog.delay.wheel import Wheel, WheelTimer
from duolog.store.entry import Slot
from duolog.store.state_log import StateLog

INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
CHECKPOINT_BYTES: Final = 1000  # Of one checkpoint with its name and date, measured with CPython 3.11.
OFFSET_BYTES: Final = 8  # Of each offset where they are not a range.
ENTRY_BYTES: Final = 100  # Of each entry of `PopCheckpoint.later` and `PopCheckpoint.failures`.
MOVES_MAX: Final = 256  # Of timers in the wheel, between two turns of the loop.


class TooManyPopped(Exception):
    """The pops that are not acked take `rocketmq.popped_bytes_max`."""


class CheckpointName(NamedTuple):
    """Of a checkpoint."""

    group: str  # by its Kafka spelling, as positions know it
    key: int  # of the queue
    start_offset: int
    pop_ms: int


class PopCheckpoint:
    """One pop of one queue; times are wall milliseconds."""

    __slots__ = (
        "_pending", "attempt_id", "counted_bytes", "due_ms", "failures", "is_ordered", "later", "name", "next_offset",
        "offsets", "timer",
    )  # fmt: skip

    def __init__(self, name: CheckpointName, offsets: Sequence[int], due_ms: int, next_offset: int) -> None:
        self.name = name
        self.offsets = _packed(offsets)  # Of all messages of the pop, ascending.
        self._pending = (1 << len(offsets)) - 1  # Bit n is set while the n-th message is not acked.
        self.due_ms = due_ms
        self.next_offset = next_offset  # Of the group's position, once an ordered one is settled.
        self.is_ordered = False
        self.later: dict[int, int] = {}  # In order: the due times of messages for which a consumer asked for another.
        self.failures: Mapping[int, int] = {}  # In order: how often messages came due before, by offset, if they did.
        self.timer: WheelTimer[PopCheckpoint] | None = None  # Pending until the checkpoint is due.
        self.attempt_id = ""  # By which a client that lost the answer pops the same again.
        self.counted_bytes = 0  # What `PopCheckpoints` counts for it.

    # -- What is not acked

    @property
    def pending(self) -> list[int]:
        return [offset for bit, offset in enumerate(self.offsets) if self._pending >> bit & 1]

    @property
    def pending_count(self) -> int:
        return self._pending.bit_count()

    def is_pending(self, offset: int) -> bool:
        return bool(self._bit(offset) & self._pending)

    def settle(self, offsets: Iterable[int]) -> None:
        later = self.later
        for offset in offsets:
            self._pending &= ~self._bit(offset)
            if later:
                later.pop(offset, None)

    def _bit(self, offset: int) -> int:
        try:
            return 1 << self.offsets.index(offset)
        except ValueError:
            return 0

    # -- In order

    @property
    def next_due_ms(self) -> int:
        """When all that is not acked may be popped again."""
        if not self.later:
            return self.due_ms
        return max((self.later.get(offset, self.due_ms) for offset in self.pending), default=self.due_ms)

    def may_be_popped_again(self, now_ms: int, attempt_id: str | None) -> bool:
        """Say whether what was popped in order may be popped once more: it is due, or its answer was lost."""
        return self.is_attempt(attempt_id) or self.next_due_ms <= now_ms

    def is_attempt(self, attempt_id: str | None) -> bool:
        return bool(attempt_id) and attempt_id == self.attempt_id

    def failures_after(self, offsets: Iterable[int], attempt_id: str | None) -> dict[int, int]:
        """Say how often each of the offsets has failed if they are popped now; the same attempt is no failure."""
        if self.is_attempt(attempt_id):
            return {offset: self.failures[offset] for offset in offsets if offset in self.failures}
        return {offset: self.failures.get(offset, 0) + 1 for offset in offsets if offset in self.offsets}

    # -- Size

    @property
    def cost_bytes(self) -> int:
        """About what the checkpoint takes in memory."""
        offset_bytes = 0 if isinstance(self.offsets, range) else OFFSET_BYTES * len(self.offsets)
        entry_bytes = ENTRY_BYTES * (len(self.later) + len(self.failures))
        return CHECKPOINT_BYTES + offset_bytes + entry_bytes + len(self.attempt_id)


def _packed(offsets: Sequence[int]) -> Sequence[int]:
    """Give the offsets as a range, which takes no memory for each of them, or else as an array."""
    if offsets and offsets[-1] - offsets[0] + 1 == len(offsets):
        return range(offsets[0], offsets[-1] + 1)
    return array("q", offsets)


class PopCheckpoints:
    """The checkpoints of all groups."""

    def __init__(self, state_log: StateLog, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0  # Invariant: the sum of `counted_bytes`, which is `cost_bytes`, of all checkpoints.
        self._checkpoints: dict[CheckpointName, PopCheckpoint] = {}
        self.find = self._checkpoints.get
        self._ordered: dict[tuple[str, int], PopCheckpoint] = {}  # by group and queue
        self._of_group: dict[str, set[CheckpointName]] = {}
        self._wheel: Wheel[PopCheckpoint] = Wheel()
        self._due: deque[PopCheckpoint] = deque()  # Out of the wheel and not taken yet; settled ones among them.
        for record_type, replay in (
            (PopTaken, self._replay_taken),
            (PopSettled, self._replay_settled),
            (PopDelayed, self._replay_delayed),
            (GroupDeleted, self._replay_group_deleted),
        ):
            state_log.own(record_type, replay)  # type: ignore[arg-type]
        self._moment = state_log.on_copied_snapshot(
            lambda: self._checkpoints, lambda name: _records_of(self._checkpoints.get(name))
        )

    # -- Asking

    def __len__(self) -> int:
        return len(self._checkpoints)

    def in_order(self, group: str, key: int) -> PopCheckpoint | None:
        """Give what the group popped of the queue in order and has not acked."""
        return self._ordered.get((group, key))

    def forgetting(self, group: str, keys: Iterable[int]) -> list[Record]:
        """Give what settles the group's ordered pops of these queues: it is moved, and their acks shall not move it."""
        found = filter(None, (self._ordered.get((group, key)) for key in keys))
        return [settled(each.name, each.pending) for each in found]

    def unused_pop_ms(self, group: str, places: Iterable[tuple[int, int]], now_ms: int) -> int:
        """Give the first time from now on that names no pop of the group yet at any of these queues and offsets."""
        checkpoints, pop_ms = self._checkpoints, now_ms
        while True:
            for key, offset in places:
                if (group, key, offset, pop_ms) in checkpoints:
                    break
            else:
                return pop_ms
            pop_ms += 1

    def check_room(self) -> None:
        """Raise TooManyPopped if nothing more may be popped."""
        if self._bytes >= self._bytes_max:
            raise TooManyPopped(
                f"{len(self._checkpoints)} pops are not acked, {self._bytes} bytes;"
                f" rocketmq.popped_bytes_max is {self._bytes_max}"
            )

    # -- Time

    def next_deadline_ms(self) -> int | None:
        """Give a time before which no checkpoint is due; it may be a little early."""
        return self._due[0].due_ms if self._due else self._wheel.next_deadline_ms()

    def take_due(self, now_ms: int, count_max: int) -> list[PopCheckpoint]:
        """Give the next due checkpoints; each once, unless it is put off again."""
        if not self._due:
            self._due.extend(self._wheel.advance(now_ms, MOVES_MAX))
        taken_of = [self._due.popleft() for _ in range(min(count_max, len(self._due)))]
        return [each for each in taken_of if self._checkpoints.get(each.name) is each and each.next_due_ms <= now_ms]

    def clock_was_set_back(self, now_ms: int) -> Iterator[int]:
        """Let nothing be invisible longer than if it were popped now: it was, perhaps, by a clock that was ahead.

        Yields after each slice how many were looked at.
        """
        for names in in_slices(self._checkpoints):
            for name in names:
                if (checkpoint := self._checkpoints.get(name)) is not None:
                    self._bring_near(checkpoint, now_ms)
            yield len(names)

    def _bring_near(self, checkpoint: PopCheckpoint, now_ms: int) -> None:
        pop_ms, before_ms = checkpoint.name.pop_ms, checkpoint.next_due_ms
        due_ms = _moved(checkpoint.due_ms, pop_ms, now_ms)
        later = {offset: _moved(each_ms, pop_ms, now_ms) for offset, each_ms in checkpoint.later.items()}
        if due_ms == checkpoint.due_ms and later == checkpoint.later:
            return
        self._moment.before_change(checkpoint.name)
        checkpoint.due_ms, checkpoint.later = due_ms, later
        if checkpoint.next_due_ms != before_ms:
            self._schedule(checkpoint)

    def put_off(self, checkpoint: PopCheckpoint, until_ms: int) -> None:
        """Have a checkpoint that could not be given back come due again; nothing that the log need know."""
        if self._checkpoints.get(checkpoint.name) is checkpoint:
            self._moment.before_change(checkpoint.name)
            checkpoint.due_ms = until_ms
            self._schedule(checkpoint)

    def _schedule(self, checkpoint: PopCheckpoint) -> None:
        if checkpoint.timer is not None:
            self._wheel.cancel(checkpoint.timer)
        checkpoint.timer = self._wheel.add(checkpoint.next_due_ms, checkpoint)

    # -- Replay

    def _replay_taken(self, record: PopTaken, slot: Slot) -> None:
        name = CheckpointName(sys.intern(record.group), record.key, record.start_offset, record.pop_ms)
        if name in self._checkpoints:
            return  # A snapshot that was appended again.
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

    def _replay_settled(self, record: PopSettled, slot: Slot) -> None:
        checkpoint = self._checkpoints.get(CheckpointName(record.group, record.key, record.start_offset, record.pop_ms))
        if checkpoint is None:
            return
        self._moment.before_change(checkpoint.name)
        due_ms = checkpoint.next_due_ms
        checkpoint.settle([record.start_offset + delta for delta in record.deltas])
        if not checkpoint.pending_count:
            self._remove(checkpoint)
            return
        self._count(checkpoint)
        if checkpoint.next_due_ms != due_ms:
            self._schedule(checkpoint)

    def _replay_delayed(self, record: PopDelayed, slot: Slot) -> None:
        checkpoint = self._checkpoints.get(CheckpointName(record.group, record.key, record.start_offset, record.pop_ms))
        if checkpoint is None or not checkpoint.is_pending(record.offset):
            return
        self._moment.before_change(checkpoint.name)
        if checkpoint.is_ordered:
            checkpoint.later[record.offset] = record.due_ms
            self._count(checkpoint)
            self._schedule(checkpoint)
            return
        checkpoint.settle([record.offset])
        if not checkpoint.pending_count:
            self._remove(checkpoint)
        name = CheckpointName(checkpoint.name.group, record.key, record.offset, record.new_pop_ms)
        self._add(PopCheckpoint(name, (record.offset,), record.due_ms, record.offset + 1))

    def _replay_group_deleted(self, record: GroupDeleted, slot: Slot) -> None:
        for name in [*self._of_group.get(record.group, ())]:
            self._remove(self._checkpoints[name])

    def sweep(self, is_gone: IsGone) -> Iterator[int]:
        """Remove the checkpoints of deleted topics; until then nobody acks them, and those that come due are passed."""
        for names in in_slices(self._checkpoints):
            for name in names:
                if is_gone(name.key) and (checkpoint := self._checkpoints.get(name)) is not None:
                    self._remove(checkpoint)
            yield len(names)

    def _add(self, checkpoint: PopCheckpoint) -> None:
        name = checkpoint.name
        self._checkpoints[name] = checkpoint
        self._of_group.setdefault(name.group, set()).add(name)
        self._count(checkpoint)
        self._schedule(checkpoint)

    def _count(self, checkpoint: PopCheckpoint) -> None:
        """Count the checkpoint's memory, which may be another than before."""
        before_bytes, checkpoint.counted_bytes = checkpoint.counted_bytes, checkpoint.cost_bytes
        self._bytes += checkpoint.counted_bytes - before_bytes

    def _remove(self, checkpoint: PopCheckpoint) -> None:
        name = checkpoint.name
        self._moment.before_change(name)
        del self._checkpoints[name]
        self._bytes -= checkpoint.counted_bytes
        if checkpoint.timer is not None:
            self._wheel.cancel(checkpoint.timer)
        names = self._of_group[name.group]
        names.discard(name)
        if not names:
            del self._of_group[name.group]
        if self._ordered.get((name.group, name.key)) is checkpoint:
            del self._ordered[name.group, name.key]


def _moved(due_ms: int, pop_ms: int, now_ms: int) -> int:
    return min(due_ms, now_ms + max(0, min(due_ms - pop_ms, INVISIBLE_MS_MAX)))


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
    """Give the records that restore a checkpoint; None if there is no such checkpoint any more."""
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
    records += (PopDelayed(*name, offset, name.pop_ms, due_ms) for offset, due_ms in each.later.items())
    return records
