"""Two brokers that share a log in an object store, each behind a proxy of its own to the store.

The proxies are threads of this process. Without them the store is not slowed down by clients in the same process.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.broker import Broker
from tests.kit.environment import set_environment
from tests.kit.eventually import eventually
from tests.kit.object_proxy import ObjectProxy
from tests.kit.object_servers import ObjectServer, versity
from tests.wire.clients.namespaces import Network
from tests.wire.clients.remoting import ask

WITHIN_S = 20.0
NAMED_WITHIN_S = 30.0
GET_ROUTEINFO_BY_TOPIC = 105
BUCKET = "duolog"


class Pair:
    """Two brokers of one stream: `owner` owns it at the start, and after each `swap`; `standby` follows it."""

    def __init__(
        self,
        folder: Path,
        store: ObjectServer,
        settings: Mapping[str, object] | None = None,
        *,
        is_proxied: bool = True,
        network: Network | None = None,
    ) -> None:
        """With a network, the brokers are in its namespaces `a` and `b`."""
        shared = {
            "shared.url": f"s3://{BUCKET}/{folder.name}",
            "store.flush": "shared",
            "store.checkpoint_interval_ms": 500,
            **(settings or {}),
        }
        self._proxies = ExitStack()
        self._network = network
        host = "127.0.0.1" if network is None else network.host
        count = 2 if is_proxied else 0
        self.proxies = [ObjectProxy(store.endpoint, seed=number, host=host) for number in range(count)]
        endpoints = [self._proxies.enter_context(each).endpoint for each in self.proxies] or 2 * [store.endpoint]
        self.owner, self.standby = (
            self._broker(folder, name, shared | {"shared.endpoint": endpoint})
            for name, endpoint in zip("ab", endpoints, strict=True)
        )
        self.owner.start()
        wait_for_role(self.owner, "owner")
        self.standby.start()

    def _broker(self, folder: Path, name: str, settings: Mapping[str, object]) -> Broker:
        if self._network is None:
            return Broker(folder / name, settings)
        return Broker(folder / name, settings, host=self._network.address(name), prefix=self._network.prefix(name))

    @property
    def bootstrap(self) -> str:
        return f"{self.owner.kafka},{self.standby.kafka}"

    @property
    def namesrv(self) -> str:
        return f"{self.owner.namesrv};{self.standby.namesrv}"

    def swap(self) -> None:
        """Exchange the two, because the standby has taken over."""
        self.owner, self.standby = self.standby, self.owner
        self.proxies.reverse()

    def wait_until_followed(self) -> None:
        """Wait until the old owner follows the old standby."""
        new = self.standby.kafka
        eventually(
            "the old owner follows", lambda: status(self.owner), lambda found: kafka_of_owner(found) == new, WITHIN_S
        )
        assert status(self.owner)["role"] == "standby"

    def wait_until_named(self, topic: str) -> None:
        """Wait until both name servers give a route of this topic with the standby, as its producers need it.

        A broker looks for new ones at longer and longer intervals, of up to 20 s.
        """
        address = self.standby.rocketmq.encode()
        for broker in (self.owner, self.standby):
            eventually(
                f"the standby in the routes of {broker.namesrv}",
                lambda broker=broker: ask(broker.namesrv, GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body,
                lambda found: address in found,
                NAMED_WITHIN_S,
            )

    def pause_owner(self) -> None:
        os.kill(self.owner.pid, signal.SIGSTOP)

    def wake_owner(self) -> None:
        os.kill(self.owner.pid, signal.SIGCONT)

    def unplug_owner(self) -> None:
        assert self._network is not None, "the pair has no network"
        self._network.unplug(self.owner.data.name)

    def plug_owner(self) -> None:
        assert self._network is not None, "the pair has no network"
        self._network.plug(self.owner.data.name)

    def cut_off_clients(self, target: str = "RESET") -> None:
        """Let nobody reach the ports of the owner, which goes on with the store; `target` as in `Network`."""
        assert self._network is not None, "the pair has no network"
        owner = self.owner
        addresses = (owner.kafka, owner.rocketmq, owner.namesrv, owner.http)
        ports = [int(each.rpartition(":")[2]) for each in addresses]
        self._network.close_ports(owner.data.name, ports, target)

    def mend_clients(self) -> None:
        assert self._network is not None, "the pair has no network"
        self._network.open_ports(self.owner.data.name)

    def log_tails(self) -> str:
        return f"{self.owner.log_tail()}\n{self.standby.log_tail()}"

    def close(self) -> None:
        self.owner.delete()
        self.standby.delete()
        self._proxies.close()


@contextmanager
def pair_in_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, object] | None = None, *, is_proxied: bool
) -> Iterator[Pair]:
    """Two brokers and their store in network namespaces."""
    with (
        Network(["a", "b", "store"]) as network,
        versity(network.address("store"), network.prefix("store")) as store,
    ):
        store.make_bucket(BUCKET)
        set_environment(monkeypatch, store.environment)
        running = Pair(folder, store, settings, is_proxied=is_proxied, network=network)
        try:
            yield running
        finally:
            running.close()


def http(broker: Broker, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error)


def status(broker: Broker) -> dict[str, Any]:
    code, body = http(broker, "/api/status")
    found: dict[str, Any] = json.loads(body) if code == 200 else {}
    return found


def wait_for_role(broker: Broker, role: str) -> dict[str, Any]:
    return eventually(f"role {role}", lambda: status(broker), lambda found: found.get("role") == role, WITHIN_S)


def kafka_of_owner(found: dict[str, Any]) -> str:
    return str((found.get("owner") or {}).get("kafka"))
