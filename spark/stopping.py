"""Stops a job by a signal: SIGINT (Ctrl-C), SIGTERM or SIGHUP.

    first signal     sets `Stop.is_requested`. The job checks it between its steps. Where a step takes long,
                     `cancelling` cancels the Spark jobs.
    second signal    ends the process at once; the first signal does so, too, while Spark is starting
    exit status      128 + the number of the signal: 130 after Ctrl-C, 143 after SIGTERM

The job runs in another thread, and the main thread only waits. If a signal handler raised an exception during a call
into the JVM, later calls on the same connection would read the answers of earlier ones.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EVERY_S: Final = 0.3  # Interval between two checks of the main thread, and between two attempts to cancel.
_SHOW_CURSOR: Final = b"\x1b[?25h"  # The progress bar hides the cursor.


class Stopped(Exception):
    """The job was asked to stop, and its present step was cancelled."""


class Stop:
    """Whether a job was asked to stop. Signal handlers set it, the job reads it."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self.signal_number = 0  # 0 if the job was not asked to stop.
        self.cancel: Callable[[], object] | None = None  # Cancels the present step of the job, if it can be cancelled.
        self.ends_at_once = False  # Whether the first signal ends the process, because the job has not begun.

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    def request(self, signal_number: int) -> None:
        self.signal_number = signal_number
        self._requested.set()

    def wait(self, timeout_s: float) -> bool:
        """Pause the job for up to `timeout_s`, at most TIMEOUT_MAX; return True as soon as it is asked to stop."""
        return self._requested.wait(min(timeout_s, threading.TIMEOUT_MAX))

    @property
    def exit_status(self) -> int:
        return 128 + self.signal_number

    @property
    def reason(self) -> str:
        return f"stopped by {signal.Signals(self.signal_number).name}"


def run_until_signal(job: Callable[[Stop], int]) -> int:
    """Run a job and return its exit status. Raises what the job raises. Only for the main thread."""
    stop = Stop()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` and shells ignore signals for background jobs.
            signal.signal(number, lambda number, frame: _on_signal(stop, number, frame))
    statuses: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            statuses.append(job(stop))
        except BaseException as error:  # noqa: BLE001  # The main thread raises it again.
            errors.append(error)

    thread = threading.Thread(target=work, name="job", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(EVERY_S)
        if stop.is_requested:
            _cancel(stop)
    if errors:
        raise errors[0]
    return stop.exit_status if stop.is_requested else statuses[0]


def _on_signal(stop: Stop, number: int, frame: FrameType | None) -> None:
    if stop.is_requested or stop.ends_at_once:
        show = _SHOW_CURSOR if sys.stderr.isatty() else b""
        os.write(2, show + f"duolog: ended at once by {signal.Signals(number).name}\n".encode())
        os._exit(128 + number)  # The JVM ends when its standard input is closed.
    stop.request(number)
    os.write(2, b"duolog: stopping; a second signal ends the job at once\n")


def _cancel(stop: Stop) -> None:
    """Cancel the present step. This is repeated, because the job may have been between two steps."""
    cancel = stop.cancel
    if cancel is not None:
        try:
            cancel()
        except (Py4JError, OSError):
            pass  # The JVM has ended, so the job fails, too.


@contextmanager
def cancelling(stop: Stop, session: SparkSession) -> Iterator[None]:
    """Return a context in which all Spark jobs are cancelled when the job is asked to stop. Stopped is then raised."""
    stop.cancel = session.sparkContext.cancelAllJobs
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if stop.is_requested:
            raise Stopped from error
        raise
    finally:
        stop.cancel = None


@contextmanager
def ending_at_once(stop: Stop) -> Iterator[None]:
    """Return a context in which the first signal ends the process at once, for steps that cannot be interrupted."""
    stop.ends_at_once = True
    try:
        yield
    finally:
        stop.ends_at_once = False
