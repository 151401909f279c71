"""What a line of the log looks like, and how a flood of one kind of line is cut. Records with times of their own."""

import logging

from bridge.logs import LINES_MAX, WINDOW_S, FloodFilter, KeyValueFormatter


def record(message: str, *values: object, at_s: float = 1_700_000_000.0) -> logging.LogRecord:
    made = logging.LogRecord("bridge", logging.WARNING, "file.py", 1, message, values, None)
    made.created, made.msecs = at_s, 7.0
    return made


def test_line_has_time_level_logger_and_no_line_break() -> None:
    line = KeyValueFormatter().format(record("closed reason=%s", "two\nlines"))
    assert line == "2023-11-14T22:13:20.007Z warning bridge closed reason=two\\nlines"


def test_flood_of_one_kind_is_cut_and_counted_and_others_pass() -> None:
    flood = FloodFilter()
    passed = sum(flood.filter(record("refused peer=%d", number)) for number in range(LINES_MAX + 5))
    assert passed == LINES_MAX
    assert flood.filter(record("another"))
    later = record("refused peer=%d", 99, at_s=1_700_000_000.0 + WINDOW_S)
    assert flood.filter(later)
    assert later.getMessage() == "refused peer=99 left_out=5"
