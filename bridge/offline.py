"""`open_offline`: the state of a log that no broker uses, for commands that change it before a start.

with open_offline(options) as core:
    core.security.users.set(record, core.clock.now_ms())
# what was committed is on disk now, or in the object store
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from duolog.bridge.clock import SystemClock
from duolog.bridge.config import ConfigError, Options, store_options
from duolog.bridge.core import Core
from duolog.bridge.monitoring.faults import Faults
from duolog.bridge.net.addresses import NO_PORTS, StartError
from duolog.bridge.net.server import Server
from duolog.bridge.security.secret_box import SecretBox
from duolog.protocol.rocketmq.messages.message_id import pack_host
from duolog.store.errors import StoreError
from duolog.store.files import RealFiles
from duolog.store.recovery.format_version import ensure_format
from duolog.store.shared.own_log import check_no_copy

_HOST = pack_host("127.0.0.1", 0)  # For messages that are written; these commands write none.


def open_offline(options: Options) -> AbstractContextManager[Core]:
    """Return the state of `store.directory`, or of the stream of `shared.url`; what changes is stored at the end.

    Raises ConfigError, and StartError if a broker uses it or the log cannot be used.
    """
    if not options.shared.url:
        return _open_directory(options)
    # Imported only here, because the modules of a shared log take long to import.
    from duolog.bridge.offline_stream import open_on_stream

    return open_on_stream(options)


@contextmanager
def _open_directory(options: Options) -> Iterator[Core]:
    """Recover the log of `store.directory`, which may be new, and yield its state; write and close it at the end.

    Raises ConfigError, and StartError if a broker uses the directory or the log cannot be used.
    """
    directory, clock = options.store.directory, SystemClock()
    core = Core(options, Faults(clock.mono_ms, _raise), clock)
    loop = asyncio.new_event_loop()  # Never runs: nothing is served.
    server = Server(loop, clock, options.limits, {}, lambda: None, core.faults, core.watchdog)
    try:
        files = RealFiles(directory)
        ensure_format(files)
        check_no_copy(files)
        core.open_log(
            files, store_options(options.store), clock.now_ms(), clock.mono_ms(), store_host=_HOST,
            server=server, addresses=NO_PORTS,
        )  # fmt: skip
        core.security.use(SecretBox.load(core.security.key_file))
        try:
            yield core
        finally:
            core.store.write()
            core.delays.timers.tree.close()
            core.store.close(clock.now_ms())
    except StoreError as error:
        raise StartError(f"--data {directory}: {error}") from error
    except OSError as error:
        raise ConfigError(f"--data {directory}: {error.strerror or error}") from error
    finally:
        loop.close()


def _raise(error: BaseException) -> None:
    raise error
