"""The command line `duolog` as a child process, isolated (`python -I`) like the broker of `tests.kit.broker`.

duolog("topic", "create", "orders", "--http", broker.http)      # returns what the command prints
run_duolog("serve", "--data", "file").returncode                # for a test of the exit status or of errors
subprocess.Popen([*DUOLOG, "consume", "orders"])                # for a command that runs until it is stopped
"""

from __future__ import annotations

import subprocess
import sys

DUOLOG = (sys.executable, "-I", "-m", "duolog.bridge")
WITHIN_S = 60


def run_duolog(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run([*DUOLOG, *arguments], capture_output=True, text=True, timeout=WITHIN_S, check=False)


def duolog(*arguments: str, status: int = 0) -> str:
    """Run a command that ends with this exit status, and return its standard output."""
    done = run_duolog(*arguments)
    assert done.returncode == status, done.stderr
    return done.stdout
