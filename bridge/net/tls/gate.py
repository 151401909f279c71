"""The class TlsGate: the TLS handshakes of all ports. One thread computes them, so that they hold up no other client.

    accepting ──> Handshake ──first bytes──> _new ──────┐
                      ^                                 ├──_run: BATCH at a time──> thread ──> _stepped
                      └── the client's next bytes ──> _begun ┘                                     │
                                                  _silent <── the handshake waits for its client ──┘

A handshake has memory of OpenSSL, about 46 KiB, from its first turn in the thread on; `tls.handshakes_max` limits their
number. Handshakes that have begun go first, so a flood of first messages does not hold up the completion of others. Of
those that have not, the hosts of the clients take turns, so a flood from one host does not hold up the others.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from duolog.bridge.config import TlsOptions
from duolog.bridge.net.server import Server
from duolog.bridge.net.tls.handshake import Handshake, HandshakeStep
from duolog.bridge.net.tls.server_tls import ServerTls
from duolog.store.workers import Executor

BATCH: Final = 8  # Handshakes in one task of the thread.


class TlsGate:
    """The handshakes of one broker. `tls` is what new ones use; a reload of the settings replaces it."""

    def __init__(self, server: Server, options: TlsOptions, tls: ServerTls, executor: Executor) -> None:
        self.server, self.options, self._executor = server, options, executor
        self.use(tls)
        self._new: dict[str, deque[Handshake]] = {}  # By the client's host; the host whose turn is next is first.
        self._begun: deque[Handshake] = deque()
        self._silent: dict[Handshake, None] = {}  # They wait for their clients; silent for longest is first.
        self._is_working = False  # The thread has a task.

    def use(self, tls: ServerTls) -> None:
        """Use these certificates for handshakes that begin from now on."""
        self.tls = tls
        self.server.tls_counts.certificate_expires_s = tls.expires_s

    def accepting(self, wire: str, factory: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.Protocol]:
        """Return the factory of a listener: connections of its protocol, with and without TLS as `tls.mode` says."""
        return lambda: Handshake(self, wire, factory)

    # -- Calls of handshakes

    def step(self, handshake: Handshake) -> None:
        """Call `handshake.work()` in the thread soon, and then `handshake.stepped`."""
        self._silent.pop(handshake, None)
        waiting = self._begun if handshake.using is not None else self._new.setdefault(handshake.peer[0], deque())
        waiting.append(handshake)
        if not self._is_working:
            self._run()

    def ended(self, handshake: Handshake) -> None:
        """Forget a handshake."""
        if handshake.using is not None:
            self.server.tls_counts.unfinished -= 1
            self._silent.pop(handshake, None)

    # -- The thread

    def _run(self) -> None:
        """Give the next handshakes to the thread."""
        batch: list[Handshake] = []
        while len(batch) < BATCH and (handshake := self._next()) is not None:
            batch.append(handshake)
        if batch:
            self._is_working = True
            work = [handshake.work() for handshake in batch]
            self._executor.submit(lambda: [step() for step in work], lambda steps: self._stepped(batch, steps))

    def _next(self) -> Handshake | None:
        """Return the next handshake that has work; None: there is none, or no further one may begin now."""
        while self._begun:
            handshake = self._begun.popleft()
            if not handshake.closed:
                return handshake
        while self._new:
            host, queue = next(iter(self._new.items()))
            if not queue[0].closed and not self._has_room():
                return None  # All that have begun are in the thread's task; `_stepped` comes back here.
            handshake = queue.popleft()
            del self._new[host]
            if queue:
                self._new[host] = queue
            if not handshake.closed:
                handshake.using = self.tls
                self.server.tls_counts.unfinished += 1
                return handshake
        return None

    def _has_room(self) -> bool:
        """Return whether a handshake may begin; the one whose client is silent for longest is closed for it."""
        if self.server.tls_counts.unfinished < self.options.handshakes_max:
            return True
        if not self._silent:
            return False
        next(iter(self._silent)).close_as_silent()
        return True

    def _stepped(self, batch: list[Handshake], steps: list[HandshakeStep] | Exception) -> None:
        self._is_working = False
        for number, handshake in enumerate(batch):
            if isinstance(steps, Exception):
                handshake.close(f"the handshake could not be computed: {steps}", abort=True)
                continue
            try:
                handshake.stepped(steps[number])
            except Exception as error:  # noqa: BLE001 - the other handshakes go on
                handshake.broken(error, "handshake")
            if not handshake.closed:
                self._silent[handshake] = None
        self._run()
