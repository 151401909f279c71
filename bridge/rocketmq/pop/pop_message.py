"""POP_MESSAGE (200050): the next messages of some of the topic's queues and of the group's retry topics for it.

A pop that finds none is held until some come, or answered POLLING_TIMEOUT; without room to hold it, POLLING_FULL.
What is popped is invisible to others until it is acked (`pop_acks.py`) or its time is up (`revive.py`).
The group's position moves with the pop, or, in order, with the acks. One pop takes from several queues
(`pop_sources.py`) and is one unit of the log; it asks the disk for one queue at most, and only if memory gave nothing.
What has expired is left out, and becomes dead letters in the same unit (`expired.py`).
Source: PopMessageProcessor.java.
"""

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.purgatory import Held
from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.consuming.expired import may_expire, split_expired
from duolog.bridge.rocketmq.consuming.pull import bytes_of, no_topic
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.pop.pop_checkpoints import (
    INVISIBLE_MS_MAX,
    CheckpointName,
    PopCheckpoint,
    settled,
    taken,
)
from duolog.bridge.rocketmq.pop.pop_checks import check_attempt, check_popper, poppable
from duolog.bridge.rocketmq.pop.pop_sources import PopSource, retry_sources, sources
from duolog.bridge.rocketmq.requests.admission import Kind
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import ANSWERABLE, RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.filters.subscription_filter import Filter, filter_of
from duolog.protocol.rocketmq.headers import PopAnswer, PopRequest
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import queue_offset_of
from duolog.protocol.rocketmq.messages.receipt import (
    ORDER_REVIVE_QUEUE,
    REVIVE_QUEUE,
    Receipt,
    join_infos,
    queue_info,
)
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer, Promise
from duolog.store.errors import OffsetOutOfRange, StoreError
from duolog.store.unit import Frame

MESSAGES_MAX: Final = 32  # Of one pop, as in Apache RocketMQ.
BYTES_MAX: Final = 1 << 20
POLL_MS_MAX: Final = 60_000
INVISIBLE_MS_MIN: Final = 1_000
PASSED_READS_MAX: Final = 8  # Of one queue in one pop, while nothing of it is wanted.
FROM_END: Final = 1  # `ConsumeInitMode.MAX`
_RECEIPT_NAME: Final = re.compile(properties.POP_CK.encode() + b"\x01")


def pop_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    request = PopRequest.parse(command.ext)
    topic = _topic(context, request)
    if context.groups.members.is_refused(connection, request.consumer_group):
        remark = f"the group {request.consumer_group} has members that subscribe to other messages"
        raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
    context.pop.checkpoints.check_room()
    wanted = filter_of(request.exp_type, request.exp)
    context.groups.configs.ensure(request.consumer_group, context.clock.now_ms())
    request.exp_type = request.exp = None  # A held pop need not keep them.
    return Pop(context, connection, command, request, topic, wanted).start()


def _topic(context: RocketMQContext, request: PopRequest) -> Topic:
    """Check who may pop what, in RocketMQ's order."""
    topic = poppable(context, request.topic, request.queue_id)
    if not 0 < request.max_msg_nums <= MESSAGES_MAX:
        remark = f"maxMsgNums[{request.max_msg_nums}] is illegal; 1 to {MESSAGES_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    if not INVISIBLE_MS_MIN <= request.invisible_time <= INVISIBLE_MS_MAX:
        remark = f"invisibleTime {request.invisible_time}; {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    check_attempt(request.attempt_id)
    check_popper(context, request.consumer_group)
    return topic


class _Taken(NamedTuple):
    """What a pop took from one queue."""

    source: PopSource
    buffers: Sequence[Buffer]
    offsets: list[int]
    next_offset: int
    before: PopCheckpoint | None  # What was popped before in order, and came due.


class _Unit:
    """What a pop decides, to be appended at once."""

    __slots__ = ("frames", "is_awaited", "positions", "records", "refusals")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.frames: list[Frame] = []  # Dead letters of what has expired.
        self.positions: list[CommittedOffset] = []
        self.refusals: list[Exception] = []  # Of queues that cannot be popped.
        self.is_awaited = False  # The answer waits for it: it tells of dead letters.


class _Look(Enum):
    NOTHING = 0
    ON_ITS_WAY = 1  # A reader thread fetches it.


class Pop:
    """One POP_MESSAGE request until it is answered: it reads, waits for a reader thread, or is held in the purgatory.

    The class has more than twenty methods because a request goes to and fro between these three states, and reading,
    taking and answering share its topic, group, filter and deadline.
    """

    __slots__ = (
        "_command",
        "_connection",
        "_context",
        "_group",
        "_held",
        "_is_counted",
        "_passed",
        "_request",
        "_retries",
        "_topic",
        "_until_mono_ms",
        "_wanted",
    )  # fmt: skip

    def __init__(
        self,
        context: RocketMQContext,
        connection: RocketMQConnection,
        command: RemotingCommand,
        request: PopRequest,
        topic: Topic,
        wanted: Filter | None,
    ) -> None:
        self._context, self._connection, self._command, self._request = context, connection, command, request
        self._topic, self._wanted = topic, wanted
        self._group = group_of_rocketmq(request.consumer_group)
        self._retries: list[PopSource] = []
        self._passed: list[CommittedOffset] = []  # Positions behind what was looked at and not wanted.
        self._held: Held | None = None
        self._is_counted = False  # Among the connection's unanswered requests.
        self._until_mono_ms = context.clock.mono_ms() + min(request.poll_time, POLL_MS_MAX)

    def start(self) -> Answer | None:
        """Look, and be held if there is nothing; None: the answer comes later."""
        self._retries = retry_sources(self._context, self._request.consumer_group, self._topic)
        found = self._look()
        if isinstance(found, Answer):
            return found
        return self._hold() if found is _Look.NOTHING else None

    # -- Looking

    def _look(self) -> Answer | _Look:
        """Take what memory has, or else ask the disk for the first queue that has something there."""
        taken_of: list[_Taken] = []
        room = self._request.max_msg_nums
        for source in self._sources():
            found = self._read(source, room)
            if isinstance(found, Later):
                if taken_of:
                    continue
                self._move_on()  # Until the disk has answered, others pop the queues that were looked at.
                self._defer(source, found)
                return _Look.ON_ITS_WAY
            if found is not None:
                taken_of.append(found)
                room -= len(found.offsets)
                if not room:
                    break
        if not taken_of:
            self._move_on()
            return _Look.NOTHING
        return self._take(taken_of)

    def _sources(self) -> Iterator[PopSource]:
        config = self._context.groups.configs.get(self._request.consumer_group)
        return sources(self._topic, self._request.queue_id, self._retries, config)

    def _read(self, source: PopSource, room: int) -> _Taken | Later[Records] | None:
        context, queue = self._context, source.queue
        before = None
        if (self._group, queue.key) in context.pop.reading:
            return None  # Another pop of the group waits for the disk to give it this queue.
        if self._request.order:
            before = context.pop.checkpoints.in_order(self._group, queue.key)
            if before is not None and not before.may_be_popped_again(context.clock.now_ms(), self._request.attempt_id):
                return None
        end = context.messages.isolation.stable_end(queue)
        offset = self._position(source, end)
        for _ in range(PASSED_READS_MAX):
            if offset >= end:
                break
            wanted = None if source.is_retry else self._wanted
            try:
                found = context.messages.reader.rocketmq(
                    queue, source.topic, offset, room, self._room_bytes(), end, wanted
                )
            except OffsetOutOfRange:
                break  # Retention moves its start just now.
            if isinstance(found, Later):
                return found
            if found.buffers:
                return self._of(source, found, before)
            offset = found.next_offset
            self._passed.append(CommittedOffset(queue.key, offset))
        return None

    def _position(self, source: PopSource, end: int) -> int:
        """Where the group goes on in a queue. One that it has not read yet: at its beginning, or as it wishes."""
        queue = source.queue
        position = self._context.groups.group_offsets.fetch(self._group, queue.key)
        if position is not None:
            return max(position.offset, queue.start_offset)
        if source.is_retry or self._request.init_mode != FROM_END or queue.start_offset == 0:
            return queue.start_offset  # Where all that was ever sent is still there, it was there from the start.
        self._passed.append(CommittedOffset(queue.key, end))
        return end

    def _room_bytes(self) -> int:
        return max(1, min(BYTES_MAX, self._context.server.connections.answer_room_bytes()))

    def _of(self, source: PopSource, found: Records, before: PopCheckpoint | None) -> _Taken:
        offsets = [queue_offset_of(buffer) for buffer in found.buffers]
        return _Taken(source, found.buffers, offsets, found.next_offset, before)

    def _move_on(self) -> None:
        """Remember what was looked at and not wanted; nobody waits for that."""
        context = self._context
        if self._passed:
            passed, self._passed = self._passed, []
            context.groups.group_offsets.commit_later(
                self._group, passed, context.clock.mono_ms(), context.clock.now_ms()
            )
            context.groups.group_offsets.settle(self._group, context.clock.now_ms())

    # -- Taking

    def _take(self, taken_of: list[_Taken]) -> Answer:
        """Decide, as one unit: what is popped, and where the group goes on."""
        context, request, now_ms = self._context, self._request, self._context.clock.now_ms()
        due_ms = now_ms + request.invisible_time
        unit = _Unit()
        records, positions = unit.records, unit.positions
        positions += self._passed
        self._passed = []
        taken_of = [each for read in taken_of for each in self._alive(read, unit)]
        if unit.refusals and not (taken_of or records or positions):
            raise unit.refusals[0]
        places = [(each.source.queue.key, each.offsets[0]) for each in taken_of]
        pop_ms = context.pop.checkpoints.unused_pop_ms(self._group, places, now_ms)
        for each in taken_of:
            name = CheckpointName(self._group, each.source.queue.key, each.offsets[0], pop_ms)
            records.append(
                taken(
                    name, each.offsets, due_ms, each.next_offset,
                    is_ordered=request.order, failures=self._failures(each),
                    attempt_id=(request.attempt_id or "") if request.order else "",
                )
            )  # fmt: skip
            if not request.order:
                positions.append(CommittedOffset(each.source.queue.key, each.next_offset))
            context.groups.reset_marks.clear(request.consumer_group, each.source.queue.key)
        if positions:
            records += context.groups.group_offsets.records(self._group, positions, now_ms)
        promise = context.state_log.commit(records, now_ms, unit.frames).promise
        context.metrics.dead_letters += len(unit.frames)
        if not taken_of:
            return self._nothing(ResponseCode.POLLING_TIMEOUT, promise)  # The client pops again at once.
        return self._found(taken_of, pop_ms, promise if unit.is_awaited else None)

    def _failures(self, read: _Taken) -> dict[int, int]:
        """Say how often each message failed that is popped again in order."""
        return read.before.failures_after(read.offsets, self._request.attempt_id) if read.before is not None else {}

    def _alive(self, read: _Taken, unit: "_Unit") -> list[_Taken]:
        """Leave out what has expired, perhaps all, and add to the unit what becomes of it.

        A queue whose next message cannot become the dead letter that it must become gives nothing.
        """
        context, group, (topic, queue, _) = self._context, self._request.consumer_group, read.source
        if not may_expire(context, group, topic, queue):
            return [read]
        try:
            split = split_expired(
                context, group, topic, queue, read.offsets[0], Records([*read.buffers], read.next_offset)
            )
        except ANSWERABLE as error:
            unit.refusals.append(error)
            return []
        unit.records += split.records
        unit.frames += split.frames
        unit.is_awaited |= bool(split.frames) or split.reports
        if split.found.buffers:
            return [self._of(read.source, split.found, read.before)]
        unit.positions.append(CommittedOffset(queue.key, split.found.next_offset))
        if read.before is not None:
            unit.records.append(settled(read.before.name, read.before.pending))
        return []

    def _found(self, taken_of: list[_Taken], pop_ms: int, promise: Promise | None) -> Answer:
        request, context = self._request, self._context
        revive_queue = ORDER_REVIVE_QUEUE if request.order else REVIVE_QUEUE
        starts, lists, counts = [], [], []
        body: list[Buffer] = []
        for each in taken_of:
            retry, queue_id = each.source.retry, each.source.queue.queue_id
            starts.append(queue_info(retry, queue_id, each.offsets[0]))
            lists.append(queue_info(retry, queue_id, ",".join(map(str, each.offsets))))
            counts += self._counts(each)
            context.groups.consume_counts.add(
                request.consumer_group, self._topic.number, len(each.offsets), context.server.connections.mono_ms
            )
            body += self._renamed(each, pop_ms, revive_queue) if each.source.is_retry else map(_forwarded, each.buffers)
        ext = PopAnswer(
            pop_time=pop_ms,
            invisible_time=request.invisible_time,
            revive_qid=revive_queue,
            rest_num=sum(context.messages.isolation.stable_end(t.source.queue) - t.next_offset for t in taken_of),
            start_offset_info=join_infos(starts),
            msg_offset_info=join_infos(lists),
            order_count_info=join_infos(counts) if request.order else None,
        ).to_ext()
        return answer(self._command, ResponseCode.SUCCESS, "FOUND", ext, body, promise)

    def _counts(self, popped: _Taken) -> list[str]:
        """Say how often the messages of a queue failed: each that did, and the least of all for older clients."""
        if not self._request.order:
            return []
        retry, queue_id, failures = popped.source.retry, popped.source.queue.queue_id, self._failures(popped)
        counts = [queue_info(retry, f"qo{queue_id}%{offset}", count) for offset, count in failures.items()]
        least = min(failures.get(offset, 0) for offset in popped.offsets)
        return [*counts, queue_info(retry, queue_id, least)]

    def _renamed(self, popped: _Taken, pop_ms: int, revive_queue: int) -> list[Buffer]:
        """Give retried messages the topic that their consumer knows, and their receipts: it cannot make these."""
        request, broker_name = self._request, self._context.options.rocketmq.broker
        records: list[Buffer] = []
        for buffer, offset in zip(popped.buffers, popped.offsets, strict=True):
            found = message.decode(buffer)
            receipt = Receipt(
                popped.offsets[0], pop_ms, request.invisible_time, revive_queue, popped.source.retry, broker_name,
                found.queue_id, offset,
            )  # fmt: skip
            found.properties = properties.set_many(found.properties, {properties.POP_CK: receipt.text()})
            found.topic = self._topic.rocketmq_name
            records.append(message.encode(found))
        return records

    # -- Waiting

    def is_of(self, group: str, queue_id: int) -> bool:
        """Say whether it is that group's pop of that queue; -1: of all."""
        return (self._group, self._request.queue_id) == (group, queue_id)

    def _defer(self, source: PopSource, read: Later[Records]) -> None:
        """Let a reader thread fetch; meanwhile no other pop of the group takes from that queue."""
        place = self._group, source.queue.key
        popping, fetch = self._context.pop.reading, self._context.groups.group_offsets.fetch
        flow = self._context.requests.admission
        flow.begin_read(Kind.PULL)
        popping.add(place)
        position = fetch(*place)
        self._count()

        def done(cold: Records | StoreError) -> None:
            flow.end_read(Kind.PULL)
            popping.discard(place)
            try:
                if isinstance(cold, StoreError):
                    raise cold
                # A tool may have moved the group, or all that was popped in order been acked: this is the past then.
                is_past = fetch(*place) != position
                self._finish(
                    self._nothing(ResponseCode.POLLING_TIMEOUT) if is_past else self._on_cold_read(source, cold)
                )
            except Exception as error:  # noqa: BLE001 - `refusal` reports faults
                self._finish(self._connection.refusal(self._command, error))

        read.start(done)

    def _on_cold_read(self, source: PopSource, cold: Records) -> Answer:
        """Take it; what is not wanted, or wanted by nobody any more, is left for the next pop to go on from."""
        if cold.buffers and not self._connection.closed:
            popped = self._context.pop.checkpoints
            before = popped.in_order(self._group, source.queue.key) if self._request.order else None
            return self._take([self._of(source, cold, before)])
        if not cold.buffers:
            self._passed.append(CommittedOffset(source.queue.key, cold.next_offset))
        self._move_on()
        return self._nothing(ResponseCode.POLLING_TIMEOUT)

    def _hold(self) -> Answer | None:
        """Wait for messages; give the answer at once if that cannot be."""
        context = self._context
        if self._until_mono_ms <= context.clock.mono_ms():
            return self._nothing(ResponseCode.POLLING_TIMEOUT)
        keys = [source.queue.key for source in self._sources()]
        size = bytes_of(self._wanted)
        self._held = self._connection.hold_request(self, keys, self._until_mono_ms, extra_bytes=size)
        if self._held is None:
            return self._nothing(ResponseCode.POLLING_FULL)
        self._count()
        return None

    def try_complete(self) -> bool:
        """Messages came, or can be popped again: look anew, but not while the log is written, for taking appends."""
        self._forget_held()
        self._context.server.soon("rocketmq POP_MESSAGE", self._look_again)
        return True

    def _look_again(self) -> None:
        if self._connection.closed:
            return
        try:
            given = self.start()
        except Exception as error:  # noqa: BLE001 - `refusal` reports faults
            given = self._connection.refusal(self._command, error)
        if given is not None:
            self._finish(given)

    def expire(self) -> None:
        self._forget_held()
        self._finish(self._nothing(ResponseCode.POLLING_TIMEOUT))

    def deleted(self) -> None:
        """Look anew without the group's retry topic, or say that the topic itself is gone."""
        if self._topic.number in self._context.topics:
            self.try_complete()
        else:
            self.fail(no_topic(self._request.topic))

    def fail(self, error: Exception) -> None:
        self._forget_held()
        self._finish(self._connection.refusal(self._command, error))

    def _forget_held(self) -> None:
        if self._held is not None:
            self._connection.forget_held(self._held)
            self._held = None

    def _count(self) -> None:
        if not self._is_counted:
            self._is_counted = True
            self._connection.unanswered += 1

    def _finish(self, given: Answer) -> None:
        self._connection.answered()
        self._connection.reply(self._command, given)

    def _nothing(self, code: ResponseCode, promise: Promise | None = None) -> Answer:
        return answer(self._command, code, code.name, promise=promise)


def _forwarded(record: Buffer) -> Buffer:
    """Give a message without the receipt of another pop: a consumer that sends on what it popped sends that, too."""
    if _RECEIPT_NAME.search(record) is None:
        return record
    found = message.decode(record)
    found.properties = properties.without(found.properties, properties.POP_CK)
    return message.encode(found)
