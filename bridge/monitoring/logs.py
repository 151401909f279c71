"""Log lines: one line for each event on standard error, as text or as JSON (`log.format`).

    2026-03-01T12:00:00.123Z warning net connection refused wire=kafka limits.connections_max=16000

    {"time":"2026-03-01T12:00:00.123Z","level":"warning","component":"net","event":"connection_refused",
     "wire":"kafka","limits.connections_max":16000,"message":"connection refused wire=kafka ..."}

The component is the logger's name. The event and the fields are read from the message before it is formatted: the
event is its first words without an article, up to a comma, a colon, a value or the name of a field, with underscores
for blanks; a field is `name=%s` with any conversion. docs/reference/log-lines.md lists all events. In JSON, a field
keeps its value if that is a number, and is a text otherwise; a traceback is the field `traceback`. Lines of libraries
have the event `library`.

All text is taken for text of a client. As text, a line has only printable characters, and all others (line breaks,
terminal escapes, Unicode's line separators and direction marks) are Python escapes; the value of a field that has
blanks, quotes or such characters is a Python literal, so that no value looks like a further field; the lines of a
traceback are indented, so that no text in them looks like an event. JSON is ASCII in one line.

To protect the disk from a client that causes errors in a loop, at most LINES_MAX lines of one kind are written in
WINDOW_S. How many were left out is written after that: in the next line of the kind, or by itself by `report`.
"""

import json
import logging
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple, TextIO

import msgspec

from duolog.bridge.config.log import COMPONENTS, LoggingOptions, component_levels
from duolog.bridge.monitoring.last_lines import LogLine, keep

LINES_MAX = 20
WINDOW_S = 10.0
INDENT = "  "  # Before each line of a traceback.
KINDS_MAX = 1000  # Kinds that are counted. At this number, one line has the sum of what was left out.

LIBRARY: Final = "library"  # The event of all lines that no component writes.
RESERVED: Final = frozenset({"time", "level", "component", "event", "message", "left_out", "traceback", "stack"})

_VALUE: Final = re.compile(r"(?:([\w.]+)=)?%[-+ #0]*\d*(?:\.\d+)?([a-zA-Z%])")
_WORDS: Final = re.compile(r"[^,:;%=]*")
_QUOTED: Final = frozenset(" '\"\\")

log = logging.getLogger("bridge")


# -- Events and fields


def event_of(template: str) -> str:
    """Return the event of a message before it is formatted: "connection refused wire=%s" is `connection_refused`."""
    found = _WORDS.match(template)
    assert found is not None
    words = found[0].split()
    if words and words[0] in ("a", "an", "the"):
        words = words[1:]
    if template[found.end() : found.end() + 1] == "=":
        words = words[:-1]  # The last word is the name of a field.
    return re.sub(r"\W+", "_", " ".join(words).lower()).strip("_")


class Value(NamedTuple):
    """A value in a message: the name of its field, or an empty string; and its conversion, such as `s`."""

    field: str
    conversion: str


@lru_cache(maxsize=KINDS_MAX)
def values_of(template: str) -> tuple[Value, ...]:
    """Return the values in a message before it is formatted, in their order."""
    return tuple(Value(found[1] or "", found[2]) for found in _VALUE.finditer(template) if found[2] != "%")


def fields_of(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """Yield the names and the values of a record's fields."""
    found, arguments = values_of(str(record.msg)), record.args
    if not isinstance(arguments, tuple) or len(found) != len(arguments):
        return
    for (name, conversion), argument in zip(found, arguments, strict=True):
        if name:
            yield name, _json_value(argument, conversion)


def _json_value(value: Any, conversion: str) -> Any:
    if isinstance(value, int) and conversion in "oxX":
        return format(value, conversion)
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return repr(value) if conversion == "r" else str(value)


# -- Formats


class TextFormatter(logging.Formatter):
    """Formats a line for people: time, level in lower case, component, message, then a traceback and stack, if any."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [printable(f"{_time(record)} {record.levelname.lower()} {record.name} {_message(record)}")]
        if record.exc_info:
            lines += _indented(self.formatException(record.exc_info))
        if record.stack_info:
            lines += _indented(self.formatStack(record.stack_info))
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """Formats a line as a JSON object in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "component": record.name,
            "event": event_of(str(record.msg)) if record.name in COMPONENTS else LIBRARY,
        }
        line |= {name: value for name, value in fields_of(record) if name not in RESERVED}
        line["message"] = _message(record)
        if left_out := _left_out(record):
            line["left_out"] = left_out
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return _ascii_json(line)


FORMATTERS: Final = {"text": TextFormatter, "json": JsonFormatter}


def printable(text: str) -> str:
    """Write each character that is not printable as an escape: `\\n`, `\\x1b`, `\\u2028`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> str:
    """Return the formatted message, in which no value of a field looks like a further field."""
    arguments, found = record.args, values_of(str(record.msg))
    if isinstance(arguments, tuple) and len(arguments) == len(found):
        quoted = (
            _quoted(argument) if name and conversion == "s" else argument
            for (name, conversion), argument in zip(found, arguments, strict=True)
        )
        message = str(record.msg) % tuple(quoted) if arguments else str(record.msg)
    else:
        message = record.getMessage()
    left_out = _left_out(record)
    return f"{message} left_out={left_out}" if left_out else message


def _quoted(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and _QUOTED.isdisjoint(text) else repr(text)


def _left_out(record: logging.LogRecord) -> int:
    return int(getattr(record, "left_out", 0))


def _indented(text: str) -> list[str]:
    return [INDENT + printable(line) for line in text.split("\n")]


def _ascii_json(line: Mapping[str, Any]) -> str:
    """Return an object as JSON. Half surrogates are Python escapes, because many parsers refuse them."""
    plain = {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in line.items()
    }
    return json.dumps(plain, separators=(",", ":")).replace("\x7f", "\\u007f")


# -- Repeated lines


class Repeats(NamedTuple):
    """The lines of one kind since a time in seconds: their level and their number, with those that were left out."""

    start_s: float
    level: int
    lines: int

    @property
    def left_out(self) -> int:
        return max(0, self.lines - LINES_MAX)


class FloodFilter(logging.Filter):
    """Limits lines of a kind to LINES_MAX in WINDOW_S; a kind is a logger with its message before formatting."""

    def __init__(self) -> None:
        super().__init__()
        self._repeats: dict[tuple[str, str], Repeats] = {}
        self._report_s: float | None = None  # The time at which `report` has something to write.

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.name, str(record.msg))
        repeats = self._repeats.get(kind) or Repeats(record.created, record.levelno, 0)
        if record.created - repeats.start_s >= WINDOW_S:
            record.left_out = repeats.left_out
            repeats = Repeats(record.created, record.levelno, 0)
        if len(self._repeats) >= KINDS_MAX and kind not in self._repeats:
            self._begin_anew()
        repeats = self._repeats[kind] = repeats._replace(lines=repeats.lines + 1)
        if repeats.left_out and self._report_s is None:
            self._report_s = repeats.start_s + WINDOW_S
        return not repeats.left_out

    def _begin_anew(self) -> None:
        cut = [repeats.left_out for repeats in self._repeats.values() if repeats.left_out]
        self._repeats.clear()
        self._report_s = None
        if cut:
            log.warning("lines of many kinds left out kinds=%d count=%d", len(cut), sum(cut))

    def next_report_ms(self) -> int | None:
        """Return the wall-clock time in milliseconds at which `report` has something to write; None: nothing yet."""
        return None if self._report_s is None else math.ceil(self._report_s * 1000)

    def report(self, now_ms: int) -> None:
        """Write a line for each kind of which lines were left out, and whose time is over."""
        cut = [(kind, repeats) for kind, repeats in list(self._repeats.items()) if repeats.left_out]
        ends = [repeats.start_s + WINDOW_S for _, repeats in cut]
        self._report_s = min((end_s for end_s in ends if end_s * 1000 > now_ms), default=None)
        for ((component, template), repeats), end_s in zip(cut, ends, strict=True):
            if end_s * 1000 <= now_ms:
                self._repeats.pop((component, template), None)
                event = event_of(template) if component in COMPONENTS else LIBRARY
                log.log(repeats.level, "lines left out of=%s by=%s count=%d", event, component, repeats.left_out)


# -- The handler


class KeepingHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, and keeps the last ones in memory as text."""

    _as_text = TextFormatter()

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        text = self._as_text.format(record).split(" ", 3)[3]
        keep(LogLine(int(record.created * 1000), record.levelname.lower(), record.name, text))


def configure(options: LoggingOptions) -> FloodFilter:
    """Write lines to standard error; return the filter that counts repeated ones. Raises ConfigError."""
    handler = KeepingHandler(sys.stderr)
    flood = FloodFilter()
    handler.addFilter(flood)
    handler.setFormatter(TextFormatter())
    logging.getLogger().handlers[:] = [handler]
    # The debug lines of asyncio do not help an operator.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    apply(options)
    return flood


@contextmanager
def applying(options: LoggingOptions) -> Iterator[None]:
    """Change format and levels; the lines of the block are written from `info` on. Raises ConfigError."""
    apply(msgspec.structs.replace(options, level="info", levels=""))
    try:
        yield
    finally:
        apply(options)


def apply(options: LoggingOptions) -> None:
    """Change format and levels. Raises ConfigError."""
    levels = component_levels(options.levels)
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler.formatter, tuple(FORMATTERS.values())):  # It is the handler of `configure`.
            handler.setFormatter(FORMATTERS[options.format]())
    root.setLevel(options.level.upper())
    for component in COMPONENTS:
        logging.getLogger(component).setLevel(levels.get(component, "notset").upper())
