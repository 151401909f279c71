"""`Options`, which has all sections of settings, and the list that `duolog settings` and the reference page show."""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import Meta

from duolog.bridge.config.delivery import DelayOptions, TxnOptions
from duolog.bridge.config.log import LoggingOptions
from duolog.bridge.config.ports import (
    ConvertOptions,
    HooksOptions,
    HttpOptions,
    KafkaOptions,
    LimitsOptions,
    RocketmqOptions,
    ServerOptions,
)
from duolog.bridge.config.section import Section
from duolog.bridge.config.storage import GroupsOptions, LeasesOptions, RetentionOptions, StoreSection, TopicsOptions


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings, by section."""

    server: ServerOptions = ServerOptions()
    log: LoggingOptions = LoggingOptions()
    store: StoreSection = StoreSection()
    topics: TopicsOptions = TopicsOptions()
    retention: RetentionOptions = RetentionOptions()
    groups: GroupsOptions = GroupsOptions()
    kafka: KafkaOptions = KafkaOptions()
    rocketmq: RocketmqOptions = RocketmqOptions()
    http: HttpOptions = HttpOptions()
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
