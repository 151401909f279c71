"""The settings in force, each with its source, for `duolog config show` and `GET /api/settings`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from duolog.bridge.config.loading import Loaded
from duolog.bridge.config.log import LoggingOptions
from duolog.bridge.config.options import Options, settings, values

HIDDEN = "(hidden)"  # Instead of the value of a secret setting.
RUN_TIME = "run time"  # The source of a value that a command gave to the running broker, until the next reload.


class Effective(NamedTuple):
    """One setting: its value, its default as text, and where the value comes from."""

    name: str
    value: Any
    default: str
    source: str


class SettingsInForce:
    """The settings of a running broker: those that it started with, and those that were changed since then."""

    def __init__(self, options: Options, sources: Mapping[str, str] | None = None) -> None:
        self._values = dict(values(options))
        self._sources = dict(sources or {})

    def changed(self, options: Options) -> list[str]:
        """Return the names of the settings whose values in `options` are not those in force."""
        return [name for name, value in values(options) if value != self._values[name]]

    def take(self, loaded: Loaded, names: tuple[str, ...]) -> None:
        """Put the loaded values of these settings in force."""
        self._values |= {name: value for name, value in values(loaded.options) if name in names}
        for name in names:
            self._sources[name] = loaded.sources.get(name, "default")

    @property
    def log(self) -> LoggingOptions:
        """The settings of log lines."""
        return LoggingOptions(**{name: self._values[f"log.{name}"] for name in LoggingOptions.__struct_fields__})

    def set_log(self, options: LoggingOptions) -> None:
        """Put settings of log lines in force that were given to the running broker."""
        for name in LoggingOptions.__struct_fields__:
            value = getattr(options, name)
            if value != self._values[f"log.{name}"]:
                self._values[f"log.{name}"] = value
                self._sources[f"log.{name}"] = RUN_TIME

    def rows(self) -> list[Effective]:
        """Return all settings in the order of the sections; secret values are hidden."""
        return [
            Effective(
                row.name,
                HIDDEN if row.is_secret and str(self._values[row.name]) != row.default else self._values[row.name],
                row.default,
                self._sources.get(row.name, "default"),
            )
            for row in settings()
        ]
