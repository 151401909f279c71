"""Who has which queue, where the broker says so: QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401).

    PULL   each member has queues of its own, as it would find out by itself
    POP    each member pops all queues of the topic (queue -1); or, with `popShareQueueNum`, its own queues and those
           of so many members behind it

The mode is set for a group and a topic, and is PULL if it was not; a retry topic is always pulled. Java's clients ask
if they are told to (`setClientRebalance(false)`), every 20 s and when the group changes. An assignment of None leaves
a client what it has. Source: QueryAssignmentProcessor.java, AllocateMessageQueueAveragely.java.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.consuming.consumer_group import BROADCASTING
from duolog.bridge.rocketmq.requests.errors import Refused
from duolog.bridge.rocketmq.requests.responses import answer, read_body
from duolog.bridge.state.records import Record, RequestModeSet
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
from duolog.store.entry import Promise, Slot
from duolog.store.state_log import StateLog

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker
    from duolog.bridge.rocketmq.requests.connection import RocketMQConnection

PULL: Final = "PULL"
POP: Final = "POP"
BY_CIRCLE: Final = "AVG_BY_CIRCLE"
STRATEGIES: Final = ("AVG", BY_CIRCLE)
ALL_QUEUES: Final = -1
MODES_MAX: Final = 100_000


class Mode(NamedTuple):
    name: str = PULL
    shared_queues: int = 0


class RequestModes:
    """The modes that were set, by group and topic."""

    def __init__(self, state_log: StateLog) -> None:
        self._state_log = state_log
        self._modes: dict[tuple[str, str], Mode] = {}
        state_log.own(RequestModeSet, self._replay)
        state_log.on_sliced_snapshot(self._snapshot)

    def of(self, group: str, topic: str) -> Mode:
        return self._modes.get((group, topic), Mode())

    def set(self, group: str, topic: str, mode: Mode, now_ms: int) -> Promise:
        """Raises what `check_room` does, and StoreError."""
        self.check_room(group, topic)
        return self._state_log.commit([RequestModeSet(group, topic, *mode)], now_ms).promise

    def check_room(self, group: str, topic: str) -> None:
        """Raise Refused if MODES_MAX are set."""
        if (group, topic) not in self._modes and len(self._modes) >= MODES_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{len(self._modes)} request modes; {MODES_MAX} are allowed")

    def _replay(self, record: RequestModeSet, slot: Slot) -> None:
        self._modes[record.group, record.topic] = Mode(record.mode, record.shared_queues)

    def _snapshot(self) -> Iterable[Record]:
        table = zip([*self._modes], [*self._modes.values()], strict=True)
        return (RequestModeSet(*name, *mode) for name, mode in table)


def set_request_mode(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    request = read_body(command, RequestModeRequest)
    if request.topic.startswith(RETRY_PREFIX):
        raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if broker.topics.by_rocketmq_name(request.topic) is None:
        raise UnknownTopic(f"topic[{request.topic[:300]}] not exist")
    now_ms = broker.clock.now_ms()
    if broker.rocketmq_groups.find(request.consumer_group) is None:
        remark = f"Group {request.consumer_group[:200]} not exist"
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if request.mode not in (PULL, POP):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"message request mode {request.mode[:80]!r}; known: PULL, POP")
    broker.rocketmq_modes.check_room(request.consumer_group, request.topic)
    broker.rocketmq_groups.ensure(request.consumer_group, now_ms)
    mode = Mode(request.mode, request.pop_share_queue_num)
    return answer(command, promise=broker.rocketmq_modes.set(request.consumer_group, request.topic, mode, now_ms))


def query_assignment(broker: "Broker", connection: "RocketMQConnection", command: RemotingCommand) -> Answer:
    request = read_body(command, AssignmentRequest)
    mode = broker.rocketmq_modes.of(request.consumer_group, request.topic)
    queues = _queues_of(broker, request, mode)
    found = None if queues is None else [Assignment(message_queue=queue, mode=mode.name) for queue in queues]
    return answer(command, body=AssignmentAnswer(message_queue_assignments=found))


def _queues_of(broker: "Broker", request: AssignmentRequest, mode: Mode) -> Iterable[MessageQueue] | None:
    topic = broker.topics.by_rocketmq_name(request.topic)
    if topic is None:
        return None
    name = broker.options.rocketmq.broker
    queues = [MessageQueue(topic.rocketmq_name, name, queue_id) for queue_id in range(topic.queue_count)]
    if request.message_model == BROADCASTING:
        return queues
    clients = sorted(broker.rocketmq_members.client_ids(request.consumer_group))
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
    """Give a client its own queues and those of the next ones; at least one, if there are fewer queues than clients."""
    at = clients.index(request.client_id)
    if len(clients) > len(queues):
        return [queues[at % len(queues)]]
    sharing = [clients[(at + step) % len(clients)] for step in range(count + 1)]
    found = (allocate(queues, clients, client, request.strategy_name) for client in sharing)
    return dict.fromkeys(queue for part in found for queue in part)


def allocate(queues: list[MessageQueue], clients: list[str], client_id: str, strategy: str) -> list[MessageQueue]:
    """Give one client its share: a run of queues, the first clients one more if need be; or every so many-th one."""
    at, count = clients.index(client_id), len(clients)
    if strategy == BY_CIRCLE:
        return queues[at::count]
    size, more = divmod(len(queues), count)
    start = at * size + min(at, more)
    return queues[start : start + size + (at < more)]
