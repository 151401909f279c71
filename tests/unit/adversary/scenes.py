"""The requests that come before a request with an effect: a group joined, a message popped, a transaction begun.

Each function plays the scene through the world's own connections, and gives the values that it made under the names of
the fields that carry them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from kio.index import load_response_schema
from kio.serial import entity_reader

from duolog.protocol.framing import FrameReader
from duolog.protocol.kafka.api_messages import ApiKey, is_flexible
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.remoting import RemotingCommand
from tests.unit.adversary import kafka_requests, rocketmq_requests

if TYPE_CHECKING:
    from tests.unit.adversary.world import Attacker

# -- Kafka


def _ask_kafka(stage: "Attacker", key: ApiKey, version: int, values: dict[str, Any]) -> Any:
    stage.transport.taken.clear()
    stage.say(kafka_requests.valid(key, version, values).encode())
    (frame,) = FrameReader(1 << 30).feed(bytes(stage.transport.taken))
    at = 5 if is_flexible(key, version) else 4
    return entity_reader(cast(Any, load_response_schema(key, version)))(frame, at)[0]


def _joined(stage: "Attacker") -> dict[str, Any]:
    group = f"fleet-{stage.world.next_number()}"
    joined = _ask_kafka(stage, ApiKey.JOIN_GROUP, 3, {"group_id": group})
    members = {"member_id": joined.member_id, "group_id": group}
    return {**members, "generation_id": joined.generation_id, "generation_id_or_member_epoch": joined.generation_id}


def _transactional(stage: "Attacker") -> dict[str, Any]:
    name = f"payments-{stage.world.next_number() % 50}"
    made = _ask_kafka(stage, ApiKey.INIT_PRODUCER_ID, 1, {"transactional_id": name})
    values = {"transactional_id": name, "producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    _ask_kafka(stage, ApiKey.ADD_PARTITIONS_TO_TXN, 0, {**values, "topics": "orders", "partitions": 0})
    return values


KAFKA: dict[int, Callable[["Attacker"], dict[str, Any]]] = {
    **dict.fromkeys((ApiKey.HEARTBEAT, ApiKey.SYNC_GROUP, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT), _joined),
    **dict.fromkeys((ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN), _transactional),
    **dict.fromkeys((ApiKey.TXN_OFFSET_COMMIT, ApiKey.WRITE_TXN_MARKERS), _transactional),
}

# -- RocketMQ


def _ask_rocketmq(attacker: "Attacker", code: RequestCode, body: bytes = b"", **fields: str) -> RemotingCommand:
    taken = attacker.transport.taken
    begin = len(taken)
    request = rocketmq_requests.valid(code, attacker.world.rng, fields)
    request.body = body or request.body
    request.ext.update({name: value.encode() for name, value in fields.items() if name in request.ext})
    attacker.say(request.encode())
    answers = [remoting.decode(frame) for frame in FrameReader(1 << 30).feed(bytes(taken[begin:]))]
    del taken[begin:]
    none = RemotingCommand(1, 0, {})
    return next((each for each in answers if each.is_response and each.opaque == rocketmq_requests.OPAQUE), none)


def _popped(attacker: "Attacker") -> dict[str, str]:
    world = attacker.world
    if world.requests % 16 == 0:
        world.publish(world.topic("orders", 4), *(b"m%d" % n for n in range(8)))
    answer = _ask_rocketmq(attacker, RequestCode.POP_MESSAGE, topic="orders", queueId="-1", order="false", pollTime="0")
    if answer.code != 0:
        return {}
    found = message.decode_all(bytes(cast(Any, answer.body)))[0]
    infos = answer.ext
    receipt = properties.get(found.properties, "POP_CK")
    if receipt is None:
        start = infos["startOffsetInfo"].split(";")[0].split(" ")[2]
        receipt = (
            f"{start} {infos['popTime']} {infos['invisibleTime']} {infos['reviveQid']} 0 duolog "
            f"{found.queue_id} {found.queue_offset}"
        )
    parts = receipt.split(" ")
    place = {"queueId": str(found.queue_id), "offset": str(found.queue_offset), "extraInfo": receipt}
    return {**place, "so": parts[0], "pt": parts[1], "q": str(found.queue_id)}


def half(attacker: "Attacker") -> dict[str, str]:
    """Send a half message of the group `shop`; return the fields with which END_TRANSACTION names it."""
    sent = _ask_rocketmq(
        attacker, RequestCode.SEND_MESSAGE, b"half", sysFlag="4", properties="TRAN_MSG\x01true\x02PGROUP\x01shop\x02"
    )
    if sent.code != 0:
        return {}
    position = str(int(sent.ext["msgId"][-16:], 16))
    return {"tranStateTableOffset": sent.ext["queueOffset"], "commitLogOffset": position, "msgId": sent.ext["msgId"]}


def _delayed(attacker: "Attacker") -> dict[str, str]:
    sent = _ask_rocketmq(attacker, RequestCode.SEND_MESSAGE, b"later", properties="TIMER_DELAY_MS\x0160000\x02")
    return {"recallHandle": sent.ext.get("recallHandle", "x")}


def _member(attacker: "Attacker") -> dict[str, str]:
    _ask_rocketmq(attacker, RequestCode.HEART_BEAT)
    return {}


ROCKETMQ: dict[int, Callable[["Attacker"], dict[str, str]]] = {
    **dict.fromkeys((RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE), _popped),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _popped,
    RequestCode.END_TRANSACTION: half,
    RequestCode.RECALL_MESSAGE: _delayed,
    **dict.fromkeys((RequestCode.LOCK_BATCH_MQ, RequestCode.UNREGISTER_CLIENT, RequestCode.QUERY_ASSIGNMENT), _member),
    **dict.fromkeys((RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY), _member),
}


def of_kafka(stage: "Attacker", key: int) -> dict[str, Any]:
    """Send the requests that come before one of this key, on a connection without waiting requests."""
    return KAFKA[key](stage) if key in KAFKA else {}


def of_rocketmq(attacker: "Attacker", code: int) -> dict[str, str]:
    """Send the requests that come before one of this code on the attacker's connection."""
    return ROCKETMQ[code](attacker) if code in ROCKETMQ and not attacker.connection.closed else {}
