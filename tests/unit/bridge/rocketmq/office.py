"""A broker's RocketMQ side without sockets: real state on a store whose disk is in memory, a clock that is moved, and
clients that speak frames.

    office = Office()
    client = office.connect()
    answer = client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0)

Each question ends a turn of the loop: what was appended is written and synced, unless `office.is_stalled`; then answers
that wait for the log stay away until `office.settle()`.
"""

import json
from collections.abc import Iterable
from typing import Any, cast

from bridge.config import LimitsOptions, Options
from bridge.families import Families
from bridge.ledger import Ledger
from bridge.metrics import Metrics
from bridge.positions import Positions
from bridge.producers import Producers
from bridge.publish import Publisher
from bridge.purgatory import Purgatory
from bridge.reading import QueueReader
from bridge.rocketmq.connection import RocketMQConnection
from bridge.rocketmq.expected import Expected
from bridge.rocketmq.group_configs import GroupConfigs
from bridge.rocketmq.locks import Locks
from bridge.rocketmq.members import Members
from bridge.server import Bounds, Server
from bridge.topic_configs import broker_defaults
from bridge.topics import Topic, Topics, system_topics
from protocol.framing import FrameReader
from protocol.rocketmq import fastjson, message, remoting
from protocol.rocketmq.bodies import Body, ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from protocol.rocketmq.codes import RequestCode
from protocol.rocketmq.message import Message
from protocol.rocketmq.message_id import pack_host
from protocol.rocketmq.remoting import RemotingCommand
from store.options import StoreOptions
from store.store import Store
from tests.kit.clock import ManualClock
from tests.kit.disk import CrashDisk
from tests.kit.sockets import FakeTransport, ManualLoop, connect

UNANSWERED_MAX = 8
STORE_HOST = pack_host("127.0.0.1", 10911)


class KafkaGroups(set[str]):
    """The groups that have Kafka members."""

    def has_members(self, group: str) -> bool:
        return group in self


class Office:
    """The parts of `bridge.broker.Broker` that RocketMQ's handlers use, by the same names."""

    def __init__(self, disk: CrashDisk | None = None, options: Options | None = None) -> None:
        self.options = options or Options()
        self.disk = disk or CrashDisk()
        self.clock, self.loop, self.metrics = ManualClock(), ManualLoop(), Metrics()
        self.is_stalled = False
        self.ledger = Ledger()
        self.topics = Topics(
            self.ledger,
            self.options.topics,
            system=system_topics("DefaultCluster", "duolog"),
            config_defaults=broker_defaults(self.options),
        )
        self.positions = Positions(self.ledger, self.topics.__contains__, self.options.groups)
        self.rocketmq_members: Members[RocketMQConnection] = Members(groups_max=100, subscriptions_max=10)
        self.rocketmq_groups = GroupConfigs(self.ledger, 100)
        self.rocketmq_locks = Locks()
        self.rocketmq_expected = Expected()
        self.kafka_groups = KafkaGroups()
        self.families = Families(self.kafka_groups, self.rocketmq_members)
        self.purgatory = Purgatory()
        self.started_mono_ms = self.clock.mono_ms()
        self.listening = {"rocketmq": ("127.0.0.1", 10911), "namesrv": ("127.0.0.1", 9876)}
        self.rocketmq_address = ("127.0.0.1", 10911)
        self._open()

    def _open(self) -> None:
        now_ms = self.clock.now_ms()
        producers = Producers(self.ledger, self.options.kafka)
        self.store = Store.open(self.disk, StoreOptions(), self.ledger, now_ms)
        self.ledger.attach(self.store)
        self.topics.attach(self.store, now_ms, clean=self.store.clean)
        self.publisher = Publisher(self.store, producers, self.metrics, self.options)
        self.reader = QueueReader(self.store, self.metrics, self.options)
        self.publisher.store_host = self.reader.store_host = STORE_HOST
        self.store.on_visible = self.purgatory.on_visible
        bounds = {"rocketmq": Bounds(frame_bytes_max=1 << 20, unanswered_max=UNANSWERED_MAX, idle_ms=120_000)}
        self.server = Server(cast(Any, self.loop), self.clock, LimitsOptions(), bounds, self._end_turn)
        self.settle()

    # -- Time and the log

    def _end_turn(self) -> None:
        self.store.write()
        if not self.is_stalled:
            self._sync()

    def settle(self) -> None:
        """Write and sync all; answers that waited leave."""
        self.store.write()
        self._sync()
        self.server.flush()
        self.loop.turn()

    def _sync(self) -> None:
        while task := self.store.sync_wanted(background=True):
            try:
                task.run()
            except OSError as error:
                self.store.synced(task, error)
            else:
                self.store.synced(task, None)

    def pass_ms(self, ms: int) -> None:
        self.clock.pass_ms(ms)
        self.purgatory.advance(self.clock.mono_ms())
        self.positions.advance(self.clock.mono_ms(), self.clock.now_ms())
        self.settle()

    # -- What is there

    def topic(self, name: str = "orders", queues: int = 2) -> Topic:
        return self.topics.get(name) or self.topics.create(name, queues, {}, self.clock.now_ms())[0]

    def publish(self, topic: Topic, *bodies: bytes, tag: str = "", queue_id: int = 0) -> None:
        """Append messages, one unit each, and let them be seen."""
        raw = f"TAGS\x01{tag}\x02".encode() if tag else b""
        for body in bodies:
            one = Message("", body, raw, born_ms=self.clock.now_ms())
            self.publisher.rocketmq(topic, queue_id, [one], self.clock.now_ms())
        self.settle()

    def connect(self) -> "Client":
        return Client(self)


class Client:
    """One connection of a client. `ask` gives the answer, None if there is none yet; `heard` is what else came."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self.heard: list[RemotingCommand] = []
        self.connection = RocketMQConnection(cast(Any, office))
        self.transport: FakeTransport = connect(self.connection, office.loop)
        self._frames = FrameReader(1 << 24)
        self._opaque = 0

    def ask(
        self, code: int, body: bytes | Body = b"", *, oneway: bool = False, json: bool = True, **ext: object
    ) -> RemotingCommand | None:
        self._opaque += 1
        fields = {name: _text(value) for name, value in ext.items() if value is not None}
        raw = fastjson.write(body) if isinstance(body, Body) else body
        self.say(remoting.request(code, self._opaque, fields, raw, oneway=oneway, json=json))
        return self.answer_to(self._opaque)

    def say(self, command: RemotingCommand) -> None:
        self.connection.data_received(b"".join(remoting.encode(command)))
        self.office.loop.turn()

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
        """The groups that this client was told to rebalance since the last look."""
        self.answer_to(-1)
        told = [c.ext["consumerGroup"] for c in self.heard if c.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
        self.heard.clear()
        return told

    def close(self) -> None:
        self.connection.close("")
        self.office.loop.turn()

    # -- What clients ask for most

    def send(self, topic: str = "orders", body: bytes = b"body", properties: str = "", **fields: object) -> Any:
        request = {
            "producerGroup": "shop", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
            "sysFlag": 0, "bornTimestamp": self.office.clock.now_ms(), "flag": 0, "properties": properties,
        }  # fmt: skip
        return self.ask(RequestCode.SEND_MESSAGE, body, **{**request, **fields})

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
