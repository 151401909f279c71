"""Processes of `duolog` that are forked from one that has imported the program's modules.

    process = start_duolog(["serve", "--data", "data"], stdin=0, stdout=1, stderr=2)
    process.send_signal(signal.SIGTERM)
    status = process.wait(5)

The imports take 0.4 of the 0.5 s of CPU that a start takes, and nine tenths of what a short command takes. A process
has the arguments, environment, directory and files that its caller gives, and is otherwise as isolated as one of
`python -I`. A test of the start itself, and one that measures CPU or memory, starts a process of its own
(`tests.kit.command.DUOLOG`).

Each process has a parent that waits for its end and reports it, because a process can only wait for its own children:

    process of the tests                    fork server              reporter              `duolog`
      request, stdin, stdout, stderr, pipe ──> fork ─────────────────> fork ────────────────> main()
      <───────────────────────────── pipe: process id, newline, status, newline
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

REQUEST_BYTES_MAX = 1 << 20
STARTED_WITHIN_S = 60.0
PROGRAM = ("-I", "-m", "duolog.bridge")  # The words behind `python` that run the program without a fork server.


class ForkedProcess:
    """A process of the fork server, with those methods of `subprocess.Popen` that tests use."""

    def __init__(self, report: int) -> None:
        """Wait until the process exists; `report` is the end of its pipe, which this object then owns."""
        self._report, self._reported = report, b""
        self.returncode: int | None = None  # As that of Popen: -9 after SIGKILL.
        self.pid = int(self._line(STARTED_WITHIN_S))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises TimeoutExpired if the process runs on."""
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
            os.close(self._report)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _line(self, timeout: float | None) -> bytes:
        until = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._reported:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._report], [], [], left)[0]:
                raise subprocess.TimeoutExpired("duolog", timeout or 0.0)
            piece = os.read(self._report, 64)
            assert piece, "the fork server or the parent of a forked process has ended"
            self._reported += piece
        line, _, self._reported = self._reported.partition(b"\n")
        return line


def start_duolog(
    arguments: Sequence[str], *, stdin: int, stdout: int, stderr: int, environment: dict[str, str] | None = None
) -> ForkedProcess:
    """Start `duolog` with these arguments and open files; its environment is that of this process by default."""
    report, reporter = os.pipe()
    request = {"arguments": list(arguments), "environment": environment or dict(os.environ), "directory": os.getcwd()}
    try:
        socket.send_fds(_server(), [json.dumps(request).encode()], [stdin, stdout, stderr, reporter])
    finally:
        os.close(reporter)
    return ForkedProcess(report)


@cache
def _server() -> socket.socket:
    """Start the fork server of this process; it ends when this process ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-I", str(Path(__file__)), str(theirs.fileno())]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        """Wait for the server, so that the CPU time of its children counts as that of this process's children."""
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# -- The fork server


def main(requests: socket.socket) -> None:
    """Fork a process for each request, until the process of the tests has ended."""
    _import_modules()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for its children.
    while True:
        request, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _report(json.loads(request), files)
        for file in files:
            os.close(file)
        while os.waitpid(-1, os.WNOHANG)[0]:  # Reporters that have ended; the one of this request is there.
            pass


def _import_modules() -> None:
    """Import what a broker and most commands use; they import the rest themselves."""
    gc.disable()
    from duolog.bridge.cli import main, serving

    serving.import_serve()
    for name in ("uvloop", *(f"duolog.bridge.cli.{each}" for each in ("commands", "common", "http_client"))):
        importlib.import_module(name)
    main.command_of(main.program())
    gc.collect()
    gc.freeze()  # Collections of the processes then do not write to the memory that they share.


def _report(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Fork the process, report its id and its exit status, and end."""
    *files, report = files
    pid = os.fork()
    if pid == 0:
        os.close(report)
        _run(request, files)
    for file in files:
        os.close(file)
    os.write(report, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # The process of the tests has ended.
        os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Become the process of `duolog`."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["duolog", *request["arguments"]]
    # A broker that lost its lease executes its program anew with these (`bridge/running/process.py`).
    sys.orig_argv = [sys.executable, *PROGRAM, *request["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()
    from duolog.bridge.cli.main import main

    main()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
