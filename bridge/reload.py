"""Reload of settings after SIGHUP: the settings are read again, and some take effect while the broker runs.

    server.log_level      takes effect at once
    http.readers_file     is read again; the tokens in it are valid from the next lease on
    any other setting     is named in the log, because it needs a restart

A thread reads the files. If the config file or the readers file cannot be used, nothing changes, and the log says why;
the broker runs on.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from duolog.bridge.config import ConfigError, Options, values
from duolog.bridge.http.api.readers import Readers
from duolog.bridge.http.port import HttpPort
from duolog.bridge.monitoring import logs
from duolog.bridge.monitoring.faults import Faults

log = logging.getLogger("bridge")

LOG_LEVEL: Final = "server.log_level"
READERS_FILE: Final = "http.readers_file"
RELOADABLE: Final = (LOG_LEVEL, READERS_FILE)


class Reload:
    """Reloads the settings of one broker. `options` are those it started with; `load` reads file and flags again."""

    def __init__(
        self,
        options: Options,
        load: Callable[[], Options],
        loop: asyncio.AbstractEventLoop,
        http: HttpPort,
        faults: Faults,
    ) -> None:
        self._load, self._loop, self._http, self._faults = load, loop, http, faults
        self._in_force = dict(values(options))
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False

    def request(self) -> None:
        """Reload now, or once more after the reload that is in progress."""
        self._is_wanted = True
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            try:
                await self._reload()
            except ConfigError as error:
                log.error("reload refused, nothing has changed reason=%r", str(error))
            except Exception as error:  # noqa: BLE001 - contained
                self._faults.contain(error, "reload")

    async def _reload(self) -> None:
        options, readers = await asyncio.to_thread(self._read)
        changed = [name for name, value in values(options) if value != self._in_force[name]]
        self._http.readers = readers
        reloaded = list(self._reloaded(changed, options, readers))
        self._in_force |= {name: value for name, value in values(options) if name in RELOADABLE}
        restart = [name for name in changed if name not in RELOADABLE]
        logs.set_level("info")  # So that the next line is written at any log level.
        log.info("settings reloaded reloaded=%s need_restart=%s", ",".join(reloaded) or "-", ",".join(restart) or "-")
        logs.set_level(options.server.log_level)

    def _read(self) -> tuple[Options, Readers]:
        options = self._load()
        return options, Readers.load(options.http.readers_file)

    def _reloaded(self, changed: list[str], options: Options, readers: Readers) -> Iterator[str]:
        if LOG_LEVEL in changed:
            yield f"{LOG_LEVEL}:{options.server.log_level}"
        if options.http.readers_file or READERS_FILE in changed:
            yield f"{READERS_FILE}:{readers.token_count}_tokens"
