"""Proves that a port that is bound before recovery refuses connections until the broker listens on it, that a signal
breaks off a start, whatever keeps the loop, and that a first start on a full disk is refused."""

import asyncio
import errno
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from duolog.bridge import broker as broker_module
from duolog.bridge.broker import Broker
from duolog.bridge.config import ConfigError, HttpOptions, KafkaOptions, Options, RocketmqOptions, StoreSection
from duolog.bridge.net.addresses import StartError, bind
from duolog.bridge.running.process import ENDING_SIGNALS, end_while_starting
from duolog.store.entry import Buffer
from duolog.store.files import RealFiles
from duolog.store.recovery.format_version import write_format
from tests.kit.clock import ManualClock
from tests.kit.core import ManualCore


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


def test_two_brokers_that_have_bound_a_port_do_not_both_listen_on_it() -> None:
    """Linux lets both bind it as long as none listens, which is so while they recover their logs."""
    core = ManualCore()
    first = bind("127.0.0.1", 0, "http.port")
    second = bind(*first.getsockname(), "http.port")

    async def listen_on_both() -> None:
        first.listen()
        with pytest.raises(StartError, match=r"http: cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
            await core.server.listen("http", second, asyncio.Protocol)

    asyncio.run(listen_on_both())
    first.close()
    second.close()


def test_address_of_another_machine_is_a_wrong_host() -> None:
    with pytest.raises(ConfigError, match=r"server\.host: '192\.0\.2\.1' is no address of this machine"):
        bind("192.0.2.1", 0, "kafka.port")


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


class FullDisk(RealFiles):
    """A directory on a disk without any room."""

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def reserve(self, file: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_first_start_on_a_full_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topics of the broker's own cannot be made. The turn in which that happens ends without a fault."""
    write_format(RealFiles(str(tmp_path)))
    monkeypatch.setattr(broker_module, "RealFiles", FullDisk)
    options = Options(
        store=StoreSection(directory=str(tmp_path)),
        kafka=KafkaOptions(port=0),
        rocketmq=RocketmqOptions(port=0, namesrv_port=0),
        http=HttpOptions(port=0),
    )

    async def start() -> None:
        broker = Broker(options, ManualClock(), asyncio.get_running_loop())
        with pytest.raises(StartError, match=r"store\.directory: .*: the disk is full: .*No space left on device"):
            await broker.start()
        await asyncio.sleep(0)  # The turn ends.
        await asyncio.sleep(0)

    asyncio.run(start())
    assert "fault contained" not in caplog.text
