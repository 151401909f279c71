"""`duolog serve` as a child process, which tests control only by its command line, ports and signals.

    with Broker(tmp_path / "data", {"store.flush": "async"}) as broker:
        producer = Producer({"bootstrap.servers": broker.kafka})
        broker.kill()       # SIGKILL: connections are not closed in order
        broker.start()      # with the same data and ports, so that clients find the broker again

The child runs isolated (`python -I`), so that it imports nothing from the current directory. Its standard error goes to
`<data>.log`, and every BrokerError contains the end of that log.
"""

from __future__ import annotations

import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.kit.command import DUOLOG
from tests.kit.fork_server import ForkedProcess, start_duolog

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 5.0  # The time that the documentation of `duolog serve` promises.
PORTS = ("kafka", "rocketmq", "namesrv", "http")
LISTENING_PORTS = (10_000, 32_768)  # Below the ports that Linux uses for outgoing connections.
LOG_TAIL_BYTES = 4000


class BrokerError(AssertionError):
    """The broker did not behave as documented; the message contains the end of its log."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of a broker's ports, each as host:port."""

    kafka: str
    rocketmq: str
    namesrv: str
    http: str


class Broker:
    """One broker on one data directory. It may be started, stopped and killed repeatedly."""

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, object] | None = None,
        ports: Mapping[str, int] | None = None,
        command: Sequence[str] | None = None,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        """Prepare a broker.

        `command` is that of another environment or checkout, or `DUOLOG` for a measurement. `prefix` stands before it
        and keeps the process id: `ip netns exec NAME`, where `host` is an address. Without either, the broker is forked
        from a process that has imported its modules (`tests.kit.fork_server`).
        """
        self.data = data
        self._host, self._prefix = host, prefix
        self._duolog = command
        self.log = data.with_name(data.name + ".log")
        self.settings = dict(settings or {})
        self._first_ports = ports
        self._endpoints: Endpoints | None = None  # Set by the first start, and unchanged from then on.
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._output: IO[bytes] | None = None  # The standard output of the process.

    # -- Addresses

    @property
    def endpoints(self) -> Endpoints:
        assert self._endpoints is not None, "the broker was never started"
        return self._endpoints

    @property
    def kafka(self) -> str:
        return self.endpoints.kafka

    @property
    def rocketmq(self) -> str:
        return self.endpoints.rocketmq

    @property
    def namesrv(self) -> str:
        return self.endpoints.namesrv

    @property
    def http(self) -> str:
        return self.endpoints.http

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    # -- Starting and stopping

    def start(self, **settings: object) -> Self:
        """Start, and wait for the ready line. The first start takes free ports; later starts use the same ports.

        `settings` hold for this start only; `store__flush` stands for `store.flush`.
        """
        self.launch(**settings)
        try:
            self._endpoints = self._read_ready_line()
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self, **settings: object) -> None:
        """Start without waiting for the ready line, for tests that kill the broker during its recovery."""
        assert self._process is None, f"the broker already runs, pid {self._process and self._process.pid}"
        self.data.parent.mkdir(parents=True, exist_ok=True)
        once = {name.replace("__", "."): value for name, value in settings.items()}
        arguments = self._arguments(self.settings | once)
        output, its_output = os.pipe()
        self._output = os.fdopen(output, "rb")
        with self.log.open("ab") as log, Path(os.devnull).open("rb") as nothing, os.fdopen(its_output, "wb"):
            if self._duolog is None and not self._prefix:
                self._process = start_duolog(arguments, stdin=nothing.fileno(), stdout=its_output, stderr=log.fileno())
            else:
                command = [*self._prefix, *(self._duolog or DUOLOG), *arguments]
                self._process = subprocess.Popen(command, stdin=nothing, stdout=its_output, stderr=log)

    def stop(self) -> None:
        """Send SIGTERM. Raises BrokerError unless the broker ends in time with status 0."""
        process = self._process
        assert process is not None, "the broker is not running"
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_WITHIN_S + 1)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"the broker still ran {STOP_WITHIN_S} s after SIGTERM\n{self.log_tail()}") from None
        self._forget()
        if status != 0:
            raise BrokerError(f"the broker ended with status {status} after SIGTERM\n{self.log_tail()}")

    def kill(self) -> None:
        """Send SIGKILL, and return when the process has ended. Does nothing if it has ended before."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def restart(self, **settings: object) -> None:
        self.stop()
        self.start(**settings)

    def delete(self) -> None:
        """Kill the broker, and remove its files."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        self.log.unlink(missing_ok=True)

    def check_alive(self) -> None:
        """Raise BrokerError if the broker has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise BrokerError(f"the broker ended by itself with status {self._process.returncode}\n{self.log_tail()}")

    def wait_until_ended(self, within_s: float) -> int:
        """Return the exit status of a broker that ends by itself. Raises BrokerError if it runs on."""
        process = self._process
        assert process is not None, "the broker is not running"
        try:
            status = process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise BrokerError(f"the broker still ran after {within_s} s\n{self.log_tail()}") from None
        self._forget()
        return status

    def log_tail(self) -> str:
        """Return the last lines of the broker's standard error."""
        if not self.log.exists():
            return "(the broker wrote no log)"
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
            return f"--- end of {self.log}\n{log.read().decode(errors='replace')}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            if error is None:
                self.stop()
            else:
                self.kill()

    # -- The child process

    def _arguments(self, settings: Mapping[str, object]) -> list[str]:
        arguments = ["serve", "--data", str(self.data), "--host", self._host]
        for option, port in self._ports().items():
            arguments += [f"--{option}-port", str(port)]
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        return arguments

    def _ports(self) -> Mapping[str, int]:
        if self._endpoints is None:
            return self._first_ports or dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        return {
            "kafka": port_of(self.kafka),
            "rocketmq": port_of(self.rocketmq),
            "namesrv": port_of(self.namesrv),
            "http": port_of(self.http),
        }

    def _read_ready_line(self) -> Endpoints:
        assert self._output is not None
        line = _read_line(self._output, READY_WITHIN_S)
        if line is None or not line.startswith("ready "):
            status = self._status_soon()
            what = f"ended with status {status}" if status is not None else f"was not ready within {READY_WITHIN_S} s"
            raise BrokerError(f"the broker {what}; its first line: {line!r}\n{self.log_tail()}")
        fields = dict(field.split("=", 1) for field in line.split()[1:])
        return Endpoints(fields["kafka"], fields["rocketmq"], fields["namesrv"], fields["http"])

    def _status_soon(self) -> int | None:
        """Return the exit status; None if the broker runs on. A process closes its output some time before it ends."""
        assert self._process is not None
        try:
            return self._process.wait(1)
        except subprocess.TimeoutExpired:
            return None

    def _forget(self) -> None:
        assert self._output is not None
        self._output.close()
        self._process = self._output = None


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def free_ports(count: int) -> list[int]:
    """Return ports that Linux does not use for outgoing connections, so that none is taken while a broker is down."""
    free: list[int] = []
    while len(free) < count:
        port = random.randrange(*LISTENING_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in free:
            free.append(port)
    return free


def _read_line(stream: IO[bytes], within_s: float) -> str | None:
    """Return one line from a pipe; None if the time is over, or if the pipe is closed before the line is complete."""
    until = time.monotonic() + within_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, until - time.monotonic())):
                return None
            piece = os.read(stream.fileno(), 4096)
            if not piece:
                return None
            line += piece
    return line.decode().rstrip("\n")
