"""RocketMQ clients of simulated brokers: a producer of messages for now and for later and of half messages, a consumer.

They ask any name server for the route, and talk to the owner that it names; producers also send to the standbys of the
route. A send without an answer is not repeated; the next one has another body.
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
from duolog.protocol.rocketmq.messages import flags, message
from duolog.protocol.rocketmq.messages.message_id import parse_message_id
from duolog.protocol.rocketmq.remoting import RemotingCommand
from tests.simulation.history import ROCKETMQ, SHARED, Positions
from tests.simulation.kafka_clients import REQUEST_S, Setting, Unanswered

NAMESRV: Final = 9876
PRODUCER_GROUP: Final = "shop"
COMMIT, ROLL_BACK = 8, 12
RETRY_GROUP: Final = "failing"
OK: Final = 0
PULLED: Final = {OK, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}
BEAT_S: Final = 1.0
ROUTE_S: Final = 3.0  # Java's clients ask for routes every 30 s.
STANDBY_SHARE: Final = 0.3  # Of messages that are sent to a standby, if there is one in the route.
DELAYS_MS: Final = {"later": (100, 8_000), "far": (2_000, 25_000)}
RECALLED_SHARE: Final = 0.15
FAILED_SHARE: Final = 0.1  # Of pulls that find messages.


class Connection(asyncio.Protocol):
    """One connection. Check-backs go to the client."""

    def __init__(self, client: "RocketMQClient") -> None:
        self._client = client
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
                self._client.checked(self, command)

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


class RocketMQClient:
    """A client with a connection to the broker that the route names."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.history, self.random = setting, setting.history, setting.random
        self._connection: Connection | None = None
        self.standbys: list[tuple[str, int]] = []  # Their addresses in the last route.

    def checked(self, connection: Connection, command: Any) -> None:
        """Take a check-back."""

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def pause(self) -> None:
        """Wait before another broker is asked."""
        self.leave()
        await asyncio.sleep(self.random.uniform(0.02, 0.3))

    async def connected(self) -> Connection:
        if self._connection is None or self._connection.is_lost:
            loop, host = asyncio.get_running_loop(), self.random.choice(self.setting.hosts)
            _, names = await loop.create_connection(lambda: Connection(self), host, NAMESRV)
            try:
                route = await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=SHARED)
            finally:
                names.close()
            found = re.findall(rb"([\d.]+):(\d+)", bytes(route.body)) if route.code == OK else []
            if not found:
                raise Unanswered("no route")
            address, *self.standbys = [(host.decode(), int(port)) for host, port in found]
            _, self._connection = await loop.create_connection(lambda: Connection(self), *address)
        return self._connection


class Sender(RocketMQClient):
    """One producer."""

    def __init__(self, setting: Setting, name: str) -> None:
        super().__init__(setting)
        self.name = name
        self._verdicts: dict[bytes, int] = {}
        self._bodies = count(1)
        self._beaten: tuple[Connection, float] | None = None  # The connection and time of the last heartbeat.
        self._through: Connection | None = None  # The connection to a standby.
        self._routed_s = 0.0  # When the route was asked for last.
        self._handles: list[tuple[bytes, str]] = []  # Delayed messages that may be recalled.

    async def run(self) -> None:
        """Send until the simulation is over, and then stay for the check-backs of half messages."""
        while True:
            try:
                async with asyncio.timeout(REQUEST_S):
                    connection = await self._routed()
                    await self._beat(connection)
                    if not self.setting.is_over:
                        await self._send(await self._any(connection))
                        if self._handles and self.random.random() < RECALLED_SHARE:
                            await self._recall(connection)
            except (OSError, TimeoutError, Unanswered):
                await self.pause()
            await asyncio.sleep(self.random.uniform(0, 0.2))

    async def _routed(self) -> Connection:
        """Return a connection to the owner, by a route that is not older than ROUTE_S."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._routed_s > ROUTE_S:
            self._routed_s = now_s
            self.leave()
        return await self.connected()

    async def _any(self, owner: Connection) -> Connection:
        """Return the connection to the owner, or one to a standby."""
        if not self.standbys or self.random.random() > STANDBY_SHARE:
            return owner
        if self._through is None or self._through.is_lost:
            loop, address = asyncio.get_running_loop(), self.random.choice(self.standbys)
            _, self._through = await loop.create_connection(lambda: Connection(self), *address)
        return self._through

    def leave(self) -> None:
        super().leave()
        if self._through is not None:
            self._through.close()
            self._through = None

    async def _beat(self, connection: Connection) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._beaten is None or self._beaten[0] is not connection or now_s - self._beaten[1] > BEAT_S:
            data = HeartbeatData(client_id=self.name, producer_data_set=[ProducerData(group_name=PRODUCER_GROUP)])
            answered = await connection.ask(RequestCode.HEART_BEAT, fastjson.write(data))
            if answered.code != OK:
                raise Unanswered(f"code {answered.code}")
            self._beaten = connection, now_s

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
            self.history.delayed(body, int(sent.ext["queueId"]), due_ms, self.setting.clock.mono_ms())
            if handle := sent.ext.get("recallHandle"):  # None: by the broker's clock it was due at once.
                self._handles.append((body, handle))
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


class Consumer(RocketMQClient):
    """Pulls both queues, commits how far it has read, and sends some messages back, to read them again."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.offsets = [0, 0]
        self._retries = 0  # The next offset of the retry topic.
        self._positions = Positions(self.history, "billing")

    async def run(self) -> None:
        while not self.setting.is_over:
            for queue_id in (0, 1):
                await self.read(queue_id)
            await self.read_retries()
            if self.random.random() < 0.2:
                await self._commit()
            await asyncio.sleep(self.random.uniform(0, 0.2))
        self.leave()

    async def read(self, queue_id: int) -> int:
        """Pull what is there; return how many offsets that were."""
        before = self.offsets[queue_id]
        found = await self._pull(self._positions.group, SHARED, queue_id, before)
        if found is None:
            return 0
        messages = message.decode_all(found.body) if found.code == OK else []
        for each in messages:
            place = SHARED, queue_id, each.queue_offset
            self.history.saw(ROCKETMQ, place, 0, bytes(each.body), self.setting.decided_ms)
        self.offsets[queue_id] = int(found.ext["nextBeginOffset"])
        if messages and not self.setting.is_over and self.random.random() < FAILED_SHARE:
            await self._send_back(self.random.choice(messages))
        return self.offsets[queue_id] - before

    async def read_retries(self) -> int:
        """Pull the messages that were sent back; return how many offsets that were."""
        before = self._retries
        found = await self._pull(RETRY_GROUP, f"%RETRY%{RETRY_GROUP}", 0, before)
        if found is None:
            return 0
        for each in message.decode_all(found.body) if found.code == OK else ():
            self.history.retries.found(each.queue_offset, bytes(each.body))
        self._retries = int(found.ext["nextBeginOffset"])
        return self._retries - before

    async def _send_back(self, failed: message.Message) -> None:
        """Send a message back, whose consumption has failed; it comes again after a second."""
        body = bytes(failed.body)
        if self.history.retries.begin(body):
            answer = await self._ask(
                RequestCode.CONSUMER_SEND_MSG_BACK, offset=failed.physical_offset, group=RETRY_GROUP, delayLevel=1
            )
            if answer is not None and answer.code == OK:
                self.history.retries.answered(body)

    async def _pull(self, group: str, topic: str, queue_id: int, offset: int) -> RemotingCommand | None:
        found = await self._ask(
            RequestCode.PULL_MESSAGE, consumerGroup=group, topic=topic, queueId=queue_id, queueOffset=offset,
            maxMsgNums=32, sysFlag=flags.PULL_SUBSCRIPTION, commitOffset=0, suspendTimeoutMillis=0, subVersion=0,
            subscription="*",
        )  # fmt: skip
        if found is None or found.code in PULLED:
            return found
        if found.code == ResponseCode.PULL_OFFSET_MOVED:
            self.history.violations.append(f"offset {offset} of queue {queue_id} of {topic} has moved: {found.ext}")
        if found.code != ResponseCode.TOPIC_NOT_EXIST:
            await self.pause()
        return None

    async def _commit(self) -> None:
        """Look at the group's offsets, which never go back behind what was answered, and commit one."""
        for queue_id in (0, 1):
            place = {"consumerGroup": self._positions.group, "topic": SHARED, "queueId": queue_id}
            answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, **place)
            if answer is None or answer.code not in (OK, ResponseCode.QUERY_NOT_FOUND):
                return
            self._positions.found(queue_id, int(answer.ext["offset"]) if answer.code == OK else -1)
        queue_id = self.random.randrange(2)
        offset = self.offsets[queue_id]
        group = self._positions.committing({queue_id: offset})
        place = {"consumerGroup": group, "topic": SHARED, "queueId": queue_id}
        answer = await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, **place, commitOffset=offset)
        if answer is not None and answer.code == OK:
            self._positions.answered({queue_id: offset})

    async def _ask(self, code: int, **fields: object) -> RemotingCommand | None:
        try:
            async with asyncio.timeout(REQUEST_S):
                return await (await self.connected()).ask(code, **fields)
        except (OSError, TimeoutError, Unanswered):
            await self.pause()
            return None
