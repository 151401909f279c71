"""Hosts in one event loop with virtual time: processes that are killed and paused, and a network between them.

    run_hosts(main(), clock)                       # like `tests/kit/loop.py`
    broker = Process("10.0.0.1", HostClock(clock))  # Timers of the process are due by the clock of its host.
    broker.start(serve())                          # what this coroutine starts belongs to the process, too
    broker.pause(5)                                # as SIGSTOP: nothing of it runs, and nothing is lost
    broker.kill()                                  # as SIGKILL: nothing of it ever runs again; its peers see it
    await asyncio.open_connection("10.0.0.1", 9092)     # reaches what this host serves by `loop.create_server`
    loop.network.cut("10.0.0.1")                   # until `heal`: its packets wait

Which process a callback belongs to is in its context, as asyncio copies the context of whoever starts a task, sets a
timer or adds a callback. What runs in no process, such as tests and their clients, is never stopped.
"""

import asyncio
import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar

from tests.kit.clock import HostClock, ManualClock
from tests.kit.loop import Stuck, VirtualLoop

T = TypeVar("T")
LATENCY_S: Final = (0.0001, 0.001)  # The range of the latency of a packet.


class Process:
    """One process on a host of its own."""

    def __init__(self, host: str, clock: HostClock) -> None:
        self.host, self.clock = host, clock
        self.is_dead = False
        self.is_running = True  # Neither dead nor paused.
        self._paused_until_s = 0.0
        self._held: list[Handle] = []  # Callbacks that became due during a pause.

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        context = copy_context()
        context.run(_PROCESS.set, self)
        return asyncio.get_running_loop().create_task(main, context=context)

    def kill(self) -> None:
        self.is_dead, self.is_running = True, False
        self._held.clear()
        loop = running_loop()
        loop.killed |= asyncio.all_tasks(loop)
        loop.network.drop(self)

    def pause(self, seconds: float) -> None:
        loop = running_loop()
        self.is_running = False
        self._paused_until_s = loop.true_s() + seconds
        loop.call_at_true(self._paused_until_s, self._resume)

    def hold(self, handle: "Handle") -> None:
        """Keep a callback until the process runs again; a dead process never does."""
        if not self.is_dead:
            self._held.append(handle)

    def _resume(self) -> None:
        loop = running_loop()
        if not self.is_dead and loop.true_s() >= self._paused_until_s:
            self.is_running = True
            held, self._held = self._held, []
            loop.add_ready(held)


_PROCESS: Final = ContextVar[Process | None]("process", default=None)


class Handle:
    """A callback that is due now or at a time; it runs only while its process runs.

    It is no `asyncio.Handle`, whose constructor and comparisons took a tenth of the time of a simulation.
    """

    __slots__ = ("args", "callback", "context", "is_cancelled", "process")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback, self.args, self.context = callback, args, context
        self.process = context.get(_PROCESS)
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()  # They may hold much in memory until the timer is due.


def _nothing() -> None:
    pass


class _Due(float):
    """The true time of a timer, in the heap of timers: a float, because these are compared most quickly."""

    __slots__ = ("handle",)
    handle: Handle


class HostLoop(VirtualLoop):
    """An event loop whose callbacks belong to processes, and whose connections are those of `Network`."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        self.network = Network(self, seed)
        self.errors: list[str] = []  # Exceptions that nobody caught, in any process.
        # Tasks that were pending when a process was killed. They are kept until the end of the run, so that the garbage
        # collector does not close their coroutines, which would run a part of the killed process.
        self.killed: set[asyncio.Task[Any]] = set()
        self._clock = clock
        self._timers: list[_Due] = []  # A heap.
        self._ready: deque[Handle]
        super().__init__(clock)

    def set_exception_handler(self, handler: object) -> None:
        pass  # Each process would set one.

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # What a killed process was doing is collected as garbage, with its tasks and their outcomes.
        if not context["message"].endswith(("was destroyed but it is pending!", "was never retrieved")):
            self.errors.append(f"{context['message']}: {context.get('exception')!r}")

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, copy_context() if context is None else context)
        if not self.is_closed():  # A coroutine that nobody awaits any more ends at its garbage collection.
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # asyncio's calls it to close generators.

    def time(self) -> float:
        """Return the monotonic time of the calling process's host, or the true one."""
        process = _PROCESS.get()
        return (self._clock if process is None else process.clock).mono_us() / 1e6

    def true_s(self) -> float:
        return self._clock.mono_us() / 1e6

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        caller = _PROCESS.get()
        true_s = when if caller is None else caller.clock.true_s(when)
        return self._schedule(true_s, Handle(callback, args, copy_context() if context is None else context))

    def call_at_true(self, true_s: float, callback: Callable[[], object]) -> None:
        """Call something that belongs to no process at a true time."""
        self._schedule(true_s, Handle(callback, (), Context()))

    def _schedule(self, true_s: float, handle: Handle) -> Handle:
        due = _Due(true_s)
        due.handle = handle
        heapq.heappush(self._timers, due)
        return handle

    def _run_once(self) -> None:
        """Run one turn, as asyncio's loop does, whose select and debug mode would take most of a turn's time here."""
        ready = self._ready
        self._add_due()
        for _ in range(len(ready)):
            handle = ready.popleft()
            process = handle.process
            if handle.is_cancelled:
                continue
            if process is not None and not process.is_running:
                process.hold(handle)
                continue
            try:
                handle.context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - reported, as by asyncio's loop
                self.call_exception_handler({"message": f"Exception in callback {handle.callback}", "exception": error})

    def _add_due(self) -> None:
        """Add what is due to the turn. If nothing is, let the time of the next timer come. Raises Stuck."""
        timers, clock = self._timers, self._clock
        while timers and timers[0].handle.is_cancelled:
            heapq.heappop(timers)
        if not self._ready and not self._stopping:
            if not timers:
                raise Stuck("all tasks wait, and no timer is set")
            clock.pass_us(max(0, math.ceil((timers[0] - clock.mono_us() / 1e6) * 1e6)))
        now_s = clock.mono_us() / 1e6 + 1e-9
        while timers and timers[0] < now_s:
            self._ready.append(heapq.heappop(timers).handle)

    def add_ready(self, handles: Iterable[Handle]) -> None:
        """Run these callbacks in the next turn, in their order, after those that are due already."""
        self._ready.extend(handles)

    async def create_server(self, protocol_factory: Any, *, sock: "Port", **_: Any) -> "Listener":  # type: ignore[override]
        return self.network.listen(sock, protocol_factory)

    async def create_connection(self, protocol_factory: Any, host: str, port: int, **_: Any) -> Any:  # type: ignore[override]
        return await self.network.connect(protocol_factory, (host, port))


def run_hosts(main: Coroutine[Any, Any, T], clock: ManualClock, seed: int) -> T:
    """Run `main` to its end; what runs in processes then ends without a word."""
    loop = HostLoop(clock, seed)
    try:
        return loop.run_until_complete(main)
    finally:
        pending = loop.killed | asyncio.all_tasks(loop)
        loop.close()
        for task in pending:
            # What a coroutine does and raises at its end is no part of the run. One that waits for the next item of an
            # asynchronous generator in `contextlib.aclosing` raises RuntimeError, because the generator still runs.
            with suppress(Exception):
                task.get_coro().close()


def running_loop() -> HostLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HostLoop)
    return loop


# -- The network


class Port:
    """What a process binds: an address, in the place of a socket."""

    def __init__(self, host: str, number: int) -> None:
        self._address = (host, number)

    def getsockopt(self, level: int, name: int) -> bool:
        """Say that the port accepts connections: `Network.listen` opens it."""
        return True

    def dup(self) -> "Port":
        return self

    def shutdown(self, how: int) -> None:
        """Do nothing: `Listener.close` closes the port."""

    def close(self) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return self._address


class Listener:
    """A port that accepts connections, until it is closed or its process is dead."""

    def __init__(self, network: "Network", address: tuple[str, int], factory: Callable[[], asyncio.Protocol]) -> None:
        self.factory, self.context = factory, copy_context()
        self._network, self._address = network, address

    @property
    def process(self) -> Process | None:
        return self.context.get(_PROCESS)

    def close(self) -> None:
        self._network.forget(self._address, self)


class Network:
    """Listeners by address, and all connections. Bytes of one connection arrive in their order."""

    def __init__(self, loop: HostLoop, seed: int) -> None:
        self.loop, self.random = loop, random.Random(seed)
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ends: dict[End, None] = {}  # In the order of their beginnings.
        self._cut: set[str] = set()
        self._waiting: dict[str, list[Callable[[], None]]] = {}  # Packets of hosts that are cut off.

    def listen(self, port: Port, factory: Callable[[], asyncio.Protocol]) -> Listener:
        listener = self._listeners[port.getsockname()] = Listener(self, port.getsockname(), factory)
        return listener

    def forget(self, address: tuple[str, int], listener: Listener) -> None:
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], address: tuple[str, int]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        connected: asyncio.Future[End] = self.loop.create_future()
        context = copy_context()

        def arrive() -> None:
            listener = self._listeners.get(address)
            if connected.cancelled():
                return
            if listener is None or (listener.process is not None and listener.process.is_dead):
                connected.set_exception(ConnectionRefusedError(f"{address[0]}:{address[1]}"))
                return
            own, other = End(self, address[0], context), End(self, address[0], listener.context)
            own.peer, other.peer = other, own
            self._ends |= {own: None, other: None}
            self.loop.call_soon(other.open, listener.factory, context=listener.context)
            connected.set_result(own)

        self.send(address[0], self.loop.true_s() + self.latency_s(), arrive)
        end = await connected
        return end, end.open(factory)

    def latency_s(self) -> float:
        return self.random.uniform(*LATENCY_S)

    def send(self, host: str, at_s: float, arrive: Callable[[], None]) -> None:
        """Let a packet to or from a broker's host arrive, unless the host is cut off; then it waits."""

        def arrived() -> None:
            if host in self._cut:
                self._waiting.setdefault(host, []).append(arrive)
            else:
                arrive()

        self.loop.call_at_true(at_s, arrived)

    def cut(self, host: str) -> None:
        self._cut.add(host)

    def heal(self, host: str) -> None:
        self._cut.discard(host)
        for arrive in self._waiting.pop(host, []):
            arrive()

    def drop(self, process: Process) -> None:
        """Close the connections of a dead process, as its kernel does."""
        for end in [each for each in self._ends if each.process is process]:
            end.leave()

    def gone(self, end: "End") -> None:
        self._ends.pop(end, None)


class End(asyncio.Transport):
    """One end of a connection. The peer of an end that is closed gets all bytes that were written before."""

    peer: "End"

    def __init__(self, network: Network, host: str, context: Context) -> None:
        super().__init__(extra={"peername": ("10.1.0.1", 40_000), "sockname": (host, 0)})
        self._network, self._host, self._context = network, host, context
        self._protocol: asyncio.Protocol | None = None
        self._is_reading, self._is_closing, self._is_lost = True, False, False
        self._arrived: deque[bytes | None] = deque()  # None: the peer has closed.
        self._last_s = 0.0

    @property
    def process(self) -> Process | None:
        return self._context.get(_PROCESS)

    def open(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        protocol = self._protocol = factory()
        protocol.connection_made(self)
        self._read()
        return protocol

    # -- Methods that protocols call

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing and data:
            self._send(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self.leave()
            self._network.loop.call_soon(self._lose, context=self._context)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._network.loop.call_soon(self._read, context=self._context)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.Protocol:
        assert self._protocol is not None
        return self._protocol

    # -- The way of bytes

    def leave(self) -> None:
        """Tell the peer that this end is closed."""
        if not self._is_closing:
            self._is_closing = True
            self._send(None)

    def _send(self, data: bytes | None) -> None:
        network = self._network
        self._last_s = max(self._last_s + 1e-6, network.loop.true_s() + network.latency_s())
        network.send(self._host, self._last_s, lambda: self.peer._arrive(data))

    def _arrive(self, data: bytes | None) -> None:
        self._arrived.append(data)
        self._network.loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        while self._arrived and self._is_reading and not self._is_lost and self._protocol is not None:
            data = self._arrived.popleft()
            if data is None:
                self._is_closing = True
                self._lose()
            elif not self._is_closing:
                self._protocol.data_received(data)

    def _lose(self) -> None:
        if not self._is_lost and self._protocol is not None:
            self._is_lost = True
            self._network.gone(self)
            self._protocol.connection_lost(None)
