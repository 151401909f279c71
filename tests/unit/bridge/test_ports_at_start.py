"""Proves that a port that is bound before recovery refuses connections until the broker listens on it."""

import socket

import pytest

from bridge.server import StartError, bind


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
