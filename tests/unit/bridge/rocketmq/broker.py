"""A broker's RocketMQ side without sockets (`tests/kit/core.py`), and clients that speak frames.

broker = RocketMQBroker()
client = broker.connect()
answer = client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0)
"""

import json
from collections.abc import Iterable
from typing import Any, cast

from duolog.bridge.config import Options
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.protocol.framing import FrameReader
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import (
    Body,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.messages import message
from duolog.protocol.rocketmq.remoting import RemotingCommand
from duolog.store.options import StoreOptions
from tests.kit.clock import ManualClock
from tests.kit.core import ManualCore, Members
from tests.kit.disk import CrashDisk
from tests.kit.sockets import FakeTransport, connect


class RocketMQBroker(ManualCore):
    """The broker's RocketMQ side."""

    advertised_host = "127.0.0.1"

    def __init__(
        self,
        disk: CrashDisk | None = None,
        options: Options | None = None,
        store: StoreOptions | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        super().__init__(options, disk, store, clock=clock)
        self.kafka_groups_with_members = Members()
        self.client_protocols.kafka = self.kafka_groups_with_members

    def connect(self, connection: RocketMQConnection | None = None) -> "Client":
        return Client(self, connection or RocketMQConnection(self.rocketmq_connections))


class Client:
    """One connection of a client. `ask` gives the answer, None if there is none yet; `heard` is what else came."""

    def __init__(self, broker: RocketMQBroker, connection: RocketMQConnection) -> None:
        self.broker = broker
        self.heard: list[RemotingCommand] = []
        self.connection = connection
        self.transport: FakeTransport = connect(self.connection, broker.loop)
        self._frames = FrameReader(1 << 24)
        self._opaque = 0
        self.version = remoting.VERSION

    def ask(
        self, code: int, body: bytes | Body = b"", *, oneway: bool = False, json: bool = True, **ext: object
    ) -> RemotingCommand | None:
        self.say(self.new(code, body, oneway=oneway, json=json, **ext))
        return self.answer_to(self._opaque)

    def new(
        self, code: int, body: bytes | Body = b"", *, oneway: bool = False, json: bool = True, **ext: object
    ) -> RemotingCommand:
        """Return a request with the next number; the first one has number 1."""
        self._opaque += 1
        fields = {name: _text(value) for name, value in ext.items() if value is not None}
        raw = fastjson.write(body) if isinstance(body, Body) else body
        command = remoting.request(code, self._opaque, fields, raw, oneway=oneway, json=json)
        command.version = self.version
        return command

    def say(self, command: RemotingCommand) -> None:
        self.connection.data_received(b"".join(remoting.encode(command)))
        self.broker.loop.turn()

    def answer_to(self, opaque: int) -> RemotingCommand | None:
        """Take the answer out of what was heard."""
        taken = bytes(self.transport.taken)
        self.transport.taken.clear()
        self.heard += [remoting.decode(frame) for frame in self._frames.feed(taken)]
        for command in self.heard:
            if command.is_response and command.opaque == opaque:
                self.heard.remove(command)
                return command
        return None

    def last_answer(self) -> RemotingCommand | None:
        return self.answer_to(self._opaque)

    def notified(self) -> list[str]:
        """Return the groups whose rebalance requests this client has received since the last call."""
        self.answer_to(-1)
        groups = [c.ext["consumerGroup"] for c in self.heard if c.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
        self.heard.clear()
        return groups

    def asked(self, code: int) -> list[RemotingCommand]:
        """Take what the broker asked of this client since the last look."""
        self.answer_to(-1)
        found = [command for command in self.heard if command.code == code and not command.is_response]
        self.heard = [command for command in self.heard if command not in found]
        return found

    def close(self) -> None:
        self.connection.close("")
        self.broker.loop.turn()

    # -- What clients ask for most

    def send(self, topic: str = "orders", body: bytes = b"body", properties: str = "", **fields: object) -> Any:
        return self.ask(RequestCode.SEND_MESSAGE, body, **self.send_fields(topic, properties, **fields))

    def send_fields(self, topic: str = "orders", properties: str = "", **fields: object) -> dict[str, object]:
        request: dict[str, object] = {
            "producerGroup": "shop", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
            "sysFlag": 0, "bornTimestamp": self.broker.clock.now_ms(), "flag": 0, "properties": properties,
        }  # fmt: skip
        return request | fields

    def pull(self, offset: int, topic: str = "orders", **fields: object) -> Any:
        request = {
            "consumerGroup": "billing", "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subVersion": 0, "subscription": "*",
        }  # fmt: skip
        return self.ask(RequestCode.PULL_MESSAGE, **{**request, **fields})

    def beat(
        self,
        *groups: str,
        client_id: str = "client",
        topics: Iterable[str] = ("orders",),
        version: int = 1,
        expression: str = "*",
        **fields: object,
    ) -> Any:
        subscriptions = [SubscriptionData(topic=topic, sub_version=version, sub_string=expression) for topic in topics]
        consumers = [ConsumerData(group_name=name, subscription_data_set=subscriptions, **fields) for name in groups]
        data = HeartbeatData(
            client_id=client_id, consumer_data_set=consumers, producer_data_set=[ProducerData(group_name="shop")]
        )
        return self.ask(RequestCode.HEART_BEAT, data)

    def members(self, group: str) -> list[str] | None:
        answer = self.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
        assert answer is not None
        return read(answer)["consumerIdList"] if answer.code == 0 else None


def bodies(pulled: RemotingCommand) -> list[bytes]:
    return [bytes(each.body) for each in message.decode_all(bytes(cast(memoryview, pulled.body)))]


def read(answer: RemotingCommand) -> Any:
    return json.loads(bytes(cast(memoryview, answer.body)))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
