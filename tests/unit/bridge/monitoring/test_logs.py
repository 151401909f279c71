"""The format of log lines, and the limit on repeated lines. The tests set the times of the records."""

import logging
import sys

from duolog.bridge.monitoring.logs import (
    LINES_MAX,
    WINDOW_S,
    FloodFilter,
    KeyValueFormatter,
)


def record(message: str, *values: object, at_s: float = 1_700_000_000.0) -> logging.LogRecord:
    made = logging.LogRecord("bridge", logging.WARNING, "file.py", 1, message, values, None)
    made.created, made.msecs = at_s, 7.0
    return made


def test_line_has_time_level_logger_and_no_line_break() -> None:
    line = KeyValueFormatter().format(record("closed reason=%s", "two\nlines"))
    assert line == "2023-11-14T22:13:20.007Z warning bridge closed reason=two\\nlines"


HOSTILE = "a\r\x1b[2J\x07\u2028\u202e\x00\x85\x7f\udc80\nz"


def test_line_is_printable_whoever_wrote_a_part_of_it() -> None:
    hostile = record("refused client=%s", HOSTILE)
    hostile.name = f"logger{HOSTILE}"
    line = KeyValueFormatter().format(hostile)
    assert line.isprintable()
    assert line.endswith(r"client=a\r\x1b[2J\x07\u2028\u202e\x00\x85\x7f\udc80\nz")
    assert KeyValueFormatter().format(record("name=%s", "Größe 価格")).endswith("name=Größe 価格")


def test_traceback_keeps_its_lines_and_none_looks_like_an_event() -> None:
    try:
        raise ValueError(f"{HOSTILE}\n2023-11-14T22:13:20.007Z info bridge forged")
    except ValueError:
        failed = record("request failed")
        failed.exc_info = sys.exc_info()
    failed.stack_info = f"Stack{HOSTILE}"
    first, *others = KeyValueFormatter().format(failed).split("\n")
    assert first == "2023-11-14T22:13:20.007Z warning bridge request failed"
    assert others[0] == "  Traceback (most recent call last):"
    assert "  2023-11-14T22:13:20.007Z info bridge forged" in others
    assert all(line.isprintable() and line.startswith("  ") for line in others)


def test_flood_of_one_kind_is_cut_and_counted_and_others_pass() -> None:
    flood = FloodFilter()
    passed = sum(flood.filter(record("refused peer=%d", number)) for number in range(LINES_MAX + 5))
    assert passed == LINES_MAX
    assert flood.filter(record("another"))
    later = record("refused peer=%d", 99, at_s=1_700_000_000.0 + WINDOW_S)
    assert flood.filter(later)
    assert later.getMessage() == "refused peer=99 left_out=5"
