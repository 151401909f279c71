"""Positions that a tool moves while a group consumes: INVOKE_BROKER_TO_RESET_OFFSET (222); and where a group's members
say that they are: INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223).

    222 ──> the group's positions (durable)  +  a mark for each queue, if the group has live members
    mark    the group's commits for the queue are passed over: its members do not know yet
            a pull from elsewhere is answered PULL_OFFSET_MOVED with the new offset: the client goes there at once
            a pull from the new offset, or such an answer, takes the mark away

A push consumer older than 5.0 takes that answer for a fault and pauses up to half a minute; so it is told by
RESET_CONSUMER_CLIENT_OFFSET (220) instead, and goes to the new offset within its own ten seconds. Marks are in memory:
members that outlive the broker go on where they were, and a tool may reset them again. What was popped in order
and not acked is let go with the reset: its acks would move the position again.

223 asks the members themselves (221). Source: AdminBrokerProcessor.java#resetOffset, Broker2Client.java,
MQClientInstance.java#resetOffset.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bridge.answers import Answer
from bridge.families import Family
from bridge.reading import Later
from bridge.records import CommittedPosition
from bridge.rocketmq.answer import answer
from bridge.rocketmq.errors import Refused
from bridge.topics import Topic
from protocol.errors import ProtocolError
from protocol.names import group_of_rocketmq
from protocol.rocketmq import fastjson
from protocol.rocketmq.bodies import ConsumerStatus, ResetOffsetBody
from protocol.rocketmq.codes import RequestCode, ResponseCode
from protocol.rocketmq.fastjson import MessageQueue, QueueTable
from protocol.rocketmq.headers import ConsumerStatusRequest, ResetOffsetRequest
from protocol.rocketmq.remoting import RemotingCommand
from store.errors import StoreError
from store.queue import Queue

if TYPE_CHECKING:
    from bridge.broker import Broker
    from bridge.rocketmq.connection import RocketMQConnection

MARKS_MAX: Final = 100_000  # Queues of all groups; the oldest make room.
ASKED_AT_ONCE: Final = 512  # Members that have not said yet where they are, at some 20 us each.
STATUS_BYTES_MAX: Final = 4 << 20  # Of what they say; who says more is left out.
TOLD_BY_PULL_VERSION: Final = 413  # `MQVersion.V5_0_0`

logger = logging.getLogger("bridge")


class Resets:
    """The marks: where a group's next pull of a queue is to begin."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, int], int] = {}  # (group by its RocketMQ name, queue key): offset; oldest first

    def __len__(self) -> int:
        return len(self._marks)

    def mark(self, group: str, key: int, offset: int) -> None:
        self._marks.pop((group, key), None)
        if len(self._marks) >= MARKS_MAX:
            del self._marks[next(iter(self._marks))]
        self._marks[group, key] = offset

    def find(self, group: str, key: int) -> int | None:
        return self._marks.get((group, key))

    def clear(self, group: str, key: int) -> None:
        self._marks.pop((group, key), None)


# -- 222


def reset_offset(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer | None:
    request = ResetOffsetRequest.parse(command.ext)
    topic = _topic(broker, request.topic)
    if broker.rocketmq_groups.get(request.group) is None:
        remark = f"Group {request.group[:200]} not exist"
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not broker.families.admits(group_of_rocketmq(request.group), Family.ROCKETMQ):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the group {request.group} is active in Kafka")
    queues = _queues(topic, request)
    if request.offset is not None and request.queue_id >= 0:
        return _reset(broker, command, request, topic, {queues[0]: _checked(broker, queues[0], request.offset)})
    if request.timestamp < 0:
        return _reset(broker, command, request, topic, {queue: broker.isolation.stable_end(queue) for queue in queues})
    search = _Search(broker, queues, request.timestamp)
    return search.answer(connection, command, lambda found: _reset(broker, command, request, topic, found))


def _topic(broker: "Broker", name: str) -> Topic:
    topic = broker.topics.by_rocketmq_name(name)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {name[:300]} not exist")
    return topic


def _queues(topic: Topic, request: ResetOffsetRequest) -> Sequence[Queue]:
    if request.queue_id < 0:
        return topic.queues
    if request.queue_id >= topic.queue_count:
        remark = f"queue {request.queue_id} of topic {request.topic}, which has {topic.queue_count}"
        raise Refused(ResponseCode.INVALID_PARAMETER, remark)
    return [topic.queues[request.queue_id]]


def _checked(broker: "Broker", queue: Queue, offset: int) -> int:
    start, end = queue.start_offset, broker.isolation.stable_end(queue)
    if not start <= offset <= end:
        remark = f"Target offset {offset} not in consume queue range [{start}-{end}]"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark)
    return offset


def _reset(
    broker: "Broker", command: RemotingCommand, request: ResetOffsetRequest, topic: Topic, found: dict[Queue, int]
) -> Answer:
    """Move the group's positions, mark the queues, tell its members."""
    group, now_ms = group_of_rocketmq(request.group), broker.clock.now_ms()
    positions = [CommittedPosition(queue.key, offset) for queue, offset in found.items()]
    keys = [queue.key for queue in found]
    records = [*broker.rocketmq_popped.forgetting(group, keys), *broker.positions.records(group, positions, now_ms)]
    promise = broker.ledger.commit(records, now_ms).promise
    rows = {
        MessageQueue(topic.rocketmq_name, broker.options.rocketmq.broker, queue.queue_id): offset
        for queue, offset in found.items()
    }
    body = fastjson.write(ResetOffsetBody(offset_table=QueueTable(rows)))
    logger.info("positions reset group=%s topic=%s queues=%d", request.group, topic.name, len(found))
    members = broker.rocketmq_members.consumers.get(request.group)
    if members is not None:
        for queue, offset in found.items():
            broker.rocketmq_resets.mark(request.group, queue.key, offset)
        ext = {"topic": request.topic, "group": request.group, "timestamp": str(request.timestamp), "isForce": "true"}
        for channel, client in list(members.channels.items()):
            if client.version < TOLD_BY_PULL_VERSION:
                channel.notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
    broker.purgatory.check(keys)  # Pulls go there, and who pops in order may go on.
    return answer(command, body=body, promise=promise)


class _Search:
    """Finds the offset of each queue at a time, one queue after the other: any of them may need the disk."""

    def __init__(self, broker: "Broker", queues: Sequence[Queue], stored_ms: int) -> None:
        self._broker, self._stored_ms = broker, stored_ms
        self._left: Iterator[Queue] = iter(queues)
        self._found: dict[Queue, int] = {}

    def answer(
        self, connection: "RocketMQConnection", command: RemotingCommand, make: Callable[[dict[Queue, int]], Answer]
    ) -> Answer | None:
        """Give the answer made of all that was found, or send it once all is."""
        for queue in self._left:
            found = self._broker.reader.find_stored(queue, self._stored_ms, self._broker.isolation.stable_end(queue))
            if isinstance(found, Later):
                self._wait(queue, found, connection, command, make)
                return None
            self._found[queue] = found
        return make(self._found)

    def _wait(
        self,
        queue: Queue,
        later: Later[int],
        connection: "RocketMQConnection",
        command: RemotingCommand,
        make: Callable[[dict[Queue, int]], Answer],
    ) -> None:
        def done(cold: int | StoreError) -> None:
            connection.end_read(command)
            given: Answer | None
            try:
                if isinstance(cold, StoreError):
                    raise cold
                self._found[queue] = cold
                given = self.answer(connection, command, make)
            except Exception as error:  # noqa: BLE001 - `refusal` reports what nobody expected
                given = connection.refusal(command, error)
            if given is not None:
                connection.reply(command, given)

        connection.begin_read(command)
        later.start(done)


# -- 223


def consumer_status(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> None:
    """Ask each member of a group, or one, how far it is in a topic; those that do not answer are left out."""
    request = ConsumerStatusRequest.parse(command.ext)
    members = broker.rocketmq_members.consumers.get(request.group)
    asked = {
        client.client_id: channel
        for channel, client in (members.channels.items() if members is not None else ())
        if request.client_addr in (None, "", client.client_id)
    }
    if not asked:
        raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of the group {request.group[:200]} is online")
    connection.unanswered += 1
    _Survey(connection, command, {"topic": request.topic, "group": request.group}, asked).ask()


class _Survey:
    """Asks members how far they are, some at a time, and answers with what they say."""

    def __init__(
        self,
        connection: "RocketMQConnection",
        command: RemotingCommand,
        ext: dict[str, str],
        members: dict[str, "RocketMQConnection"],
    ) -> None:
        self._connection, self._command, self._ext = connection, command, ext
        self._left = iter(members.items())
        self._waiting = 0  # How many were asked and have not answered.
        self._is_asking = False
        self._table: dict[str, QueueTable[int]] = {}
        self._bytes_left = STATUS_BYTES_MAX

    def ask(self) -> None:
        """Ask as many as may be asked at once; answer when none is left. A member that is gone answers at once."""
        if self._is_asking:
            return
        self._is_asking = True
        while self._waiting < ASKED_AT_ONCE and (member := next(self._left, None)) is not None:
            client_id, channel = member
            self._waiting += 1
            channel.call(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._ext, b"", partial(self._take, client_id))
        self._is_asking = False
        if not self._waiting:
            self._connection.answered()
            body = ConsumerStatus(consumer_table=self._table)
            self._connection.reply(self._command, answer(self._command, body=body))

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
        logger.warning("status of a consumer is none reason=%r", str(error))
        return QueueTable({})
