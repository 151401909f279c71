"""Sizes and lengths of time with units: a table of values that are converted, and of values that are not."""

from pathlib import Path

import pytest

from duolog.bridge.config import ConfigError, load
from duolog.bridge.config.units import without_unit


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "90 s", "90000"),
        ("retention.ms", "2W", "1209600000"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "3600000", "3600000"),
        ("retention.ms", "7x", "7x"),
        ("store.segment_bytes", "256MB", "268435456"),
        ("store.segment_bytes", "1 GiB", "1073741824"),
        ("limits.request_bytes_max", "64k", "65536"),
        ("max.message.bytes", "1MB", "1048576"),
        ("store.flush", "7d", "7d"),
        ("kafka.port", "9k", "9k"),
        ("rocketmq.cluster", "1d", "1d"),
    ],
)
def test_units_are_read_where_the_name_takes_them(name: str, text: str, read: str) -> None:
    assert without_unit(name, text) == read


def test_settings_take_units_in_the_file_and_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "duolog.toml"
    file.write_text(
        '[store]\nsegment_bytes = "64MB"\n[retention]\nms = "7d"\nbytes = "10GB"\n[delay]\nlevels = "1s 5s"\n'
    )
    options = load(file, {"retention.check_interval_ms": "5m"})
    assert (options.store.segment_bytes, options.retention.bytes) == (64 << 20, 10 << 30)
    assert (options.retention.ms, options.retention.check_interval_ms) == (7 * 86_400_000, 300_000)
    assert options.delay.levels == "1s 5s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[retention]\nms = "7 days"',
            r"retention\.ms: expected a whole number or a number with ms, s, m, h, d or w, got '7 days'",
        ),
        (
            '[store]\nsegment_bytes = "1PB"',
            r"store\.segment_bytes: expected a whole number or a number with B, kB, MB, GB or TB",
        ),
        ('[kafka]\nport = "9k"', r"kafka\.port: expected a whole number, got '9k'"),
        ("flush = 1", r"flush: no such setting; did you mean store\.flush\?"),
        ("[store]\nflsh = 1", r"store\.flsh: no such setting; did you mean store\.flush\?"),
        ("[stor]\nflush = 1", r"stor: no such setting; did you mean store\?"),
        ("namesrv = 1", r"namesrv: no such setting; did you mean rocketmq\.namesrv_port or "),
        ("[server]\nqueues = 1", r"server\.queues: no such setting; did you mean topics\.queues\?"),
    ],
)
def test_mistakes_say_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "duolog.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(file, {})
