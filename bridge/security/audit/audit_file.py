"""The thread that appends the lines of the audit log to a file, so that the event loop never waits for the disk.

A line has three states: it waits in memory, at most `queue_bytes` in all; it was written; or it was lost, because the
disk has refused it, which is counted and logged. `reopen` opens the path again, after a tool has renamed the file. A
stop writes what waits, for STOP_S at most.
"""

import logging
import os
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from duolog.bridge.config import ConfigError

log = logging.getLogger("audit")

WRITE_BYTES_MAX: Final = 64 << 10
STOP_S: Final = 3.0
MODE: Final = 0o600
_OPEN: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class AuditFile:
    """A `Sink` that is a file. Raises ConfigError if the file cannot be opened."""

    def __init__(self, path: str, queue_bytes: int) -> None:
        self._path, self._queue_bytes = path, queue_bytes
        try:
            self._descriptor = os.open(path, _OPEN, MODE)
        except OSError as error:
            raise ConfigError(f"security.audit_file: {path}: {error.strerror}") from error
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._given_bytes = 0  # Only the loop's thread changes this field, and only this thread the next two.
        self._done_bytes = 0
        self.lost_lines = 0
        self._is_reopening = False
        self._thread = Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> bool:
        """Take a line; False: the lines that wait have `queue_bytes` already."""
        if self._given_bytes - self._done_bytes + len(line) > self._queue_bytes:
            return False
        self._given_bytes += len(line)
        self._queue.put(line)
        return True

    def reopen(self) -> None:
        """Open the path again before the next line."""
        self._is_reopening = True
        self._queue.put(b"")

    def stop(self) -> None:
        """Write the lines that wait, and end the thread; blocks for STOP_S at most."""
        self._queue.put(None)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        is_ending = False
        while not is_ending:
            lines = [self._queue.get()]
            size = 0
            while lines[-1] is not None and size < WRITE_BYTES_MAX:
                size += len(lines[-1])
                try:
                    lines.append(self._queue.get_nowait())
                except Empty:
                    break
            is_ending = lines[-1] is None
            self._write([line for line in lines if line])
        os.close(self._descriptor)

    def _write(self, lines: list[bytes]) -> None:
        data = memoryview(b"".join(lines))
        size = len(data)
        try:
            if self._is_reopening:
                self._is_reopening = False
                descriptor = os.open(self._path, _OPEN, MODE)
                os.close(self._descriptor)
                self._descriptor = descriptor
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self.lost_lines += len(lines)
            log.error("audit lines lost file=%s count=%d reason=%r", self._path, len(lines), error.strerror)
        self._done_bytes += size
