"""Settings: their precedence, and an error line for each invalid one; as tables, with one file in a directory."""

from pathlib import Path

import pytest

from duolog.bridge.config import (
    ConfigError,
    Options,
    load,
    parse_override,
    settings,
)


def test_file_wins_over_default_and_override_over_file(tmp_path: Path) -> None:
    file = tmp_path / "duolog.toml"
    file.write_text('[store]\nflush = "async"\ntail_bytes = 2097152\n[topics]\nqueues = 8\n')
    options = load(file, {"topics.queues": "2", "topics.auto_create": "false", "store.disk_full_ratio": "0.97"})
    assert (options.store.flush, options.store.tail_bytes) == ("async", 2097152)
    assert (options.topics.queues, options.topics.auto_create) == (2, False)
    assert options.store.disk_full_ratio == 0.97
    assert options.kafka == Options().kafka


@pytest.mark.parametrize(
    ("toml", "names"),
    [
        ("kafka = 1", "kafka:"),
        ("port = 1", "port:"),
        ("[kafak]\nport = 1", "kafak:"),
        ("[kafka]\nprot = 1", "kafka.prot:"),
        ("[kafka]\nport = '9092'", "kafka.port: expected `int`, got '9092' (--config /"),
        ("[kafka]\nport = 65536", "kafka.port:"),
        ("[kafka]\nport = -1", "kafka.port:"),
        ("[kafka]\nport = true", "kafka.port:"),
        ("[store]\nflush = 'perhaps'", "store.flush: expected one of sync, async"),
        ("[store]\ndisk_full_ratio = 1.5", "store.disk_full_ratio:"),
        ("[store]\ndisk_full_ratio = 0.5", "store.disk_resume_ratio: 0.93 is above store.disk_full_ratio, 0.5"),
        ("[groups]\nsession_timeout_min_ms = 9999999999", "groups.session_timeout_min_ms:"),
        ("[store", "--config"),
        ("\xff", "--config"),
    ],
)
def test_bad_file_is_one_line_that_names_the_setting(tmp_path: Path, toml: str, names: str) -> None:
    file = tmp_path / "duolog.toml"
    file.write_bytes(toml.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert str(caught.value).startswith(names)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("kafka.port", "x", "kafka.port: expected `int`, got 'x'"),
        ("kafka.port", "", "kafka.port: expected `int`, got ''"),
        ("kafka.port", "70000", "kafka.port: expected `int` <= 65535, got '70000'"),
        ("store.flush", "no", "store.flush: expected one of sync, async, got 'no'"),
        ("topics.auto_create", "perhaps", "topics.auto_create: expected `bool`, got 'perhaps'"),
        ("no.such", "1", "no.such: no such setting; `duolog settings` lists them"),
        (
            "server.advertise",
            "broker:9092",
            "server.advertise: expected a host name or address, without a port, got 'broker:9092'",
        ),
        ("kafka", "1", "kafka: no such setting; `duolog settings` lists them"),
    ],
)
def test_bad_override_is_named_with_its_value(key: str, value: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {key: value})
    assert str(caught.value) == line


def test_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^--config /nonexistent\.toml: No such file or directory$"):
        load(Path("/nonexistent.toml"), {})


def test_override_needs_an_equals_sign_and_a_known_name() -> None:
    assert parse_override("store.flush = async") == ("store.flush", "async")
    assert parse_override("server.advertise=a=b") == ("server.advertise", "a=b")
    for bad in ("store.flush", "=", "flush=sync"):
        with pytest.raises(ConfigError):
            parse_override(bad)


def test_names_that_scripts_use_exist_and_every_setting_explains_itself() -> None:
    rows = {row.name: row for row in settings()}
    assert rows.keys() >= {
        "store.flush",
        "topics.auto_create",
        "topics.queues",
        "groups.initial_rebalance_delay_ms",
        "txn.check_interval_ms",
        "txn.immunity_ms",
        "txn.check_max",
    }
    assert rows["topics.queues"].default == "4"
    assert rows["topics.auto_create"].default == "true"
    assert all(row.doc and not row.doc.endswith(".") for row in rows.values())
