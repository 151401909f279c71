"""Sends requests of a standby's RocketMQ clients on to the owner, and returns its answers.

    forward ──> waits for the owner ──> sent ──> answered
                     │                   └── the connection was lost, or the owner is another one, or is not reached
                     │                       any more: SYSTEM_ERROR
                     └── WAIT_MS without an owner: SERVICE_NOT_AVAILABLE

A request gets a number of its own (`opaque`) and FLAG_FORWARDED; all else stays as it is, so the owner checks the
client's signature. It is sent at most once. If nobody knows whether the owner has handled it, the answer is an error
after which producers try again, as after a connection to the owner that was lost.

Each user has a connection to the owner, because the owner stops to read from one while its user is above a quota; all
clients have the same one without security. A broker that has become the owner while requests waited connects to itself.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple, cast

from duolog.bridge.clock import Clock
from duolog.bridge.net.nodes import Address
from duolog.bridge.rocketmq.requests.admission import Busy
from duolog.protocol.errors import ProtocolError
from duolog.protocol.framing import FrameReader
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.remoting import FLAG_FORWARDED, RemotingCommand
from duolog.store.entry import Buffer

WAIT_MS: Final = 2_500  # Java's producers give up a send, with its retries, after 3 s (`sendMsgTimeout`).
ANSWER_MS: Final = 30_000  # Then it is taken for lost.
REQUESTS_MAX: Final = 10_000  # Of all clients together.
BYTES_MAX: Final = 64 << 20  # Of these requests.
USERS_MAX: Final = 100  # Connections to the owner.
CONNECT_S: Final = 1.0
CHECK_S: Final = 0.05
_BUSY: Final = "[OVERLOAD]too many requests wait for the owner"
_NO_OWNER: Final = "this broker is a standby, and does not reach the owner"
_LOST: Final = "the connection to the owner was lost: it is not known whether it has handled the request"
_OPAQUE_MASK: Final = 0x7FFFFFFF


class _Request(NamedTuple):
    command: RemotingCommand
    size: int
    until_mono_ms: int
    done: Callable[[RemotingCommand], None]


class _OwnerConnection(asyncio.Protocol):
    """A connection to the owner, and the requests that were sent over it and not answered."""

    def __init__(self, owner: Address, end: Callable[[_Request, RemotingCommand], None]) -> None:
        self.owner = owner
        self.sent: dict[int, _Request] = {}
        self.is_lost = False
        self._end = end
        self._frames = FrameReader(remoting.FRAME_BYTES_MAX)
        self._numbers = count(1)
        self._unwritten: list[Buffer] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses.

    def send(self, request: _Request, mono_ms: int) -> None:
        """Send a request; its answer ends it."""
        command, number = request.command, next(self._numbers) & _OPAQUE_MASK
        asked = RemotingCommand(
            command.code, number, command.ext, command.body, command.flag | FLAG_FORWARDED, command.remark,
            command.language, command.version, command.json,
        )  # fmt: skip
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write)
        self._unwritten += remoting.encode(asked)
        self.sent[number] = request._replace(until_mono_ms=mono_ms + ANSWER_MS)
        if command.is_oneway:
            self._answered(remoting.response(asked))

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        if not self.is_lost:
            self._transport.writelines(unwritten)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                command = remoting.decode(frame)
                if command.is_response:
                    self._answered(command)
        except ProtocolError:
            self.abort()

    def _answered(self, answer: RemotingCommand) -> None:
        request = self.sent.pop(answer.opaque, None)
        if request is not None:
            self._end(request, answer)

    def drop_overdue(self, mono_ms: int) -> None:
        """Take requests that were sent long ago for lost."""
        while self.sent:
            number = next(iter(self.sent))
            if self.sent[number].until_mono_ms > mono_ms:
                return
            self._lose(self.sent.pop(number))

    def _lose(self, request: _Request) -> None:
        self._end(request, remoting.response(request.command, ResponseCode.SYSTEM_ERROR, _LOST))

    def abort(self) -> None:
        if not self.is_lost:
            self._transport.abort()
            self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        lost, self.sent = self.sent, {}
        for request in lost.values():
            self._lose(request)


class _UserRequests:
    """The requests of one user, and its connection to the owner."""

    def __init__(self, forwarding: "Forwarding") -> None:
        self._forwarding = forwarding
        self._waiting: deque[_Request] = deque()
        self._connection: _OwnerConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._running is None

    def take(self, request: _Request) -> None:
        """Send a request now, or when there is a connection to the owner."""
        connection = self._usable()
        if connection is not None and not self._waiting:
            connection.send(request, self._forwarding.mono_ms())
        else:
            self._waiting.append(request)
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    def close(self) -> None:
        for task in (self._running, self._connecting):
            if task is not None:
                task.cancel()
        if self._connection is not None:
            self._connection.abort()

    def _usable(self) -> _OwnerConnection | None:
        """Return the connection, if it is one to the present owner."""
        connection = self._connection
        if connection is not None and (connection.is_lost or connection.owner != self._forwarding.owner()):
            self._connection = None
            connection.abort()
        return self._connection

    async def _run(self) -> None:
        """Connect to the owner, and refuse requests whose time is over, until no request is left."""
        try:
            while True:
                self._connect_if_needed()
                self._refuse_overdue()
                if not self._waiting and (self._connection is None or not self._connection.sent):
                    return
                await asyncio.sleep(CHECK_S)
        finally:
            self._running = None

    def _connect_if_needed(self) -> None:
        owner = self._forwarding.owner()
        if self._usable() is None and self._waiting and owner is not None and self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(owner))

    async def _connect(self, owner: Address) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                self._connection = await self._forwarding.connect(owner)
        except (OSError, TimeoutError):
            return  # It is tried again, as long as requests wait.
        finally:
            self._connecting = None
        mono_ms = self._forwarding.mono_ms()
        while self._waiting and (connection := self._usable()) is not None:
            connection.send(self._waiting.popleft(), mono_ms)

    def _refuse_overdue(self) -> None:
        mono_ms = self._forwarding.mono_ms()
        while self._waiting and self._waiting[0].until_mono_ms <= mono_ms:
            request = self._waiting.popleft()
            refusal = remoting.response(request.command, ResponseCode.SERVICE_NOT_AVAILABLE, _NO_OWNER)
            self._forwarding.end(request, refusal)
        if self._connection is not None:
            self._connection.drop_overdue(mono_ms)


class Forwarding:
    """The requests of all clients that wait for the owner.

    `owner` returns the address of the RocketMQ port of the broker that serves; None: there is none, as far as is known.
    `tls` returns what verifies its certificate; None: without TLS.
    """

    def __init__(
        self, clock: Clock, owner: Callable[[], Address | None], tls: Callable[[], ssl.SSLContext | None]
    ) -> None:
        self.owner, self.mono_ms = owner, clock.mono_ms
        self._tls = tls
        self._users: dict[str, _UserRequests] = {}
        self._count = 0
        self._bytes = 0

    def forward(self, user: str, command: RemotingCommand, size: int, done: Callable[[RemotingCommand], None]) -> None:
        """Send a request on; `done` gets the answer, once, or what stands for the answer to a one-way request.

        `user` is empty without security. Raises Busy.
        """
        if self._count >= REQUESTS_MAX or self._bytes + size > BYTES_MAX:
            raise Busy(_BUSY)
        requests = self._requests_of(user)
        self._count += 1
        self._bytes += size
        requests.take(_Request(command, size, self.mono_ms() + WAIT_MS, done))

    def _requests_of(self, user: str) -> _UserRequests:
        found = self._users.get(user)
        if found is None:
            if len(self._users) >= USERS_MAX:
                self._forget_idle()
            found = self._users[user] = _UserRequests(self)
        return found

    def _forget_idle(self) -> None:
        """Close the connection of a user without requests. Raises Busy if there is none."""
        name = next((name for name, each in self._users.items() if each.is_idle), None)
        if name is None:
            raise Busy(_BUSY)
        self._users.pop(name).close()

    def end(self, request: _Request, answer: RemotingCommand) -> None:
        """Give an answer to the client."""
        self._count -= 1
        self._bytes -= request.size
        answer.opaque = request.command.opaque
        request.done(answer)

    async def connect(self, owner: Address) -> _OwnerConnection:
        """Open a connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _OwnerConnection(owner, self.end), *owner, ssl=self._tls())
        return connection

    def stop(self) -> None:
        """Send nothing any more. What waits is not answered."""
        for each in self._users.values():
            each.close()
