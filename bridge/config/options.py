"""`Options`, which has all sections of settings, and the list that `duolog settings` and the reference page show."""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import Meta

from duolog.bridge.config.delivery import ConvertOptions, DelayOptions, TxnOptions
from duolog.bridge.config.log import LoggingOptions, TracingOptions
from duolog.bridge.config.ports import (
    HooksOptions,
    HttpOptions,
    KafkaOptions,
    LimitsOptions,
    RocketmqOptions,
    ServerOptions,
    TlsOptions,
)
from duolog.bridge.config.section import Section
from duolog.bridge.config.security import SecurityOptions
from duolog.bridge.config.storage import (
    ClusterSection,
    GroupsOptions,
    LeasesOptions,
    RetentionOptions,
    SharedSection,
    StoreSection,
    TopicsOptions,
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings, by section.

    The class has more than 15 fields because each is a section of the configuration file.
    """

    server: ServerOptions = ServerOptions()
    tls: TlsOptions = TlsOptions()
    log: LoggingOptions = LoggingOptions()
    tracing: TracingOptions = TracingOptions()
    store: StoreSection = StoreSection()
    shared: SharedSection = SharedSection()
    cluster: ClusterSection = ClusterSection()
    topics: TopicsOptions = TopicsOptions()
    retention: RetentionOptions = RetentionOptions()
    groups: GroupsOptions = GroupsOptions()
    kafka: KafkaOptions = KafkaOptions()
    rocketmq: RocketmqOptions = RocketmqOptions()
    http: HttpOptions = HttpOptions()
    security: SecurityOptions = SecurityOptions()
    leases: LeasesOptions = LeasesOptions()
    hooks: HooksOptions = HooksOptions()
    limits: LimitsOptions = LimitsOptions()
    convert: ConvertOptions = ConvertOptions()
    delay: DelayOptions = DelayOptions()
    txn: TxnOptions = TxnOptions()


SECTIONS: dict[str, type[Section]] = {field.name: field.type for field in msgspec.structs.fields(Options)}


def field_types(section: str) -> dict[str, Any]:
    """Return the type of each setting of a section, annotated with its description."""
    return {field.name: field.type for field in msgspec.structs.fields(SECTIONS[section])}


# -- Listing


class Setting(NamedTuple):
    """One row of docs/reference/settings.md."""

    name: str
    default: str
    doc: str
    kafka: str
    rocketmq: str
    is_secret: bool


def settings() -> Iterator[Setting]:
    """List all settings in the order of the sections."""
    for section_name, section in SECTIONS.items():
        for field in msgspec.structs.fields(section):
            meta = next(arg for arg in get_args(field.type)[1:] if isinstance(arg, Meta))
            extra = meta.extra or {}
            yield Setting(
                f"{section_name}.{field.name}",
                _shown(field.default),
                meta.description or "",
                extra["kafka"],
                extra["rocketmq"],
                extra["is_secret"],
            )


def values(options: Options) -> Iterator[tuple[str, Any]]:
    """Yield each setting's dotted name and its value."""
    for section_name in SECTIONS:
        section = getattr(options, section_name)
        for name in section.__struct_fields__:
            yield f"{section_name}.{name}", getattr(section, name)


def _shown(default: Any) -> str:
    return {True: "true", False: "false"}[default] if isinstance(default, bool) else str(default)
