"""The class SealedDataCheck: slowly reads data that never changes again, to find damage before a client reads it.

    pass      all sealed segments, full index files, and sorted tables of delayed messages; then the next pass begins
    round     once a second, a worker reads up to `store.verify_bytes_per_s` of the pass

A pass begins with a random segment, so that a broker that is often restarted also checks later segments. Damage is
logged and counted, and the broker continues. `duolog log verify` shows details, and `duolog log repair` repairs.
"""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from duolog.delay.tables.tables_view import TablesView
from duolog.store.files import ReadableFiles
from duolog.store.log.segment import Segment
from duolog.store.recovery.sealed_files import CheckedPiece, check_index_file, check_segment, full_index_files
from duolog.store.workers import Executor, Failure

ROUND_MS: Final = 1_000
PASS_MS: Final = 60_000  # The shortest time from the beginning of one pass to that of the next one.
REPORTED_MAX: Final = 100  # The damaged places of one pass that are logged. Further ones are only counted.

log = logging.getLogger("store")


class _Round(NamedTuple):
    """The result of one round."""

    read_bytes: int
    damage: list[str]
    is_end: bool  # The pass is complete.


class SealedDataCheck:
    """Checks sealed data in the background. `executor` returns the executor of the next round."""

    def __init__(
        self,
        files: ReadableFiles,
        segments: Callable[[], Sequence[Segment]],
        view: Callable[[], TablesView],
        executor: Callable[[], Executor],
        bytes_per_s: int,
    ) -> None:
        self.read_bytes = 0  # The bytes read since the start.
        self.passes = 0
        self.damaged_places = 0  # The damaged places found in the last complete pass and in the present one.
        self._files, self._segments, self._view, self._executor = files, segments, view, executor
        self._budget_bytes = bytes_per_s * ROUND_MS // 1_000
        self._pieces: Iterator[CheckedPiece] | None = None  # The rest of the present pass.
        self._pass_view: TablesView | None = None
        self._found = self._pass_bytes = 0  # The damaged places and the read bytes of the present pass.
        self._last_found = 0
        self._begun_mono_ms = 0
        self._next_mono_ms: int | None = 0 if bytes_per_s else None

    def next_deadline_mono_ms(self) -> int | None:
        """Return the time of the next round; None during a round, and if the check is off."""
        return self._next_mono_ms

    def advance(self, mono_ms: int) -> None:
        """Begin a round if it is due."""
        if self._next_mono_ms is None or mono_ms < self._next_mono_ms:
            return
        if self._pieces is None:
            self._begin(mono_ms)
        pieces = self._pieces
        assert pieces is not None
        self._next_mono_ms = None
        self._executor().submit(lambda: self._read(pieces), lambda found: self._took(found, mono_ms))

    def _begin(self, mono_ms: int) -> None:
        """Begin a pass over the data that is sealed now."""
        sealed = [(each.start, each.known_end) for each in self._segments() if each.is_sealed and not each.is_gap]
        first = random.randrange(len(sealed)) if sealed else 0
        self._pass_view = self._view()
        self._found = self._pass_bytes = 0
        self._begun_mono_ms = mono_ms
        self._pieces = self._pass([*sealed[first:], *sealed[:first]], self._pass_view)

    def _pass(self, sealed: Sequence[tuple[int, int]], view: TablesView) -> Iterator[CheckedPiece]:
        for start, end in sealed:
            yield from check_segment(self._files, start, end)
        for path in full_index_files(self._files):
            yield from check_index_file(self._files, path)
        for table in view.tables:
            for size, damage in table.check():
                yield CheckedPiece(size, damage)

    def _read(self, pieces: Iterator[CheckedPiece]) -> _Round:
        """Read until the budget of a round is used up. A worker calls this method."""
        read_bytes, damage = 0, list[str]()
        for piece in pieces:
            read_bytes += piece.size
            if piece.damage:
                damage.append(piece.damage)
            if read_bytes >= self._budget_bytes:
                return _Round(read_bytes, damage, is_end=False)
        return _Round(read_bytes, damage, is_end=True)

    def _took(self, found: _Round | Failure, mono_ms: int) -> None:
        if isinstance(found, Exception):
            log.warning("check of sealed data stopped reason=%r", str(found))
            self._end(mono_ms)
            return
        self.read_bytes += found.read_bytes
        self._pass_bytes += found.read_bytes
        for place in found.damage:
            self._found += 1
            if self._found <= REPORTED_MAX:
                log.error("sealed data is damaged place=%r", place)
        self.damaged_places = max(self._last_found, self._found)
        # A large piece takes the time of several rounds.
        self._next_mono_ms = mono_ms + max(ROUND_MS, ROUND_MS * found.read_bytes // self._budget_bytes)
        if found.is_end:
            # A pass without damage is logged only if it is the first one or follows a pass with damage.
            is_first = self._pass_bytes == self.read_bytes
            if self._pass_bytes and (is_first or self._found or self._last_found):
                log.info("sealed data checked bytes=%d damaged_places=%d", self._pass_bytes, self._found)
            self.passes += 1
            self._last_found = self.damaged_places = self._found
            self._end(mono_ms)

    def _end(self, mono_ms: int) -> None:
        self._pieces = None
        if self._pass_view is not None:
            self._pass_view.close()
            self._pass_view = None
        self._next_mono_ms = max(mono_ms + ROUND_MS, self._begun_mono_ms + PASS_MS)
