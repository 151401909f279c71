"""RECALL_MESSAGE (370): cancels a delayed message by the recall handle from the answer to its send.

The answer waits until the cancellation is durable; Apache RocketMQ writes a second timer instead, which deletes the
first when both are due. A message that was delivered to its queue cannot be recalled. Source:
RecallMessageProcessor.java.
"""

from functools import partial
from typing import Final

from duolog.bridge.net.answers import Answer
from duolog.bridge.net.waiting import UntilCalled, WaitingSteps
from duolog.bridge.rocketmq.access.gate import Granted
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.bridge.rocketmq.requests.rocketmq_driver import answer_in_steps
from duolog.bridge.security.rules import Operation
from duolog.delay.cancellations import TimerOutcome
from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.headers import RecallRequest
from duolog.protocol.rocketmq.messages import properties, recall_handle
from duolog.protocol.rocketmq.messages.recall_handle import RecallHandle
from duolog.protocol.rocketmq.remoting import RemotingCommand

_REMARKS: Final = {
    TimerOutcome.DELIVERED: "recall failed, the message is delivered already",
    TimerOutcome.NOT_FOUND: "recall failed, the handle names no message of this broker",
}


# Java's client traces a recall only if the answer names the region (DefaultRecallMessageTraceHook.java).
_REGION: Final = {properties.MSG_REGION: "DefaultRegion"}


def recall_message(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Answer RECALL_MESSAGE."""
    try:
        handle = _handle(context, RecallRequest.parse(command.ext))
    except RequestRefused as refused:
        return answer(command, refused.code, str(refused), ext=_REGION)

    steps = _steps(context, command, handle, connection.granted)
    return answer_in_steps(connection, command, steps, outlives_connection=True)


def _steps(
    context: RocketMQContext, command: RemotingCommand, handle: RecallHandle, granted: Granted | None
) -> WaitingSteps[Answer]:
    yield UntilCalled(partial(context.messages.delay_commands.load, handle.timer_id))
    # The client may have written the handle itself, so its topic says nothing about the message.
    topic = context.messages.delay_commands.topic_of(handle.timer_id)
    if granted is not None and topic is not None:
        granted.check_topic(topic, Operation.WRITE)
    return _recall(context, command, handle)


def _recall(context: RocketMQContext, command: RemotingCommand, handle: RecallHandle) -> Answer:
    outcome, promise, _ = context.messages.delay_commands.cancel(handle.timer_id, context.clock.now_ms())
    if outcome is TimerOutcome.CANCELLED:
        return answer(command, ext={**_REGION, "msgId": handle.unique_key}, promise=promise)
    return answer(command, ResponseCode.ILLEGAL_OPERATION, _REMARKS[outcome], ext=_REGION, promise=promise)


def _handle(context: RocketMQContext, request: RecallRequest) -> RecallHandle:
    try:
        handle = recall_handle.decode(request.recall_handle)
    except ProtocolError as error:
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
    if handle.topic != request.topic or handle.broker != context.options.rocketmq.broker:
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic or broker does not match the handle")
    return handle
