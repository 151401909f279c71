"""Parses the options of the data source "duolog-log", which `spark/log_source.py` describes.

Spark accepts options with any name and converts the names to lower case. This module refuses unknown names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from duolog.protocol.names import kafka_name
from duolog.store.objects.errors import StoreRefused
from duolog.store.objects.options import ObjectStoreOptions, parse_location

NAMES: Final = (
    "http", "token", "topics", "subscribe", "startingOffsets", "endingOffsets", "directory", "splitBytes", "leaseMs",
    "withTimes", "shared", "endpoint", "region",
)  # fmt: skip
SPLIT_BYTES: Final = 64 << 20
SPLIT_BYTES_MIN: Final = 4096  # Smaller ranges would make millions of tasks of a large log.

Offsets = Mapping[str, Mapping[str, int]]  # Topic, in Kafka's spelling -> queue id as text -> offset.


@dataclass(frozen=True, slots=True)
class LogOptions:
    topics: list[str]
    http: str
    token: str
    starting: Offsets
    ending: Offsets
    directory: str  # Empty: the path that the broker returns.
    split_bytes: int
    lease_ms: int | None  # None: the default of the broker.
    with_times: bool
    shared: ObjectStoreOptions | None  # Where segment objects are read; None: the files of the directory are read.


def read_options(options: Mapping[str, str]) -> LogOptions:
    """Parse the options. Raises ValueError, whose message has the option, its value and the expected values."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(given.keys() - {name.lower() for name in NAMES})
    if unknown:
        raise ValueError(f"duolog-log: unknown option {', '.join(unknown)}; the options are {', '.join(NAMES)}")
    if given.get("topics") and given.get("subscribe"):
        raise ValueError("duolog-log: topics and subscribe mean the same; give one of them")
    named = given.get("topics") or given.get("subscribe") or ""
    topics = [kafka_name(topic.strip()) for topic in named.split(",") if topic.strip()]
    if not topics:
        raise ValueError("duolog-log: give the option topics, names separated by commas")
    return LogOptions(
        topics,
        given.get("http", "127.0.0.1:9644"),
        given.get("token", ""),
        _offsets(given, "startingOffsets", topics),
        _offsets(given, "endingOffsets", topics),
        given.get("directory", ""),
        _number(given, "splitBytes", SPLIT_BYTES_MIN) or SPLIT_BYTES,
        _number(given, "leaseMs", 1),
        with_times(options),
        _shared(given),
    )


def _shared(given: Mapping[str, str]) -> ObjectStoreOptions | None:
    url = given.get("shared", "")
    if not url:
        for name in ("endpoint", "region"):
            if given.get(name):
                raise ValueError(f"duolog-log: {name} belongs to the option shared, the URL of the object store")
        return None
    if given.get("directory"):
        raise ValueError("duolog-log: give either shared, to read the object store, or directory, to read files")
    try:
        parse_location(url)
    except StoreRefused as error:
        raise ValueError(f"duolog-log: shared={error}") from None
    return ObjectStoreOptions(url, given.get("endpoint", ""), given.get("region", ""))


def with_times(options: Mapping[str, str]) -> bool:
    """Return the option `withTimes`, the only one on which the schema depends. Raises ValueError."""
    value = {name.lower(): value for name, value in options.items()}.get("withtimes", "false")
    if value.lower() not in ("true", "false"):
        raise ValueError(f"duolog-log: withTimes={value}: expected true or false")
    return value.lower() == "true"


def _number(given: Mapping[str, str], name: str, least: int) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise ValueError(f"duolog-log: {name}={text}: expected a whole number of at least {least}")
    return int(text)


def _offsets(given: Mapping[str, str], name: str, topics: list[str]) -> Offsets:
    text = given.get(name.lower(), "")
    if text in ("", "earliest", "latest"):
        if text == ("latest" if name.startswith("starting") else "earliest"):
            raise ValueError(f"duolog-log: {name}={text} is an empty range")
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not _is_by_queue(found):
        raise ValueError(f'duolog-log: {name}={text[:200]}: expected {{"topic": {{"queue": offset}}}}')
    offsets = {kafka_name(topic): queues for topic, queues in found.items()}
    others = sorted(offsets.keys() - set(topics))
    if others:
        raise ValueError(f"duolog-log: {name} names {', '.join(others)}, and the topics are {', '.join(topics)}")
    return offsets


def _is_by_queue(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(queues, dict)
        and all(queue.isdecimal() and type(offset) is int and offset >= -2 for queue, offset in queues.items())
        for queues in found.values()
    )
