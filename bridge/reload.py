"""Reload of settings after SIGHUP or `duolog config reload`: they are read again, and some take effect at once.

    log.format, log.level, log.levels   take effect at once
    http.readers_file                   is read again; the tokens in it are valid from the next lease on
    tls.* but mode and limits           the files are read again; connections that begin from now on use them
    security.audit_file                 is opened again, so that a tool may have renamed it
    any other setting                   is named in the log, because it needs a restart

A thread reads the files. If the config file, the readers file or a certificate cannot be used, nothing changes, and the
log says why; the broker runs on. Variables of the environment are those with which the process was started. A level
that `duolog config log-level` has set ends with a reload.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from duolog.bridge.config import ConfigError, Loaded, LoggingOptions, Options, SettingsInForce
from duolog.bridge.config.log import with_level
from duolog.bridge.http.access.readers import Readers
from duolog.bridge.http.api.settings import Reloaded
from duolog.bridge.http.port import HttpPort
from duolog.bridge.monitoring import logs
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.net.tls.ports import CERTIFICATE, RELOADABLE_TLS, LoadedTls, TlsPorts
from duolog.bridge.security.audit.audit_log import AuditLog

log = logging.getLogger("bridge")

LOG: Final = ("log.format", "log.level", "log.levels")
READERS_FILE: Final = "http.readers_file"
RELOADABLE: Final = (*LOG, READERS_FILE, *RELOADABLE_TLS)


class Reload:
    """Reloads the settings of one broker. `in_force` are its settings; `load` reads file and flags again."""

    def __init__(
        self,
        in_force: SettingsInForce,
        load: Callable[[], Loaded],
        loop: asyncio.AbstractEventLoop,
        http: HttpPort,
        tls: TlsPorts,
        audit: AuditLog,
        faults: Faults,
    ) -> None:
        self._load, self._loop, self._http, self._tls, self._faults = load, loop, http, tls, faults
        self._audit = audit
        self._in_force = in_force
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._one_at_a_time = asyncio.Lock()

    def request(self) -> None:
        """Reload now, or once more after the reload that is in progress."""
        self._is_wanted = True
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run())

    async def reload(self) -> Reloaded:
        """Reload and return what has changed. Raises ConfigError, and nothing has changed then."""
        async with self._one_at_a_time:
            try:
                return await self._reload()
            except ConfigError as error:
                log.error("reload refused, nothing has changed reason=%r", str(error))
                raise

    def set_log_level(self, component: str | None, level: str | None) -> LoggingOptions:
        """Change the least severity of log lines (`with_level`) until the next reload. Raises ConfigError."""
        options = with_level(self._in_force.log, component, level)
        self._in_force.set_log(options)
        with logs.applying(options):
            log.info("log level set of=%s to=%s", component or "all", level or "default")
        return options

    async def _run(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            try:
                await self.reload()
            except ConfigError:
                pass  # The log says why.
            except Exception as error:  # noqa: BLE001 - contained
                self._faults.contain(error, "reload")

    async def _reload(self) -> Reloaded:
        loaded, readers, tls = await asyncio.to_thread(self._read)
        options = loaded.options
        changed = self._in_force.changed(options)
        self._http.readers = readers
        self._tls.use(tls)
        self._audit.reopen()
        reloaded = list(self._reloaded(changed, options, readers))
        self._in_force.take(loaded, RELOADABLE)
        restart = [name for name in changed if name not in RELOADABLE]
        with logs.applying(options.log):
            log.info(
                "settings reloaded reloaded=%s need_restart=%s", ",".join(reloaded) or "-", ",".join(restart) or "-"
            )
        return Reloaded(reloaded, restart)

    def _read(self) -> tuple[Loaded, Readers, LoadedTls]:
        loaded = self._load()
        return loaded, Readers.load(loaded.options.http.readers_file), self._tls.read(loaded.options)

    def _reloaded(self, changed: list[str], options: Options, readers: Readers) -> Iterator[str]:
        for name in LOG:
            if name in changed:
                yield f"{name}:{getattr(options.log, name.partition('.')[2]) or '-'}"
        if options.http.readers_file or READERS_FILE in changed:
            yield f"{READERS_FILE}:{readers.token_count}_tokens"
        if self._tls.certificate:
            yield f"{CERTIFICATE}:{self._tls.certificate}"
