"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), which differ only in the thread pool that serves them in Java.

    the group may not read the topic      the error code of the first check that fails, in RocketMQ's order
    offset < min, or > max                PULL_OFFSET_MOVED, and min or max as the next offset
    offset = max                          held if the client allows that, else PULL_NOT_FOUND
    offset between min and max            FOUND; PULL_RETRY_IMMEDIATELY if the filter leaves out all messages
    held, and messages become visible     read again, until there is a message that the filter wants
    held, and the time is up              PULL_NOT_FOUND, or PULL_RETRY_IMMEDIATELY if the filter left out messages

Messages that have expired are left out of the answer (`expired.py`). A request may carry an offset to commit
(COMMIT_OFFSET), which is committed whatever the answer is. Each answer has the next offset, min and max, which Java's
client reads without a check. Max is the last stable offset, so messages of open Kafka transactions are not visible.
Source: PullMessageProcessor.java, DefaultMessageStore.java#getMessage.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import Hold, HoldOutcome, UntilNextTurn, WaitingSteps
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.consuming.expired import may_expire, without_expired
from duolog.bridge.rocketmq.consuming.offset_resets import TOLD_BY_PULL_VERSION
from duolog.bridge.rocketmq.consuming.offsets import commit_one_way
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps, read
from duolog.bridge.state.client_protocols import ClientProtocol
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.tracing.tracing import Tracing
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.filters.subscription_filter import Filter, filter_of
from duolog.protocol.rocketmq.headers import PullRequest
from duolog.protocol.rocketmq.messages import flags
from duolog.protocol.rocketmq.messages.message import queue_offset_of
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer, Promise
from duolog.store.errors import OffsetOutOfRange

# Limits of one answer. Java's broker returns at most 32 messages and 256 KiB (`maxTransfer*OnMessageInMemory`),
# whatever the client asks for. Clients ask for 32 messages and accept more.
MESSAGES_MAX: Final = 1024
BYTES_MAX: Final = 256 << 10
CHARACTER_BYTES: Final = 43  # About the memory of a held pull for each character of its filter's expression.
SUSPEND_MS_MAX: Final = 60_000  # Clients ask for 15 or 20 s, and time out after 30 s.


def pull_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    request = PullRequest.parse(command.ext)
    topic = _topic(context, request)
    wanted = _wanted(context, connection, request)
    context.groups.configs.ensure_if_writable((request.consumer_group,), context.clock.now_ms())
    request.subscription = request.expression_type = None  # A held pull keeps the filter only.
    if request.sys_flag & flags.PULL_COMMIT_OFFSET:
        _commit(context, topic, request)
    started = _Pull(context, command, request, topic, wanted).start()
    return started if isinstance(started, Answer) else answer_in_steps(connection, command, started)


def bytes_of(wanted: Filter | None) -> int:
    """Return about the memory of the filter of a held request, in bytes."""
    return 0 if wanted is None else wanted.characters * CHARACTER_BYTES


# -- Checks


def _topic(context: RocketMQContext, request: PullRequest) -> Topic:
    config = context.groups.configs.find(request.consumer_group)
    if config is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{request.consumer_group[:200]}] does not exist",
        )
    if not config.consume_enable:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {request.consumer_group}")
    topic = context.topics.by_rocketmq_name(request.topic)
    if topic is None:
        raise no_topic(request.topic)
    if not topic.perm & flags.PERM_READ:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{request.topic}] pulling message is forbidden")
    if not 0 <= request.queue_id < topic.queue_count:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] has {topic.queue_count} queues",
        )
    return topic


def no_topic(name: str) -> RequestRefused:
    """Return the refusal of a request that reads a topic that does not exist, or no longer exists."""
    return RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:300]}] not exist, apply first please!")


def _wanted(context: RocketMQContext, connection: RocketMQConnection, request: PullRequest) -> Filter | None:
    """Return the filter of the pull, or else of the member's last heartbeat; None: all messages."""
    if request.sys_flag & flags.PULL_SUBSCRIPTION:
        return filter_of(request.expression_type, request.subscription)
    group = context.groups.members.consumers.get(request.consumer_group)
    if group is not None and connection in group.refused:
        remark = f"the group {request.consumer_group} has members that subscribe to other messages"
        raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
    subscription = group.subscription(connection, request.topic) if group is not None else None
    if subscription is None:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, _not_subscribed(context, request))
    wanted = filter_of(subscription.expression_type, subscription.sub_string)
    # The heartbeat with the newer subscription has not arrived yet, and the older filter may leave out messages that
    # the consumer wants now. Without a filter the older subscription serves as well, because Java's consumers filter
    # the messages again; if they were refused, they would wait for a second after each rebalance.
    if wanted is not None and subscription.sub_version < request.sub_version:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    return wanted


def _not_subscribed(context: RocketMQContext, request: PullRequest) -> str:
    if not context.groups.client_protocols.admits(group_of_rocketmq(request.consumer_group), ClientProtocol.ROCKETMQ):
        return f"the consumer's group {request.consumer_group} is active in Kafka"
    return "the consumer's subscription not exist"


def _commit(context: RocketMQContext, topic: Topic, request: PullRequest) -> None:
    """Commit the offset that the pull carries. No answer waits for the commit."""
    group = group_of_rocketmq(request.consumer_group)
    if request.commit_offset < 0:
        return
    if context.groups.reset_marks.find(request.consumer_group, topic.key(request.queue_id)) is not None:
        return  # A tool has moved the group, and the member does not know the new offset yet.
    commit_one_way(context, group, CommittedOffset(topic.key(request.queue_id), request.commit_offset))


# -- One pull


class _Pull:
    """One pull. `start` answers at once, or returns the generator of a pull that waits."""

    __slots__ = ("_command", "_context", "_offset", "_queue", "_request", "_topic", "_wanted")

    def __init__(
        self,
        context: RocketMQContext,
        command: RemotingCommand,
        request: PullRequest,
        topic: Topic,
        wanted: Filter | None,
    ) -> None:
        self._context, self._command, self._request = context, command, request
        self._topic, self._wanted = topic, wanted
        self._queue = topic.queues[request.queue_id]
        self._offset = request.queue_offset  # Moves over messages that the filter leaves out while the pull is held.

    def start(self) -> Answer | WaitingSteps[Answer]:
        """Return the answer, or the steps of a pull that must wait. Most pulls need no steps."""
        moved = self._reset()
        if moved is not None:
            return moved
        end = self._end()
        if self._offset == end:
            return self._wait_for_messages() if self._request.sys_flag & flags.PULL_SUSPEND else self._not_found()
        try:
            found = self._read(end)
        except OffsetOutOfRange:
            return self._moved()
        return self._wait_for_read(found) if isinstance(found, Later) else self._found(found)

    def _wait_for_read(self, later: Later[Records]) -> WaitingSteps[Answer]:
        try:
            return (yield from self._found_later(later))
        except OffsetOutOfRange:
            return self._moved()

    def _found_later(self, found: Records | Later[Records]) -> WaitingSteps[Answer]:
        """Return the answer when the records are read; raises RequestRefused if the topic was deleted meanwhile."""
        records = yield from read(found)
        if self._topic.number not in self._context.topics:
            raise no_topic(self._request.topic)
        return self._found(records)

    def _wait_for_messages(self) -> WaitingSteps[Answer]:
        """Hold the pull until there is a message that the filter wants."""
        wait_ms = max(min(self._request.suspend_timeout_millis, SUSPEND_MS_MAX), 0)
        hold = Hold((self._queue.key,), self._context.clock.mono_ms() + wait_ms, bytes_of(self._wanted))
        try:
            while (outcome := (yield hold)) is HoldOutcome.CHANGED:
                moved = self._reset()
                if moved is not None:
                    return moved
                end = self._end()
                found = self._read(end)
                if isinstance(found, Later):
                    return (yield from self._found_later(found))
                if found.buffers and self._may_expire():
                    yield UntilNextTurn()  # Dead letters are appended, but not while the log is being written.
                    return (yield from self._found_later(self._read(self._end())))
                if found.buffers or found.next_offset != end:
                    return self._found(found)
                self._offset = end
        except OffsetOutOfRange:
            return self._moved()
        if outcome is HoldOutcome.DELETED:
            raise no_topic(self._request.topic)
        return self._not_found()

    # -- Reading

    def _end(self) -> int:
        """Return the queue's end for RocketMQ: the last stable offset, below which all messages are committed."""
        return self._context.messages.isolation.stable_end(self._queue)

    def _reset(self) -> Answer | None:
        """Return the answer that moves the client to where a tool has moved its group; None: the pull begins there."""
        resets = self._context.groups.reset_marks
        if not resets:
            return None
        request = self._request
        group, key = request.consumer_group, self._queue.key
        offset = resets.find(group, key)
        if offset is None:
            return None
        if offset != self._offset:
            # An older push consumer gets RESET_CONSUMER_CLIENT_OFFSET, and drops the messages that it pulls until then.
            is_lite = request.sys_flag & flags.PULL_LITE
            if self._command.version < TOLD_BY_PULL_VERSION and not is_lite:
                return None
            resets.clear(group, key)
            return self._answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", offset)
        resets.clear(group, key)
        return None

    def _read(self, end: int) -> Records | Later[Records]:
        context, request, queue = self._context, self._request, self._queue
        count = min(max(request.max_msg_nums, 1), MESSAGES_MAX)
        bytes_max = min(BYTES_MAX, context.server.connections.answer_room_bytes())
        if request.max_msg_bytes is not None and 0 < request.max_msg_bytes < bytes_max:
            bytes_max = request.max_msg_bytes
        return context.messages.reader.read_for_rocketmq(
            queue, self._topic, self._offset, count, max(bytes_max, 1), end, self._wanted
        )

    # -- Answers

    def _found(self, found: Records) -> Answer:
        promise = None
        if found.buffers and self._may_expire():
            group = self._request.consumer_group
            found, promise = without_expired(self._context, group, self._topic, self._queue, self._offset, found)
        buffers, next_offset = found
        if not buffers:
            return self._answer(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", next_offset, (), promise)
        context = self._context
        group, groups, size = self._request.consumer_group, context.groups, sum(map(len, buffers))
        mono_ms = context.server.connections.mono_ms
        groups.consume_counts.add(group, self._topic.number, len(buffers), size, mono_ms)
        groups.pulled_offsets.note(group, self._queue.key, next_offset)
        if context.tracing is not None:
            self._trace(context.tracing, found)
        return self._answer(ResponseCode.SUCCESS, "FOUND", next_offset, buffers, promise)

    def _trace(self, tracing: Tracing, found: Records) -> None:
        """Make the spans of the messages in an answer."""
        attributes: dict[str, str | int] = {
            "messaging.system": "rocketmq", "messaging.consumer.group.name": self._request.consumer_group
        }  # fmt: skip
        begun_ms = self._context.clock.now_ms() - (self._context.clock.mono_ms() - self._command.received_mono_ms)
        offsets = partial(map, queue_offset_of, found.buffers)
        tracing.read(self._queue, self._offset, found.next_offset, begun_ms, attributes, offsets)

    def _may_expire(self) -> bool:
        return may_expire(self._context, self._request.consumer_group, self._topic, self._queue)

    def _not_found(self) -> Answer:
        """Answer at the queue's end; the offset has moved if the filter left out messages while the pull was held."""
        if self._offset != self._request.queue_offset:
            return self._answer(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", self._offset)
        return self._answer(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", self._offset)

    def _moved(self) -> Answer:
        queue = self._queue
        if self._offset < queue.start_offset:
            return self._answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", queue.start_offset)
        return self._answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", self._end())

    def _answer(
        self,
        code: ResponseCode,
        remark: str,
        next_offset: int,
        body: Sequence[Buffer] = (),
        promise: Promise | None = None,
    ) -> Answer:
        queue = self._queue
        ext = {
            "nextBeginOffset": str(next_offset),
            "minOffset": str(queue.start_offset),
            "maxOffset": str(self._end()),
            "suggestWhichBrokerId": "0",  # This broker; with another id the client would look for a replica.
        }
        return answer(self._command, code, remark, ext, body, promise)
