"""A PostgreSQL server for one test: a cluster of its own in a folder, reached by a socket in that folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kit.eventually import eventually

DEBIAN = Path("/usr/lib/postgresql")
WITHIN_S = 60
_NOBODY = "nobody"  # As root the server refuses to run.


def programs() -> Path | None:
    """The folder with initdb and postgres: Debian's newest version, or the path's; None where there is none."""
    versions = [path for path in DEBIAN.glob("*/bin") if (path / "postgres").exists()]
    if versions:
        return max(versions, key=lambda path: float(path.parent.name))
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found and shutil.which("postgres") else None


class Cluster:
    """Made, started and removed with the block; `name` is what a client connects to."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = _NOBODY if os.geteuid() == 0 else None
        self._home = Path(tempfile.mkdtemp(prefix="duolog-pg-"))  # Short: it is part of a socket's name.
        self.name = f"host={self._home} user=postgres dbname=postgres"

    def __enter__(self) -> Self:
        if self._user is not None:
            shutil.chown(self._home, self._user)
        data = str(self._home / "data")
        self._run("initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-D", data)
        command = [self._programs / "postgres", "-D", data, "-k", str(self._home), "-h", ""]
        with (self._home / "log").open("wb") as log:
            self._server = subprocess.Popen(command, user=self._user, cwd=self._home, stdout=log, stderr=log)
        eventually("PostgreSQL", self._answers, bool, WITHIN_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.terminate()
        try:
            self._server.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, *arguments]
        subprocess.run(command, user=self._user, cwd=self._home, check=True, capture_output=True, timeout=WITHIN_S)

    def _answers(self) -> bool:
        import psycopg

        assert self._server.poll() is None, (self._home / "log").read_text()[-2000:]
        try:
            psycopg.connect(self.name).close()
        except psycopg.OperationalError:
            return False
        return True
