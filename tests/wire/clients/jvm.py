"""The JVM side: jars fetched once by Maven, agents compiled against them, one long-lived process for each classpath.

A JVM takes a second to start, so no test starts one: `agents.kafka("4.3")` gives the running agent or starts it, and
`agent.call("read", ...)` is one JSON line to it and one back (see java/Agent.java).
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tests.kit.certificates import Authority, Files
from tests.kit.lacking import skip_or_fail
from tests.wire.clients.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

JAVA = Path(__file__).parent.parent / "java"
TARGET = JAVA / "target"
KAFKA_VERSIONS = {"3.9": "3.9.2", "4.3": "4.3.1"}
ROCKETMQ_VERSIONS = {"4.9": "4.9.8", "5.5": "5.5.0"}
JAVA_OLDEST = 17
FETCH_WITHIN_S = 600
COMPILE_WITHIN_S = 120
# Short-lived, on two cores: the first compiler and the simplest collector start and run fastest. No one reads the
# statistics that a JVM writes twenty times a second.
JVM_OPTIONS = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"]


class Agents:
    """All agents of a test run, or of one of its workers, started when first asked for and ended together."""

    def __init__(self) -> None:
        self._running: dict[str, Agent] = {}
        self._killed = 0
        self._home = Path(tempfile.mkdtemp(prefix="duolog-agents-"))

    @property
    def token_file(self) -> Path:
        """The file with the bearer token of Kafka's clients, the only one that they may use."""
        return self._home / "token.jwt"

    def kafka(self, version: str) -> Agent:
        options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.token_file.as_uri()}"]
        return self._agent(f"kafka-{version}", "KafkaAgent", "KafkaAgent.java", options)

    def kafka_tools(self) -> Agent:
        """Kafka's command-line tools."""
        options = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return self._agent("kafka-tools-4.3", "KafkaToolsAgent", "KafkaToolsAgent.java", options)

    def rocketmq(self, version: str, header: str = "json", name: str = "") -> Agent:
        """`header` is the form of the remoting header: json or binary. One with a `name` is apart, to be killed."""
        form = {"json": "JSON", "binary": "ROCKETMQ"}[header]
        options = [f"-Drocketmq.serialize.type={form}", f"-Duser.home={self._home}"]
        suffix = f"-{header}{name}"
        return self._agent(f"rocketmq-{version}", "RocketmqAgent", "RocketmqAgent.java", options, suffix)

    def rocketmq_to_kill(self, version: str) -> Agent:
        """A process that is the caller's alone, to be killed and closed by him."""
        options = ["-Drocketmq.serialize.type=JSON", f"-Duser.home={self._home}"]
        self._killed += 1
        name = f"rocketmq-{version}-{self._killed}"
        return self._start(name, f"rocketmq-{version}", "RocketmqAgent", "RocketmqAgent.java", options)

    def rocketmq_with_tls(self, version: str, authority: Authority, files: Files) -> Agent:
        """A client with `tls.enable`, which verifies the broker's certificate and has one of its own."""
        options = [
            "-Drocketmq.serialize.type=JSON",
            f"-Duser.home={self._home}",
            "-Dtls.enable=true",
            "-Dtls.test.mode.enable=false",
            "-Dtls.client.authServer=true",
            f"-Dtls.client.trustCertPath={authority.file}",
            f"-Dtls.client.certPath={files.certificate}",
            f"-Dtls.client.keyPath={files.key}",
        ]
        return self._agent(f"rocketmq-{version}", "RocketmqAgent", "RocketmqAgent.java", options, "-tls")

    def admin(self) -> Agent:
        """RocketMQ's admin command line."""
        options = [f"-Duser.home={self._home}", f"-Drocketmq.client.logRoot={self._home}"]
        return self._agent("rocketmq-tools-5.5", "AdminAgent", "AdminAgent.java", options)

    def close(self) -> None:
        for agent in self._running.values():
            agent.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _agent(self, profile: str, main: str, source: str, options: list[str], suffix: str = "") -> Agent:
        name = profile + suffix
        if name not in self._running:
            self._running[name] = self._start(name, profile, main, source, options)
        return self._running[name]

    def _start(self, name: str, profile: str, main: str, source: str, options: list[str]) -> Agent:
        classpath = f"{jars(profile)}/*"
        classes = compiled(profile, classpath, [JAVA / "Agent.java", JAVA / source])
        command = ["java", *JVM_OPTIONS, *options, "-cp", f"{classes}:{classpath}", main]
        return Agent(name, command, self._home)


# -- Jars and classes


@functools.cache
def require_java() -> None:
    """Leave the test out unless there is a JDK that can compile and run the agents."""
    javac = shutil.which("javac")
    if javac is None:
        skip_or_fail(f"no JDK {JAVA_OLDEST} or later: javac is not on the path")
    version = subprocess.run([javac, "-version"], capture_output=True, text=True, check=False, timeout=30)
    words = (version.stdout + version.stderr).split()
    if len(words) < 2 or int(words[1].split(".")[0]) < JAVA_OLDEST:
        skip_or_fail(f"no JDK {JAVA_OLDEST} or later: javac says {' '.join(words)!r}")


def jars(profile: str) -> Path:
    """The folder with the jars of one profile of java/pom.xml; fetched by Maven the first time."""
    require_java()
    folder = TARGET / "jars" / profile
    complete = folder / ".complete"
    pom = JAVA / "pom.xml"
    with alone(TARGET):
        if not complete.exists() or complete.stat().st_mtime < pom.stat().st_mtime:
            shutil.rmtree(folder, ignore_errors=True)
            _maven(
                "-P", profile, "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"
            )
            complete.touch()
    return folder


def _maven(*arguments: str) -> None:
    if shutil.which("mvn") is None:
        skip_or_fail("no Maven to fetch the Java clients with: mvn is not on the path")
    command = ["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), *arguments]
    env = os.environ | {"MAVEN_OPTS": " ".join([os.environ.get("MAVEN_OPTS", ""), *JVM_OPTIONS])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=FETCH_WITHIN_S)
    if done.returncode != 0:
        skip_or_fail(f"Maven could not fetch the Java clients: {(done.stdout + done.stderr).strip()[-1000:]}")


def compiled(profile: str, classpath: str, sources: list[Path]) -> Path:
    classes = TARGET / "classes" / profile
    complete = classes / ".complete"
    with alone(TARGET):
        newest = max(source.stat().st_mtime for source in sources)
        if not complete.exists() or complete.stat().st_mtime < newest:
            classes.mkdir(parents=True, exist_ok=True)
            options = [*(f"-J{each}" for each in JVM_OPTIONS), "-nowarn", "-proc:none", "-cp", classpath]
            command = ["javac", *options, "-d", str(classes), *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_WITHIN_S)
            assert done.returncode == 0, done.stdout + done.stderr
            complete.touch()
    return classes


@contextmanager
def alone(folder: Path) -> Iterator[IO[str]]:
    """Hold the folder's lock, so that two test runs do not fetch or compile into it at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
