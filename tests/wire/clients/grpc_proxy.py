"""Apache's gRPC proxy for RocketMQ, in cluster mode: a process between gRPC clients and the broker."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Self

from tests.kit.broker import free_ports
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import JVM_OPTIONS, jars

START_WITHIN_S = 90.0
# Shorter than usual: a message may be invisible for a second; the broker asks for the ends of transactions by producers
# of which the proxy tells it so often.
SETTINGS = {"minInvisibleTimeMillsForRecv": 1000, "transactionHeartbeatPeriodSecond": 1}


class GrpcProxy:
    """One proxy with its settings and logs in a folder."""

    def __init__(self, home: Path, namesrv: str, cluster: str = "DefaultCluster") -> None:
        grpc, remoting = free_ports(2)
        self.endpoint = f"127.0.0.1:{grpc}"
        self._home, self._output = home, home / "proxy.out"
        self._settings = SETTINGS | {
            "rocketMQClusterName": cluster, "namesrvAddr": namesrv, "proxyMode": "CLUSTER", "grpcServerPort": grpc,
            "remotingListenPort": remoting, "localServeAddr": "127.0.0.1", "useEndpointPortFromRequest": True,
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        settings = self._home / "conf" / "rmq-proxy.json"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(self._settings))
        classpath = f"{jars('rocketmq-proxy-5.5')}/*"
        options = [*JVM_OPTIONS, f"-Duser.home={self._home}"]
        command = ["java", *options, "-cp", classpath, "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(settings)]
        env = os.environ | {"RMQ_PROXY_HOME": str(self._home)}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, cwd=self._home, env=env, stdout=output, stderr=output)
        try:
            eventually("the proxy serves", self._said, lambda said: "startup successfully" in said, START_WITHIN_S)
        except BaseException:
            self._end()
            raise
        return self

    def _said(self) -> str:
        said = self._output.read_text(errors="replace")
        assert self._process is not None
        assert self._process.poll() is None, f"the proxy has ended: {said[-4000:]}"
        return said

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        self._process.kill()  # Its own end takes half a minute.
        self._process.wait()
