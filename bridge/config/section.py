"""The base of all sections of settings: `Section`, and `setting`, which describes one setting."""

import msgspec
from msgspec import Meta

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000


class ConfigError(Exception):
    """A setting is unknown or has an invalid value; the message is one line and names the setting."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A section of the settings, which is a table of the config file."""


def setting(
    doc: str,
    *,
    kafka: str = "",
    rocketmq: str = "",
    ge: float | None = None,
    le: float | None = None,
    is_secret: bool = False,
) -> Meta:
    """Describe a setting in one line, with its limits and its names in Apache Kafka and Apache RocketMQ.

    The value of a secret setting is not shown by `duolog config show`.
    """
    return Meta(description=doc, ge=ge, le=le, extra={"kafka": kafka, "rocketmq": rocketmq, "is_secret": is_secret})
