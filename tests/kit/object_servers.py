"""Real object stores as child processes on loopback.

They are moto's S3 server, two processes of versitygw on one directory, and Azurite, Microsoft's emulator of Azure Blob
Storage.

    with moto() as store:
        store.make_bucket("bucket")
        open_objects(ObjectStoreOptions("s3://bucket/prefix", endpoint=store.endpoint), store.environment)

Objects exist until the processes end.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from email.utils import formatdate
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
# package.json names the version of Azurite; package-lock.json has the versions and checksums of all its packages.
AZURITE = Path(__file__).parents[1] / "wire" / "node"
BUILD_WITHIN_S = 600
START_WITHIN_S = 30.0
ANSWER_WITHIN_S = 5.0
KEYS = ("duolog-test", "duolog-test-secret")
REGION = "us-east-1"
ACCOUNT = ("duolog", base64.b64encode(b"duolog-test").decode())  # Azure's account and its key
AZURE_VERSION = "2023-11-03"
NODE_MIN = 20  # Azurite 3.37.0 starts with it, although its package asks for 22.


class ObjectServer:
    """Processes that serve the same objects, each at its own endpoint. A context manager."""

    scheme = "s3"

    def __init__(
        self, commands: list[list[str]], endpoints: list[str], folder: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        """`variables` are added to the environment of the processes."""
        self.endpoints = endpoints
        self._commands, self._folder, self._variables = commands, folder, dict(variables or {})
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
                self._processes.append(
                    subprocess.Popen(
                        command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=os.environ | self._variables
                    )
                )
        for endpoint in self.endpoints:
            eventually(f"answers of {endpoint}", partial(self._answers, endpoint), bool, START_WITHIN_S)
        return self

    def _answers(self, endpoint: str) -> bool:
        assert all(each.poll() is None for each in self._processes), self._output()
        try:
            self._ask(endpoint)
        except Exception:  # noqa: BLE001 - the server is starting
            return False
        return True

    def _ask(self, endpoint: str) -> None:
        """Raise an exception unless the server answers; it may refuse a request without a signature.

        A client of boto3 would wait for seconds between the attempts of one request.
        """
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(endpoint, timeout=ANSWER_WITHIN_S).close()

    def _output(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self._folder.glob("*.log")))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class AzureServer(ObjectServer):
    """A server with Azure's API, whose buckets are called containers. The path of its endpoint is the account."""

    scheme = "az"

    @property
    def environment(self) -> dict[str, str]:
        return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT[0], "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT[1]}

    def make_bucket(self, name: str) -> None:
        with urllib.request.urlopen(_signed("PUT", self.endpoint, f"/{name}", "restype", "container")) as answer:
            assert answer.status == 201, answer.status

    def _ask(self, endpoint: str) -> None:
        urllib.request.urlopen(_signed("GET", endpoint, "/", "comp", "list")).close()


def _signed(method: str, endpoint: str, path: str, name: str, value: str) -> urllib.request.Request:
    """Return a request without a body, signed by the key of ACCOUNT.

    https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
    """
    date, account_path = formatdate(usegmt=True), f"/{ACCOUNT[0]}"
    headers = f"x-ms-date:{date}\nx-ms-version:{AZURE_VERSION}\n"
    text = f"{method}{12 * chr(10)}{headers}{account_path}{account_path}{path}\n{name}:{value}"
    signature = base64.b64encode(hmac.digest(base64.b64decode(ACCOUNT[1]), text.encode(), hashlib.sha256)).decode()
    return urllib.request.Request(
        f"{endpoint}{path}?{name}={value}",
        method=method,
        headers={
            "Authorization": f"SharedKey {ACCOUNT[0]}:{signature}", "x-ms-date": date, "x-ms-version": AZURE_VERSION,
        },
    )  # fmt: skip


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


def azurite() -> AzureServer:
    """Return Azurite, which keeps objects in memory. Skips the test by name where it cannot be installed."""
    program = _azurite()
    folder = Path(tempfile.mkdtemp(prefix="duolog-azurite-"))
    (port,) = free_ports(1)
    command = [
        "node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent",
        "--disableTelemetry",
    ]  # fmt: skip
    return AzureServer(
        [command], [f"http://127.0.0.1:{port}/{ACCOUNT[0]}"], folder, {"AZURITE_ACCOUNTS": ":".join(ACCOUNT)}
    )


@cache
def _azurite() -> Path:
    """Install the packages of AZURITE with npm, unless they are there; return the program of the blob service."""
    if not shutil.which("npm") or _node_version() < NODE_MIN:
        skip_or_fail(f"no Node.js {NODE_MIN} or later, with npm, is on the path, so Azurite cannot be installed")
    lock = (AZURITE / "package-lock.json").read_bytes()
    installed = AZURITE / "target" / hashlib.sha256(lock).hexdigest()[:12] / "node_modules"
    if not installed.exists():
        installed.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=installed.parent) as folder:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(AZURITE / name, folder)
            done = subprocess.run(
                ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder,
                capture_output=True, text=True, check=False, timeout=BUILD_WITHIN_S,
            )  # fmt: skip
            if done.returncode != 0:
                skip_or_fail(f"Azurite could not be installed: {done.stderr.strip()[-1000:]}")
            with contextlib.suppress(OSError):  # Another worker was first, and its directory is not empty.
                Path(folder, "node_modules").rename(installed)
    return installed / "azurite" / "dist" / "src" / "blob" / "main.js"


def _node_version() -> int:
    """Return the major version of Node.js; 0 if there is none."""
    node = shutil.which("node")
    if node is None:
        return 0
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return int(shown.removeprefix("v").partition(".")[0])
