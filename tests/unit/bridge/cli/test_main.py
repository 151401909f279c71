"""The command line: each mistake of a user ends with its exit status and one line on standard error."""

import ast
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from duolog.bridge.cli.commands import JOBS
from duolog.bridge.cli.common import moved_behind, show_table
from duolog.bridge.cli.main import main, program
from duolog.bridge.cli.timers import _tell
from tests.kit.command import DUOLOG


@pytest.fixture(autouse=True)
def _handlers_of_signals_are_restored() -> Iterator[None]:
    """`serve` sets signal handlers before it reads its settings, and here it runs in the process of the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("serve --nonsense", "No such option: --nonsense"),
        ("serve --kafka-port x", "kafka.port: expected a whole number, got 'x'"),
        ("serve --http-port 99999", "http.port: expected a whole number <= 65535, got '99999'"),
        ("serve --set store.flush=perhaps", "store.flush: expected one of sync, async, shared, got 'perhaps'"),
        ("serve --set no.such=1", "no.such: no such setting; `duolog settings` lists them"),
        ("serve --set store.flush", "--set store.flush: expected KEY=VALUE"),
        ("serve --config /nonexistent.toml", "/nonexistent.toml: No such file or directory"),
        ("serve surplus", "Got unexpected extra argument(s) (surplus)"),
        ("nonsense", "No such command 'nonsense'."),
        (
            "topic create t --config retention.ms=7x",
            "--config retention.ms: expected an integer or a number with ms, s, m, h, d or w, got '7x'",
        ),
        ("topic create", "Missing argument 'name'."),
        ("topic create t --config x", "--config x: expected KEY=VALUE"),
        (
            "--http nowhere topic list",
            "Invalid value: --http: expected HOST:PORT, or https://HOST:PORT for TLS, got 'nowhere'",
        ),
        ("serve --set flush=async", "flush: no such setting; did you mean store.flush? `duolog settings` lists them"),
        (
            "serve --set retention.ms=7y",
            "retention.ms: expected a whole number or a number with ms, s, m, h, d or w, got '7y'",
        ),
        ("timer now", "Invalid value: expected either an ID, or --topic and --key"),
        ("group reset g", "Invalid value: expected one of --to, --to-time, --to-offset"),
        ("group reset g --to middle", "Invalid value: --to: expected earliest or latest, got 'middle'"),
        ("produce t v --in 1s --at 2030-01-01", "Invalid value: expected one of --in, --at"),
        ("produce t v --header x", "--header x: expected NAME=VALUE"),
        ("consume t --offset 3", "Invalid value: --offset needs --queue"),
        (
            "consume t --tail 3 --from-beginning",
            "Invalid value: expected one of --from-beginning, --offset, --tail, --from-time",
        ),
        (
            "consume t --timeout soon",
            "Invalid value: --timeout: expected a number with ms, s, m, h, d or w, got 'soon'",
        ),
        ("message show a b", "Invalid value: expected TOPIC QUEUE OFFSET, TOPIC/QUEUE/OFFSET or an ID, got 'a b'"),
        ("txn commit orders", "expected TOPIC ID or TOPIC/ID, got 'orders' alone"),
        ("timer add t v", "Invalid value: expected either --in or --at"),
        ("timer add t v --in -5s", "Invalid value: --in: expected a number with ms, s, m, h, d or w, got '-5s'"),
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
        (
            "topic list --http nowhere",
            "Invalid value: --http: expected HOST:PORT, or https://HOST:PORT for TLS, got 'nowhere'",
        ),
        (
            "topic list --http ftp://a:9644",
            "Invalid value: --http: expected HOST:PORT, or https://HOST:PORT for TLS, got 'ftp://a:9644'",
        ),
        (
            "topic list --http a:99999",
            "Invalid value: --http: expected HOST:PORT, or https://HOST:PORT for TLS, got 'a:99999'",
        ),
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


def test_port_that_closes_the_connection_is_said_to_be_another(capsys: pytest.CaptureFixture[str]) -> None:
    """As the broker's Kafka port does with a request of HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_first() -> None:
            connection, _ = server.accept()
            connection.recv(1024)
            connection.close()

        closing = threading.Thread(target=close_first)
        closing.start()
        status, out, err = run(f"topic list --http 127.0.0.1:{server.getsockname()[1]}", capsys)
        closing.join()
    assert (status, out) == (1, "")
    assert re.fullmatch(
        r"duolog: 127\.0\.0\.1:\d+ has closed the connection without an answer: it is not the HTTP port of a Duolog "
        r"broker, or the broker is stopping, or requires TLS \(--http names its HTTP port, with https:// for TLS\)\n",
        err,
    )


def test_jobs_named_without_pyspark_are_those_of_the_pipeline() -> None:
    tree = ast.parse((Path(__file__).parents[4] / "spark" / "commands.py").read_text())
    jobs = [
        each
        for each in tree.body
        if isinstance(each, ast.FunctionDef) and any("app.command" in ast.unparse(name) for name in each.decorator_list)
    ]
    assert [job.name for job in jobs] == list(JOBS)
    assert all("as_json: AsJson" in ast.unparse(job.args) for job in jobs)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("topic list", "topic list"),
        ("--http a:1 topic list", "topic list --http a:1"),
        ("topic --http a:1 list --all", "topic list --all --http a:1"),
        ("--url=a:1 --json topic list", "topic list --url=a:1 --json"),
        ("topic list --http a:1", "topic list --http a:1"),
        ("--http a:1 produce t -- --json", "produce t --http a:1 -- --json"),
        ("--json status", "status --json"),
        ("serve --http-port 5", "serve --http-port 5"),
        ("pipeline run archive --http a:1", "pipeline run archive --http a:1"),
        ("--version", "--version"),
        ("--http", "--http"),
        ("", ""),
    ],
)
def test_global_options_may_stand_before_the_command(typed: str, read: str) -> None:
    assert moved_behind(typed.split()) == read.split()


def test_table_has_one_row_a_line_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    name = "n" * 249
    show_table(("topic", "records"), [[name, 5], ["a\nb\x1b[31m", 12345]])
    out, _ = capsys.readouterr()
    heads, _, first, second = out.splitlines()
    assert (first.split(), second.split()) == ([name, "5"], ["a\\nb\\x1b[31m", "12345"])
    assert len(heads) == len(first) == len(second)


@pytest.mark.parametrize(
    "arguments", ["-h", "--help", "topic -h", "topic list -h", "consume -h", "serve -h", "topic", ""]
)
def test_help_has_a_short_form_and_answers_a_group_without_a_command(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(arguments, capsys)
    assert (status, out.startswith("Usage: duolog"), err) == (0, True, "")


WITHOUT_JSON = {("pipeline", "run")}  # It hands all options to the job; each job has --json.


def test_every_command_can_print_json_and_names_its_broker() -> None:
    command = typer.main.get_command(program())
    without = set()
    for group_name, group in command.commands.items():
        for name, each in getattr(group, "commands", {group_name: group}).items():
            options = {option for parameter in each.params for option in parameter.opts}
            if "--json" not in options:
                without.add((group_name, name) if group is not each else (name,))
            without_http = ("serve", "settings", "version", "pipeline", "log", "dashboard", "restore", "move", "doctor")
            if group_name not in without_http and name != "check":
                assert {"--http", "--url"} <= options, (group_name, name)
    assert without == WITHOUT_JSON


@pytest.mark.slow
def test_shell_completion_names_commands_and_options() -> None:
    def completed(words: str) -> set[str]:
        variables = {
            "_DUOLOG_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        return set(subprocess.check_output(DUOLOG, env=os.environ | variables, text=True, timeout=30).split())

    assert {"topic", "produce"} <= completed("duolog ")
    assert {"list", "describe"} <= completed("duolog topic ")
    assert {"--all", "--http", "--json"} <= completed("duolog topic list --")


def test_settings_and_version_need_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version", capsys) == run("version", capsys)
    assert json.loads(run("settings --json", capsys)[1])[0]["name"] == "server.host"
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


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("cancelled", "it was cancelled before"),
        ("delivered", "it was delivered before"),
        ("not_found", "no pending message has this id or key; `duolog timer list` lists pending messages"),
    ],
)
def test_outcome_that_was_not_asked_for_says_so(outcome: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        _tell({"outcome": outcome, "messages": 0}, "rescheduled", as_json=False)
    out, err = capsys.readouterr()
    assert (out, err) == (f"{outcome.replace('_', ' ')}\n", f"duolog: not rescheduled: {said}\n")
