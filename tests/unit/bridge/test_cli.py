"""The command line: everything that a user can get wrong ends with its status and one line on standard error."""

import re
from pathlib import Path

import pytest

from bridge.cli import JOBS, main


def run(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("serve --nonsense", "No such option: --nonsense"),
        ("serve --kafka-port x", "kafka.port: expected `int`, got 'x'"),
        ("serve --http-port 99999", "http.port: expected `int` <= 65535, got '99999'"),
        ("serve --set store.flush=perhaps", "store.flush: expected one of sync, async, got 'perhaps'"),
        ("serve --set no.such=1", "no.such: no such setting; `duolog settings` lists them"),
        ("serve --set store.flush", "--set store.flush: expected KEY=VALUE"),
        ("serve --config /nonexistent.toml", "--config /nonexistent.toml: No such file or directory"),
        ("serve surplus", "Got unexpected extra argument(s) (surplus)"),
        ("nonsense", "No such command 'nonsense'."),
        ("topic", "Missing command."),
        ("topic create", "Missing argument 'name'."),
        ("topic create t --config x", "--config x: expected KEY=VALUE"),
        ("txn commit orders", "expected TOPIC ID or TOPIC/ID, got 'orders' alone"),
        ("timer add t v", "Invalid value: expected either --in or --at"),
        ("timer add t v --in -5s", "Invalid value: --in: expected a number with ms, s, m, h or d, got '-5s'"),
        (
            "timer add t v --at soon",
            "Invalid value: --at: expected a moment like 2030-01-31T08:00:00+01:00, got 'soon'",
        ),
        ("timer list --key k", "Invalid value: --key needs --topic"),
        ("timer list --limit 0", "Invalid value for '--limit': Input should be greater than or equal to 1"),
        ("timer list --limit 5000", "Invalid value for '--limit': Input should be less than or equal to 1000"),
        (
            "timer list --from 2030-02-01 --until 2030-01-01",
            "Invalid value: --until 2030-01-01 is not after --from 2030-02-01",
        ),
        ("timer histogram --bins 0", "Invalid value for '--bins': Input should be greater than or equal to 1"),
        ("timer histogram --from 9 --until 9", "Invalid value: --until 9 is not after --from 9"),
        ("schedule add s t v", "Invalid value: expected either --every or --cron"),
        ("schedule add s t v --cron @daily --start 2030-01-01", "Invalid value: --start goes with --every"),
        ("schedule add s t v --every 10s --zone UTC", "Invalid value: --zone goes with --cron"),
        ("topic list --http nowhere", "Invalid value: --http: expected HOST:PORT, got 'nowhere'"),
    ],
)
def test_bad_command_line_is_one_line_with_status_2(
    arguments: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, capsys) == (2, "", f"duolog: {line}\n")


def test_broker_that_is_not_there_is_one_line_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run("topic list --http 127.0.0.1:1", capsys)
    assert (status, out) == (1, "")
    assert err.startswith("duolog: no broker answers on 127.0.0.1:1: ")
    assert err.count("\n") == 1


def test_jobs_named_without_pyspark_are_those_of_the_pipeline() -> None:
    source = (Path(__file__).parents[3] / "spark" / "commands.py").read_text()
    assert re.findall(r"^@app\.command\(.*\)\ndef (\w+)", source, re.MULTILINE) == list(JOBS)


def test_settings_and_version_need_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("settings", capsys)
    assert (status, "store.flush" in out) == (0, True)
    status, out, _ = run("version", capsys)
    assert (status, out.startswith("duolog ")) == (0, True)


def test_flags_of_serve_are_those_that_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("serve --help", capsys)
    flags = {word for word in out.split() if word.startswith("--")}
    assert status == 0
    assert flags >= {
        "--config",
        "--data",
        "--host",
        "--advertise",
        "--kafka-port",
        "--rocketmq-port",
        "--namesrv-port",
        "--http-port",
        "--set",
    }
