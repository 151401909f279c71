"""Proves what the broker tells its service manager, and that no service manager, or a wrong one, changes nothing."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from duolog.bridge.running.service_manager import ServiceManager

PID = 17


@pytest.fixture(params=["a path", "an abstract name"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """Give a socket as systemd's, and the value of NOTIFY_SOCKET for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.setblocking(False)
        if request.param == "a path":
            receiver.bind(str(tmp_path / "notify"))
            yield receiver.getsockname(), receiver
        else:
            receiver.bind("")  # Linux chooses an abstract name.
            yield "@" + receiver.getsockname()[1:].decode(), receiver


def test_each_state_is_one_datagram(listening: tuple[str, socket.socket]) -> None:
    address, receiver = listening
    manager = ServiceManager.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "10000000"}, PID)
    manager.ready("ready kafka=127.0.0.1:9092")
    manager.advance(1_000)
    assert manager.next_deadline_ms() == 6_000
    manager.stopping()
    assert [receiver.recv(1000) for _ in range(3)] == [
        b"READY=1\nSTATUS=ready kafka=127.0.0.1:9092",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=stopping",
    ]


@pytest.mark.parametrize(
    ("environment", "is_expected"),
    [
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "2000"}, True),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "2000", "WATCHDOG_PID": str(PID)}, True),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "2000", "WATCHDOG_PID": "18"}, False),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "-1"}, False),
        ({"NOTIFY_SOCKET": "/run/n"}, False),
        ({"WATCHDOG_USEC": "2000"}, False),
    ],
)
def test_signs_of_life_are_given_only_if_they_are_expected(environment: dict[str, str], is_expected: bool) -> None:
    manager = ServiceManager.from_environment(environment, PID)
    assert (manager.next_deadline_ms() is not None) is is_expected


@pytest.mark.parametrize(("address", "lines"), [("", 0), ("/no/such/socket", 1), ("/" + 200 * "x", 1)])
def test_a_notification_that_cannot_be_sent_is_a_log_line(
    address: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    ServiceManager(address).ready("ready")
    assert [record.msg.partition(" address")[0] for record in caplog.records] == [
        "service manager not notified"
    ] * lines
