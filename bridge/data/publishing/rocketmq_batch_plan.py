"""The plan of a RocketMQ batch, which grows by the plans of its parts, and the place of each of its messages."""

from collections.abc import Sequence
from typing import NamedTuple

from duolog.bridge.data.stamps import ROCKETMQ_STAMP
from duolog.bridge.data.units import SenderKey, UnitPlan
from duolog.bridge.records import frame_formats
from duolog.bridge.records.codec import Record
from duolog.bridge.records.expiry import QueuesExpire
from duolog.bridge.state.topic_table import Topic
from duolog.store.entry import Appended, Buffer, Promise
from duolog.store.log.encode import run_positions
from duolog.store.unit import Frame, FrameRun


class PlacedMessages(NamedTuple):
    """Where the messages of a batch were appended."""

    positions: Sequence[int]  # In the order of the messages.
    base_offset: int  # The offset of the first message.
    promise: Promise


class MessageBatchPlan:
    """The messages of the parts of a batch that were planned so far.

    Messages that become visible at once are appended as a run, which takes a quarter of the time of as many `Frame`
    objects, and leaves fewer objects for the garbage collector. Delayed messages follow the run in the unit.
    """

    def __init__(self, topic: Topic, queue_id: int) -> None:
        self._bodies, self._times_ms, self._tags = list[Buffer](), list[int](), list[int]()
        self._run = FrameRun(
            topic.queues[queue_id], frame_formats.ROCKETMQ, self._bodies, self._times_ms, self._tags, ROCKETMQ_STAMP
        )
        self._delayed: dict[int, Frame] = {}  # Delayed and recurring messages, by their indexes in the batch.
        self._schedules: list[Record] = []  # A ScheduleRegistered for each recurring message.
        self._expiry: list[Record] = []  # The record that the queue has messages that expire, if it is needed.
        self._keys: list[SenderKey] = []
        self._topic, self._message_bytes = topic.number, 0
        self.count = 0  # The number of messages.

    @property
    def delayed_count(self) -> int:
        return len(self._delayed)

    @property
    def schedule_count(self) -> int:
        return len(self._schedules)

    def add(self, part: UnitPlan) -> None:
        """Add the plan of the next messages, each of which has a frame."""
        queue, bodies, times_ms, tags = self._run.queue, self._bodies, self._times_ms, self._tags
        for index, frame in enumerate(part.frames, self.count):
            assert isinstance(frame, Frame), "of one message"
            if frame.queue is queue:
                body = frame.body
                bodies.append(body if type(body) is bytes else b"".join(body))  # type: ignore[arg-type]
                times_ms.append(frame.timestamp_ms)
                tags.append(frame.tags)
            else:
                self._delayed[index] = frame
        for record in part.records:
            if isinstance(record, QueuesExpire):
                self._expiry = [record]  # The record of each part is the same.
            else:
                self._schedules.append(record)
        self._keys += part.keys
        self._message_bytes += part.message_bytes
        self.count += len(part.frames)

    def unit(self) -> UnitPlan:
        """Return the unit with all messages."""
        return UnitPlan(
            [self._run, *self._delayed.values()] if self._bodies else [*self._delayed.values()],
            [*self._schedules, *self._expiry],
            "rocketmq",
            self.count,
            self._message_bytes,
            self._run.queue.level,
            self._topic,
            self._keys,
        )

    def placed(self, appended: Appended) -> PlacedMessages:
        """Give each message its place, from the slots of the frames of `unit`."""
        slots, promise = appended
        first, *others = slots
        if not self._delayed:
            return PlacedMessages([*run_positions(first.position, self._bodies)], first.base_offset, promise)
        delayed = dict(zip(self._delayed, others if self._bodies else slots, strict=True))
        visible = run_positions(first.position, self._bodies)
        positions = [delayed[index].position if index in delayed else next(visible) for index in range(self.count)]
        return PlacedMessages(positions, delayed.get(0, first).base_offset, promise)
