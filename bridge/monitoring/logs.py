"""Log lines: one line for each event on standard error, `time level logger message key=value ...`.

    2026-03-01T12:00:00.123Z info store recovered position=81920 entries=512 cut_bytes=37

A line has only printable characters. All others in a client's text (line breaks, terminal escapes, Unicode's line
separators and direction marks) are written as Python escapes. The lines of a traceback are indented, so that no text in
them looks like an event.

To protect the disk from a client that causes errors in a loop, at most LINES_MAX lines of one kind are written in
WINDOW_S. The next line after that says how many were omitted.
"""

import logging
import sys
import time

LINES_MAX = 20
WINDOW_S = 10.0
INDENT = "  "  # Before each line of a traceback.
KINDS_MAX = 1000  # The number of kinds that are counted. When it is reached, all counts are dropped.


class KeyValueFormatter(logging.Formatter):
    """Formats a line: UTC time with milliseconds, level in lower case, message, and a traceback and stack, if any."""

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
    """Limits lines of a kind to LINES_MAX in WINDOW_S; a kind is a logger with its message before formatting."""

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
    """Write all lines of `level` and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    handler.addFilter(FloodFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    # The debug lines of asyncio do not help an operator.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Change the level from which lines are written."""
    logging.getLogger().setLevel(level.upper())
