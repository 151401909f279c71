"""The command line `duolog` as a process, isolated (`python -I`) like the broker of `tests.kit.broker`.

duolog("topic", "create", "orders", "--http", broker.http)      # returns what the command prints
run_duolog("serve", "--data", "file").returncode                # for a test of the exit status or of errors
subprocess.Popen([*DUOLOG, "consume", "orders"])                # for a command that runs until it is stopped

The first two fork the process from one that has imported the program (`tests.kit.fork_server`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress

from tests.kit.fork_server import PROGRAM, start_duolog

DUOLOG = (sys.executable, *PROGRAM)
WITHIN_S = 60


def run_duolog(*arguments: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself, with `given` as its standard input and these variables besides."""
    with tempfile.TemporaryFile() as before, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        before.write(given.encode())
        before.seek(0)
        files = {"stdin": before.fileno(), "stdout": output.fileno(), "stderr": errors.fileno()}
        process = start_duolog(arguments, **files, environment={**os.environ, **environment})
        try:
            status = process.wait(WITHIN_S)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, status, output.read().decode(), errors.read().decode())


def duolog(*arguments: str, status: int = 0, given: str = "", **environment: str) -> str:
    """Run a command that ends with this exit status, and return its standard output."""
    done = run_duolog(*arguments, given=given, **environment)
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
