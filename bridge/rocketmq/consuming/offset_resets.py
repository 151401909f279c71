"""INVOKE_BROKER_TO_RESET_OFFSET (222): a tool moves the offsets of a group that may be consuming;
INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): a tool asks the members of a group for their offsets.

A reset writes the group's committed offsets, and sets a mark on each queue if the group has members (`reset_marks.py`):

    event while a queue has a mark                         what happens
    a member commits an offset of the queue                ignored, because the member does not know the new offset
    a member pulls the queue from another offset           PULL_OFFSET_MOVED with the new offset; the mark is removed
    a member pulls the queue from the new offset           the mark is removed

A push consumer older than 5.0 treats PULL_OFFSET_MOVED as an error, and pauses for up to half a minute. It gets
RESET_CONSUMER_CLIENT_OFFSET (220) instead, and moves to the new offset within ten seconds. Marks are lost when the
broker restarts: members then continue at their old offsets, and a tool may reset them again. A reset also removes the
checkpoints of messages that were popped in order and not acknowledged, because an acknowledgement would move the
offset again.

For 223 the broker sends GET_CONSUMER_STATUS_FROM_CLIENT (221) to the members.
Source: AdminBrokerProcessor.java#resetOffset, Broker2Client.java, MQClientInstance.java#resetOffset.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from duolog.bridge.data.reading.later import Later
from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import Done, UntilCalled, UntilNextTurn, WaitingSteps
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps, read
from duolog.bridge.state.client_protocols import ClientProtocol
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.errors import ProtocolError
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.bodies import ConsumerStatus, ResetOffsetBody
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.headers import ConsumerStatusRequest, ResetOffsetRequest
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.json.fastjson import MessageQueue, QueueTable
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Promise
from duolog.store.index.queue import Queue

QUEUES_AT_ONCE: Final = 500  # The queues that one turn of the loop resets, in about 15 us each.
ASKED_AT_ONCE: Final = 512  # The concurrent requests to members, which take about 20 us each.
STATUS_BYTES_MAX: Final = 4 << 20  # The size of all answers together; further answers are left out.
TOLD_BY_PULL_VERSION: Final = 413  # `MQVersion.V5_0_0`

logger = logging.getLogger("rocketmq")


# -- 222


def reset_offset(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    request = ResetOffsetRequest.parse(command.ext)
    topic = _topic(context, request.topic)
    _check_group(context, request.group)
    queues = _queues(topic, request)
    reset = _Reset(context, command, request, topic, queues, _finder(context, request, queues))
    return answer_in_steps(connection, command, reset.steps(), outlives_connection=True)


def _finder(
    context: RocketMQContext, request: ResetOffsetRequest, queues: Sequence[Queue]
) -> Callable[[Queue], int | Later[int]]:
    """Return the function that finds the new offset of a queue."""
    if request.offset is not None and request.queue_id >= 0:
        offset = _checked(context, queues[0], request.offset)
        return lambda queue: offset
    reader, stable_end = context.messages.reader, context.messages.isolation.stable_end
    if request.timestamp < 0:
        return stable_end
    return lambda queue: reader.find_stored(queue, request.timestamp, stable_end(queue))


def _check_group(context: RocketMQContext, group: str) -> None:
    """Raise RequestRefused if the group does not exist, or is active in Kafka; each turn of a reset checks it."""
    if context.groups.configs.get(group) is None:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group[:200]} not exist")
    if not context.groups.client_protocols.admits(group_of_rocketmq(group), ClientProtocol.ROCKETMQ):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the group {group} is active in Kafka")


def _topic(context: RocketMQContext, name: str) -> Topic:
    topic = context.topics.by_rocketmq_name(name)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {name[:300]} not exist")
    return topic


def _queues(topic: Topic, request: ResetOffsetRequest) -> Sequence[Queue]:
    if request.queue_id < 0:
        return topic.queues
    if request.queue_id >= topic.queue_count:
        remark = f"queue {request.queue_id} of topic {request.topic}, which has {topic.queue_count}"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
    return [topic.queues[request.queue_id]]


def _checked(context: RocketMQContext, queue: Queue, offset: int) -> int:
    start, end = queue.start_offset, context.messages.isolation.stable_end(queue)
    if not start <= offset <= end:
        remark = f"Target offset {offset} not in consume queue range [{start}-{end}]"
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)
    return offset


class _Reset:
    """Moves the offsets of a group, QUEUES_AT_ONCE queues in one turn of the loop, and then notifies its members.

    To find the offset of a queue may need the disk. The offsets of QUEUES_AT_ONCE queues are committed together, and
    their marks are set in the same turn. So a reset that fails has moved some of the queues, and a tool may repeat it.
    """

    def __init__(
        self,
        context: RocketMQContext,
        command: RemotingCommand,
        request: ResetOffsetRequest,
        topic: Topic,
        queues: Sequence[Queue],
        find: Callable[[Queue], int | Later[int]],
    ) -> None:
        self._context, self._command, self._request = context, command, request
        self._topic, self._queues, self._find = topic, queues, find
        self._rows: list[bytes] = []  # The members of the answer's table.
        self._promise: Promise | None = None

    def steps(self) -> WaitingSteps[Answer]:
        queues = iter(self._queues)
        while batch := list(islice(queues, QUEUES_AT_ONCE)):
            found = {}
            for queue in batch:
                found[queue] = yield from read(self._find(queue))
            self._move(found)
            if len(batch) == QUEUES_AT_ONCE:
                yield UntilNextTurn()
        return self._end()

    def _move(self, found: dict[Queue, int]) -> None:
        """Move the group's positions to the offsets that were found, and mark these queues."""
        context, request = self._context, self._request
        if context.topics.by_number(self._topic.number) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic[:300]} not exist")
        _check_group(context, request.group)
        group, now_ms = group_of_rocketmq(request.group), context.clock.now_ms()
        positions = [CommittedOffset(queue.key, offset) for queue, offset in found.items()]
        keys = [queue.key for queue in found]
        records = [
            *context.pop.checkpoints.settling_records(group, keys),
            *context.groups.group_offsets.records(group, positions, now_ms),
        ]
        self._promise = context.state_log.commit(records, now_ms).promise
        rows = {
            MessageQueue(self._topic.rocketmq_name, context.options.rocketmq.broker, queue.queue_id): offset
            for queue, offset in found.items()
        }
        body = fastjson.write(ResetOffsetBody(offset_table=QueueTable(rows)))
        self._rows.append(body[len(_BEFORE) : -len(_AFTER)])
        if request.group in context.groups.members.consumers:
            for queue, offset in found.items():
                context.groups.reset_marks.mark(request.group, queue.key, offset)

    def _end(self) -> Answer:
        """Notify the group's members, and make the tool's answer."""
        request, queues = self._request, len(self._queues)
        logger.info("positions reset group=%s topic=%s queues=%d", request.group, self._topic.name, queues)
        body = b"".join((_BEFORE, b",".join(self._rows), _AFTER))
        members = self._context.groups.members.consumers.get(request.group)
        if members is not None:
            ext = {
                "topic": request.topic,
                "group": request.group,
                "timestamp": str(request.timestamp),
                "isForce": "true",
            }
            for channel, client in list(members.channels.items()):
                if client.version < TOLD_BY_PULL_VERSION:
                    channel.calls.notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
        # Held pulls are answered with the new offset, and pops in order may go on.
        self._context.purgatory.check(queue.key for queue in self._queues)
        return answer(self._command, body=body, promise=self._promise)


# The text around the members of the table in an encoded `ResetOffsetBody`.
_BEFORE: Final = b'{"offsetTable":{'
_AFTER: Final = b"}}"


# -- 223


def consumer_status(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand
) -> Answer | None:
    """Ask each member of a group, or one member, for its offsets in a topic; members without an answer are left out."""
    request = ConsumerStatusRequest.parse(command.ext)
    members = context.groups.members.consumers.get(request.group)
    asked = {
        client.client_id: channel
        for channel, client in (members.channels.items() if members is not None else ())
        if request.client_addr in (None, "", client.client_id)
    }
    if not asked:
        raise RequestRefused(
            ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of the group {request.group[:200]} is online"
        )
    return answer_in_steps(connection, command, _status_steps(command, request, asked))


def _status_steps(
    command: RemotingCommand, request: ConsumerStatusRequest, asked: dict[str, RocketMQConnection]
) -> WaitingSteps[Answer]:
    ext = {"topic": request.topic, "group": request.group}
    table = yield UntilCalled(lambda done: _Survey(ext, asked, done).ask())
    return answer(command, body=ConsumerStatus(consumer_table=table))


class _Survey:
    """Asks members for their offsets, ASKED_AT_ONCE at a time. `done` gets what they return, by client id."""

    def __init__(self, ext: dict[str, str], members: dict[str, RocketMQConnection], done: Done) -> None:
        self._ext, self._done = ext, done
        self._left = iter(members.items())
        self._waiting = 0  # Members that were asked and have not answered.
        self._is_asking = False
        self._table: dict[str, QueueTable[int]] = {}
        self._bytes_left = STATUS_BYTES_MAX

    def ask(self) -> None:
        """Ask the next members; call `done` when none is left. A closed connection answers None at once."""
        if self._is_asking:
            return
        self._is_asking = True
        while self._waiting < ASKED_AT_ONCE and (member := next(self._left, None)) is not None:
            client_id, channel = member
            self._waiting += 1
            channel.calls.ask(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._ext, b"", partial(self._take, client_id)
            )
        self._is_asking = False
        if not self._waiting:
            self._done(self._table)

    def _take(self, client_id: str, given: RemotingCommand | None) -> None:
        self._waiting -= 1
        if given is not None and given.code == ResponseCode.SUCCESS:
            self._bytes_left -= len(given.body)
            if self._bytes_left >= 0:
                self._table[client_id] = _status_of(given)
            else:
                logger.warning("status of a consumer left out, too many bytes client=%s", client_id)
        self.ask()


def _status_of(given: RemotingCommand) -> QueueTable[int]:
    assert isinstance(given.body, memoryview), "an answer that was decoded"
    try:
        return fastjson.read(given.body, ConsumerStatus).message_queue_table
    except ProtocolError as error:
        logger.warning("status of a consumer not understood reason=%r", str(error))
        return QueueTable({})
