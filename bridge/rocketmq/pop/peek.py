"""Requests about messages that could be popped: NOTIFICATION (200054), PEEK_MESSAGE (200052), POLLING_INFO (200055).

    notification   whether the group has a message to pop; held until it has one, or until `pollTime` is over
    peek           the group's next messages, without popping them
    polling info   the number of the group's pops that are held on a queue, or with -1 on all queues

A proxy sends NOTIFICATION before it pops; tools send the other two.
Source: NotificationProcessor.java, PeekMessageProcessor.java, PollingInfoProcessor.java.
"""

from collections.abc import Sequence

from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import Hold, HoldOutcome, RequestDriver, WaitingSteps
from duolog.bridge.rocketmq.consuming.pull import no_topic
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.pop.pop_checks import check_attempt, check_popper, poppable
from duolog.bridge.rocketmq.pop.pop_message import BYTES_MAX, MESSAGES_MAX, POLL_MS_MAX, HeldPop
from duolog.bridge.rocketmq.pop.pop_sources import retry_sources
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps, answer_when
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import NotificationRequest, PeekRequest, PollingInfoRequest
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer
from duolog.store.errors import OffsetOutOfRange
from duolog.store.index.queue import Queue


def polling_info(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    request = PollingInfoRequest.parse(command.ext)
    topic = poppable(context, request.topic, request.queue_id)
    check_popper(context, request.consumer_group)
    label = HeldPop(group_of_rocketmq(request.consumer_group), request.queue_id)
    watching = context.purgatory.watching(topic.key(max(request.queue_id, 0)))
    count = sum(isinstance(waiting, RequestDriver) and waiting.label == label for waiting in watching)
    return answer(command, ext={"pollingNum": str(count)})


# -- Places


def _places(context: RocketMQContext, group: str, topic: Topic, queue_id: int) -> Sequence[tuple[Topic, Queue]]:
    """Return the queues that the group would pop: the topic's own, and those of the group's retry topics for it."""
    own = topic.queues if queue_id < 0 else [topic.queues[queue_id]]
    retries = [(source.topic, source.queue) for source in retry_sources(context, group, topic)]
    return [*((topic, queue) for queue in own), *retries]


def _position(context: RocketMQContext, group: str, queue: Queue) -> int:
    position = context.groups.group_offsets.fetch(group_of_rocketmq(group), queue.key)
    return max(position.offset, queue.start_offset) if position is not None else queue.start_offset


# -- Peeking


def peek_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    request = PeekRequest.parse(command.ext)
    if not 0 < request.max_msg_nums <= MESSAGES_MAX:
        remark = f"maxMsgNums[{request.max_msg_nums}] is illegal; 1 to {MESSAGES_MAX} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    topic = poppable(context, request.topic, request.queue_id)
    check_popper(context, request.consumer_group)
    places = _places(context, request.consumer_group, topic, request.queue_id)
    rest = sum(
        max(context.messages.isolation.stable_end(queue) - _position(context, request.consumer_group, queue), 0)
        for _, queue in places
    )

    def make(found: Records) -> Answer:
        ext = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(rest)}
        if not found.buffers:
            return answer(command, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", ext)
        return answer(command, ResponseCode.SUCCESS, "FOUND", ext, found.buffers)

    return answer_when(connection, command, _peek(context, request, places), make)


def _peek(
    context: RocketMQContext, request: PeekRequest, places: Sequence[tuple[Topic, Queue]]
) -> Records | Later[Records]:
    """Read what memory has; if that is nothing, return the read of the first queue whose messages only the disk has."""
    buffers: list[Buffer] = []
    cold: Later[Records] | None = None
    for topic, queue in places:
        room, end = request.max_msg_nums - len(buffers), context.messages.isolation.stable_end(queue)
        offset = _position(context, request.consumer_group, queue)
        if not room or offset >= end:
            continue
        bytes_max = max(1, min(BYTES_MAX, context.server.connections.answer_room_bytes()) - sum(map(len, buffers)))
        try:
            found = context.messages.reader.read_for_rocketmq(queue, topic, offset, room, bytes_max, end)
        except OffsetOutOfRange:
            continue  # Retention has just raised the log start offset.
        if isinstance(found, Later):
            cold = cold or found
        else:
            buffers += found.buffers
    return cold if cold is not None and not buffers else Records(buffers, 0)


# -- Waiting for something to pop


def notification(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    request = NotificationRequest.parse(command.ext)
    topic = poppable(context, request.topic, request.queue_id)
    check_attempt(request.attempt_id)
    check_popper(context, request.consumer_group)
    started = _Notification(context, command, request, topic).start()
    return started if isinstance(started, Answer) else answer_in_steps(connection, command, started)


class _Notification:
    """One question whether there is a message to pop. `start` answers at once, or returns a generator that waits."""

    __slots__ = ("_command", "_context", "_places", "_request", "_topic")

    def __init__(
        self, context: RocketMQContext, command: RemotingCommand, request: NotificationRequest, topic: Topic
    ) -> None:
        self._context, self._command, self._request, self._topic = context, command, request, topic
        self._places = self._find_places()

    def start(self) -> Answer | WaitingSteps[Answer]:
        """Return the answer, or the steps of a request that waits for a message."""
        wait_ms = min(self._request.poll_time, POLL_MS_MAX)
        has_message = self._has_message()
        if has_message or wait_ms <= 0:
            return self._answer(has_message=has_message)
        return self._wait(self._context.clock.mono_ms() + wait_ms)

    def _wait(self, until_mono_ms: int) -> WaitingSteps[Answer]:
        hold = Hold([queue.key for _, queue in self._places], until_mono_ms)
        outcome = yield hold
        # The request does not watch a retry topic that is created now; there will be a message in it.
        while outcome is HoldOutcome.CHANGED and not self._has_message() and not self._has_new_places():
            outcome = yield hold
        if outcome is HoldOutcome.DELETED and self._topic.number not in self._context.topics:
            raise no_topic(self._request.topic)
        return self._answer(has_message=outcome is HoldOutcome.CHANGED, is_full=outcome is HoldOutcome.NO_ROOM)

    def _has_new_places(self) -> bool:
        return len(self._find_places()) != len(self._places)

    def _find_places(self) -> Sequence[tuple[Topic, Queue]]:
        return _places(self._context, self._request.consumer_group, self._topic, self._request.queue_id)

    def _has_message(self) -> bool:
        context, request = self._context, self._request
        for _, queue in self._places:
            if request.order and self._is_blocked(queue):
                continue
            if _position(context, request.consumer_group, queue) < context.messages.isolation.stable_end(queue):
                return True
        return False

    def _is_blocked(self, queue: Queue) -> bool:
        """Return whether a pop in order must wait until the messages of an earlier pop are acknowledged."""
        request, context = self._request, self._context
        before = context.pop.checkpoints.in_order(group_of_rocketmq(request.consumer_group), queue.key)
        return before is not None and not before.may_be_popped_again(context.clock.now_ms(), request.attempt_id)

    def _answer(self, *, has_message: bool = False, is_full: bool = False) -> Answer:
        ext = {"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()}
        return answer(self._command, ext=ext)
