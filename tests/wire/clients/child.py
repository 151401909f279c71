"""A client program in a process of its own, which may be stopped and killed at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[3]


class Child:
    """One run of a Python module with these arguments."""

    def __init__(self, module: str, arguments: list[str], said: IO[bytes] | None = None) -> None:
        """`said` takes its standard output, which goes nowhere without."""
        output = subprocess.DEVNULL if said is None else said
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.DEVNULL)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
