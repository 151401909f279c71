"""Proves that a port that is bound before recovery refuses connections until the broker listens on it, and that a
signal breaks off a start, whatever keeps the loop."""

import signal
import socket

import pytest

from duolog.bridge.broker import ENDING_SIGNALS, end_while_starting
from duolog.bridge.net.addresses import StartError, bind


def test_bound_port_refuses_connections_until_it_listens_and_then_another_broker() -> None:
    bound = bind("127.0.0.1", 0, "http.port")
    address = bound.getsockname()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 5)
    bound.listen()
    socket.create_connection(address, 5).close()
    with pytest.raises(StartError, match=r"http\.port: cannot listen on .*: Address already in use"):
        bind(*address, "http.port")
    bound.close()


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_signal_ends_a_start_at_once_with_status_0(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in ENDING_SIGNALS}
    try:
        end_while_starting()
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(number)
        assert ended.value.code == 0
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
