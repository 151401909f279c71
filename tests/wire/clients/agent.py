"""A client in a process of its own, in any language, driven by JSON lines.

    {"id": 7, "op": "read", ...}                  to its standard input
    {"id": 7, "result": ...}                      from its standard output, in any order
    {"id": 7, "error": "...", "trace": "..."}     if it failed

It ends when its standard input ends.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import Path
from typing import Any

CALL_WITHIN_S = 60.0


class AgentError(AssertionError):
    """A command failed inside the agent; carries its stack trace."""


class Agent:
    """One process that takes commands. Calls may come from several threads and run side by side."""

    def __init__(self, name: str, command: list[str], home: Path) -> None:
        self.name = name
        self._log = home / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=home, text=True, bufsize=1
            )
        self._ids = itertools.count()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read_answers, name=f"{name} answers", daemon=True)
        self._reader.start()

    def call(self, op: str, *, within_s: float = CALL_WITHIN_S, **arguments: Any) -> Any:
        """Run one command and return its result; raises AgentError with its trace, or after `within_s`."""
        return self.start(op, **arguments).wait(within_s)

    def start(self, op: str, **arguments: Any) -> Call:
        """Send a command without waiting for its result."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = answer
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": number, "op": op, **arguments}) + "\n")
        return Call(self, op, answer)

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        """Close its standard input; the agent ends with it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # It was killed.
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()  # It reads the log, which is deleted next, if a call is still under way.

    def log_tail(self) -> str:
        return f"--- end of {self._log}\n" + self._log.read_text(errors="replace")[-4000:]

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(answer)
        for future in list(self._waiting.values()):
            future.set_exception(AgentError(f"{self.name} ended\n{self.log_tail()}"))


class Call:
    """A command under way."""

    def __init__(self, agent: Agent, op: str, answer: Future[dict[str, Any]]) -> None:
        self._agent, self._op, self._answer = agent, op, answer

    @property
    def is_over(self) -> bool:
        return self._answer.done()

    def wait(self, within_s: float = CALL_WITHIN_S) -> Any:
        try:
            answer = self._answer.result(within_s)
        except FutureTimeout:
            raise AgentError(f"{self._agent.name}: no answer to {self._op!r} within {within_s} s") from None
        if "error" in answer:
            raise AgentError(f"{self._agent.name}: {self._op}: {answer['error']}\n{answer['trace']}")
        return answer["result"]
