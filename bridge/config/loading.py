"""Loading of settings: config file, environment and command line become checked `Options`.

    defaults  <-  duolog.toml (--config)  <-  DUOLOG_STORE__FLUSH=async  <-  --set KEY=VALUE  <-  flags of `serve`

A value further to the right replaces one further to the left. A key is `section.name`; the file has a table for each
section; a variable has the section and the name in upper case with two underscores between them. `_ms` is milliseconds
or text with a unit (`"7d"`), `_bytes` is bytes or text with a unit (`"256MB"`), `_ratio` is a share between 0 and 1.

The message of an error names the setting, and where it was given if that is a file or a variable:

    kafka.prot: no such setting; did you mean kafka.port? `duolog settings` lists them (duolog.toml, line 2)
"""

import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from duolog.bridge.config.checks import check_together
from duolog.bridge.config.conversion import check_name, from_file, from_text
from duolog.bridge.config.options import SECTIONS, Options
from duolog.bridge.config.section import ConfigError
from duolog.bridge.config.source_lines import line_of

PREFIX: Final = "DUOLOG_"
SEPARATOR: Final = "__"  # A variable without it, such as DUOLOG_HTTP, is not a setting.
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

Source = Literal["default", "file", "environment", "command line"]


class Loaded(NamedTuple):
    """The settings, and the source of each value that is not a default, by dotted name."""

    options: Options
    sources: dict[str, Source]


def load(file: Path | None, overrides: Mapping[str, str | int], environment: Mapping[str, str] = NOTHING) -> Options:
    """Return the settings of a file, if there is one, the environment and the command line. Raises ConfigError.

    `overrides` are the values of the command line by dotted name.
    """
    return load_with_sources(file, overrides, environment).options


def load_with_sources(
    file: Path | None, overrides: Mapping[str, str | int], environment: Mapping[str, str] = NOTHING
) -> Loaded:
    """Return the settings as `load` does, with their sources. Raises ConfigError."""
    values = _Values(file, overrides, environment)
    if values.errors:
        raise ConfigError(values.errors[0])
    return Loaded(values.options(), values.sources)


def errors_of(file: Path, environment: Mapping[str, str] = NOTHING) -> list[str]:
    """Return all errors of a config file with the environment, a line each; empty: a broker would start with them."""
    try:
        values = _Values(file, {}, environment)
        if not values.errors:
            values.options()
    except ConfigError as error:
        return [str(error)]
    return values.errors


def parse_override(text: str) -> tuple[str, str]:
    """Split the argument `KEY=VALUE` of `--set`. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: expected KEY=VALUE")
    check_name(key.strip())
    return key.strip(), value.strip()


class _Values:
    """The converted values of all sources, and the errors in them. Raises ConfigError if the file is not TOML."""

    def __init__(self, file: Path | None, overrides: Mapping[str, str | int], environment: Mapping[str, str]) -> None:
        self.errors: list[str] = []
        self.sources: dict[str, Source] = {}
        self._values: dict[str, Any] = {}
        self._places: dict[str, Callable[[], str]] = {}  # Where a value was given, for errors in it.
        if file is not None:
            self._add_file(file)
        for name, text in sorted(environment.items()):
            if name.startswith(PREFIX) and SEPARATOR in name:
                self._add_variable(name, text)
        for key, value in overrides.items():
            self._add(key, partial(from_text, key, str(value)), "command line", str)

    def options(self) -> Options:
        """Return the settings. Raises ConfigError if values do not go together."""
        tables: dict[str, dict[str, Any]] = {}
        for key, value in self._values.items():
            section, _, name = key.partition(".")
            tables.setdefault(section, {})[name] = value
        options = msgspec.convert(tables, Options)
        try:
            check_together(options)
        except ConfigError as error:
            key = str(error).partition(":")[0]
            raise ConfigError(f"{error}{self._places.get(key, str)()}") from error
        return options

    def _add_file(self, file: Path) -> None:
        text, document = _read(file)

        def place(*keys: str) -> Callable[[], str]:
            return lambda: f" ({file}, line {line_of(text, keys)})"

        for section, table in document.items():
            if section not in SECTIONS:
                self._refuse(section, place(section))
            elif not isinstance(table, dict):
                self.errors.append(f"{section}: expected a table of settings{place(section)()}")
            else:
                for name, value in table.items():
                    key = f"{section}.{name}"
                    self._add(key, partial(from_file, key, value), "file", place(section, name))

    def _add_variable(self, name: str, text: str) -> None:
        key = name.removeprefix(PREFIX).lower().replace(SEPARATOR, ".", 1)
        self._add(key, partial(from_text, key, text), "environment", lambda: f" ({name})")

    def _add(self, key: str, convert: Callable[[], Any], source: Source, place: Callable[[], str]) -> None:
        try:
            self._values[key] = convert()
        except ConfigError as error:
            self.errors.append(f"{error}{place()}")
        else:
            self.sources[key], self._places[key] = source, place

    def _refuse(self, key: str, place: Callable[[], str]) -> None:
        try:
            check_name(key)
        except ConfigError as error:
            self.errors.append(f"{error}{place()}")


def _read(file: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a config file and its tables. Raises ConfigError."""
    try:
        text = file.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = '; a text needs quotes: name = "value"' if str(error).startswith("Invalid value") else ""
        raise ConfigError(f"{file}: {error}{hint}") from error
