"""The format of log lines, their events and levels, and the limit on repeated lines.

The tests set the times of the records.
"""

import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from duolog.bridge.config import ConfigError, LoggingOptions
from duolog.bridge.config.log import with_level
from duolog.bridge.monitoring import logs
from duolog.bridge.monitoring.logs import (
    KINDS_MAX,
    LINES_MAX,
    RESERVED,
    WINDOW_S,
    FloodFilter,
    JsonFormatter,
    TextFormatter,
    event_of,
)
from duolog.bridge.monitoring.repeated_lines import KEYS_MAX, QUIET_MS, RepeatedLines
from tests.kit.log_lines import all_lines

AT_S = 1_700_000_000.0
WORDS_MAX = 7  # The words of an event.


def record(message: str, *values: object, at_s: float = AT_S, component: str = "bridge") -> logging.LogRecord:
    made = logging.LogRecord(component, logging.WARNING, "file.py", 1, message, values, None)
    made.created, made.msecs = at_s, 7.0
    return made


def as_json(made: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter().format(made)
    assert line.isascii()
    assert line.isprintable()
    return dict(json.loads(line))


HOSTILE = "a\r\x1b[2J\x07\u2028\u202e\x00\x85\x7f\udc80\nz"
ESCAPED = r"a\r\x1b[2J\x07\u2028\u202e\x00\x85\x7f\udc80\nz"


def test_line_has_time_level_component_and_its_fields() -> None:
    made = record("lease ended, early peer=%s bytes=%d ratio=%.1f error=%r", "::1", 7, 0.25, KeyError("x"))
    text = "lease ended, early peer=::1 bytes=7 ratio=0.2 error=KeyError('x')"
    assert TextFormatter().format(made) == f"2023-11-14T22:13:20.007Z warning bridge {text}"
    assert as_json(made) == {
        "time": "2023-11-14T22:13:20.007Z",
        "level": "warning",
        "component": "bridge",
        "event": "lease_ended",
        "peer": "::1",
        "bytes": 7,
        "ratio": 0.25,
        "error": "KeyError('x')",
        "message": text,
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (HOSTILE, f"'{ESCAPED}'"),
        ("a reason=forged", "'a reason=forged'"),
        ("it's", '"it\'s"'),
        (r"a\n", r"'a\\n'"),
        ("", ""),
        ("Größe-価格", "Größe-価格"),
    ],
)
def test_value_of_a_client_is_neither_a_line_nor_a_field(value: str, text: str) -> None:
    made = record("refused client=%s of=%d", value, 1)
    made.name = f"logger{HOSTILE}"
    line = TextFormatter().format(made)
    assert line.isprintable()
    assert line.endswith(f"refused client={text} of=1")
    found = as_json(made)
    assert found["client"] == value.replace("\udc80", r"\udc80")
    assert found["component"] == f"logger{HOSTILE}".replace("\udc80", r"\udc80")


def test_text_outside_of_fields_is_printable() -> None:
    made = record("the file is damaged: %s", HOSTILE)
    assert TextFormatter().format(made).endswith(f"the file is damaged: {ESCAPED}")
    assert as_json(made)["event"] == "file_is_damaged"


@pytest.mark.parametrize(
    ("component", "message", "values", "event"),
    [
        ("store", "recovered clean=%s", (True,), "recovered"),
        ("transactions", "check-back without answer url=%s", ("x",), "check_back_without_answer"),
        ("store", "100%% full", (), "100"),
        ("aiohttp.server", "Error handling request %s", ("x",), "library"),
        ("asyncio", "%(a)s", ({"a": 1},), "library"),
        ("asyncio", "Task was destroyed: 100% of them", (), "library"),
    ],
)
def test_event_is_the_first_words(component: str, message: str, values: tuple[object, ...], event: str) -> None:
    assert as_json(record(message, *values, component=component))["event"] == event


def test_traceback_keeps_its_lines_and_none_looks_like_an_event() -> None:
    try:
        raise ValueError(f"{HOSTILE}\n2023-11-14T22:13:20.007Z info bridge forged")
    except ValueError:
        failed = record("request failed")
        failed.exc_info = sys.exc_info()
    failed.stack_info = f"Stack{HOSTILE}"
    first, *others = TextFormatter().format(failed).split("\n")
    assert first == "2023-11-14T22:13:20.007Z warning bridge request failed"
    assert others[0] == "  Traceback (most recent call last):"
    assert "  2023-11-14T22:13:20.007Z info bridge forged" in others
    assert all(line.isprintable() and line.startswith("  ") for line in others)
    assert str(as_json(failed)["traceback"]).startswith("Traceback (most recent call last):\n")


def test_flood_of_one_kind_is_cut_and_counted_and_others_pass() -> None:
    flood = FloodFilter()
    passed = sum(flood.filter(record("refused peer=%d", number)) for number in range(LINES_MAX + 5))
    assert passed == LINES_MAX
    assert flood.filter(record("another"))
    later = record("refused peer=%d", 99, at_s=AT_S + WINDOW_S)
    assert flood.filter(later)
    assert TextFormatter().format(later).endswith("refused peer=99 left_out=5")
    assert as_json(later)["left_out"] == 5


def test_lines_left_out_are_reported_when_no_further_line_comes(caplog: pytest.LogCaptureFixture) -> None:
    flood, end_ms = FloodFilter(), int((AT_S + WINDOW_S) * 1000)
    assert flood.next_report_ms() is None
    for number in range(LINES_MAX + 5):
        flood.filter(record("member refused peer=%d", number, component="kafka"))
    assert flood.next_report_ms() == end_ms
    flood.report(end_ms - 1)
    assert (caplog.messages, flood.next_report_ms()) == ([], end_ms)
    flood.report(end_ms)
    assert caplog.messages == ["lines left out of=member_refused by=kafka count=5"]
    assert flood.next_report_ms() is None
    flood.report(end_ms)
    assert len(caplog.messages) == 1


def test_lines_left_out_are_reported_before_too_many_kinds_are_counted_anew(caplog: pytest.LogCaptureFixture) -> None:
    flood = FloodFilter()
    for kind in range(KINDS_MAX):
        for number in range(LINES_MAX + 5 if kind < 3 else 1):
            flood.filter(record(f"refused by rule {kind} peer=%d", number))
    assert caplog.messages == []
    assert flood.filter(record("another"))
    assert caplog.messages == ["lines of many kinds left out kinds=3 count=15"]
    assert flood.next_report_ms() is None


def test_omitted_lines_of_too_many_clients_are_counted_in_the_next_line() -> None:
    lines = RepeatedLines()
    for client in range(KEYS_MAX):
        assert lines.take((f"client {client}",), 0) == 0
        assert lines.take((f"client {client}",), 1) is None
    assert lines.take(("another",), 2) == KEYS_MAX
    assert lines.take(("client 0",), 3) == 0
    assert lines.take(("another",), 4) is None
    assert lines.take(("another",), 2 + QUIET_MS) == 1


@pytest.fixture
def _logging_of_its_own() -> Iterator[None]:
    """Put the logging of the process back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logs.apply(LoggingOptions())
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_logging_of_its_own")
def test_levels_by_component_and_format_change_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def lines(options: LoggingOptions) -> list[str]:
        logs.apply(options)
        for component in ("store", "kafka", "asyncio"):
            for level in (logging.DEBUG, logging.WARNING):
                logging.getLogger(component).log(level, "said at=%d", level)
        return capsys.readouterr().err.splitlines()

    def components(options: LoggingOptions) -> list[str]:
        return [line.split()[2] for line in lines(options)]

    logs.configure(LoggingOptions())
    assert components(LoggingOptions()) == ["store", "kafka", "asyncio"]
    assert components(LoggingOptions(levels="store=debug, kafka=error")) == ["store", "store", "asyncio"]
    assert components(LoggingOptions(level="error", levels="kafka=debug")) == ["kafka", "kafka", "asyncio"]
    assert [json.loads(line)["component"] for line in lines(LoggingOptions(format="json"))] == [
        "store",
        "kafka",
        "asyncio",
    ]


def test_a_level_is_given_to_a_component_or_to_all_that_have_none_and_taken_back() -> None:
    started = LoggingOptions(level="warning", levels="store=debug,kafka=error")
    assert with_level(started, "net", "info").levels == "kafka=error,net=info,store=debug"
    assert with_level(started, "store", None).levels == "kafka=error"
    assert with_level(started, "store", "error").levels == "kafka=error,store=error"
    assert with_level(started, None, "debug") == LoggingOptions(level="debug", levels=started.levels)
    for component, level in (("stor", "debug"), ("store", "loud"), (None, "loud"), (None, None)):
        with pytest.raises(ConfigError):
            with_level(started, component, level)


@pytest.mark.slow
def test_every_line_of_the_code_has_an_event_of_few_words_and_fields_with_names_of_their_own() -> None:
    lines = list(all_lines())
    assert len(lines) > 50
    levels: dict[str, set[str]] = {}
    for line in lines:
        assert re.fullmatch(rf"[a-z0-9]+(_[a-z0-9]+){{0,{WORDS_MAX - 1}}}", line.event), f"{line.place}: {line.event!r}"
        assert len(set(line.fields)) == len(line.fields), line.place
        assert RESERVED.isdisjoint(line.fields), line.place
        levels.setdefault(line.event, set()).add(line.level)
    assert not {event for event, found in levels.items() if len(found) > 1}, "one event has two levels"
    assert event_of("the disk is full, appends are refused: %s") == "disk_is_full"
