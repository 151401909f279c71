"""The agent of Go clients: built once by the Go tool chain, then driven like the Java agents."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.kit.lacking import skip_or_fail
from tests.wire.clients.agent import Agent

GO = Path(__file__).parent.parent / "go"
BUILD_WITHIN_S = 600


def go_agent(*, with_tls: bool = False) -> Agent:
    """Build and start it; the test is left out where there is no Go, and fails where nothing may be lacking.

    The client with TLS is built from a later commit than the last release (go/tls.mod).
    """
    go = shutil.which("go")
    if go is None:
        skip_or_fail("no Go tool chain: go is not on the path")
    binary = GO / "target" / ("agent-tls" if with_tls else "agent")
    build = ["-modfile=tls.mod", "-tags=tls"] if with_tls else []
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    built = subprocess.run(
        [go, "build", *build, "-o", str(binary), "."],
        cwd=GO, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_WITHIN_S,
    )  # fmt: skip
    if built.returncode != 0:
        skip_or_fail(f"the Go client could not be built: {built.stderr.strip()[-1000:]}")
    return Agent("go", [str(binary)], Path(tempfile.mkdtemp(prefix="duolog-go-")))
