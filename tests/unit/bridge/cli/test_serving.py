"""Plain options of `duolog serve` are read without typer, with the same result as by typer, which reads all others."""

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from duolog.bridge.cli.main import program
from duolog.bridge.cli.serving import SETTING_OF_OPTION, plain_options

ALL = [f"{option}={number}" for number, option in enumerate(SETTING_OF_OPTION)]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--json"],
        ["--data", "a b", "--kafka-port=0", "--host", ""],
        ["--data", "first", "--data", "second"],
        ["--config", "duolog.toml", "--set", "store.flush=async", "--set=a=b=c", "--json"],
        ["--set", "--http-port=7"],
        [*ALL, "--config=c", "--set", "x=y"],
    ],
)
def test_plain_options_are_those_that_typer_reads(arguments: list[str]) -> None:
    command: Any = get_command(program()).commands["serve"]  # type: ignore[attr-defined]
    read = command.make_context("serve", list(arguments)).params
    plain = plain_options(arguments)
    if plain is None:
        assert any(value.startswith("-") for value in read["settings"])
        return
    assert (plain.config, [*plain.settings], plain.as_json) == (read["config"], read["settings"] or [], read["as_json"])
    by_parameter = {parameter.opts[0]: read[parameter.name] for parameter in command.params if parameter.name in read}
    assert plain.by_option == {name: by_parameter[name] for name in SETTING_OF_OPTION if by_parameter[name] is not None}


def test_typer_knows_no_other_option() -> None:
    command: Any = get_command(program()).commands["serve"]  # type: ignore[attr-defined]
    options = {parameter.opts[0] for parameter in command.params} - {"-h", "--help"}
    assert options == {*SETTING_OF_OPTION, "--config", "--set", "--json"}


@pytest.mark.parametrize(
    "arguments",
    [["-h"], ["--help"], ["--data"], ["--data", "-x"], ["--json=1"], ["--kafka", "1"], ["surplus"], ["--", "a"]],
)
def test_all_else_is_left_to_typer(arguments: list[str]) -> None:
    assert plain_options(arguments) is None


@pytest.mark.slow
def test_a_broker_loads_no_command_and_no_typer() -> None:
    unwanted = ("duolog.bridge.cli.commands", "duolog.bridge.cli.common", "typer", "pydantic")
    code = (
        "import sys, duolog.bridge.cli.main, duolog.bridge.running.process, duolog.bridge.running.shared_broker;"
        f"print([name for name in {unwanted} if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"
