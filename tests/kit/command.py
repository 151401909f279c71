"""The command line `duolog` as a child process, isolated (`python -I`) like the broker of `tests.kit.broker`.

duolog("topic", "create", "orders", "--http", broker.http)      # returns what the command prints
run_duolog("serve", "--data", "file").returncode                # for a test of the exit status or of errors
subprocess.Popen([*DUOLOG, "consume", "orders"])                # for a command that runs until it is stopped
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

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


def on_terminal(*arguments: str) -> tuple[int, str, str]:
    """Run a command whose standard error is a terminal; return status, standard output and the text of the terminal."""
    ours, theirs = os.openpty()
    seen = bytearray()
    with subprocess.Popen([*DUOLOG, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        with suppress(OSError):  # The end of a terminal, as Linux reports it (EIO).
            while part := os.read(ours, 4096):
                seen += part
        os.close(ours)
        out, _ = process.communicate(timeout=WITHIN_S)
    return process.returncode, out, seen.decode()
