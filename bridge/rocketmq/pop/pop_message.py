"""POP_MESSAGE (200050): the next messages of some of the topic's queues and of the group's retry topics for it.

A pop that finds no message is held until some come, or answered POLLING_TIMEOUT; without room to hold it, POLLING_FULL.
A popped message is invisible to other pops until it is acknowledged (`pop_acks.py`) or its invisible time is over
(`revive.py`). The group's position moves with the pop or, in order, with the acknowledgements. One pop takes from
several queues (`pop_sources.py`) and is one unit of the log (`pop_unit.py`). It reads one queue from the disk at most,
and only if memory has no message. Source: PopMessageProcessor.java.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import Hold, HoldOutcome, UntilNextTurn, UntilRead, WaitingSteps
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.consuming.pull import bytes_of, no_topic
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.pop import pop_answer
from duolog.bridge.rocketmq.pop.pop_checkpoints import INVISIBLE_MS_MAX, PopCheckpoint
from duolog.bridge.rocketmq.pop.pop_checks import check_attempt, check_popper, poppable
from duolog.bridge.rocketmq.pop.pop_sources import PopSource, retry_sources, sources
from duolog.bridge.rocketmq.pop.pop_unit import PoppedQueue, popped_queue, take
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.filters.subscription_filter import Filter, filter_of
from duolog.protocol.rocketmq.headers import PopRequest
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Promise
from duolog.store.errors import OffsetOutOfRange

MESSAGES_MAX: Final = 32  # In the answer to a pop, as in Apache RocketMQ.
BYTES_MAX: Final = 1 << 20
POLL_MS_MAX: Final = 60_000
INVISIBLE_MS_MIN: Final = 1_000
PASSED_READS_MAX: Final = 8  # Reads of one queue in one pop, while the filter leaves out all messages.
FROM_END: Final = 1  # `ConsumeInitMode.MAX`


def pop_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    request = PopRequest.parse(command.ext)
    topic = _topic(context, connection, request)
    wanted = filter_of(request.exp_type, request.exp)
    context.groups.configs.ensure(request.consumer_group, context.clock.now_ms())
    request.exp_type = request.exp = None  # A held pop keeps the filter only.
    pop = _Pop(context, connection, command, request, topic, wanted)
    tried = pop.try_now()
    return tried if isinstance(tried, Answer) else answer_in_steps(connection, command, pop.wait(tried))


def _topic(context: RocketMQContext, connection: RocketMQConnection, request: PopRequest) -> Topic:
    """Check the request in RocketMQ's order, and return the topic. A pop that has waited is checked again."""
    topic = poppable(context, request.topic, request.queue_id)
    if not 0 < request.max_msg_nums <= MESSAGES_MAX:
        remark = f"maxMsgNums[{request.max_msg_nums}] is illegal; 1 to {MESSAGES_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    if not INVISIBLE_MS_MIN <= request.invisible_time <= INVISIBLE_MS_MAX:
        remark = f"invisibleTime {request.invisible_time}; {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    check_attempt(request.attempt_id)
    check_popper(context, request.consumer_group)
    if context.groups.members.is_refused(connection, request.consumer_group):
        remark = f"the group {request.consumer_group} has members that subscribe to other messages"
        raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
    context.pop.checkpoints.check_room()
    return topic


class HeldPop(NamedTuple):
    """The label of a held pop, by which POLLING_INFO counts it."""

    group: str
    queue_id: int  # -1: all queues.


class _ColdQueue(NamedTuple):
    """A queue whose next messages are not in memory."""

    source: PopSource
    later: Later[Records]


class _Pop:
    """One pop. `try_now` answers at once if it can, and `wait` is the generator of a pop that waits."""

    __slots__ = (
        "_command", "_connection", "_context", "_group", "_passed", "_request", "_retries", "_topic", "_until_mono_ms",
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
        self._passed: list[CommittedOffset] = []  # Positions after messages that the filter left out.
        self._until_mono_ms = context.clock.mono_ms() + min(request.poll_time, POLL_MS_MAX)

    def wait(self, tried: Answer | _ColdQueue | None) -> WaitingSteps[Answer]:
        """Wait as the outcome of `try_now` demands, and try again."""
        while not isinstance(tried, Answer):
            if tried is not None:
                return (yield from self._take_cold(tried))
            outcome = yield self._hold()
            if outcome is HoldOutcome.NO_ROOM:
                return self._nothing(ResponseCode.POLLING_FULL)
            if outcome is HoldOutcome.EXPIRED:
                return self._nothing(ResponseCode.POLLING_TIMEOUT)
            yield UntilNextTurn()  # A pop appends, but not while the log is being written.
            self._check_again()
            tried = self.try_now()
        return tried

    def _check_again(self) -> None:
        """Raise RequestRefused if the topic was deleted, or the group may no longer pop it, while the pop waited."""
        if _topic(self._context, self._connection, self._request) is not self._topic:
            raise no_topic(self._request.topic)

    def try_now(self) -> Answer | _ColdQueue | None:
        """Take the messages that memory has, and answer. None: there is no message, and the pop may be held."""
        self._retries = retry_sources(self._context, self._request.consumer_group, self._topic)
        found = self._read()
        if isinstance(found, _ColdQueue):
            return found
        if found:
            return self._take(found)
        self._move_on()
        is_over = self._until_mono_ms <= self._context.clock.mono_ms()
        return self._nothing(ResponseCode.POLLING_TIMEOUT) if is_over else None

    def _hold(self) -> Hold:
        keys = [source.queue.key for source in self._sources()]
        return Hold(keys, self._until_mono_ms, bytes_of(self._wanted), HeldPop(self._group, self._request.queue_id))

    # -- Reading

    def _read(self) -> list[PoppedQueue] | _ColdQueue:
        """Read what memory has; if that is nothing, return the first queue whose messages only the disk has."""
        room = self._request.max_msg_nums
        read: list[PoppedQueue] = []
        for source in self._sources():
            found = self._read_queue(source, room)
            if isinstance(found, Later):
                if not read:
                    return _ColdQueue(source, found)
            elif found is not None:
                read.append(found)
                room -= len(found.offsets)
                if not room:
                    break
        return read

    def _sources(self) -> Iterator[PopSource]:
        config = self._context.groups.configs.get(self._request.consumer_group)
        return sources(self._topic, self._request.queue_id, self._retries, config)

    def _read_queue(self, source: PopSource, room: int) -> PoppedQueue | Later[Records] | None:
        context, queue = self._context, source.queue
        if (self._group, queue.key) in context.pop.reading:
            return None  # Another pop of the group waits until the disk has given it messages of this queue.
        before = self._before(source) if self._request.order else None
        if before is not None and not before.may_be_popped_again(context.clock.now_ms(), self._request.attempt_id):
            return None
        end = context.messages.isolation.stable_end(queue)
        offset = self._position(source, end)
        wanted = None if source.is_retry else self._wanted
        for _ in range(PASSED_READS_MAX):
            if offset >= end:
                break
            try:
                found = context.messages.reader.read_for_rocketmq(
                    queue, source.topic, offset, room, self._room_bytes(), end, wanted
                )
            except OffsetOutOfRange:
                break  # Retention has just raised the log start offset.
            if isinstance(found, Later):
                return found
            if found.buffers:
                return popped_queue(source, found, before)
            offset = found.next_offset
            self._passed.append(CommittedOffset(queue.key, offset))
        return None

    def _before(self, source: PopSource) -> PopCheckpoint | None:
        """Return the group's earlier pop in order of a queue, if some of its messages are not acknowledged."""
        return self._context.pop.checkpoints.in_order(self._group, source.queue.key)

    def _position(self, source: PopSource, end: int) -> int:
        """Return the offset from which the group reads a queue; a new group reads it from the beginning, or the end."""
        queue = source.queue
        position = self._context.groups.group_offsets.fetch(self._group, queue.key)
        if position is not None:
            return max(position.offset, queue.start_offset)
        if source.is_retry or self._request.init_mode != FROM_END or queue.start_offset == 0:
            # A queue from which nothing was removed counts as one that the group has read from the start.
            return queue.start_offset
        self._passed.append(CommittedOffset(queue.key, end))
        return end

    def _room_bytes(self) -> int:
        return max(1, min(BYTES_MAX, self._context.server.connections.answer_room_bytes()))

    def _take_cold(self, cold: _ColdQueue) -> WaitingSteps[Answer]:
        """Read a queue in a reader thread, and take its messages; no other pop of the group reads it meanwhile."""
        self._move_on()  # Others pop the queues that were read before.
        context, source = self._context, cold.source
        place, fetch = (self._group, source.queue.key), context.groups.group_offsets.fetch
        context.pop.reading.add(place)
        position = fetch(*place)
        try:
            found: Records = yield UntilRead(cold.later.start)
        finally:
            context.pop.reading.discard(place)
        self._check_again()
        if fetch(*place) != position:
            # A tool has moved the group, or all messages that were popped in order were acknowledged.
            return self._nothing(ResponseCode.POLLING_TIMEOUT)
        if found.buffers:
            before = self._before(source) if self._request.order else None
            return self._take([popped_queue(source, found, before)])
        self._passed.append(CommittedOffset(source.queue.key, found.next_offset))
        self._move_on()
        return self._nothing(ResponseCode.POLLING_TIMEOUT)

    def _move_on(self) -> None:
        """Move the group over messages that the filter left out. No answer waits for that."""
        context = self._context
        if self._passed:
            passed, self._passed = self._passed, []
            context.groups.group_offsets.commit_later(
                self._group, passed, context.clock.mono_ms(), context.clock.now_ms()
            )
            context.groups.group_offsets.commit_collected(self._group, context.clock.now_ms())

    # -- Answers

    def _take(self, read: list[PoppedQueue]) -> Answer:
        passed, self._passed = self._passed, []
        popped = take(self._context, self._request, self._group, read, passed)
        if not popped.queues:
            return self._nothing(ResponseCode.POLLING_TIMEOUT, popped.promise)  # The client pops again at once.
        return pop_answer.found(self._context, self._command, self._request, self._topic, popped)

    def _nothing(self, code: ResponseCode, promise: Promise | None = None) -> Answer:
        return answer(self._command, code, code.name, promise=promise)
