"""A broker as a process: `duolog serve` starts it, signals end it, SIGHUP reloads its settings."""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from duolog.bridge.broker import BeginAgain, Broker
from duolog.bridge.clock import SystemClock
from duolog.bridge.config import Loaded, Options, SettingsInForce
from duolog.bridge.monitoring import logs
from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.net.addresses import StartError, endpoint
from duolog.bridge.reload import Reload
from duolog.bridge.running.allocator import keep_freed_memory
from duolog.bridge.running.service_manager import ServiceManager
from duolog.protocol.kafka import record_check

log = logging.getLogger("bridge")

BEGIN_AGAIN = -1  # Not an exit status: the program is executed again, in the same process.
INTERNAL_ERROR = 70  # The exit status after an internal error: EX_SOFTWARE in sysexits.h.
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# The longest time for which a computing thread may keep the event loop from running. Python's default is 5 ms, which
# is as much as the whole latency that an answer may have.
SWITCH_INTERVAL_S = 0.001

# The number of allocations between two collections of the youngest generation. Python's default is 700. A broker
# allocates mostly requests, which reference counts free; the collector finds few cycles, so it runs less often.
GC_THRESHOLDS = (20_000, 20, 50)


def serve(load: Callable[[], Loaded], *, is_ready_as_json: bool = False) -> int:
    """Run a broker until a signal ends it, and return the exit status.

    `load` reads the settings: at the start, and again after each SIGHUP. The ready line is text, or JSON. Raises
    ConfigError or StartError if the broker cannot start.
    """
    import uvloop  # Imported here, because only `serve` needs uvloop.

    keep_freed_memory()
    gc.freeze()  # Collections during the start need not visit the imported modules, which takes 60 ms.
    gc.enable()
    loaded = load()
    flood = logs.configure(loaded.options.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(_serve(loaded, load, flood, is_ready_as_json=is_ready_as_json))
    if status == BEGIN_AGAIN:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # Sockets and locks close with the old program.
    return status


def end_while_starting() -> None:
    """Let SIGTERM and SIGINT end the process at once during the start, because recovery may block the loop for long.

    No client is connected yet, and the next start repeats an interrupted recovery from its beginning.
    """

    def end(number: int, _frame: object) -> None:
        log.info("stopping while starting reason=%s", signal.Signals(number).name)
        raise SystemExit(0)

    for number in ENDING_SIGNALS:
        signal.signal(number, end)


def new_broker(options: Options, loop: asyncio.AbstractEventLoop) -> Broker:
    """Return a broker that was not started. The modules of a shared log are loaded only if it has one."""
    if not options.shared.url:
        return Broker(options, SystemClock(), loop)
    from duolog.bridge.running.shared_broker import SharedBroker

    return SharedBroker(options, SystemClock(), loop)


def _take_reloads(broker: Broker, load: Callable[[], Loaded], loop: asyncio.AbstractEventLoop) -> None:
    reload = Reload(broker.settings_in_force, load, loop, broker.http, broker.tls, broker.security.audit, broker.faults)
    loop.add_signal_handler(signal.SIGHUP, reload.request)
    broker.http.changes = reload


async def _serve(loaded: Loaded, load: Callable[[], Loaded], flood: logs.FloodFilter, *, is_ready_as_json: bool) -> int:
    loop = asyncio.get_running_loop()
    broker = new_broker(loaded.options, loop)
    broker.settings_in_force = SettingsInForce(loaded.options, loaded.sources)
    broker.ticker.add(
        "log lines left out", flood.next_report_ms, lambda now_ms, mono_ms: flood.report(now_ms), is_wall=True
    )
    manager = ServiceManager.from_environment(os.environ, os.getpid())
    if manager.next_deadline_ms() is not None:
        sign = manager.advance
        broker.ticker.add("sign of life", manager.next_deadline_ms, lambda now_ms, mono_ms: sign(mono_ms))
    end_while_starting()
    if not record_check.IN_C:
        log.warning(
            "no C extension, records of Kafka batches are checked in Python, which takes up to 0.3 s for a batch while "
            "other clients wait; install again with a C compiler and Python.h (Debian: gcc, python3-dev) to have it "
            "done in C in 3 ms"
        )
    broker.on_open = partial(_take_reloads, broker, load, loop)
    await broker.start()
    collect_garbage_less(broker.metrics)
    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, broker.end, signal.Signals(number).name)
    print(_ready_json(broker) if is_ready_as_json else broker.ready_line(), flush=True)  # noqa: T201
    manager.ready(broker.ready_line())
    log.info("ready in_ms=%d pid=%d", broker.clock.mono_ms() - broker.started_mono_ms, os.getpid())
    try:
        with _watched(broker):
            await broker.ended
    except BeginAgain:
        return BEGIN_AGAIN
    except StartError:
        raise  # A standby cannot follow, or cannot serve as the owner, until an operator has acted.
    except Exception:
        # The broker closes nothing in order, because its state may be wrong. The next start recovers the state from
        # the log.
        log.critical("stopping after an internal error, to protect stored data", exc_info=True)
        return INTERNAL_ERROR
    manager.stopping()
    await broker.stop()
    broker.metrics.gc_pauses.stop()
    return 0


def _watched(broker: Broker) -> AbstractContextManager[object]:
    """Return a context in which a child process disconnects the clients of a stalled broker, if it shares its log."""
    if not broker.options.shared.url:
        return nullcontext()
    from duolog.bridge.running.shared_broker import SharedBroker

    assert isinstance(broker, SharedBroker)
    watchdog = broker.external_watchdog()
    broker.ticker.add("external watchdog", watchdog.next_deadline_ms, lambda now_ms, mono_ms: watchdog.advance(mono_ms))
    return watchdog


def _ready_json(broker: Broker) -> str:
    """Return what the ready line says as an object of JSON; `listeners` are those of /api/status."""
    listeners = {name: endpoint(host, port) for name, (host, port) in broker.listening.items()}
    return json.dumps({"event": "ready", "listeners": listeners, "data": broker.options.store.directory})


def collect_garbage_less(metrics: Metrics) -> None:
    """Set what the interpreter does beside requests, now that the objects of the start exist."""
    gc.unfreeze()  # The garbage of the imports, such as classes that `dataclass` has replaced, is freed, too.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    metrics.gc_pauses.watch(time.perf_counter)
