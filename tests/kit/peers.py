"""Apache Kafka and Apache RocketMQ instead of Duolog, to check what the wire tests expect against the originals.

`pytest tests/wire --peers` runs the wire tests that need one client protocol against them. `benchmarks/peers` starts
and stops the brokers. `Peers` has the methods of `tests.kit.broker.Broker` that these tests use.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kit.broker import Endpoints

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "peers"
START_WITHIN_S = 180


class Peers:
    """Both brokers, each with its own data folder."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.endpoints = Endpoints("127.0.0.1:19092", "127.0.0.1:20911", "127.0.0.1:19876", "")
        self.kafka = self.endpoints.kafka
        self.rocketmq = self.endpoints.rocketmq
        self.namesrv = self.endpoints.namesrv

    def start(self) -> Peers:
        self._run("kafka", "start", "num.partitions=4")
        self._run("rocketmq", "start")
        return self

    def stop(self) -> None:
        self._run("rocketmq", "stop")
        self._run("kafka", "stop")

    def restart(self) -> None:
        self.stop()
        self.start()

    def delete(self) -> None:
        self._run("rocketmq", "kill")
        self._run("kafka", "kill")

    def check_alive(self) -> None:
        self._run("kafka", "status")
        self._run("rocketmq", "status")

    def log_tail(self) -> str:
        return "\n".join(f"--- see {self.data / protocol}" for protocol in ("kafka", "rocketmq"))

    def _run(self, protocol: str, verb: str, *settings: str) -> None:
        command = [str(SCRIPTS / protocol), verb, str(self.data / protocol), *settings]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_WITHIN_S)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
