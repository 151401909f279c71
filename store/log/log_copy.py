"""The class LogCopy: appends the units of another broker at the same positions, and replays them.

A copy has the same bytes at the same positions as the log that it follows, and the same state. Its segments may begin
elsewhere, and its indexes and checkpoints are its own.
"""

from duolog.store.entry import STATE_FORM
from duolog.store.errors import Corruption
from duolog.store.index.index_maintenance import IndexFlusher
from duolog.store.index.queue import Queue
from duolog.store.index.queues import Queues
from duolog.store.log.appender import Appender
from duolog.store.log.commitlog import CommitLog
from duolog.store.log.format import BadUnit, UnitHeader, check_unit, entries_of
from duolog.store.recovery.replay import Replay, Replayer


class LogCopy:
    """Continues the log and the state of a store, which recovery has opened and in which no run has begun."""

    def __init__(
        self, log: CommitLog, queues: Queues, appender: Appender, index_flusher: IndexFlusher, replayer: Replayer
    ) -> None:
        self._log, self._appender, self._wanted = log, appender, index_flusher.wanted
        self._captured_rows = queues.captured_rows
        self._replay = Replay(log.segments, queues, replayer, is_rebuild=False, on_full=self._is_full)

    def _is_full(self, queue: Queue) -> None:
        self._wanted[queue] = None

    def _keep_rows(self, unit: memoryview, header: UnitHeader) -> None:
        """Give the running checkpoint the rows of the queues that the unit changes, as they are before it."""
        for entry in entries_of(unit, header.position, header.entry_count):
            if entry.form != STATE_FORM:
                self._captured_rows.before_change(entry.key)

    @property
    def position(self) -> int:
        """The end of the copy, at which the next unit must lie."""
        return self._log.next_position

    def take(self, units: memoryview, at: int) -> int:
        """Append and replay the unit at `units[at]`; return the index of the byte after it.

        Raises Corruption if it is no valid unit of this position, and then nothing has changed.
        """
        position = self._log.next_position
        try:
            header = check_unit(units, at, position)
            if header.epoch < self._log.epoch:
                raise BadUnit(f"the unit has epoch {header.epoch}, and the one before it has epoch {self._log.epoch}")
        except BadUnit as reason:
            raise Corruption(f"the shared log has no valid unit at position {position}: {reason}") from None
        if self._captured_rows.is_active:
            self._keep_rows(units[at : at + header.size], header)
        chunk = self._log.begin(header.size)
        chunk.writable[chunk.used : chunk.used + header.size] = units[at : at + header.size]
        self._log.take(chunk, header)
        self._appender.stored_ms = header.stored_ms
        self._replay.take(chunk.view, position - chunk.start, position)
        return at + header.size
