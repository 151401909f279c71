"""A POP consumer for tests: pops, makes receipts as Java's client does, and acknowledges."""

from typing import Any

from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.receipt import parse_receipt, real_topic
from tests.unit.bridge.rocketmq.broker import Client

INVISIBLE_MS = 10_000
RETRY, DEAD = "%RETRY%billing_orders", "%DLQ%billing"


class Got:
    """One popped message, with the receipt that a client makes for it."""

    def __init__(self, found: Message, receipt: str) -> None:
        self.body, self.topic, self.failures = bytes(found.body), found.topic, found.reconsume_times
        self.queue_id, self.offset, self.receipt = found.queue_id, found.queue_offset, receipt

    @property
    def real_topic(self) -> str:
        return real_topic("billing", self.topic, parse_receipt(self.receipt).retry)


def got(answer: Any) -> list[Got]:
    """Make receipts as Java's client does: of the infos, unless the message has its receipt already."""
    assert answer is not None
    assert answer.code == 0, answer.remark
    ext = answer.ext
    starts = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in ext["startOffsetInfo"].split(";")}
    lists = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in ext["msgOffsetInfo"].split(";")}
    assert starts.keys() == lists.keys()
    all_got = []
    for found in message.decode_all(bytes(answer.body)):
        receipt = properties.get(found.properties, "POP_CK")
        if receipt is None:
            place = ("0", str(found.queue_id))
            assert str(found.queue_offset) in lists[place].split(",")
            receipt = (
                f"{starts[place]} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0 duolog"
                f" {found.queue_id} {found.queue_offset}"
            )
        all_got.append(Got(found, receipt))
    return all_got


def pop(client: Client, **fields: object) -> Any:
    request = {
        "consumerGroup": "billing", "topic": "orders", "queueId": -1, "maxMsgNums": 32, "invisibleTime": INVISIBLE_MS,
        "pollTime": 0, "bornTime": 0, "initMode": 0, "order": False,
    }  # fmt: skip
    return client.ask(RequestCode.POP_MESSAGE, **{**request, **fields})


def ack(client: Client, one: Got, code: int = RequestCode.ACK_MESSAGE, **fields: object) -> Any:
    request = {
        "consumerGroup": "billing", "topic": one.real_topic, "queueId": one.queue_id, "extraInfo": one.receipt,
        "offset": one.offset,
    }  # fmt: skip
    return client.ask(code, **{**request, **fields})


def bodies_of(answer: Any) -> list[bytes]:
    return [one.body for one in got(answer)]


def nothing(client: Client, **fields: object) -> bool:
    return bool(pop(client, **fields).code == ResponseCode.POLLING_TIMEOUT)
