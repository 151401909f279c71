"""VIEW_MESSAGE_BY_ID (33): one message by the physical offset that its offsetMsgId ends with.

That is the address of the record in the log, whichever protocol wrote it. Clients ask the broker whose host stands in
the id; the topic, which only newer ones send, is not needed. Source: QueryMessageProcessor.java#viewMessageById.
"""

from functools import partial
from typing import TYPE_CHECKING

from bridge.answers import Answer
from bridge.reading import Records
from bridge.rocketmq.answer import answer
from bridge.rocketmq.errors import ANSWERABLE, Refused
from protocol.rocketmq.codes import ResponseCode
from protocol.rocketmq.headers import ViewRequest
from protocol.rocketmq.remoting import RemotingCommand
from store.errors import StoreError
from store.store import Address
from store.workers import Failure

if TYPE_CHECKING:
    from bridge.broker import Broker
    from bridge.rocketmq.connection import RocketMQConnection


def view_message(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> None:
    position = ViewRequest.parse(command.ext).offset
    connection.unanswered += 1
    broker.store.find_address(position, partial(_found_address, broker, connection, command, position))


def _found_address(
    broker: "Broker",
    connection: "RocketMQConnection",
    command: RemotingCommand,
    position: int,
    found: Address | Failure | None,
) -> None:
    """A reader thread has looked; read what it found as a pull would."""
    connection.answered()
    try:
        given = _view(broker, connection, command, position, found)
    except ANSWERABLE as error:
        given = connection.refusal(command, error)
    if given is not None and not command.is_oneway:
        connection.send(given)


def _view(
    broker: "Broker",
    connection: "RocketMQConnection",
    command: RemotingCommand,
    position: int,
    found: Address | Failure | None,
) -> Answer | None:
    if isinstance(found, Exception):
        raise found if isinstance(found, StoreError) else StoreError(str(found))
    topic = broker.topics.by_number(found.queue.topic) if found is not None else None
    if found is None or topic is None:
        raise _not_found(position)
    queue, offset = found
    records = broker.reader.rocketmq(queue, topic, offset, 1, 1, queue.visible_end)
    return connection.answer_when(command, records, partial(_answer, command, position))


def _answer(command: RemotingCommand, position: int, found: Records) -> Answer:
    if not found.buffers:
        raise _not_found(position)
    return answer(command, body=found.buffers)


def _not_found(position: int) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
