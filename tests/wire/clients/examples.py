"""The official examples of Apache RocketMQ, unchanged: each runs its own `main`, in a JVM that they share.

Those of 5.5.0 come as classes, in `rocketmq-example`. Those of 4.9.8 were published as sources only, among those of the
whole release; they are compiled once. See java/ExampleAgent.java for what keeps them apart.
"""

from __future__ import annotations

import itertools
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import JAVA, JVM_OPTIONS, TARGET, alone, compiled, jars

PACKAGE = "org.apache.rocketmq.example"
PACKAGES = (
    "batch", "broadcast", "filter", "namespace", "operation", "ordermessage", "quickstart", "rpc", "schedule", "simple",
    "tracemessage", "transaction",
)  # fmt: skip
WANTS_OTHER_JARS = {"AclClient.java"}
# These find classes by name, with the loader that they came from: so each program has its own.
OWN = ("rocketmq-", "fastjson")
GRACE_S = 10.0
_numbers = itertools.count()


class Examples:
    """A JVM for the examples of one version, with `namesrv` as the address for those that do not bring one."""

    def __init__(self, version: str, namesrv: str, home: Path) -> None:
        profile = f"rocketmq-example-{version}"
        folder = jars(profile)
        own = [each for each in folder.glob("*.jar") if each.name.startswith(OWN)]
        shared = sorted(set(folder.glob("*.jar")) - set(own))
        self._own = [str(each) for each in own]
        if version == "4.9":
            (release,) = folder.glob("*-source-release.zip")
            classpath = ":".join(map(str, [*own, *shared]))
            self._own.insert(0, f"{compiled(profile, classpath, _unpacked(release))}/")
        classpath = ":".join(map(str, shared))
        agent = compiled("example-agent", classpath, [JAVA / "Agent.java", JAVA / "ExampleAgent.java"])
        command = ["java", *JVM_OPTIONS, f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}"]
        command += [f"-Drocketmq.namesrv.addr={namesrv}", "-cp", f"{agent}:{classpath}", "ExampleAgent"]
        self._agent = Agent(profile, command, home)

    def start(self, name: str, arguments: Sequence[str] = ()) -> Running:
        """`name` is the package and the class, as in `quickstart.Producer`."""
        return Running(self._agent, name, self._own, arguments)

    def close(self) -> None:
        self._agent.close()


class Running:
    """One example that runs, or has ended."""

    def __init__(self, agent: Agent, name: str, own: Sequence[str], arguments: Sequence[str]) -> None:
        self._agent = agent
        self.name = f"{name}-{next(_numbers)}"
        main = f"{PACKAGE}.{name}"
        agent.call("start", name=self.name, main=main, own=list(own), arguments=list(arguments))

    def await_text(self, pattern: str, times: int, within_s: float) -> str:
        """All that it has printed, once a regular expression is found so often in it."""
        arguments = {"name": self.name, "pattern": pattern, "times": times, "within_ms": int(within_s * 1000)}
        text: str = self._agent.call("await", within_s=within_s + GRACE_S, **arguments)
        found = len(re.findall(pattern, text))
        assert found >= times, f"{self.name}: {found} of {times} times {pattern!r} within {within_s} s\n{text[-2000:]}"
        return text

    def stop(self) -> None:
        """Shut down its clients, which takes them a while."""
        self._agent.call("stop", name=self.name)


def _unpacked(release: Path) -> list[Path]:
    """The examples among the sources of a release."""
    target = TARGET / "sources" / release.stem
    complete = target / ".complete"
    with alone(TARGET):
        if not complete.exists() or complete.stat().st_mtime < release.stat().st_mtime:
            with zipfile.ZipFile(release) as archive:
                for name in filter(_is_wanted, archive.namelist()):
                    path = target / PACKAGE / PurePosixPath(name).parent.name / os.path.basename(name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(name))
            complete.touch()
    return sorted(target.rglob("*.java"))


def _is_wanted(name: str) -> bool:
    path = PurePosixPath(name)
    folder = f"example/src/main/java/{PACKAGE.replace('.', '/')}/{path.parent.name}"
    return path.parent.name in PACKAGES and str(path.parent).endswith(folder) and path.name not in WANTS_OTHER_JARS
