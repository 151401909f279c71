"""Proves what the external watchdog does to a process that stands still, with a real child of this process.

This process is the broker: it sends one heartbeat, and no further one.
"""

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

import pytest

from duolog.bridge.net.ports.listening_port import BACKLOG, listen
from duolog.bridge.running.external_watchdog import PROGRAM, ExternalWatchdog

WITHIN_S = 30
STALL_MS = 30
HOST = "127.0.0.1"


class Connected(NamedTuple):
    """A listening socket, and both ends of a connection to it."""

    listening: socket.socket
    accepted: socket.socket
    client: socket.socket

    @property
    def port(self) -> int:
        return int(self.listening.getsockname()[1])

    @property
    def error_of_connecting(self) -> int:
        with socket.socket() as another:
            return another.connect_ex((HOST, self.port))


@pytest.fixture
def connected() -> Iterator[list[Connected]]:
    with ExitStack() as opened:
        found = []
        for _ in range(2):
            listening = opened.enter_context(socket.create_server((HOST, 0)))
            client = opened.enter_context(socket.create_connection(listening.getsockname()))
            client.settimeout(WITHIN_S)
            found.append(Connected(listening, opened.enter_context(listening.accept()[0]), client))
        yield found


class Opened:
    """The server of the broker: counts how many times its ports are opened again."""

    def __init__(self) -> None:
        self.count = 0
        self.again = asyncio.Event()

    def listen_again(self) -> None:
        self.count += 1
        self.again.set()


async def stall(ports: list[int], opened: Opened) -> ExternalWatchdog:
    """Send one heartbeat, and none until the child has reported."""
    loop = asyncio.get_running_loop()
    with ExternalWatchdog(loop, cast(Any, opened), ports, STALL_MS, lambda: None) as watchdog:
        watchdog.advance(1_000)
        await asyncio.wait_for(opened.again.wait(), WITHIN_S)
    return watchdog


def test_a_process_without_a_beat_loses_the_sockets_of_its_ports_and_no_others(
    connected: list[Connected], caplog: pytest.LogCaptureFixture
) -> None:
    ours, others = connected
    asyncio.run(stall([ours.port], Opened()))
    assert [record.getMessage() for record in caplog.records if record.name == "bridge"] == [
        "clients were disconnected, because the event loop stood still sockets=2"
    ]
    assert ours.client.recv(1) == b""
    assert ours.error_of_connecting == errno.ECONNREFUSED
    others.accepted.send(b"x")
    assert others.client.recv(1) == b"x"
    assert others.error_of_connecting == 0


def test_a_port_that_refuses_connections_accepts_usable_ones_after_a_stall() -> None:
    with socket.socket() as refusing, socket.socket() as client:
        refusing.bind((HOST, 0))
        asyncio.run(stall([refusing.getsockname()[1]], Opened()))
        listen(refusing)
        client.connect(refusing.getsockname())
        with refusing.accept()[0] as accepted:
            accepted.send(b"x")
            assert client.recv(1) == b"x"


def test_ports_that_were_shut_down_are_opened_again_and_others_stay_as_they_are(connected: list[Connected]) -> None:
    of_the_system, _ = connected
    address = of_the_system.listening.getsockname()
    of_the_system.listening.shutdown(socket.SHUT_RDWR)
    for each in connected:
        listen(each.listening)
    assert of_the_system.listening.getsockname() == address
    assert [each.error_of_connecting for each in connected] == [0, 0]
    of_the_system.listening.close()
    with socket.socket() as given, socket.socket() as client:
        given.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        given.bind(address)
        given.listen(BACKLOG)
        given.shutdown(socket.SHUT_RDWR)
        listen(given)
        assert client.connect_ex(address) == 0


def test_a_watchdog_that_cannot_start_is_one_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/program")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with ExternalWatchdog(loop, cast(Any, Opened()), [], STALL_MS, lambda: None) as watchdog:
            assert watchdog.next_deadline_ms() is None
            watchdog.advance(1_000)

    asyncio.run(run())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "bridge"]
    assert line.startswith("external watchdog does not run, clients wait for a broker that stands still reason=")
    assert "/no/such/program" in line


def test_beats_are_due_at_intervals_and_when_the_lease_was_extended() -> None:
    leases: list[int | None] = [None]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with ExternalWatchdog(loop, cast(Any, Opened()), [], 2_700_000, lambda: leases[0]) as watchdog:
            watchdog.advance(1_000)
            assert watchdog.next_deadline_ms() == 271_000
            leases[0] = 3_000_000
            assert watchdog.next_deadline_ms() == 0
            watchdog.advance(2_000)
            assert watchdog.next_deadline_ms() == 272_000
            leases[0] = 3_100_000
            assert watchdog.next_deadline_ms() == 272_000

    asyncio.run(run())


@pytest.mark.parametrize(
    ("is_copied", "answer"), [(True, b"ready"), (False, b"refused pidfd_getfd: Bad file descriptor")]
)
def test_the_child_says_whether_it_may_copy_sockets_and_ends_with_the_broker(is_copied: bool, answer: bytes) -> None:
    ours, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its_end:
        ours.settimeout(WITHIN_S)
        file = ours.fileno() if is_copied else 1_000_000
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), str(os.getpid()), str(file)], stdin=its_end.fileno()
        )
        its_end.close()
        ours.send(b"100000")
        assert ours.recv(100).startswith(answer)
        ours.close()
        assert child.wait(WITHIN_S) == 0
