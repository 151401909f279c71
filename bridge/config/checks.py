"""Checks of settings that a type cannot express, and parsers of settings that contain a list."""

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from duolog.bridge.config.log import check_endpoint, collector_headers, component_levels
from duolog.bridge.config.options import Options
from duolog.bridge.config.ports import TlsOptions
from duolog.bridge.config.section import ConfigError
from duolog.bridge.config.security import SecurityOptions
from duolog.bridge.config.storage import SharedSection
from duolog.bridge.config.units import UNITS_MS
from duolog.delay.recurring import BadSchedule, Cron
from duolog.store.objects.errors import StoreRefused
from duolog.store.objects.options import parse_location

ALL_FIELDS: Final = "*"
CACHED_SEGMENTS_MIN: Final = 4
DELAY_LEVELS_MAX = 128  # Each level is a queue of `SCHEDULE_TOPIC_XXXX`.


def check_together(options: Options) -> None:
    """Check single values and pairs of settings that types cannot check. Raises ConfigError."""
    _check_advertised(options.server.advertise)
    component_levels(options.log.levels)
    check_endpoint(options.tracing.endpoint)
    collector_headers(options.tracing.headers)
    name_servers(options.rocketmq.join_namesrv)
    if options.txn.check_urls:
        _check_urls(options.txn.check_urls)
    _check_tls(options.tls)
    _check_token_keys(options.security)
    _check_ports(options)
    level_delays_ms(options.delay.levels)
    mask_rules(options.http.masks)
    _check_zone(options.delay.time_zone)
    store, groups, topics = options.store, options.groups, options.topics
    _check_shared(options.shared, store.flush)
    _check_cache(options.shared.cache_bytes, store.segment_bytes)
    for low, high, low_name, high_name in (
        (store.disk_resume_ratio, store.disk_full_ratio, "store.disk_resume_ratio", "store.disk_full_ratio"),
        (
            groups.session_timeout_min_ms,
            groups.session_timeout_max_ms,
            "groups.session_timeout_min_ms",
            "groups.session_timeout_max_ms",
        ),
        (topics.queues, topics.queues_max, "topics.queues", "topics.queues_max"),
    ):
        if low > high:
            raise ConfigError(f"{low_name}: {low} is above {high_name}, {high}")


def _check_ports(options: Options) -> None:
    """Each protocol needs a port of its own; 0 is another free port each time."""
    rocketmq, taken = options.rocketmq, dict[int, str]()
    for name, port in (
        ("kafka.port", options.kafka.port),
        ("rocketmq.port", rocketmq.port),
        ("rocketmq.namesrv_port", rocketmq.namesrv_port),
        ("http.port", options.http.port),
    ):
        if port in taken:
            raise ConfigError(f"{name}: {port} is {taken[port]}, too; each needs a port of its own")
        if port:
            taken[port] = name


def _check_shared(shared: SharedSection, flush: str) -> None:
    if flush == "shared" and not shared.url:
        raise ConfigError("store.flush: `shared` needs an object store: set shared.url, for example by --shared")
    if shared.url:
        try:
            parse_location(shared.url)
        except StoreRefused as error:
            raise ConfigError(f"shared.url: {error}") from None
    endpoint = re.fullmatch(r"https?://[^/@\s?#]+/?([^@\s?#]*)", shared.endpoint)
    if shared.endpoint and endpoint is None:
        raise ConfigError("shared.endpoint: expected https://host:port without user and query")
    # The path of an endpoint of Azure is the account. Nothing else has a path: the bucket is a part of the URL.
    if endpoint and endpoint[1] and shared.url.startswith(("s3:", "gs:")):
        raise ConfigError(
            f"shared.endpoint: expected https://host:port without the path {endpoint[1]!r}: the bucket is a part of "
            "shared.url"
        )


def _check_cache(cache_bytes: int, segment_bytes: int) -> None:
    """Segments are dropped whole, and the one that is written and the next ones to be uploaded stay on the disk."""
    if cache_bytes and cache_bytes < CACHED_SEGMENTS_MIN * segment_bytes:
        raise ConfigError(
            f"shared.cache_bytes: {cache_bytes} is less than {CACHED_SEGMENTS_MIN} times store.segment_bytes, "
            f"{segment_bytes}: raise it, or set it to 0 for no limit"
        )


@lru_cache(maxsize=4)
def level_delays_ms(levels: str) -> tuple[int, ...]:
    """Parse `delay.levels`: return the delay of each level in milliseconds. Raises ConfigError."""
    delays = []
    for level in levels.split():
        found = re.fullmatch(r"(\d{1,9})([smhd])", level, re.ASCII)
        if found is None:
            raise ConfigError(f"delay.levels: expected numbers with s, m, h or d, got {level!r}")
        delays.append(int(found[1]) * UNITS_MS[found[2]])
    if not 1 <= len(delays) <= DELAY_LEVELS_MAX:
        raise ConfigError(f"delay.levels: expected 1 to {DELAY_LEVELS_MAX} levels, got {len(delays)}")
    return tuple(delays)


class MaskRule(NamedTuple):
    """What the console hides of messages: `topic` may have wildcards, `fields` are in lower case."""

    topic: str
    fields: frozenset[str]


def mask_rules(text: str) -> list[MaskRule]:
    """Parse `http.masks`: TOPIC:FIELD,FIELD and so on, separated by blanks. Raises ConfigError."""
    rules = []
    for rule in text.split():
        topic, colon, names = rule.partition(":")
        fields = frozenset(name.lower() for name in names.split(",") if name)
        if not topic or not colon or not fields:
            raise ConfigError(f"http.masks: expected TOPIC:FIELD,FIELD, got {rule!r}")
        rules.append(MaskRule(topic, fields))
    return rules


def name_servers(text: str) -> list[tuple[str, int]]:
    """Parse `rocketmq.join_namesrv`: return (host, port) of each name server. Raises ConfigError."""
    found = []
    for address in filter(None, map(str.strip, text.split(";"))):
        host, _, port = address.rpartition(":")
        if not host or any(sign in host for sign in "/, ") or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"rocketmq.join_namesrv: expected host:port;host:port, got {address!r}")
        found.append((host.strip("[]"), int(port)))
    return found


def _check_advertised(host: str) -> None:
    """Refuse a port or URL, which is how Kafka's `advertised.listeners` looks: clients could not resolve it."""
    # An IPv6 address has at least two colons.
    if host.count(":") == 1 or any(sign in host for sign in "/[], \t"):
        raise ConfigError(f"server.advertise: expected a host name or address, without a port, got {host!r}")


def _check_urls(prefixes: str) -> None:
    # Imported here, because importing yarl is slow.
    from duolog.bridge.config.check_urls import BadUrl, CheckUrls

    try:
        CheckUrls(prefixes)
    except BadUrl as error:
        raise ConfigError(f"txn.check_urls: {error}") from error


def _check_tls(tls: TlsOptions) -> None:
    if tls.mode != "off" and not tls.certificate_file:
        raise ConfigError(f"tls.certificate_file: tls.mode={tls.mode} needs a certificate")
    if tls.mode != "off" and tls.client_auth != "none" and not tls.ca_file:
        raise ConfigError(f"tls.ca_file: tls.client_auth={tls.client_auth} needs the CAs of client certificates")


def _check_token_keys(security: SecurityOptions) -> None:
    """Refuse keys that come without TLS from another machine: whoever changes them can be any user."""
    if not security.oauth_keys.startswith("http://") or security.oauth_keys_without_tls:
        return
    host = urlsplit(security.oauth_keys).hostname or ""
    try:
        is_local = ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local:
        raise ConfigError(
            f"security.oauth_keys: {security.oauth_keys[:200]!r} has no TLS, so whoever is between can exchange the "
            "keys, and be any user: use https://, or allow it by security.oauth_keys_without_tls=true"
        )


def _check_zone(name: str) -> None:
    try:
        Cron("0 0 * * *", name)
    except BadSchedule as error:
        raise ConfigError(f"delay.time_zone: {error}") from error
