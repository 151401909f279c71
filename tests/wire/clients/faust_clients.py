"""Faust applications as processes: a Writer, a Reader, and the application with a table (see faust_app.py)."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.wire.clients.message import Message, Position, Seen, seen_by_kafka_json
from tests.wire.clients.roles import Missing, TooFew

APP = Path(__file__).with_name("faust_app.py")
VERSION = "0.15.3"
STOP_WITHIN_S = 15


class FaustApp:
    """One running application; `lines` is what it printed. Leaving the block kills it."""

    def __init__(self, app_id: str, bootstrap: str, role: str, *arguments: str) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="duolog-faust-", suffix=".log")  # noqa: SIM115
        command = [sys.executable, "-W", "ignore", str(APP), app_id, bootstrap, role, *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self.lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read_lines, daemon=True).start()

    def next_line(self, within_s: float) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=max(0.01, within_s))
        except queue.Empty:
            raise TooFew(f"Faust said nothing for {within_s:.1f} s\n{self.log_tail()}") from None
        if line is None:
            raise TooFew(f"Faust ended with status {self._process.wait(5)}\n{self.log_tail()}")
        return line

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def log_tail(self) -> str:
        return f"--- end of Faust's log\n{Path(self._log.name).read_text(errors='replace')[-3000:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # The worker prints a banner of its own.
                self.lines.put(json.loads(line))
        self.lines.put(None)


class Faust:
    """A Writer and a Reader; each call is an application of its own."""

    ways = ("single",)
    codecs = ("none",)

    def __init__(self, bootstrap: str) -> None:
        self.name = f"faust-streaming {VERSION}"
        self._bootstrap = bootstrap

    def write(self, topic: str, messages: Sequence[Message], *, way: str, codec: str) -> list[Position | None]:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump([each.as_kafka_json() for each in messages], file)
            file.flush()
            with FaustApp(_app_id("write"), self._bootstrap, "write", topic, file.name) as app:
                stored = [app.next_line(30) for _ in messages]
                app.stop()
        return [(each["queue"], each["offset"]) for each in stored]

    def read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]:
        missing = Missing(self.name, topics, within_s)
        until = time.monotonic() + within_s
        with FaustApp(_app_id("read"), self._bootstrap, "read", *topics) as app:
            while missing:
                missing.take(seen_by_kafka_json(app.next_line(until - time.monotonic())))
            app.stop()
        return missing.seen


def _app_id(role: str) -> str:
    return f"wire-faust-{role}-{uuid.uuid4().hex[:8]}"
