"""Queues that the broker assigns to members: QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401).

    PULL   each member has queues of its own, as if the members had assigned them
    POP    each member pops all queues of the topic (queue -1); or, with `popShareQueueNum`, its own queues and those
           of as many members after it

The mode belongs to a group and a topic; PULL is the default, and a retry topic is always pulled. Java's clients send
QUERY_ASSIGNMENT if they are configured so (`setClientRebalance(false)`), every 20 s and when the group changes. A
client that gets no assignment (None) keeps its queues.
Source: QueryAssignmentProcessor.java, AllocateMessageQueueAveragely.java.
"""

from collections.abc import Iterable
from typing import Final

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.consuming.request_modes import POP, PULL, RequestMode
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.groups.consumer_group import BROADCASTING
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.bridge.state.topics import UnknownTopic
from duolog.protocol.rocketmq.bodies import (
    Assignment,
    AssignmentAnswer,
    AssignmentRequest,
    RequestModeRequest,
)
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.json.fastjson import MessageQueue
from duolog.protocol.rocketmq.names import RETRY_PREFIX
from duolog.protocol.rocketmq.remoting import RemotingCommand

BY_CIRCLE: Final = "AVG_BY_CIRCLE"
STRATEGIES: Final = ("AVG", BY_CIRCLE)
ALL_QUEUES: Final = -1


def set_request_mode(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    request = read_body(command, RequestModeRequest)
    if request.topic.startswith(RETRY_PREFIX):
        raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if context.topics.by_rocketmq_name(request.topic) is None:
        raise UnknownTopic(f"topic[{request.topic[:300]}] not exist")
    now_ms = context.clock.now_ms()
    if context.groups.configs.find(request.consumer_group) is None:
        remark = f"Group {request.consumer_group[:200]} not exist"
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if request.mode not in (PULL, POP):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"message request mode {request.mode[:80]!r}; known: PULL, POP"
        )
    context.groups.request_modes.check_room(request.consumer_group, request.topic)
    context.groups.configs.ensure(request.consumer_group, now_ms)
    mode = RequestMode(request.mode, request.pop_share_queue_num)
    return answer(
        command, promise=context.groups.request_modes.set(request.consumer_group, request.topic, mode, now_ms)
    )


def query_assignment(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    request = read_body(command, AssignmentRequest)
    mode = context.groups.request_modes.of(request.consumer_group, request.topic)
    queues = _queues_of(context, request, mode)
    found = None if queues is None else [Assignment(message_queue=queue, mode=mode.name) for queue in queues]
    return answer(command, body=AssignmentAnswer(message_queue_assignments=found))


def _queues_of(
    context: RocketMQContext, request: AssignmentRequest, mode: RequestMode
) -> Iterable[MessageQueue] | None:
    topic = context.topics.by_rocketmq_name(request.topic)
    if topic is None:
        return None
    name = context.options.rocketmq.broker
    queues = [MessageQueue(topic.rocketmq_name, name, queue_id) for queue_id in range(topic.queue_count)]
    if request.message_model == BROADCASTING:
        return queues
    clients = sorted(context.groups.members.client_ids(request.consumer_group))
    if not clients or request.strategy_name not in STRATEGIES:
        return None
    if request.client_id not in clients:
        return []
    if mode.name != POP:
        return allocate(queues, clients, request.client_id, request.strategy_name)
    if mode.shared_queues <= 0 or mode.shared_queues >= len(clients) - 1:
        return [MessageQueue(topic.rocketmq_name, name, ALL_QUEUES)]
    return _shared(queues, clients, request, mode.shared_queues)


def _shared(
    queues: list[MessageQueue], clients: list[str], request: AssignmentRequest, count: int
) -> Iterable[MessageQueue]:
    """Return a client's own queues and those of the next clients; one queue if there are fewer queues than clients."""
    at = clients.index(request.client_id)
    if len(clients) > len(queues):
        return [queues[at % len(queues)]]
    sharing = [clients[(at + step) % len(clients)] for step in range(count + 1)]
    found = (allocate(queues, clients, client, request.strategy_name) for client in sharing)
    return dict.fromkeys(queue for part in found for queue in part)


def allocate(queues: list[MessageQueue], clients: list[str], client_id: str, strategy: str) -> list[MessageQueue]:
    """Return one client's queues: a run of neighbours, or with BY_CIRCLE every n-th queue of n clients."""
    at, count = clients.index(client_id), len(clients)
    if strategy == BY_CIRCLE:
        return queues[at::count]
    size, more = divmod(len(queues), count)
    start = at * size + min(at, more)
    return queues[start : start + size + (at < more)]
