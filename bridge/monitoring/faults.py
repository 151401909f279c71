"""Faults: unexpected exceptions, which are bugs of Duolog. They are contained, reported and counted.

    a request, duty or record raises ──Exception──> contain(error, kind, peer)
                                                         │
                     Fatal: `end` ends the process       ├── counter `duolog_faults_total{kind}`
                     anything else: work continues       └── one log line at level error, with the traceback

The caller of `contain` then answers with an error of its protocol, or closes the connection. A kind is a name from the
tables of the broker (`kafka fetch`, `ticker schedules`), never a text of a client, so the number of kinds is limited.
"""

import logging
from collections import Counter
from collections.abc import Callable

from duolog.store.errors import Fatal

# After a log line of a kind, faults of this kind are only counted for this time; the next line has their number.
QUIET_MS = 5000

log = logging.getLogger("bridge")


class Faults:
    """The faults since the start. `end` gets the exception that must end the process."""

    def __init__(self, mono_ms: Callable[[], int], end: Callable[[BaseException], None]) -> None:
        self.counts: Counter[str] = Counter()  # By kind.
        self._mono_ms, self._end = mono_ms, end
        self._quiet_until_mono_ms: dict[str, int] = {}
        self._suppressed: Counter[str] = Counter()  # The number of faults since the last log line, by kind.

    def contain(self, error: BaseException, kind: str, peer: str = "") -> None:
        """Report a fault; `peer` is the client's address, if a client asked for the work. Raises nothing."""
        self.counts[kind] += 1
        if isinstance(error, Fatal):
            self._end(error)
            return
        mono_ms = self._mono_ms()
        if mono_ms < self._quiet_until_mono_ms.get(kind, mono_ms):
            self._suppressed[kind] += 1
            return
        self._quiet_until_mono_ms[kind] = mono_ms + QUIET_MS
        log.error(
            "fault contained kind=%r peer=%s suppressed=%d error=%r",
            kind, peer or "-", self._suppressed.pop(kind, 0), error, exc_info=error,
        )  # fmt: skip
