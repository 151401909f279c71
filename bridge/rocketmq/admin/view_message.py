"""VIEW_MESSAGE_BY_ID (33): returns the message whose offsetMsgId ends with a physical offset.

The physical offset is the address of the record in the log, in whichever protocol it was written. Clients send the
request to the broker whose host is in the id. The topic in the request, which only new clients send, is not needed.
Other handlers find a message by its physical offset with `read_record`.
Source: QueryMessageProcessor.java#viewMessageById.
"""

from collections.abc import Generator
from functools import partial
from typing import Any

from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import UntilRead, Wait, WaitingSteps
from duolog.bridge.rocketmq.access.gate import Granted
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps, read
from duolog.bridge.security.rules import Operation
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import ViewRequest
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.entry import Buffer
from duolog.store.log.entry_reader import RecordAddress


def view_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer VIEW_MESSAGE_BY_ID."""
    position = ViewRequest.parse(command.ext).offset
    return answer_in_steps(connection, command, _steps(context, command, position, connection.granted))


def _steps(
    context: RocketMQContext, command: RemotingCommand, position: int, granted: Granted | None
) -> WaitingSteps[Answer]:
    return answer(command, body=(yield from read_record(context, position, granted)))


def read_record(
    context: RocketMQContext, position: int, granted: Granted | None, own_retries: str = ""
) -> Generator[Wait, Any, Buffer]:
    """Read the record as `find_record` does; raises SYSTEM_ERROR if there is none."""
    record = yield from find_record(context, position, granted, own_retries)
    if record is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
    return record


def find_record(
    context: RocketMQContext, position: int, granted: Granted | None, own_retries: str = ""
) -> Generator[Wait, Any, Buffer | None]:
    """Read the record at a position of the log, as a pull gives it; None if there is none.

    `granted` is what the request was allowed, which must include READ on the record's topic, unless that is the topic
    `own_retries`. Raises RequestRefused and StoreError.
    """
    address: RecordAddress | None = yield UntilRead(partial(context.store.reader.find_address, position))
    topic = context.topics.by_number(address.queue.topic) if address is not None else None
    if address is None or topic is None:
        return None
    if granted is not None and topic.rocketmq_name != own_retries:
        granted.check_topic(topic, Operation.READ)
    queue, offset = address
    end = context.messages.isolation.stable_end(queue)
    found = yield from read(context.messages.reader.read_for_rocketmq(queue, topic, offset, 1, 1, end))
    return found.buffers[0] if found.buffers else None
