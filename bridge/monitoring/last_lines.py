"""The last lines of the log in memory, which GET /api/log and the console show.

Like the log of the process, the list is one for all brokers of a process. It takes at most LINES_MAX times
LINE_CHARACTERS_MAX characters.
"""

from collections import deque
from typing import Final, NamedTuple

LINES_MAX: Final = 1000
LINE_CHARACTERS_MAX: Final = 4000  # A longer line, with its traceback, is cut to its beginning.


class LogLine(NamedTuple):
    """One line; `text` is what stands after time, level and component."""

    at_ms: int
    level: str
    component: str
    text: str


_LINES: Final[deque[LogLine]] = deque(maxlen=LINES_MAX)


def keep(line: LogLine) -> None:
    """Add a line; the oldest one is dropped when there are too many."""
    _LINES.append(line._replace(text=line.text[:LINE_CHARACTERS_MAX]))


def last_lines() -> list[LogLine]:
    """Return the lines, the oldest first."""
    return list(_LINES)
