"""Apache RocketMQ's own name server, as a child process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.kit.broker import free_ports
from tests.kit.eventually import eventually
from tests.wire.clients import remoting
from tests.wire.clients.jvm import JVM_OPTIONS, jars

GET_ROUTE, GET_CLUSTER = 105, 106
READY_WITHIN_S = 60


class NameServer:
    """One name server on a port of its own; it may be ended and started again there."""

    def __init__(self, home: Path, *options: str) -> None:
        self._home, self._options = home, options  # Options of its JVM.
        (self._port,) = free_ports(1)
        self.address = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> NameServer:
        self._home.mkdir(parents=True, exist_ok=True)
        config = self._home / "namesrv.conf"
        config.write_text(f"listenPort={self._port}\n")
        options = [*JVM_OPTIONS, f"-Duser.home={self._home}", f"-Drocketmq.home.dir={self._home}", *self._options]
        main = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config)]
        with (self._home / "namesrv.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *options, "-cp", f"{jars('rocketmq-namesrv-5.5')}/*", *main], stdout=log, stderr=log
            )
        eventually("the name server answers", self._answers, bool, READY_WITHIN_S)
        return self

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def brokers(self) -> set[str]:
        """The names of the brokers that are registered."""
        found: dict[str, Any] = _read(remoting.ask(self.address, GET_CLUSTER).body)["brokerAddrTable"]
        return set(found)

    def route(self, topic: str) -> dict[str, tuple[int, int]]:
        """(queues to write, permissions) of a topic by broker."""
        reply = remoting.ask(self.address, GET_ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"})
        rows = _read(reply.body)["queueDatas"] if reply.code == 0 else []
        return {row["brokerName"]: (row["writeQueueNums"], row["perm"]) for row in rows}

    def _answers(self) -> bool:
        try:
            return remoting.ask(self.address, GET_CLUSTER).code == 0
        except OSError:
            return False


def _read(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body.replace(b"{0:", b'{"0":'))
    return found
