"""SEND_BATCH_MESSAGE: the messages of one request, checked in slices of the loop and appended as one unit.

    read       slices of MESSAGES_AT_ONCE messages become frames; an error in one message refuses the batch
    append     all frames are appended in one slice as one unit: all messages are stored, or none
    answer     has the ids of all messages, and waits for the promise of the append

A small batch is complete after its first slice. A connection with a larger batch handles no further request until the
batch is stored, so that messages of a client keep the order in which it sent them. If several connections send large
batches, each turn of the loop runs a slice of one of them. The batches in progress have at most BYTES_MAX in all; a
further one is answered SYSTEM_BUSY, after which clients try again or use another broker.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from duolog.bridge.data.publishing.rocketmq_plan import SenderKey
from duolog.bridge.net.answers import Answer
from duolog.bridge.records import frame_formats
from duolog.bridge.records.codec import Record
from duolog.bridge.records.expiry import QueuesExpire
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.producing.batches_in_progress import Sending
from duolog.bridge.rocketmq.producing.gathered_decisions import append_gathered
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.quota_check import quota_client
from duolog.bridge.security.quotas.entity import QuotaClient
from duolog.bridge.state.topic_table import Topic
from duolog.delay.requested_delay import DelayRefused
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.messages import batch
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.message_id import message_ids
from duolog.protocol.rocketmq.remoting import RemotingCommand, encode_stored
from duolog.store.entry import Buffer, Promise
from duolog.store.log.encode import run_positions
from duolog.store.unit import Frame, FrameRun

# Apache RocketMQ limits only the size of a batch, to 4 MiB; its example of batches sends about 20,000 messages at once.
BATCH_MESSAGES_MAX: Final = 32_768
# For batches with delayed messages: 10,000 delayed messages are appended in some 40 ms, 10,000 others in 11 ms.
MIXED_MESSAGES_MAX: Final = 16_384
MESSAGES_AT_ONCE: Final = 128  # Processing them takes about a millisecond.

# Makes messages of parts of the body, of which the first has this number in the batch; returns them and the UNIQ_KEY of
# the first. Raises IllegalMessage.
Make = Callable[[Sequence[batch.Part], int], tuple[list[Message], str]]


class Target(NamedTuple):
    """The destination of a batch."""

    topic: Topic
    queue_id: int
    waits: bool  # The answer waits for the log.
    make: Make


def sending(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand, target: Target
) -> Sending:
    """Store the messages of a request, and return its answer. Raises what `Publisher.publish_messages` raises."""
    body = command.body
    assert isinstance(body, memoryview), "decoded from a frame"
    gathered, unique_key = _Gathered(context, target), ""
    for parts in batch.read(body, MESSAGES_AT_ONCE, BATCH_MESSAGES_MAX):
        if gathered.count:
            yield False
        messages, key = target.make(parts, gathered.count)
        unique_key = unique_key or key
        gathered.add(messages, connection)
    is_large = gathered.count > MESSAGES_AT_ONCE
    if is_large:
        yield True
    if context.messages.halves.gathered:
        append_gathered(context.messages.halves, context.metrics, context.clock.now_ms())
    positions, base_offset, promise = gathered.append(quota_client(connection))
    if is_large:
        yield True
    ids = message_ids(context.messages.publisher.messages.store_host, positions)
    buffers = encode_stored(command, ids, target.queue_id, base_offset, unique_key, "")
    return Answer(buffers, promise if target.waits else None)


class _Gathered:
    """The frames of the part of a batch that is read.

    Messages that become visible at once are appended as a run, which takes a quarter of the time of as many `Frame`
    objects, and leaves fewer objects for the garbage collector. Delayed messages follow the run in the unit.
    """

    def __init__(self, context: RocketMQContext, target: Target) -> None:
        self._context, self._topic, self._queue_id = context, target.topic, target.queue_id
        self._now_ms = context.clock.now_ms()
        queue = target.topic.queues[target.queue_id]
        self._bodies, self._times_ms, self._tags = list[Buffer](), list[int](), list[int]()
        self._run = FrameRun(
            queue, frame_formats.ROCKETMQ, self._bodies, self._times_ms, self._tags, rocketmq_message.stamp
        )
        self._others: dict[int, Frame] = {}  # Delayed and recurring messages, by their indexes in the batch.
        self._schedules: list[Record] = []  # A ScheduleRegistered for each recurring message.
        self._expiry: list[Record] = []  # The record that the queue has messages that expire, if it is needed.
        self._keys: list[SenderKey] = []  # Of the delayed messages.
        self.count = self._body_bytes = 0

    def add(self, messages: Sequence[Message], connection: RocketMQConnection) -> None:
        """Make the frames of the next messages, and check the limits of the batch."""
        planner = self._context.messages.publisher.messages
        plan = planner.plan_messages(
            self._topic,
            self._queue_id,
            messages,
            self._now_ms,
            sender=connection,
            schedules_before=len(self._schedules),
        )
        self._keys += plan.keys
        self._keep(plan.frames)
        self._body_bytes += plan.body_bytes
        if self._others:
            self._check_delayed()
        for record in plan.records:
            if isinstance(record, QueuesExpire):
                self._expiry = [record]  # The record of each part is the same.
            else:
                self._schedules.append(record)

    def _check_delayed(self) -> None:
        limit = self._context.options.delay.batch_delayed_max
        if len(self._others) > limit:
            raise DelayRefused(f"batch of more than {limit} delayed messages; delay.batch_delayed_max is the limit")
        if self.count > MIXED_MESSAGES_MAX:
            raise DelayRefused(f"batch of more than {MIXED_MESSAGES_MAX} messages, of which some are delayed")

    def _keep(self, frames: Sequence[Frame]) -> None:
        queue = self._run.queue
        visible = [frame for frame in frames if frame.queue is queue]
        self._bodies += [body if type(body := frame.body) is bytes else b"".join(body) for frame in visible]  # type: ignore[arg-type]
        self._times_ms += [frame.timestamp_ms for frame in visible]
        self._tags += [frame.tags for frame in visible]
        if len(visible) < len(frames):
            numbered = enumerate(frames, self.count)
            self._others |= {index: frame for index, frame in numbered if frame.queue is not queue}
        self.count += len(frames)

    def append(self, client: QuotaClient | None) -> tuple[Iterable[int], int, Promise]:
        """Append all messages as one unit; return their positions, the offset of the first, and the promise.

        `client` is whose quota delayed messages count in.
        """
        context, topic = self._context, self._topic
        if topic.number not in context.topics:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic.rocketmq_name}] was deleted meanwhile")
        if self._schedules:
            context.messages.schedules.check_room(self._schedules)
        others = self._others
        slots, promise = context.messages.publisher.append_batch(
            self._run,
            [*others.values()],
            [*self._schedules, *self._expiry],
            self._keys,
            self._body_bytes,
            self._now_ms,
            client,
        )
        visible = run_positions(slots[0].position, self._bodies)
        if not others:
            return visible, slots[0].base_offset, promise
        delayed = slots[1:] if self._bodies else slots
        first = delayed[0] if 0 in others else slots[0]
        rest = iter(delayed)
        positions = [next(rest).position if index in others else next(visible) for index in range(self.count)]
        return positions, first.base_offset, promise
