"""Real object stores as child processes on loopback: moto's S3 server, and two processes of versitygw on one directory.

    with moto() as store:
        store.make_bucket("bucket")
        open_objects(ObjectStoreOptions("s3://bucket/prefix", endpoint=store.endpoint), store.environment)

Objects exist until the processes end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3

from tests.kit.broker import free_ports
from tests.kit.eventually import eventually
from tests.kit.lacking import skip_or_fail

ROOT = Path(__file__).parents[2]
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
TOOLS = Path(__file__).parents[1] / "wire" / "go" / "target"
BUILD_WITHIN_S = 600
START_WITHIN_S = 30.0
KEYS = ("duolog-test", "duolog-test-secret")
REGION = "us-east-1"


class ObjectServer:
    """Processes that serve the same objects, each at its own endpoint. A context manager."""

    def __init__(self, commands: list[list[str]], endpoints: list[str], folder: Path) -> None:
        self.endpoints = endpoints
        self._commands, self._folder = commands, folder
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def endpoint(self) -> str:
        return self.endpoints[0]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that uses the store."""
        return {"AWS_ACCESS_KEY_ID": KEYS[0], "AWS_SECRET_ACCESS_KEY": KEYS[1], "AWS_REGION": REGION}

    def make_bucket(self, name: str) -> None:
        self.client().create_bucket(Bucket=name)

    def client(self, endpoint: str = "") -> Any:
        """Return a client of boto3, to look at the objects or to change them by hand."""
        return boto3.client(
            "s3",
            endpoint_url=endpoint or self.endpoint,
            region_name=REGION,
            aws_access_key_id=KEYS[0],
            aws_secret_access_key=KEYS[1],
        )

    def __enter__(self) -> Self:
        for number, command in enumerate(self._commands):
            with (self._folder / f"{number}.log").open("wb") as output:
                self._processes.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT))
        for endpoint in self.endpoints:
            eventually(f"answers of {endpoint}", partial(self._answers, endpoint), bool, START_WITHIN_S)
        return self

    def _answers(self, endpoint: str) -> bool:
        assert all(each.poll() is None for each in self._processes), self._output()
        try:
            self.client(endpoint).list_buckets()
        except Exception:  # noqa: BLE001 - the server is starting
            return False
        return True

    def _output(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self._folder.glob("*.log")))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def moto() -> ObjectServer:
    """Return moto's S3 server, which keeps objects in memory (`tests/kit/moto_server.py`)."""
    folder = Path(tempfile.mkdtemp(prefix="duolog-moto-"))
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.kit.moto_server", str(port)]
    return ObjectServer([command], [f"http://127.0.0.1:{port}"], folder)


def versity(host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> ObjectServer:
    """Return two gateways of versitygw over one directory. Skips the test by name where it cannot be built.

    `prefix` begins their commands: `ip netns exec NAME`, where `host` is an address.
    """
    folder = Path(tempfile.mkdtemp(prefix="duolog-versity-"))
    (folder / "objects").mkdir()
    (folder / "metadata").mkdir()
    ports = free_ports(2)
    binary = str(_versitygw())
    commands = [
        [
            *prefix, binary, "--port", f"{host}:{port}", "--access", KEYS[0], "--secret", KEYS[1], "--quiet",
            "posix", "--sidecar", str(folder / "metadata"), str(folder / "objects"),
        ]
        for port in ports
    ]  # fmt: skip
    return ObjectServer(commands, [f"http://{host}:{port}" for port in ports], folder)


@cache
def _versitygw() -> Path:
    """Build versitygw, unless this version was built before."""
    version = VERSITYGW.rpartition("@")[2]
    built = TOOLS / f"versitygw-{version}"
    if built.exists():
        return built
    go = shutil.which("go")
    if go is None:
        skip_or_fail("no Go tool chain: go is not on the path, so versitygw cannot be built")
    with tempfile.TemporaryDirectory(prefix="duolog-go-") as folder:
        done = subprocess.run(
            [go, "install", VERSITYGW], cwd=folder, env={**os.environ, "GOBIN": folder, "GOFLAGS": ""},
            capture_output=True, text=True, check=False, timeout=BUILD_WITHIN_S,
        )  # fmt: skip
        if done.returncode != 0:
            skip_or_fail(f"versitygw could not be built: {done.stderr.strip()[-1000:]}")
        TOOLS.mkdir(parents=True, exist_ok=True)
        shutil.move(f"{folder}/versitygw", built)
    return built
