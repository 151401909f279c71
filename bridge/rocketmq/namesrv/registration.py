"""Registration of this broker with the name servers of a RocketMQ cluster (`rocketmq.join_namesrv`).

    connect ──> REGISTER_BROKER (103): all topics ──> again every 30 s, and when a topic is created or changed
       ^                                                        │
       └── connection lost: again after 1 s, then 2 s ... ──────┘        stop ──> UNREGISTER_BROKER (104), close

A name server removes a broker when the connection of its registration is closed, so each registration has a lasting
connection. The name server reads the table of topics only if its version is new, and never removes a topic by itself. A
deleted topic is therefore registered without any permission until the next start, so that clients do not use it.

If `topics.auto_create` is off, the template TBW102 is not registered. Producers then do not create new topics here, so
that a cluster can move to this broker topic by topic.
Source: RouteInfoManager.java, BrokerOuterAPI.java#registerBrokerAll.
"""

import asyncio
import logging
import ssl
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Final, NamedTuple

from duolog.bridge.clock import Clock
from duolog.bridge.net.addresses import endpoint
from duolog.bridge.rocketmq.admin.topics import config_of
from duolog.bridge.state.topics import Topics
from duolog.protocol.errors import ProtocolError
from duolog.protocol.framing import FrameReader
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.bodies import (
    MASTER_ID,
    BrokerRegistration,
    DataVersion,
    RegisteredTopics,
    TopicConfig,
)
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.names import AUTO_CREATE_TOPIC
from duolog.protocol.rocketmq.remoting import RemotingCommand

# `registerNameServerPeriod`. A name server removes a broker after 120 s without a registration.
REGISTER_S: Final = 30.0
ANSWER_S: Final = 10.0
GOODBYE_S: Final = 1.0
RETRIES_S: Final = (1.0, 2.0, 5.0, 10.0)  # The pauses before the first, second, ... attempt to connect again.
GONE_TOPICS_MAX: Final = 10_000
TOPICS_AT_ONCE: Final = 250  # The number of topics encoded in one turn of the loop, in about 1.5 ms.
_PIECE_BYTES: Final = 1 << 16
_NO_PERM: Final = 0

log = logging.getLogger("rocketmq")


def no_tls() -> None:
    """Return nothing: name servers are called without TLS."""


class BrokerIdentity(NamedTuple):
    """What name servers know the broker by."""

    cluster: str
    name: str
    address: str  # The advertised host and the port for RocketMQ clients, joined by a colon.


class NameServerRegistration:
    """Keeps this broker registered, with one task for each name server; `tls` returns what verifies them,
    or None for connections without TLS."""

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        broker: BrokerIdentity,
        contain: Callable[[BaseException], object],
        addresses: list[tuple[str, int]],
        tls: Callable[[], ssl.SSLContext | None] = no_tls,
    ) -> None:
        self._topics, self._clock, self._broker = topics, clock, broker
        self._contain, self._addresses, self._tls = contain, addresses, tls
        self._tasks: list[asyncio.Task[None]] = []
        # Set when there is a newer version of the topics; each version has its own event.
        self._changed = asyncio.Event()
        self._version = -1  # The version of the topics in `_body`.
        self._body = b""
        self._names: set[str] = set()
        self._writing = asyncio.Lock()  # Held while `_body` is encoded.
        self._gone: dict[str, None] = {}  # The topics that were deleted since the start.

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._stay(host, port)) for host, port in self._addresses]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def notice(self) -> None:
        """Start a new registration if the topics have changed. Called at the end of each turn of the loop."""
        if self._topics.version != self._version:
            self._changed.set()

    async def stop(self) -> None:
        """Unregister from all name servers, for at most GOODBYE_S."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_S + 0.5)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._contain(error)

    # -- One name server

    async def _stay(self, host: str, port: int) -> None:
        """Keep the broker registered with one name server, over lost connections, until the task is cancelled."""
        attempt = 0
        while True:
            try:
                connection = await asyncio.wait_for(asyncio.open_connection(host, port, ssl=self._tls()), ANSWER_S)
                channel = _Channel(*connection)
                try:
                    await self._keep_registered(channel, f"{host}:{port}")
                except asyncio.CancelledError:
                    with suppress(OSError, ProtocolError):
                        await asyncio.wait_for(channel.ask(RequestCode.UNREGISTER_BROKER, self._identity()), GOODBYE_S)
                    raise
                finally:
                    attempt = 0 if channel.was_answered else attempt
                    channel.close()
            except (OSError, ProtocolError) as error:
                reason = str(error) or type(error).__name__
                log.warning("name server lost address=%s reason=%r", endpoint(host, port), reason)
            await asyncio.sleep(RETRIES_S[min(attempt, len(RETRIES_S) - 1)])
            attempt += 1

    async def _keep_registered(self, channel: "_Channel", address: str) -> None:
        """Register now, after each change, and every REGISTER_S. Raises OSError, TimeoutError, ProtocolError."""
        is_known = False
        while True:
            body, changed = await self._registration()
            ext = self._identity() | {
                "haServerAddr": self._broker.address,
                "enableActingMaster": "false",
                "compressed": "false",
                "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            }
            given = await channel.ask(RequestCode.REGISTER_BROKER, ext, body)
            if given.code != ResponseCode.SUCCESS:
                raise ProtocolError(f"registering was refused with code {given.code}: {given.remark}")
            if not is_known:
                log.info("registered with name server address=%s topics=%d", address, len(self._names))
                is_known = True
            await channel.wait(changed, REGISTER_S)

    # -- The content of a registration

    def _identity(self) -> dict[str, str]:
        return {
            "brokerName": self._broker.name,
            "brokerAddr": self._broker.address,
            "clusterName": self._broker.cluster,
            "brokerId": str(MASTER_ID),
        }

    async def _registration(self) -> tuple[bytes, asyncio.Event]:
        """Return the body with all topics, encoded once for each version, and the event of the next version.

        Many topics are encoded in slices. A change in the meantime makes a newer version.
        """
        async with self._writing:
            if self._topics.version != self._version:
                self._version, self._changed = self._topics.version, asyncio.Event()
                for _ in self._write():
                    await asyncio.sleep(0)  # The loop runs other tasks.
            return self._body, self._changed

    def _write(self) -> Iterator[None]:
        """Encode the body; yields between slices."""
        topics = self._topics
        version = DataVersion(timestamp=self._clock.now_ms(), counter=topics.version)
        listed = {topic.rocketmq_name: topic for topic in topics.all()}
        if not topics.auto_create:
            listed.pop(AUTO_CREATE_TOPIC, None)
        self._gone.update(dict.fromkeys(self._names - listed.keys()))
        for name in list(self._gone):
            if name in listed or len(self._gone) > GONE_TOPICS_MAX:
                del self._gone[name]
        self._names = set(listed)
        yield
        configs = chain(
            (config_of(topic) for topic in listed.values()),
            (TopicConfig(topic_name=name, perm=_NO_PERM) for name in [*self._gone]),
        )
        rows: list[bytes] = []
        while some := [*islice(configs, TOPICS_AT_ONCE)]:
            rows += (fastjson.write(each.topic_name) + b":" + fastjson.write(each) for each in some)
            yield
        registered = RegisteredTopics(topic_config_table={}, data_version=version, mapping_data_version=version)
        before, table, after = fastjson.write(BrokerRegistration(topic_config_serialize_wrapper=registered)).partition(
            b'"topicConfigTable":{'
        )
        self._body = b"".join((before, table, b",".join(rows), after))


class _Channel:
    """A connection to a name server. At most one request waits for its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(remoting.FRAME_BYTES_MAX)
        self._opaque = 0
        self.was_answered = False

    async def ask(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Send a request and wait for its answer. Raises OSError, TimeoutError, ProtocolError."""
        self._opaque += 1
        self._writer.writelines(remoting.encode(remoting.request(code, self._opaque, ext, body)))
        return await asyncio.wait_for(self._answer(), ANSWER_S)

    async def _answer(self) -> RemotingCommand:
        await self._writer.drain()
        while True:
            for frame in self._frames.feed(await self._read()):
                command = remoting.decode(frame)
                if command.is_response and command.opaque == self._opaque:
                    self.was_answered = True
                    return command

    async def wait(self, changed: asyncio.Event, timeout_s: float) -> None:
        """Wait until the event is set or the time is over. Raises ConnectionResetError if the connection ends."""
        change, reading = asyncio.create_task(changed.wait()), asyncio.create_task(self._read())
        try:
            done, _ = await asyncio.wait((change, reading), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if reading in done:
                self._frames.feed(reading.result())  # An answer that no request waits for.
        finally:
            change.cancel()
            reading.cancel()

    async def _read(self) -> bytes:
        piece = await self._reader.read(_PIECE_BYTES)
        if not piece:
            raise ConnectionResetError("the name server closed the connection")
        return piece

    def close(self) -> None:
        self._writer.close()
