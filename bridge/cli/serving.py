"""`duolog serve`: its options, and the broker that runs until a signal ends it.

`plain_options` reads most command lines without typer. With pydantic, which typer imports, it would take a fifth of the
processor's time of a start, and 9 MB as long as the broker runs. The command `serve` of `commands.py` reads all other
command lines, and has the help and the messages for mistakes.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from duolog.bridge.cli import BAD_OPTION, REFUSED

SYSTEM_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # The variables that name them (OpenSSL, `X509_get_default_*`).

# The options that set one setting each.
SETTING_OF_OPTION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--data": "store.directory",
        "--shared": "shared.url",
        "--host": "server.host",
        "--advertise": "server.advertise",
        "--kafka-port": "kafka.port",
        "--rocketmq-port": "rocketmq.port",
        "--namesrv-port": "rocketmq.namesrv_port",
        "--http-port": "http.port",
    }
)


class ServeOptions(NamedTuple):
    """The options of `duolog serve`."""

    config: Path | None = None
    by_option: Mapping[str, str] = MappingProxyType({})  # By name; the options of SETTING_OF_OPTION that were given.
    settings: Sequence[str] = ()  # Each is KEY=VALUE. An option of `by_option` wins.
    as_json: bool = False


def plain_options(arguments: Sequence[str]) -> ServeOptions | None:
    """Return the options, or None if there is anything but known options with values that do not look like options."""
    values: dict[str, str] = {}
    settings: list[str] = []
    as_json = False
    following = iter(arguments)
    for argument in following:
        if argument == "--json":
            as_json = True
            continue
        name, equals, value = argument.partition("=")
        if not equals:
            value = next(following, "-")
        if value.startswith("-"):
            return None
        if name == "--set":
            settings.append(value)
        elif name == "--config" or name in SETTING_OF_OPTION:
            values[name] = value
        else:
            return None
    config = values.pop("--config", None)
    return ServeOptions(None if config is None else Path(config), values, settings, as_json)


def serve(options: ServeOptions) -> int:
    """Run the broker and return the exit status. If it cannot start, print why on standard error."""
    from duolog.bridge.config import ConfigError, load_with_sources, parse_override

    for number in (signal.SIGTERM, signal.SIGINT):
        # The broker installs its own signal handlers later; until then nothing needs to be closed.
        signal.signal(number, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Until the broker reloads its settings by it.
    try:
        overrides = dict(parse_override(text) for text in options.settings)
    except ConfigError as error:
        return _cannot_start(error, BAD_OPTION)
    overrides |= {SETTING_OF_OPTION[name]: value for name, value in options.by_option.items()}
    if options.as_json:
        overrides["log.format"] = "json"

    gc.disable()  # The imports create hardly any garbage. `process.serve` enables the collector again.
    serve_until_stopped = import_serve()
    from duolog.bridge.net.addresses import StartError

    try:
        load = partial(load_with_sources, options.config, overrides, os.environ)
        return serve_until_stopped(load, is_ready_as_json=options.as_json)
    except ConfigError as error:
        return _cannot_start(error, BAD_OPTION)
    except StartError as error:
        return _cannot_start(error, REFUSED)


def import_serve() -> Callable[..., int]:
    """Import the broker without modules and certificates that it does not need; return `process.serve`."""
    # kio imports hypothesis wherever it is installed: 60 ms and 9 MB that no broker needs.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    with _no_system_certificates():
        from duolog.bridge.running.process import serve as serve_until_stopped
    return serve_until_stopped


def _cannot_start(error: Exception, status: int) -> int:
    from duolog.bridge.cli.common import say

    say(str(error))
    return status


@contextmanager
def _no_system_certificates() -> Iterator[None]:
    """Let OpenSSL find no certificates of the system in this block.

    aiohttp loads them twice when it is imported, for its client: a fifth of the CPU of a start, and 1.7 MB. The broker
    makes a context of its own when it calls a URL (`bridge/transactions/check_callbacks.py`).
    """
    before = {name: os.environ.get(name) for name in SYSTEM_CERTIFICATES}
    os.environ.update(dict.fromkeys(SYSTEM_CERTIFICATES, ""))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
