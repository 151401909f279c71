"""A Grafana server of this machine: on loopback, with a temporary database, without requests to other hosts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.broker import free_ports
from tests.kit.eventually import eventually
from tests.kit.lacking import skip_or_fail

WITHIN_S = 120  # The first start makes the tables of the database.
PACKAGED_HOME = Path("/usr/share/grafana")  # The directory of Grafana's Debian and RPM packages.
SETTINGS = {
    "GF_SERVER_HTTP_ADDR": "127.0.0.1",
    "GF_AUTH_ANONYMOUS_ENABLED": "true",
    "GF_AUTH_ANONYMOUS_ORG_ROLE": "Admin",
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    "GF_NEWS_NEWS_FEED_ENABLED": "false",
    "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    "GF_SECURITY_DISABLE_GRAVATAR": "true",
}


class Grafana:
    """The HTTP API of a server, as its administrator."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def is_ready(self) -> bool:
        try:
            return bool(self.get("/api/health")["database"] == "ok")
        except OSError:
            return False


@contextmanager
def grafana(folder: Path) -> Iterator[Grafana]:
    """Run a server with its files in `folder`; the test is skipped where there is none on the PATH."""
    program = _program()
    (port,) = free_ports(1)
    paths = {f"GF_PATHS_{name}": str(folder / name.lower()) for name in ("DATA", "LOGS", "PLUGINS", "PROVISIONING")}
    (folder / "grafana.ini").touch()  # Settings of this machine have no effect.
    options = [f"--homepath={_home(program)}", f"--config={folder / 'grafana.ini'}"]
    with (folder / "grafana.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), *(["server"] if program.name == "grafana" else []), *options],
            cwd=folder, stdout=log, stderr=log,
            env={**os.environ, **SETTINGS, **paths, "GF_SERVER_HTTP_PORT": str(port)},
        )  # fmt: skip
    try:
        server = Grafana(f"http://127.0.0.1:{port}")
        eventually("Grafana answers", server.is_ready, bool, WITHIN_S)
        yield server
    finally:
        process.kill()
        process.wait()


def _program() -> Path:
    """Return the path of the server; before Grafana 10 its name was grafana-server."""
    found = shutil.which("grafana") or shutil.which("grafana-server")
    return Path(found or skip_or_fail("no grafana: neither grafana nor grafana-server is on the PATH"))


def _home(program: Path) -> Path:
    """Return the folder with the files of the installation: that of the archive, or that of the package."""
    unpacked = program.resolve().parent.parent
    return unpacked if (unpacked / "conf" / "defaults.ini").exists() else PACKAGED_HOME
