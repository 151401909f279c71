"""Settings of log lines (format, least severity, least severity by component) and of tracing."""

import re
from typing import Annotated, Final, Literal, get_args

import msgspec

from duolog.bridge.config.section import ConfigError, Section, setting

Level = Literal["debug", "info", "warning", "error"]
LEVELS: Final = get_args(Level)
# A component is the folder whose code writes the line; `bridge` is the code of `bridge/` that is in no folder of these.
COMPONENTS: Final = (
    "audit",
    "bridge",
    "cluster",
    "data",
    "delay",
    "hooks",
    "http",
    "kafka",
    "net",
    "rocketmq",
    "security",
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


def with_level(options: LoggingOptions, component: str | None, level: str | None) -> LoggingOptions:
    """Return the settings with another least severity of a component, which has none of its own if `level` is None.

    `component` None stands for all components that have none of their own. Raises ConfigError.
    """
    if level is not None and level not in LEVELS:
        raise ConfigError(f"level: expected one of {', '.join(LEVELS)}, got {level!r}")
    if component is None:
        if level is None:
            raise ConfigError(f"level: expected one of {', '.join(LEVELS)}, because it is that of all components")
        return msgspec.structs.replace(options, level=level)
    if component not in COMPONENTS:
        raise ConfigError(f"component: expected one of {', '.join(COMPONENTS)}, got {component!r}")
    levels = component_levels(options.levels)
    levels.pop(component, None)
    if level is not None:
        levels[component] = level
    return msgspec.structs.replace(options, levels=",".join(f"{name}={each}" for name, each in sorted(levels.items())))


class TracingOptions(Section, frozen=True):
    """Spans of messages with a `traceparent`, exported by OTLP. It needs the extra `tracing`: `duolog[tracing]`."""

    endpoint: Annotated[
        str, setting("URL to which spans are sent by OTLP over HTTP, `http://127.0.0.1:4318/v1/traces`; empty: off")
    ] = ""
    headers: Annotated[
        str,
        setting("HTTP headers for the collector, `name=value` separated by commas, such as tokens", is_secret=True),
    ] = ""
    ratio: Annotated[
        float, setting("share of the sampled traces that is exported; the trace id decides", ge=0, le=1)
    ] = 1.0
    service_name: Annotated[str, setting("`service.name` of the spans")] = "duolog"
    queue_max: Annotated[int, setting("spans that wait for their export; further spans are dropped", ge=1)] = 10_000
    remembered_max: Annotated[
        int, setting("traced messages of which the reads are traced; the oldest are forgotten first", ge=1)
    ] = 100_000
    timeout_ms: Annotated[int, setting("longest time for one request to the collector", ge=1)] = 10_000


def collector_headers(text: str) -> dict[str, str]:
    """Parse `tracing.headers`. Raises ConfigError, which does not contain the values."""
    found: dict[str, str] = {}
    for number, each in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        name, sign, value = map(str.strip, each.partition("="))
        if not sign or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not value.isprintable():
            raise ConfigError(f"tracing.headers: expected name=value,name=value; number {number} is not")
        found[name] = value
    return found


def check_endpoint(url: str) -> None:
    """Check `tracing.endpoint`. Raises ConfigError."""
    if url and not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
        raise ConfigError(f"tracing.endpoint: expected a URL, http://host:4318/v1/traces, got {url!r}")


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
