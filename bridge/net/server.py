"""The ports of the broker and the end of a turn of the event loop.

    data_received ──> FrameReader.feed ──> received(frame)        net/connection.py; a subclass for each protocol
                                               │
       answers.write(buffers) <── promise kept <── send(answer) or OrderedOutbox
                │
    end of the turn: one write of all that is ready               `Server.touch` schedules it, once a turn

At the end of a turn the log is written first (`end_turn`). So answers that wait for this write are sent in the same
system call as those that do not.

The limits, and what happens at each (settings `limits.*`, and `kafka.*` or `rocketmq.*` by `Connection.wire`):

- open connections: further ones are closed as soon as they are accepted;
- the size of a frame: the connection is closed (ProtocolError);
- unanswered requests of a connection: it is not read from until half of them are answered;
- unfinished frames of all connections: the connection with the largest one is closed;
- unsent answers of one connection, and of all: a connection with unsent answers is not read from until its client has
  taken them; at twice the limit of all, the connection that has taken none for the longest time is closed;
- requests of one connection in a loop turn, and their time: the other requests wait for the next turn;
- time without a first request, without traffic, or with unsent answers that the client does not take: a sweep closes
  the connection.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from duolog.bridge.clock import Clock
from duolog.bridge.config import LimitsOptions
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.monitoring.watchdog import Watchdog
from duolog.bridge.net.before_login import BeforeLogin
from duolog.bridge.net.connections import Bounds, Connections
from duolog.bridge.net.ports.listening_port import ListeningPort
from duolog.bridge.net.timed_calls import TimedCalls
from duolog.bridge.net.tls.counts import TlsCounts

log = logging.getLogger("net")


class Flushable(Protocol):
    """The ready answers of one connection."""

    def flush(self) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Server:
    """The listeners of all ports, and the end of the loop's turn.

    `end_turn` runs at the end of each turn in which something was received: it writes the log and arms the ticker.
    The class has more than 15 fields because connections find here all that they share.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        limits: LimitsOptions,
        bounds: dict[str, Bounds],
        end_turn: Callable[[], None],
        faults: Faults,
        watchdog: Watchdog,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.bounds = bounds  # By `Connection.wire`.
        self.connections = Connections(limits, clock)
        self.before_login = BeforeLogin(limits)
        self.tls_counts = TlsCounts()
        self.timed_calls = TimedCalls(clock, self.touch)
        self.faults = faults
        self.watchdog = watchdog
        self._end_turn = end_turn
        self._is_touched = False  # Whether the end of this turn is scheduled.
        self.turn_mono_ms = 0  # When this turn was touched first. It is the time of all that the turn receives.
        self._answering: list[Flushable] = []  # The connections with ready answers.
        self._ports: dict[str, ListeningPort] = {}  # By their names.
        self._is_empty = asyncio.Event()  # Set when the last connection has closed.
        # Set if the broker shares its log. It returns whether answers may leave now; None: they always may.
        self.may_answer: Callable[[], bool] | None = None

    async def listen(self, name: str, bound: socket.socket, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections on a socket from `addresses.bind`, which is the port of this name. Raises StartError."""
        port = self._ports[name] = ListeningPort(self.loop, name, bound, factory)
        await port.open()

    def listen_again(self) -> None:
        """Open the ports again whose sockets were shut down from outside; the others stay as they are."""
        for name, port in self._ports.items():
            try:
                port.listen_again()
            except OSError as error:
                log.error("port cannot be opened again port=%s reason=%r", name, str(error))

    def refuse(self, but: str) -> None:
        """Refuse connections on all ports, except on the one of the name `but`, until `accept`."""
        for name, port in self._ports.items():
            if name != but:
                port.refuse()

    async def accept(self) -> None:
        """Accept connections on all ports again. Raises StartError."""
        for port in [*self._ports.values()]:
            await port.open()

    # -- The end of the loop's turn

    def touch(self) -> None:
        """Schedule the end of this turn: `end_turn`, then one write for each connection that has answers."""
        if not self._is_touched:
            self._is_touched = True
            self.turn_mono_ms = self.clock.mono_ms()
            self.loop.call_soon(self._turn_ends)

    def answering(self, answers: Flushable) -> None:
        """Write these answers at the end of the turn."""
        self._answering.append(answers)
        self.touch()

    def soon(self, kind: str, callback: Callable[[], object]) -> None:
        """Run a callback in another turn of the loop; an exception that it raises is contained."""
        self.loop.call_soon(self._run_soon, kind, callback)

    def _run_soon(self, kind: str, callback: Callable[[], object]) -> None:
        begun_s = self.watchdog.seconds()
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - contained
            self.faults.contain(error, kind)
        self.watchdog.turned(kind, begun_s)

    def _turn_ends(self) -> None:
        begun_s = self.watchdog.seconds()
        try:
            self._end_turn()
        except Exception as error:  # noqa: BLE001 - contained
            self.faults.contain(error, "end of a turn")
        self.flush()
        self._is_touched = False
        self.watchdog.turned("end of a turn", begun_s)

    def flush(self) -> None:
        """Write all answers that are ready. The broker also calls this when a thread has synced the log.

        If no answer may leave, all connections are aborted instead, since silence must not look like success.
        """
        if self._answering and self.may_answer is not None and not self.may_answer():
            self.abort_all()
        while self._answering:
            ready, self._answering = self._answering, []
            for answers in ready:
                try:
                    answers.flush()
                except Exception as error:  # noqa: BLE001 - the other connections have answers as well
                    answers.failed(error)

    # -- Stopping

    def on_closed(self) -> None:
        """Note that a connection was closed."""
        if not self.connections:
            self._is_empty.set()

    def stop_listening(self, but: str = "") -> None:
        """Accept no connections any more, except on the port of the name `but`."""
        for name in [name for name in self._ports if name != but]:
            self._ports.pop(name).close()

    def abort_all(self) -> None:
        """Close every connection at once, without the answers that are ready."""
        self._answering.clear()
        for connection in [*self.connections]:
            connection.abort()

    def hold_all(self) -> None:
        """Stop reading requests from all connections."""
        for connection in list(self.connections):
            connection.hold()

    async def close_all(self, wait_ms: int) -> None:
        """Close every connection. Those with unsent answers are aborted after `wait_ms`."""
        self.flush()
        self._is_empty.clear()
        for connection in list(self.connections):
            connection.close("")
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), wait_ms / 1000)
        for connection in list(self.connections):
            connection.abort()
