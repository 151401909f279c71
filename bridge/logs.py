"""Logs: one line an event on standard error, `time level logger message key=value ...`.

    2026-03-01T12:00:00.123Z info store recovered position=81920 entries=512 cut_bytes=37

A client that misbehaves in a loop must not fill the disk: of one kind of line at most LINES_MAX come in WINDOW_S, and
the next one after that says how many were left out.
"""

import logging
import sys
import time

LINES_MAX = 20
WINDOW_S = 10.0
KINDS_MAX = 1000  # Kinds remembered; then all are forgotten, and counting starts again.


class KeyValueFormatter(logging.Formatter):
    """UTC time with milliseconds, level in lower case, message, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = record.getMessage().replace("\n", "\\n")
        line = f"{at}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name} {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class FloodFilter(logging.Filter):
    """Lets at most LINES_MAX lines of a kind pass in WINDOW_S; a kind is a logger and its unformatted message."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.name, str(record.msg))
        start, count = self._windows.get(kind, (record.created, 0))
        if record.created - start >= WINDOW_S:
            if count > LINES_MAX:
                record.msg = f"{record.msg} left_out={count - LINES_MAX}"
            start, count = record.created, 0
        if len(self._windows) >= KINDS_MAX:
            self._windows.clear()
        self._windows[kind] = (start, count + 1)
        return count < LINES_MAX


def configure(level: str) -> None:
    """Send everything from `level` on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    handler.addFilter(FloodFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # asyncio's own debug lines say nothing that an operator acts on.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
