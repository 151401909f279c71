"""Decides what a pop takes: one unit of the log with the checkpoints, the group's positions and the dead letters.

A message that has expired is left out, and becomes a dead letter in the same unit (`consuming/expired.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.data.units import UnitPlan, joined
from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.consuming.expired import may_expire, split_expired
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.pop.pop_checkpoints import CheckpointName, PopCheckpoint, settled, taken
from duolog.bridge.rocketmq.pop.pop_sources import PopSource
from duolog.bridge.rocketmq.requests.errors import ANSWERABLE
from duolog.protocol.rocketmq.headers import PopRequest
from duolog.protocol.rocketmq.messages.message import queue_offset_of
from duolog.store.entry import Buffer, Promise


class PoppedQueue(NamedTuple):
    """The messages that a pop takes from one queue."""

    source: PopSource
    buffers: Sequence[Buffer]
    offsets: list[int]
    next_offset: int
    before: PopCheckpoint | None  # The group's earlier pop in order of this queue, whose messages are due again.

    def failures(self, attempt_id: str | None) -> dict[int, int]:
        """Return how often each message failed that is popped again in order."""
        return self.before.failures_after(self.offsets, attempt_id) if self.before is not None else {}


class Popped(NamedTuple):
    """The outcome of a pop."""

    queues: Sequence[PoppedQueue]
    pop_ms: int
    promise: Promise | None  # What the answer must wait for.


def popped_queue(source: PopSource, found: Records, before: PopCheckpoint | None) -> PoppedQueue:
    offsets = [queue_offset_of(buffer) for buffer in found.buffers]
    return PoppedQueue(source, found.buffers, offsets, found.next_offset, before)


class _Unit:
    """What the pop appends."""

    __slots__ = ("dead", "is_awaited", "positions", "records", "refusals")

    def __init__(self, positions: list[CommittedOffset]) -> None:
        self.records: list[Record] = []
        self.dead: list[UnitPlan] = []  # Dead letters of messages that have expired.
        self.positions = positions
        self.refusals: list[Exception] = []  # The errors of queues that cannot be popped.
        self.is_awaited = False  # The unit has dead letters, so the answer waits until it is stored.


def take(
    context: RocketMQContext,
    request: PopRequest,
    group: str,
    read: Sequence[PoppedQueue],
    passed: list[CommittedOffset],
) -> Popped:
    """Append what is popped, and the positions at which the group goes on, as one unit.

    `group` is the group's name in the store; `passed` are positions after messages that the filter left out. Raises the
    refusal of a queue if no queue can be popped.
    """
    now_ms = context.clock.now_ms()
    due_ms = now_ms + request.invisible_time
    unit = _Unit(passed)
    queues = [popped for each in read if (popped := _without_expired(context, request, each, unit)) is not None]
    if unit.refusals and not (queues or unit.records or unit.positions or unit.dead):
        raise unit.refusals[0]
    places = [(each.source.queue.key, each.offsets[0]) for each in queues]
    pop_ms = context.pop.checkpoints.unused_pop_ms(group, places, now_ms)
    for each in queues:
        key = each.source.queue.key
        unit.records.append(
            taken(
                CheckpointName(group, key, each.offsets[0], pop_ms), each.offsets, due_ms, each.next_offset,
                is_ordered=request.order, failures=each.failures(request.attempt_id),
                attempt_id=(request.attempt_id or "") if request.order else "",
            )
        )  # fmt: skip
        if not request.order:
            unit.positions.append(CommittedOffset(key, each.next_offset))
        context.groups.reset_marks.clear(request.consumer_group, key)
    if unit.positions:
        unit.records += context.groups.group_offsets.records(group, unit.positions, now_ms)
    plan = joined(unit.dead, unit.records)
    promise = context.messages.publisher.append(plan, now_ms).promise
    context.metrics.dead_letters += len(plan.frames)
    return Popped(queues, pop_ms, promise if unit.is_awaited or not queues else None)


def _without_expired(
    context: RocketMQContext, request: PopRequest, read: PoppedQueue, unit: _Unit
) -> PoppedQueue | None:
    """Leave out what has expired, and add to the unit what becomes of it; None: nothing is left.

    A queue whose first message has expired and cannot become a dead letter gives nothing.
    """
    group, (topic, queue, _) = request.consumer_group, read.source
    if not may_expire(context, group, topic, queue):
        return read
    try:
        split = split_expired(context, group, topic, queue, read.offsets[0], Records([*read.buffers], read.next_offset))
    except ANSWERABLE as error:
        unit.refusals.append(error)
        return None
    if split.dead is not None:
        unit.dead.append(split.dead)
    unit.is_awaited |= split.reports or (split.dead is not None and bool(split.dead.frames))
    if split.found.buffers:
        return popped_queue(read.source, split.found, read.before)
    unit.positions.append(CommittedOffset(queue.key, split.found.next_offset))
    if read.before is not None:
        unit.records.append(settled(read.before.name, read.before.pending))
    return None
