"""The brokers that are measured: Duolog, Apache Kafka, Apache RocketMQ. Each is started on its own directory.

    duolog = Duolog(folder, flush="async")
    duolog.start()
    before = used_cpu_s(duolog)                 # user and system time of the broker's process, all threads
    ...
    duolog.end()

The peers take ports of their own, beside those that `benchmarks/peers` takes by default, so that a broker which
another user left running is never measured.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from benchmarks.broker_process import used_cpu_s
from tests.kit.broker import Broker
from tests.kit.certificates import Authority
from tests.kit.command import DUOLOG

PEERS = Path(__file__).parent / "peers"
OURS, OTHER_CHECKOUT = "duolog", "other-checkout"  # The names of contenders.
PARTITIONS = 4  # The partitions of every topic of all brokers, which is the default of RocketMQ and of Duolog.
START_WITHIN_S = 180
WAKE_WITHIN_S = 60
KAFKA_PORT, KAFKA_TLS_PORT = 29392, 29394  # Its controller takes the port between them.
NAMESRV_PORT, ROCKETMQ_PORT = 29376, 29311

# OpenSSL and the JDK both prefer AES with 256 bits in TLS 1.3, and so do all rows with TLS.
TLS_CIPHER = "TLS_AES_256_GCM_SHA384"
ALLOWED = AclPermissionType.ALLOW
USER, PASSWORD, MECHANISM = "load", "load's secret", "SCRAM-SHA-512"  # The login of rows that have one.
KAFKA_SYNC = ["log.flush.interval.messages=1"]
ROCKETMQ_SYNC = ["flushDiskType=SYNC_FLUSH"]
ROCKETMQ_FILTERS = ["enablePropertyFilter=true"]  # By default, RocketMQ refuses SQL92 filters.


class Tls(NamedTuple):
    """How the port for clients with TLS is set up. With `has_login`, they log in, and rules say what they may do."""

    authority: Authority
    has_login: bool

    def client(self) -> dict[str, str]:
        """Return the settings of Kafka clients."""
        trust = {"ssl.ca.location": str(self.authority.file)}
        if not self.has_login:
            return {"security.protocol": "SSL", **trust}
        login = {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": PASSWORD}
        return {"security.protocol": "SASL_SSL", **trust, **login}


class Contender(Protocol):
    """A broker that is measured. `kafka`, `namesrv` and `http` are host:port, or empty if it has no such port.

    `kafka_tls` is the port for Kafka clients with TLS, and `tls` their settings, if the broker was made with `Tls`.
    """

    name: str
    kafka: str
    kafka_tls: str
    tls: Mapping[str, str]
    namesrv: str
    http: str

    def start(self) -> None: ...

    def stop(self) -> None:
        """Stop the broker with SIGTERM, and keep its data."""

    def kill(self) -> None:
        """Stop the broker with SIGKILL, and keep its data."""

    def end(self) -> None:
        """Kill the broker and remove its data."""

    def rest(self) -> None:
        """Let the broker take no CPU while another one is measured: for seconds, not for minutes."""

    def wake(self) -> None:
        """Let the broker continue, and return when it answers."""

    @property
    def pid(self) -> int: ...

    @property
    def data(self) -> Path: ...


class Duolog:
    """A Duolog broker; `command` is that of another checkout, which has a name of its own."""

    def __init__(
        self, folder: Path, flush: str, tls: Tls | None = None, name: str = OURS, command: Sequence[str] = DUOLOG
    ) -> None:
        self.name, self._command = name, command
        self.data = folder / name
        settings: dict[str, object] = {"store.flush": flush, "topics.queues": PARTITIONS}
        if tls is not None:
            settings |= tls.authority.settings() | {"tls.mode": "optional", "tls.min_version": "1.3"}
            settings |= {"security.enabled": tls.has_login}
        self._broker = Broker(self.data, settings, command=command)
        self.kafka = self.kafka_tls = self.namesrv = self.http = ""
        self.tls: Mapping[str, str] = {} if tls is None else tls.client()
        self._has_login = tls is not None and tls.has_login

    def start(self) -> None:
        if self._has_login and not self.data.exists():
            add_user(self.data, self._command)
        self._broker.start()
        self.kafka, self.namesrv, self.http = self._broker.kafka, self._broker.namesrv, self._broker.http
        self.kafka_tls = self.kafka

    def stop(self) -> None:
        self._broker.stop()

    def kill(self) -> None:
        self._broker.kill()

    def end(self) -> None:
        self._broker.delete()

    def rest(self) -> None:
        """Do nothing: an idle Duolog takes no CPU."""

    wake = rest

    @property
    def pid(self) -> int:
        return self._broker.pid


def add_user(data: Path, command: Sequence[str] = DUOLOG) -> None:
    """Add the user and its rule to the data directory of a broker that does not run."""
    user = ("user", "add", USER, "--password-stdin")
    rule = ("acl", "add", "--allow", "--user", USER, "--topic", "*", "--operation", "read,write,create")
    for words in (user, rule):
        done = [*command, *words, "--data", str(data)]
        subprocess.run(done, input=PASSWORD, text=True, check=True, stdout=subprocess.DEVNULL)


class _Peer:
    """An Apache broker, which the scripts in `peers/` run."""

    name: str
    process: str  # The process that is measured.
    http = kafka_tls = ""
    tls: Mapping[str, str] = MappingProxyType({})

    def __init__(self, folder: Path, settings: list[str], environment: dict[str, str]) -> None:
        self.data = folder / self.name
        self._settings = settings
        self._environment = os.environ | environment

    def start(self) -> None:
        self._run("start", *self._settings)

    def stop(self) -> None:
        self._run("stop")

    def kill(self) -> None:
        self._run("kill")

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def rest(self) -> None:
        """Nothing to do by default."""

    def wake(self) -> None:
        """Nothing to do by default."""

    @property
    def pid(self) -> int:
        return int((self.data / f"{self.process}.pid").read_text())

    def _run(self, verb: str, *settings: str) -> None:
        command = [str(PEERS / self.name), verb, str(self.data), *settings]
        log = self.data.with_name(self.data.name + ".log")
        with log.open("ab") as output:
            done = subprocess.run(
                command, env=self._environment, stdout=output, stderr=output, check=False, timeout=START_WITHIN_S
            )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{log.read_text()[-2000:]}")


class Kafka(_Peer):
    name = process = "kafka"
    namesrv = ""

    def __init__(self, folder: Path, flush: str, tls: Tls | None = None) -> None:
        settings = [f"num.partitions={PARTITIONS}", *(KAFKA_SYNC if flush == "sync" else [])]
        self.kafka = f"127.0.0.1:{KAFKA_PORT}"
        self._has_login = tls is not None and tls.has_login
        if tls is not None:
            self.kafka_tls, self.tls = f"127.0.0.1:{KAFKA_TLS_PORT}", tls.client()
            settings += _kafka_tls(tls)
        super().__init__(folder, settings, {"KAFKA_PORT": str(KAFKA_PORT)})

    def start(self) -> None:
        super().start()
        if self._has_login:
            self._add_user()

    def _add_user(self) -> None:
        """Add the user and its rule by the port without TLS, whose clients may do everything."""
        client = AdminClient({"bootstrap.servers": self.kafka, "log_level": 4})
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(USER, scram, PASSWORD.encode())
        rules = [
            AclBinding(ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, ALLOWED)
            for operation in (AclOperation.WRITE, AclOperation.CREATE)
        ]
        for done in (*client.alter_user_scram_credentials([wanted]).values(), *client.create_acls(rules).values()):
            done.result(30)


def _kafka_tls(tls: Tls) -> list[str]:
    """Return the settings of a second listener, with TLS."""
    ports = f"PLAINTEXT://127.0.0.1:{KAFKA_PORT},TLS://127.0.0.1:{KAFKA_TLS_PORT}"
    protocol = "SASL_SSL" if tls.has_login else "SSL"
    login = [
        f"sasl.enabled.mechanisms={MECHANISM}",
        "listener.name.tls.scram-sha-512.sasl.jaas.config="
        "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
    ]
    return [
        f"listeners={ports},CONTROLLER://127.0.0.1:{KAFKA_PORT + 1}",
        f"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,TLS:{protocol},CONTROLLER:PLAINTEXT",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={tls.authority.server().both}",
        "ssl.enabled.protocols=TLSv1.3",
        f"ssl.cipher.suites={TLS_CIPHER}",
        *(login if tls.has_login else ()),
    ]


class RocketMQ(_Peer):
    name = "rocketmq"
    process = "broker"
    kafka = ""

    def __init__(self, folder: Path, flush: str, tls: Tls | None = None) -> None:
        if tls is not None:
            raise NotImplementedError("no row measures RocketMQ with TLS")
        ports = {"ROCKETMQ_NAMESRV_PORT": str(NAMESRV_PORT), "ROCKETMQ_BROKER_PORT": str(ROCKETMQ_PORT)}
        super().__init__(folder, ROCKETMQ_FILTERS + (ROCKETMQ_SYNC if flush == "sync" else []), ports)
        self.namesrv = f"127.0.0.1:{NAMESRV_PORT}"

    # An idle RocketMQ takes a seventh of a core, so it is paused while another broker is measured. An idle Kafka takes
    # a fiftieth, and its controller would fence a paused broker after nine seconds, so Kafka is not paused.

    def rest(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        # After two minutes its name server has removed the broker, which registers again.
        until = time.monotonic() + WAKE_WITHIN_S
        command = [str(PEERS / "ready"), "rocketmq", "127.0.0.1", str(NAMESRV_PORT)]
        while subprocess.run(command, check=False).returncode:
            if time.monotonic() > until:
                raise RuntimeError(f"the broker did not come back within {WAKE_WITHIN_S} s")
            time.sleep(0.5)


# -- Figures and topics of any broker


def drop_page_cache(contender: Contender) -> None:
    """Drop all files of the broker from the page cache; dirty pages are written first, since the kernel keeps those."""
    os.sync()
    for path in contender.data.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def admin(contender: Contender) -> AdminClient:
    """Return an admin client. The caller must keep it as long as its futures, which end with it."""
    return AdminClient({"bootstrap.servers": contender.kafka_tls or contender.kafka, "log_level": 4, **contender.tls})


def create_topic(contender: Contender, name: str) -> str:
    """Create a topic by Kafka's protocol. A broker that has only RocketMQ's creates the topic at the first send."""
    if contender.kafka:
        client = admin(contender)
        for made in client.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
            made.result(30)
    return name


def settle(contender: Contender, quiet_s: float = 0.3, within_s: float = 15) -> None:
    """Wait until the background work of the last load (flushes, compilation, collections) takes no CPU."""
    until = time.monotonic() + within_s
    last = used_cpu_s(contender)
    while time.monotonic() < until:
        time.sleep(quiet_s)
        now = used_cpu_s(contender)
        if now - last <= 0.1 * quiet_s:
            return
        last = now
