"""VIEW_MESSAGE_BY_ID (33): returns the message whose offsetMsgId ends with a physical offset.

The physical offset is the address of the record in the log, in whichever protocol it was written. Clients send the
request to the broker whose host is in the id. The topic in the request, which only new clients send, is not needed.
Other handlers find a message by its physical offset with `answer_with_record`. Source:
QueryMessageProcessor.java#viewMessageById.
"""

from collections.abc import Callable
from functools import partial

from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import ViewRequest
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer
from duolog.store.errors import StoreError
from duolog.store.log.entry_reader import RecordAddress
from duolog.store.workers import Failure

MakeAnswer = Callable[[Buffer], Answer]


def view_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> None:
    position = ViewRequest.parse(command.ext).offset
    answer_with_record(context, connection, command, position, lambda record: answer(command, body=record))


def answer_with_record(
    context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand, position: int, make: MakeAnswer
) -> None:
    """Answer with what `make` returns for the record at that position; SYSTEM_ERROR if there is none.

    `make` gets the record as a pull returns it, and may raise ANSWERABLE exceptions. Raises Busy.
    """
    connection.begin_read(command)
    context.store.reader.find_address(position, partial(_found_address, context, connection, command, position, make))


def _found_address(
    context: RocketMQContext,
    connection: RocketMQConnection,
    command: RemotingCommand,
    position: int,
    make: MakeAnswer,
    found: RecordAddress | Failure | None,
) -> None:
    """Read the record, after a reader thread has found its queue and offset, as a pull does."""
    connection.end_read(command)
    try:
        records = _records(context, position, found)
        given = connection.answer_when(command, records, partial(_answer, position, make))
    except Exception as error:  # noqa: BLE001 - `refusal` reports faults
        given = connection.refusal(command, error)
    if given is not None:
        connection.reply(command, given)


def _records(
    context: RocketMQContext, position: int, found: RecordAddress | Failure | None
) -> Records | Later[Records]:
    if isinstance(found, Exception):
        raise found if isinstance(found, StoreError) else StoreError(str(found))
    topic = context.topics.by_number(found.queue.topic) if found is not None else None
    if found is None or topic is None:
        raise _not_found(position)
    queue, offset = found
    return context.messages.reader.rocketmq(queue, topic, offset, 1, 1, context.messages.isolation.stable_end(queue))


def _answer(position: int, make: MakeAnswer, found: Records) -> Answer:
    if not found.buffers:
        raise _not_found(position)
    return make(found.buffers[0])


def _not_found(position: int) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
