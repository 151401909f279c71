"""A RocketMQ producer of simulated brokers: messages for now and for later, and half messages with check-backs.

It asks any name server for the route, and sends to that broker. A send without an answer is not repeated; the next one
has another body.
"""

import asyncio
import re
from itertools import count
from typing import Any, Final

from duolog.protocol.framing import FrameReader
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import HeartbeatData, ProducerData
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.messages import message
from duolog.protocol.rocketmq.messages.message_id import parse_message_id
from duolog.protocol.rocketmq.remoting import RemotingCommand
from tests.simulation.history import SHARED
from tests.simulation.kafka_clients import REQUEST_S, Setting, Unanswered

NAMESRV: Final = 9876
PRODUCER_GROUP: Final = "shop"
COMMIT, ROLL_BACK = 8, 12
OK: Final = 0
BEAT_S: Final = 1.0
DELAYS_MS: Final = {"later": (100, 8_000), "far": (2_000, 25_000)}
RECALLED_SHARE: Final = 0.15


class Connection(asyncio.Protocol):
    """One connection, which answers check-backs with the verdicts of `Sender`."""

    def __init__(self, sender: "Sender") -> None:
        self._sender = sender
        self._frames = FrameReader(1 << 24)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._numbers = count(1)
        self._transport: asyncio.Transport
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError())

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            command = remoting.decode(frame)
            if command.is_response:
                waiting = self._waiting.pop(command.opaque, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(command)
            elif command.code == RequestCode.CHECK_TRANSACTION_STATE:
                self._sender.checked(self, command)

    async def ask(self, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self.say(code, body, number=number, **fields)
        return await waiting

    def say(self, code: int, body: bytes = b"", *, number: int = 0, **fields: object) -> None:
        texts = {name: str(value) for name, value in fields.items()}
        command = remoting.request(code, number or next(self._numbers), texts, body, oneway=not number)
        self._transport.write(b"".join(remoting.encode(command)))

    def close(self) -> None:
        self._transport.close()


class Sender:
    """One producer."""

    def __init__(self, setting: Setting, name: str) -> None:
        self.setting, self.history, self.random, self.name = setting, setting.history, setting.random, name
        self._connection: Connection | None = None
        self._verdicts: dict[bytes, int] = {}
        self._bodies = count(1)
        self._beat_s = 0.0
        self._handles: list[tuple[bytes, str]] = []  # Delayed messages that may be recalled.

    async def run(self) -> None:
        """Send until the simulation is over, and then stay for the check-backs of half messages."""
        while True:
            try:
                async with asyncio.timeout(REQUEST_S):
                    connection = await self._connected()
                    await self._beat(connection)
                    if not self.setting.is_over:
                        await self._send(connection)
                        if self._handles and self.random.random() < RECALLED_SHARE:
                            await self._recall(connection)
            except (OSError, TimeoutError, Unanswered):
                self.leave()
                await asyncio.sleep(self.random.uniform(0.02, 0.3))
            await asyncio.sleep(self.random.uniform(0, 0.2))

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_lost:
            loop, host = asyncio.get_running_loop(), self.random.choice(self.setting.hosts)
            _, names = await loop.create_connection(lambda: Connection(self), host, NAMESRV)
            try:
                route = await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=SHARED)
            finally:
                names.close()
            found = re.search(rb"([\d.]+):(\d+)", bytes(route.body)) if route.code == OK else None
            if found is None:
                raise Unanswered("no route")
            address = found[1].decode(), int(found[2])
            _, self._connection = await loop.create_connection(lambda: Connection(self), *address)
            self._beat_s = 0.0
        return self._connection

    async def _beat(self, connection: Connection) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._beat_s > BEAT_S:
            data = HeartbeatData(client_id=self.name, producer_data_set=[ProducerData(group_name=PRODUCER_GROUP)])
            answered = await connection.ask(RequestCode.HEART_BEAT, fastjson.write(data))
            if answered.code != OK:
                raise Unanswered(f"code {answered.code}")  # A standby; the next route names the owner.
            self._beat_s = now_s

    async def _send(self, connection: Connection) -> None:
        body = f"{self.name}-{next(self._bodies)}".encode()
        kind, queue_id = self.random.choice(("now", "later", "far", "far", "half")), self.random.randrange(2)
        properties, due_ms, flag = {"UNIQ_KEY": body.decode()}, 0, 0
        if kind in DELAYS_MS:
            due_ms = self.setting.clock.now_ms() + self.random.randrange(*DELAYS_MS[kind])
            properties["TIMER_DELIVER_MS"] = str(due_ms)
        elif kind == "half":
            properties |= {"TRAN_MSG": "true", "PGROUP": PRODUCER_GROUP}
            self._verdicts[body] = self.random.choice((COMMIT, COMMIT, ROLL_BACK))
            flag = 4
            if self._verdicts[body] == ROLL_BACK:
                self.history.never(body)
        self.history.sending(body, due_ms)
        sent = await connection.ask(
            RequestCode.SEND_MESSAGE, body, producerGroup=PRODUCER_GROUP, topic=SHARED, defaultTopic="TBW102",
            defaultTopicQueueNums=4, queueId=queue_id, sysFlag=flag, bornTimestamp=self.setting.clock.now_ms(), flag=0,
            properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
        )  # fmt: skip
        if sent.code != OK:
            raise Unanswered(f"code {sent.code}")
        position = parse_message_id(sent.ext["msgId"])[1]
        self.history.appended_at(position, body)
        if kind == "now":
            self.history.stored(body, (SHARED, int(sent.ext["queueId"]), int(sent.ext["queueOffset"])))
        elif kind in DELAYS_MS or self._verdicts[body] == COMMIT:
            self.history.stored(body, None)
        if kind in DELAYS_MS:
            self._handles.append((body, sent.ext["recallHandle"]))
        if kind == "half" and self.random.random() < 0.5:
            self._end(connection, body, int(sent.ext["queueOffset"]), position, is_check=False)

    async def _recall(self, connection: Connection) -> None:
        body, handle = self._handles.pop(self.random.randrange(len(self._handles)))
        self.history.cancelling(body)
        answered = await connection.ask(RequestCode.RECALL_MESSAGE, topic=SHARED, recallHandle=handle)
        if answered.code == OK:
            self.history.cancelled(body)
        elif answered.code == ResponseCode.ILLEGAL_OPERATION:
            self.history.not_cancelled(body)
        else:
            raise Unanswered(f"code {answered.code}")

    def _end(self, connection: Connection, body: bytes, offset: int, position: int, *, is_check: bool) -> None:
        connection.say(
            RequestCode.END_TRANSACTION, producerGroup=PRODUCER_GROUP, tranStateTableOffset=offset,
            commitLogOffset=position, commitOrRollback=self._verdicts[body], msgId=body.decode(),
            fromTransactionCheck=str(is_check).lower(), transactionId=body.decode(),
        )  # fmt: skip

    def checked(self, connection: Connection, command: Any) -> None:
        """Answer a check-back. Only producers that know the half message have a verdict."""
        body = bytes(message.decode(bytes(command.body)).body)
        if body in self._verdicts:
            offset, position = int(command.ext["tranStateTableOffset"]), int(command.ext["commitLogOffset"])
            self._end(connection, body, offset, position, is_check=True)
