"""Network namespaces for brokers and a store, on one bridge: machines whose cables can be pulled.

    with Network(["a", "b", "store"]) as network:
        Broker(data, host=network.address("a"), prefix=network.prefix("a"))
        network.unplug("a")        # packets vanish, and no connection is closed; until `plug`
        network.close_ports("a", [9092], "DROP")   # the same, for these ports alone; until `open_ports`

Tests and their clients are on the host, at `network.host`. It takes the rights of root, `ip` (iproute2) and `iptables`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tests.kit.lacking import skip_or_fail

SUBNET = "10.213.77"


class Network:
    """A bridge, and a namespace for each name. A context manager; skips the test by name where it cannot be made."""

    def __init__(self, names: Sequence[str]) -> None:
        self.host = f"{SUBNET}.1"
        self._numbers = {name: number for number, name in enumerate(names, 11)}
        self._id = f"dl{os.getpid() % 100_000}"
        self._made = ExitStack()

    def address(self, name: str) -> str:
        return f"{SUBNET}.{self._numbers[name]}"

    def prefix(self, name: str) -> list[str]:
        """Return the beginning of a command that runs in a namespace; it keeps its process id."""
        return ["ip", "netns", "exec", self._space(name)]

    def unplug(self, name: str) -> None:
        _ip("link", "set", self._cable(name), "down")

    def plug(self, name: str) -> None:
        _ip("link", "set", self._cable(name), "up")

    def close_ports(self, name: str, ports: Sequence[int], target: str) -> None:
        """Let no packet reach these ports. With the target RESET the peer is told, also on open connections."""
        how = ["REJECT", "--reject-with", "tcp-reset"] if target == "RESET" else [target]
        which = ["-p", "tcp", "-m", "multiport", "--dports", ",".join(map(str, ports))]
        _run(*self.prefix(name), "iptables", "-w", "-A", "INPUT", *which, "-j", *how)

    def open_ports(self, name: str) -> None:
        _run(*self.prefix(name), "iptables", "-w", "-F", "INPUT")

    def _space(self, name: str) -> str:
        return f"{self._id}-{name}"

    def _cable(self, name: str) -> str:
        """Return the name of the host's end of a cable: 15 letters at most."""
        return f"{self._id}c{self._numbers[name]}"

    def __enter__(self) -> Self:
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            self._made.close()
            said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            skip_or_fail(f"no network namespaces: {said}")
        return self

    def _make(self) -> None:
        if shutil.which("iptables") is None:
            raise FileNotFoundError("there is no iptables")
        _ip("link", "add", self._id, "type", "bridge")
        self._made.callback(_ip, "link", "del", self._id)
        _ip("addr", "add", f"{self.host}/24", "dev", self._id)
        _ip("link", "set", self._id, "up")
        for name in self._numbers:
            space, cable = self._space(name), self._cable(name)
            _ip("netns", "add", space)
            self._made.callback(_ip, "netns", "del", space)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            # The kernel keeps a namespace as long as a closed connection in it has unsent bytes, and its cable with it.
            self._made.callback(_ip, "link", "del", cable)
            _ip("link", "set", cable, "master", self._id, "up")
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._made.close()


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
