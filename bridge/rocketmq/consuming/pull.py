"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): the same but for the queue of threads that Java's broker has for each.

    checks ── who may read what, as RocketMQ orders them ──> a code, or the queue and the tags that are wanted
    place      offset < min, or > max          PULL_OFFSET_MOVED, go on at min or max
               offset = max                    held if the client lets us, else PULL_NOT_FOUND
               between                         read: FOUND; all filtered: PULL_RETRY_IMMEDIATELY behind them
    expired    left out of what was found (`expired.py`)
    held       woken by records                read on, until one is wanted
               time is up                      PULL_NOT_FOUND, or PULL_RETRY_IMMEDIATELY if something was passed over

A position that comes along (COMMIT_OFFSET) is taken once, whatever the pull gives. Every answer carries where to go on,
min and max: Java reads them without asking. Max is the last stable offset: what Kafka's transactions have not decided
is not there yet. Source: PullMessageProcessor.java, DefaultMessageStore.java#getMessage.
"""

from collections.abc import Sequence
from typing import Final

from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import Hold, HoldOutcome, UntilNextTurn, UntilRead, WaitingSteps
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
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.filters.subscription_filter import Filter, filter_of
from duolog.protocol.rocketmq.headers import PullRequest
from duolog.protocol.rocketmq.messages import flags
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer, Promise
from duolog.store.errors import OffsetOutOfRange

# Of one answer. Java's broker gives 32 messages and 256 KiB at most (`maxTransfer*OnMessageInMemory`), whatever the
# client asks for; clients ask for 32 and take more.
MESSAGES_MAX: Final = 1024
BYTES_MAX: Final = 256 << 10
CHARACTER_BYTES: Final = 43  # What a held pull keeps for each character of the expression of its filter, about.
SUSPEND_MS_MAX: Final = 60_000  # Clients ask for 15 or 20 s, and give up after 30.


def pull_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    request = PullRequest.parse(command.ext)
    topic = _topic(context, request)
    wanted = _wanted(context, connection, request)
    context.groups.configs.welcome((request.consumer_group,), context.clock.now_ms())
    request.subscription = request.expression_type = None  # A held pull need not keep them.
    if request.sys_flag & flags.PULL_COMMIT_OFFSET:
        _commit(context, topic, request)
    started = _Pull(context, command, request, topic, wanted).start()
    return started if isinstance(started, Answer) else answer_in_steps(connection, command, started)


def bytes_of(wanted: Filter | None) -> int:
    """Give the memory of a filter that a held request keeps, about."""
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
    """Give the refusal of who reads a topic that is not there, or not any more."""
    return RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:300]}] not exist, apply first please!")


def _wanted(context: RocketMQContext, connection: RocketMQConnection, request: PullRequest) -> Filter | None:
    """Give what the pull, or else its group's last heartbeat, asks for; None: all messages."""
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
    # The heartbeat with the newer one is on its way. Until it is here the older one may leave out what is wanted now;
    # one that leaves out nothing serves as well, and Java's consumers filter again what they get. Being refused, they
    # would wait a second, after every rebalance.
    if wanted is not None and subscription.sub_version < request.sub_version:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    return wanted


def _not_subscribed(context: RocketMQContext, request: PullRequest) -> str:
    if not context.groups.client_protocols.admits(group_of_rocketmq(request.consumer_group), ClientProtocol.ROCKETMQ):
        return f"the consumer's group {request.consumer_group} is active in Kafka"
    return "the consumer's subscription not exist"


def _commit(context: RocketMQContext, topic: Topic, request: PullRequest) -> None:
    """Take the position that came along; nobody waits for it."""
    group = group_of_rocketmq(request.consumer_group)
    if request.commit_offset < 0:
        return
    if context.groups.reset_marks.find(request.consumer_group, topic.key(request.queue_id)) is not None:
        return  # A tool moved the group, and its member does not know yet.
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
            return self._found((yield UntilRead(later.start)))
        except OffsetOutOfRange:
            return self._moved()

    def _wait_for_messages(self) -> WaitingSteps[Answer]:
        """Hold the pull until there is a message that the filter wants."""
        hold = self._hold()
        try:
            while (outcome := (yield hold)) is HoldOutcome.CHANGED:
                moved = self._reset()
                if moved is not None:
                    return moved
                end = self._end()
                found = self._read(end)
                if isinstance(found, Later):
                    return self._found((yield UntilRead(found.start)))
                if found.buffers and self._may_expire():
                    yield UntilNextTurn()  # Dead letters are appended, but not while the log is being written.
                    return self._found((yield from read(self._read(self._end()))))
                if found.buffers or found.next_offset != end:
                    return self._found(found)
                self._offset = end
        except OffsetOutOfRange:
            return self._moved()
        if outcome is HoldOutcome.DELETED:
            raise no_topic(self._request.topic)
        return self._not_found()

    def _hold(self) -> Hold:
        wait_ms = max(min(self._request.suspend_timeout_millis, SUSPEND_MS_MAX), 0)
        return Hold((self._queue.key,), self._context.clock.mono_ms() + wait_ms, bytes_of(self._wanted))

    # -- Reading

    def _end(self) -> int:
        """The queue's end for RocketMQ: its last stable offset, so that only what is committed is seen."""
        return self._context.messages.isolation.stable_end(self._queue)

    def _reset(self) -> Answer | None:
        """Send the client where a tool has moved its group, if it is not there and takes that from a pull."""
        resets = self._context.groups.reset_marks
        if not resets:
            return None
        request = self._request
        group, key = request.consumer_group, self._queue.key
        offset = resets.find(group, key)
        if offset is None:
            return None
        if offset != self._offset:
            # An older push consumer is told by another way, and what it does with its pulls until then is in vain.
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
        return context.messages.reader.rocketmq(
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
        group, topic = self._request.consumer_group, self._topic.number
        context.groups.consume_counts.add(group, topic, len(buffers), context.server.connections.mono_ms)
        return self._answer(ResponseCode.SUCCESS, "FOUND", next_offset, buffers, promise)

    def _may_expire(self) -> bool:
        return may_expire(self._context, self._request.consumer_group, self._topic, self._queue)

    def _not_found(self) -> Answer:
        """At the end; somewhere behind where the pull began, if it passed messages over while it was held."""
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
            "suggestWhichBrokerId": "0",  # This one; any other number sends the client to look for a replica.
        }
        return answer(self._command, code, remark, ext, body, promise)
