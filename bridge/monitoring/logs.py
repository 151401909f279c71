"""Logs: one line an event on standard error, `time level logger message key=value ...`.

    2026-03-01T12:00:00.123Z info store recovered position=81920 entries=512 cut_bytes=37

A line has printable characters only: whatever else a client's text contains (line breaks, terminal escapes, Unicode's
line separators and direction marks) is written as an escape of Python's. The lines of a traceback are indented, so that
no text in them can be taken for an event.

A client that misbehaves in a loop must not fill the disk: of one kind of line at most LINES_MAX come in WINDOW_S, and
the next one after that says how many were left out.
"""

import logging
import sys
import time

LINES_MAX = 20
WINDOW_S = 10.0
INDENT = "  "  # Before each line of a traceback.
KINDS_MAX = 1000  # Kinds remembered; then all are forgotten, and counting starts again.


class KeyValueFormatter(logging.Formatter):
    """UTC time with milliseconds, level in lower case, message, and a traceback and a stack if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        levelname = record.levelname.lower()
        lines = [printable(f"{at}.{int(record.msecs):03d}Z {levelname} {record.name} {record.getMessage()}")]
        if record.exc_info:
            lines += _indented(self.formatException(record.exc_info))
        if record.stack_info:
            lines += _indented(self.formatStack(record.stack_info))
        return "\n".join(lines)


def printable(text: str) -> str:
    """Write each character that is not printable as an escape: `\\n`, `\\x1b`, `\\u2028`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _indented(text: str) -> list[str]:
    return [INDENT + printable(line) for line in text.split("\n")]


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
    set_level(level)
    # asyncio's own debug lines say nothing that an operator acts on.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Write everything from `level` on, from now on."""
    logging.getLogger().setLevel(level.upper())
