"""Settings: their precedence, and an error line for each invalid one; as tables, with one file in a directory."""

import re
from pathlib import Path

import pytest

from duolog.bridge.config import (
    ConfigError,
    Options,
    SettingsInForce,
    component_levels,
    errors_of,
    load,
    load_with_sources,
    parse_override,
    settings,
)
from duolog.bridge.config.source_lines import line_of


def test_file_wins_over_default_and_override_over_file(tmp_path: Path) -> None:
    file = tmp_path / "duolog.toml"
    file.write_text('[store]\nflush = "async"\ntail_bytes = 2097152\n[topics]\nqueues = 8\n')
    options = load(file, {"topics.queues": "2", "topics.auto_create": "false", "store.disk_full_ratio": "0.97"})
    assert (options.store.flush, options.store.tail_bytes) == ("async", 2097152)
    assert (options.topics.queues, options.topics.auto_create) == (2, False)
    assert options.store.disk_full_ratio == 0.97
    assert options.kafka == Options().kafka


def test_text_in_the_file_that_is_no_boolean_is_named_with_both_values(tmp_path: Path) -> None:
    file = tmp_path / "duolog.toml"
    file.write_text('[topics]\nauto_create = "ja"\n')
    with pytest.raises(ConfigError, match=r"topics.auto_create: expected true or false, got 'ja'"):
        load(file, {})


def test_each_value_has_the_source_that_wins(tmp_path: Path) -> None:
    file = tmp_path / "duolog.toml"
    file.write_text('[store]\nflush = "async"\ntail_bytes = "2MB"\n[topics]\nqueues = 8\n')
    environment = {
        "DUOLOG_STORE__TAIL_BYTES": "4MB",
        "DUOLOG_TOPICS__QUEUES": "3",
        "DUOLOG_TXN__CHECK_URLS": "https://shop.example/secret/",
        "DUOLOG_HTTP": "127.0.0.1:1",
        "STORE__FLUSH": "no",
    }
    loaded = load_with_sources(file, {"topics.queues": "2"}, environment)
    rows = {row.name: row for row in SettingsInForce(*loaded).rows()}
    assert [(rows[name].value, rows[name].source) for name in ("store.flush", "store.tail_bytes", "topics.queues")] == [
        ("async", "file"),
        (4 << 20, "environment"),
        (2, "command line"),
    ]
    assert (rows["kafka.port"].value, rows["kafka.port"].source) == (9092, "default")
    assert rows["txn.check_urls"].value == "(hidden)", "its path may be a secret"
    assert loaded.options.txn.check_urls == "https://shop.example/secret/"
    assert rows.keys() == {row.name for row in settings()}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (
            "DUOLOG_STORE__FLUHS",
            "sync",
            "store.fluhs: no such setting; did you mean store.flush? `duolog settings` lists them",
        ),
        ("DUOLOG_KAFKA__PORT", "x", "kafka.port: expected a whole number, got 'x'"),
        (
            "DUOLOG_SERVER__ADVERTISE",
            "a:1",
            "server.advertise: expected a host name or address, without a port, got 'a:1'",
        ),
    ],
)
def test_bad_variable_is_named(name: str, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {name: text})
    assert str(caught.value) == f"{line} ({name})"


def test_all_errors_of_a_file_are_found_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "duolog.toml"
    file.write_text(
        "surplus = 1\n[kafka]\n# A comment.\nprot = 1\nport = 70000\n[store]\nflush = 'no'\n[topic]\n",
    )
    places = [error.partition(":")[0] + error.rpartition(" (")[2] for error in errors_of(file)]
    assert places == [
        f"{name}{file}, line {line})"
        for name, line in (("surplus", 1), ("kafka.prot", 4), ("kafka.port", 5), ("store.flush", 7), ("topic", 8))
    ]
    assert "did you mean kafka.port?" in errors_of(file)[1]
    file.write_text("[topics]\nqueues = 8\nqueues_max = 4\n")
    assert errors_of(file) == [f"topics.queues: 8 is above topics.queues_max, 4 ({file}, line 2)"]
    file.write_text("[topics]\nqueues = 8\n")
    assert errors_of(file) == []
    assert errors_of(file, {"DUOLOG_TOPICS__QUEUES": "x"}) == [
        "topics.queues: expected a whole number, got 'x' (DUOLOG_TOPICS__QUEUES)"
    ]


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ("[a]\nb = 1", 2),
        ("\n\na.b = 1", 3),
        ("a = { c = 1,\tb = 1 }", 1),
        ("# [a]\n[c]\nb = 1\n\n[a]\n# b = 2\n'b' = 1\nd = 2", 7),
        ('[c]\nb = """\n[a]\nb = 1\n"""\n[a]\nc = [\n1,\n]\nb = [\n1,\n]', 10),
        ("[a]\r\nc = 1\r\nb = 1\r\n", 3),
        ("[a]\nc = 1", None),
        ("a = 1", None),
        ("[a", None),
    ],
)
def test_line_of_a_setting(toml: str, line: int | None) -> None:
    assert line_of(toml, ("a", "b")) == line


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("", {}),
        ("store=debug", {"store": "debug"}),
        (" store = debug , kafka=error,", {"store": "debug", "kafka": "error"}),
        ("stor=debug", "expected a component of audit, bridge, "),
        ("store", "expected store= with one of debug, info, warning, error, got 'store'"),
        ("store=loud", "expected store= with one of"),
        ("store=info,store=debug", "store is given twice"),
    ],
)
def test_levels_of_components(text: str, levels: dict[str, str] | str) -> None:
    if isinstance(levels, dict):
        assert component_levels(text) == levels
        return
    with pytest.raises(ConfigError) as caught:
        load(None, {"log.levels": text})
    assert str(caught.value).startswith(f"log.levels: {levels}")


@pytest.mark.parametrize(
    ("toml", "names"),
    [
        ("kafka = 1", "kafka:"),
        ("port = 1", "port:"),
        ("[kafak]\nport = 1", "kafak:"),
        ("[kafka]\nprot = 1", "kafka.prot:"),
        ("[kafka]\nport = '9092'", "kafka.port: expected a whole number, got '9092' (/"),
        ("[kafka]\nport = 65536", "kafka.port:"),
        ("[kafka]\nport = -1", "kafka.port:"),
        ("[kafka]\nport = true", "kafka.port:"),
        ("[store]\nflush = 'perhaps'", "store.flush: expected one of sync, async"),
        ("[store]\ndisk_full_ratio = 1.5", "store.disk_full_ratio:"),
        ("[store]\ndisk_full_ratio = 0.5", "store.disk_resume_ratio: 0.93 is above store.disk_full_ratio, 0.5"),
        ("[groups]\nsession_timeout_min_ms = 9999999999", "groups.session_timeout_min_ms:"),
        ("[kafka]\nport = 7\n[http]\nport = 7", "http.port: 7 is kafka.port, too; each needs a port of its own"),
        ("[rocketmq]\nport = 9876", "rocketmq.namesrv_port: 9876 is rocketmq.port, too"),
        ("[store", "/"),
        ("[store]\nflush = async", "/"),
        ("\xff", "/"),
    ],
)
def test_bad_file_is_one_line_that_names_the_setting(tmp_path: Path, toml: str, names: str) -> None:
    file = tmp_path / "duolog.toml"
    file.write_bytes(toml.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert str(caught.value).startswith(names)
    assert "\n" not in str(caught.value)
    assert ("a text needs quotes" in str(caught.value)) is (toml == "[store]\nflush = async")


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("kafka.port", "x", "kafka.port: expected a whole number, got 'x'"),
        ("kafka.port", "", "kafka.port: expected a whole number, got ''"),
        ("kafka.port", "70000", "kafka.port: expected a whole number <= 65535, got '70000'"),
        ("store.flush", "no", "store.flush: expected one of sync, async, shared, got 'no'"),
        ("topics.auto_create", "perhaps", "topics.auto_create: expected true or false, got 'perhaps'"),
        ("no.such", "1", "no.such: no such setting; `duolog settings` lists them"),
        (
            "server.advertise",
            "broker:9092",
            "server.advertise: expected a host name or address, without a port, got 'broker:9092'",
        ),
        (
            "htpp.port",
            "1",
            "htpp.port: no such setting; did you mean http.port or rocketmq.port or kafka.port? `duolog settings` "
            "lists them",
        ),
        (
            "server.log_level",
            "info",
            "server.log_level: no such setting; did you mean log.level? `duolog settings` lists them",
        ),
        ("kafka", "1", "kafka: no such setting; `duolog settings` lists them"),
    ],
)
def test_bad_override_is_named_with_its_value(key: str, value: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {key: value})
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("url", "endpoint", "reason"),
    [
        ("s3://bucket/prefix", "https://store.example:9000/", ""),
        (
            "s3://bucket/prefix",
            "https://store.example:9000/bucket",
            "without the path 'bucket': the bucket is a part of",
        ),
        ("gs://bucket/prefix", "http://127.0.0.1:4443/storage/v1", "without the path 'storage/v1'"),
        ("az://container/prefix", "http://127.0.0.1:10000/devstoreaccount1", ""),
        ("", "http://127.0.0.1:10000/devstoreaccount1", ""),  # Of `duolog backup az://...`
        ("az://container/prefix", "https://key@store.example", "without user and query"),
        ("az://container/prefix", "https://store.example/account?sig=x", "without user and query"),
        ("az://container/prefix", "store.example", "expected https://host:port"),
    ],
)
def test_an_endpoint_has_a_path_for_azure_alone(url: str, endpoint: str, reason: str) -> None:
    values = {"shared.url": url, "shared.endpoint": endpoint}
    if not reason:
        assert load(None, values).shared.endpoint == endpoint
        return
    with pytest.raises(ConfigError, match=f"^shared.endpoint: .*{re.escape(reason)}"):
        load(None, values)


def test_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^/nonexistent\.toml: No such file or directory$"):
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
