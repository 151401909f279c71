"""`spark-submit`, and a standalone cluster for it: a master and a worker on loopback, out of pyspark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kit.eventually import eventually
from tests.wire.clients.jvm import jars
from tests.wire.clients.spark import PROFILE, QUICK_START, quick_start_of_commands

APPLICATION = Path(__file__).parents[3] / "spark" / "__main__.py"
WITHIN_S = 90
SUBMIT_WITHIN_S = 240
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")


def home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def environment() -> dict[str, str]:
    """The environment in which the cluster runs this Python, and imports no module from the current directory."""
    mine = {"SPARK_HOME": str(home()), "PYSPARK_PYTHON": sys.executable, "PYTHONSAFEPATH": "1"}
    daemons = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_START}
    return os.environ | quick_start_of_commands() | mine | daemons


def submit(master: str, *arguments: str, application: Path = APPLICATION) -> subprocess.CompletedProcess[str]:
    """Run an application, by default the jobs of the pipeline, by spark-submit, and wait for its end."""
    connector = ",".join(str(jar) for jar in sorted(jars(PROFILE).glob("*.jar")))
    options = ["--master", master, "--jars", connector, "--conf", "spark.ui.enabled=false"]
    options += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.sql.shuffle.partitions=2"]
    options += ["--conf", f"spark.executor.extraJavaOptions={QUICK_START}"]
    command = [str(home() / "bin" / "spark-submit"), *options, str(application), *arguments]
    own_environment = environment()
    if application != APPLICATION:
        del own_environment["PYTHONSAFEPATH"]  # A user's script finds the files beside it, as it does without Duolog.
    return subprocess.run(
        command, env=own_environment, capture_output=True, text=True, check=False, timeout=SUBMIT_WITHIN_S
    )


class SparkCluster:
    """Runs as long as the block; `master` is its URL."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Self:
        try:
            self._start("master", _MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            found = self._logged("master", _MASTER_URL)
            self.master = found[1]
            asked = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "1g")
            self._start("worker", _WORKER, *asked, "--work-dir", str(self._folder / "work"), self.master)
            self._logged("worker", re.compile("Successfully registered with master"))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self._running):  # Their executors are theirs.
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(WITHIN_S)

    def _start(self, name: str, main: str, *arguments: str) -> None:
        command: Sequence[str] = [str(home() / "bin" / "spark-class"), main, *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log, start_new_session=True)
        self._running.append(process)

    def _logged(self, name: str, pattern: re.Pattern[str]) -> Any:
        log = self._folder / f"{name}.log"
        process = self._running[-1]
        look = lambda: (pattern.search(log.read_text(errors="replace")), process.poll())  # noqa: E731
        found, status = eventually(f"{name}'s log", look, lambda seen: seen != (None, None), WITHIN_S)
        assert found is not None, f"{name} ended with {status}: {log.read_text()[-2000:]}"
        return found
