"""The start of security: a broker that anybody may use from elsewhere says so in its log."""

import logging

import pytest

from duolog.bridge.config import Options, SecurityOptions
from duolog.bridge.net.addresses import Addresses
from duolog.bridge.security_start import start_security
from tests.kit.core import ManualCore

LOUD = "authentication is off, anybody who reaches the ports may do everything host="


@pytest.mark.parametrize(
    ("hosts", "named"),
    [
        (["127.0.0.1", "::1"], ""),
        (["127.0.0.1", "192.0.2.7"], "192.0.2.7"),
        (["0.0.0.0"], "0.0.0.0"),
        (["::"], "::"),
        (["broker.example"], "broker.example"),
    ],
)
def test_open_broker_says_so_at_the_start(hosts: list[str], named: str, caplog: pytest.LogCaptureFixture) -> None:
    core = ManualCore(Options(security=SecurityOptions(enabled=False)))
    addresses = Addresses("broker.example", {str(at): (host, 1) for at, host in enumerate(hosts)})
    with caplog.at_level(logging.WARNING):
        assert start_security(core.security, addresses, lambda: None, lambda result: None) is None
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == (
        [("WARNING", LOUD + named)] if named else []
    )
