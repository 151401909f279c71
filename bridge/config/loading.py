"""Loading of settings: the config file, `--set` and flags become checked `Options`.

    defaults  <-  duolog.toml (--config)  <-  --set KEY=VALUE  <-  flags of `duolog serve`

A value further to the right replaces one further to the left. A key is `section.name`; the file has a table for each
section. `_ms` is milliseconds or text with a unit (`"7d"`), `_bytes` is bytes or text with a unit (`"256MB"`), `_ratio`
is a share between 0 and 1. An unknown name or an invalid value raises `ConfigError`, whose message names the setting.
"""

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from duolog.bridge.config.checks import check_together
from duolog.bridge.config.options import SECTIONS, Options, field_types, settings
from duolog.bridge.config.section import ConfigError
from duolog.bridge.config.units import expected_of, without_unit

SIMILARITY: Final = 0.8  # Of `difflib`: names that are less similar to an unknown one are not suggested.


def load(file: Path | None, overrides: Mapping[str, str | int]) -> Options:
    """Load the file, if there is one, and replace its values by `overrides`, by dotted name. Raises ConfigError."""
    document = _without_units(_read(file)) if file is not None else {}
    for key, value in overrides.items():
        section, name = _split(key)
        table = document.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{section}: expected a table of settings")
        table[name] = _convert(key, value, field_types(section)[name])
    try:
        options = msgspec.convert(document, Options)
    except msgspec.ValidationError as error:
        # `_convert` has reported errors in overrides before.
        raise ConfigError(f"{_one_line(error, document)} (--config {file})") from error
    check_together(options)
    return options


def parse_override(text: str) -> tuple[str, str]:
    """Split the argument `KEY=VALUE` of `--set`. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: expected KEY=VALUE")
    _split(key.strip())
    return key.strip(), value.strip()


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file}: {error}") from error


def _split(key: str) -> tuple[str, str]:
    section, _, name = key.partition(".")
    if section not in SECTIONS or name not in field_types(section):
        raise ConfigError(f"{key}: {_unknown(key)}")
    return section, name


def _convert(key: str, value: str | int, field_type: Any) -> Any:
    """Convert the text of a flag to the type of the setting: "10" to a number, "true" to a boolean."""
    try:
        return msgspec.convert(without_unit(key, str(value)), field_type, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{key}: {_problem(key, str(error), field_type)}, got {str(value)!r}") from error


def _without_units(document: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of the file, with values such as "7d" converted to numbers."""
    return {
        section: {name: _number(f"{section}.{name}", value) for name, value in table.items()}
        if isinstance(table, dict)
        else table
        for section, table in document.items()
    }


def _number(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    read = without_unit(key, value)
    return int(read) if read != value and _is_number(key) else value


def _is_number(key: str) -> bool:
    section, _, name = key.partition(".")
    return section in SECTIONS and get_args(field_types(section).get(name, str))[:1] == (int,)


def _one_line(error: msgspec.ValidationError, document: Mapping[str, Any]) -> str:
    """Turn "Expected `int`, got `str` - at `$.kafka.port`" into "kafka.port: expected `int`, got `str`"."""
    found = re.fullmatch(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", str(error), re.DOTALL)
    assert found is not None
    problem, place = found[1], found[2] or ""
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem)
    if unknown:
        key = ".".join(filter(None, (place, unknown[1])))
        return f"{key}: {_unknown(key)}"
    section, _, name = place.partition(".")
    if not name:
        return f"{section or 'config'}: expected a table of settings"
    return f"{place}: {_problem(place, problem, field_types(section)[name])}, got {document[section][name]!r}"


def _unknown(key: str) -> str:
    """Return an error text for an unknown setting, with settings of a similar name."""
    names = [row.name for row in settings()]
    last = key.rpartition(".")[2]
    same = [name for name in names if name.partition(".")[2] == last]
    near = (
        same
        or get_close_matches(key, [*names, *SECTIONS], 3, SIMILARITY)
        or get_close_matches(key, _lasts(names), 1, SIMILARITY)
        or [name for name in names if last in name.partition(".")[2].split("_")]
    )
    meant = [name for name in names if name.partition(".")[2] in near] or [name for name in near if name != key]
    hint = f"did you mean {' or '.join(meant[:3])}? " if meant else ""
    return f"no such setting; {hint}`duolog settings` lists them"


def _lasts(names: list[str]) -> list[str]:
    return [name.partition(".")[2] for name in names]


def _problem(key: str, problem: str, field_type: Any) -> str:
    choices = get_args(get_args(field_type)[0])
    if choices:
        return f"expected one of {', '.join(choices)}"
    expected = problem.partition(", got")[0]
    unit = expected_of(key) if "`int`" in expected and "=" not in expected else ""
    return expected[:1].lower() + expected[1:] + (f" or {unit}" if unit else "")
