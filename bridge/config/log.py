"""Settings of the log: format, least severity, least severity by component."""

from typing import Annotated, Final, Literal, get_args

from duolog.bridge.config.section import ConfigError, Section, setting

Level = Literal["debug", "info", "warning", "error"]
LEVELS: Final = get_args(Level)
# A component is the folder whose code writes the line; `bridge` is the code of `bridge/` that is in no folder of these.
COMPONENTS: Final = (
    "bridge",
    "data",
    "delay",
    "hooks",
    "http",
    "kafka",
    "net",
    "rocketmq",
    "state",
    "store",
    "transactions",
)


class LoggingOptions(Section, frozen=True):
    """Lines that the broker writes to standard error."""

    format: Annotated[
        Literal["text", "json"], setting("`text` is for people; `json` writes one JSON object a line")
    ] = "text"
    level: Annotated[Level, setting("least severity that is written")] = "info"
    levels: Annotated[
        str,
        setting(f"least severity by component, `store=debug,kafka=error`; components are {', '.join(COMPONENTS)}"),
    ] = ""


def component_levels(text: str) -> dict[str, str]:
    """Parse `log.levels`: return the least severity of each component that it names. Raises ConfigError."""
    found: dict[str, str] = {}
    for each in filter(None, map(str.strip, text.split(","))):
        component, _, level = map(str.strip, each.partition("="))
        if component not in COMPONENTS:
            raise ConfigError(f"log.levels: expected a component of {', '.join(COMPONENTS)}, got {component!r}")
        if level not in LEVELS:
            raise ConfigError(f"log.levels: expected {component}= with one of {', '.join(LEVELS)}, got {each!r}")
        if component in found:
            raise ConfigError(f"log.levels: {component} is given twice")
        found[component] = level
    return found
