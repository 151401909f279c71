"""The files of the commitlog: consecutive ranges of positions, one file each.

    log/00000000000000000000.log                        positions 0 .. 268435447
    log/00000000000268435448-00000000000536870904.gap   an empty file: nothing in this range was live any more
    log/00000000000536870904.log                        the active one: written at its end, blocks reserved ahead

A unit never crosses a segment, and each begins where the one before ended; so the names alone show that no file is
missing. Removed ranges at the front leave nothing behind; `gap` files are merged with their neighbours.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from operator import attrgetter

from duolog.store.errors import StoreError
from duolog.store.files import Files
from duolog.store.log.format import POSITION_MAX
from duolog.store.workers import Executor, Failure, Inline

LOG_DIRECTORY = "log"
_START = attrgetter("start")


class Segment:
    """One file of the log, or a gap where one was."""

    __slots__ = (
        "end", "exists", "file", "in_sync", "is_dead", "is_gap", "is_opening", "last_offsets", "reserved", "start"
    )  # fmt: skip

    def __init__(self, start: int, end: int | None = None, *, is_gap: bool = False) -> None:
        self.start = start
        self.end = end  # None for the active segment.
        self.is_gap = is_gap
        self.file: int | None = None  # The open file.
        self.is_opening = False  # A thread opens the file.
        self.reserved = 0  # Bytes of the file that have blocks reserved.
        self.exists = False  # Whether the file exists; a new segment's file is created by the first write.
        self.in_sync = False  # The flusher's thread uses the handle.
        self.is_dead = False  # Nothing in the segment is live (`DeadSegments.find`).
        self.last_offsets: dict[int, int] = {}  # Queue key -> last offset in this segment.

    @property
    def path(self) -> str:
        name = f"{self.start:020}-{self.end:020}.gap" if self.is_gap else f"{self.start:020}.log"
        return f"{LOG_DIRECTORY}/{name}"

    @property
    def is_sealed(self) -> bool:
        return self.end is not None

    @property
    def known_end(self) -> int:
        """The position where it ends; POSITION_MAX for the active segment."""
        return POSITION_MAX if self.end is None else self.end

    def __repr__(self) -> str:
        return f"Segment({self.path})"


def list_segments(files: Files) -> list[Segment]:
    """Read the names; each segment ends where the next begins. Unknown names are ignored, covered ones removed.

    A file inside the range of a gap was about to be removed when the process ended.
    """
    names = files.list(LOG_DIRECTORY)
    gaps = [Segment(start, end, is_gap=True) for start, end in filter(None, map(_gap_range, names))]
    found = list(gaps)
    for name in names:
        start = _log_start(name)
        if start is None:
            continue
        if any(gap.start <= start < _end(gap) for gap in gaps):
            files.remove(f"{LOG_DIRECTORY}/{name}")
        else:
            segment = Segment(start)
            segment.exists = True
            found.append(segment)
    found = list(_uncovered(files, sorted(found, key=lambda segment: (segment.start, -_end(segment)))))
    for segment, following in pairwise(found):
        if not segment.is_gap:
            segment.end = following.start
    return found


def _uncovered(files: Files, segments: list[Segment]) -> Iterator[Segment]:
    """Leave out, and remove, gaps that a merged gap covers."""
    covered_to = 0
    for segment in segments:
        if segment.is_gap and _end(segment) <= covered_to:
            files.remove(segment.path)
            continue
        if segment.is_gap:
            covered_to = _end(segment)
        yield segment


def _end(segment: Segment) -> int:
    return segment.start if segment.end is None else segment.end


def _log_start(name: str) -> int | None:
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "log" and len(stem) == 20 and stem.isdecimal() else None


def _gap_range(name: str) -> tuple[int, int] | None:
    stem, _, suffix = name.partition(".")
    start, _, end = stem.partition("-")
    if suffix != "gap" or not (len(start) == len(end) == 20 and start.isdecimal() and end.isdecimal()):
        return None
    return int(start), int(end)


class Segments:
    """The chain of segments, and the open handles of their files, at most `open_max` besides those in use."""

    def __init__(self, files: Files, chain: list[Segment], open_max: int) -> None:
        self._files = files
        self._chain = chain  # Replaced or appended to, never changed in the middle: reader threads search it too.
        self._open: dict[Segment, None] = {}  # in the order of last use
        self._open_max = open_max
        self.opener: Callable[[], Executor] = Inline  # where files are opened to be read

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._chain)

    def __len__(self) -> int:
        return len(self._chain)

    @property
    def start(self) -> int:
        """The lowest position of the log."""
        return self._chain[0].start

    @property
    def active(self) -> Segment:
        return self._chain[-1]

    def find(self, position: int) -> Segment:
        """Return the segment whose range holds `position`; StoreError if it was removed at the front."""
        chain = self._chain
        number = bisect_right(chain, position, key=_START) - 1
        if number < 0:
            raise StoreError(f"position {position} is below the log's start {chain[0].start}")
        return chain[number]

    def between(self, start: int, end: int) -> list[Segment]:
        """Return the segments that hold the positions from `start` up to, not including, `end`."""
        first = max(0, bisect_right(self._chain, start, key=_START) - 1)
        return [segment for segment in self._chain[first:] if segment.start < end]

    def add(self, start: int) -> Segment:
        """Seal the active segment at `start` and go on with a new one; its file comes with the first write."""
        if self._chain:
            assert self.active.end is None, f"{self.active} is sealed already"
            self.active.end = start
        segment = Segment(start)
        self._chain.append(segment)
        return segment

    def cut(self, end: int) -> list[Segment]:
        """Make the segment that holds position `end` the active one; returns those behind it, to be removed."""
        active = self.find(end)
        behind = [segment for segment in self._chain if segment.start > active.start]
        for segment in behind:
            if segment.file is not None:
                self._close_file(segment)
        self._chain = [segment for segment in self._chain if segment.start <= active.start]
        active.end = None
        return behind

    # -- Handles

    def open_file_of(self, segment: Segment) -> int | None:
        """Return the handle of a segment's file if it is open; None otherwise, and a thread then opens the file."""
        if segment.file is None and not segment.is_opening:
            segment.is_opening = True
            self.opener().submit(partial(self._files.open, segment.path), partial(self._opened, segment))
        if segment.file is None:
            return None
        return self.file_of(segment)

    def _opened(self, segment: Segment, outcome: int | Failure) -> None:
        segment.is_opening = False
        if not isinstance(outcome, int):
            return  # A reader thread will meet and report the same error.
        if segment.file is not None or segment not in self._chain:
            self._files.close(outcome)
            return
        segment.file = outcome
        self._open[segment] = None
        self._close_idle()

    def file_of(self, segment: Segment) -> int:
        """Return the open handle of a segment's file, opening it when needed; raises OSError."""
        if segment.file is None:
            segment.file = self._files.open(segment.path)
            self._close_idle()
        self._open.pop(segment, None)
        self._open[segment] = None
        return segment.file

    def create_file(self, segment: Segment) -> int:
        """Create the file of a new segment; its name is durable only after the directory's sync."""
        segment.file = self._files.open(segment.path, create=True)
        segment.exists = True
        self._open[segment] = None
        return segment.file

    def close(self) -> None:
        for segment in list(self._open):
            self._close_file(segment)

    def _close_idle(self) -> None:
        idle = [segment for segment in self._open if segment.is_sealed and not segment.in_sync]
        for segment in idle[: max(0, len(self._open) + 1 - self._open_max)]:
            self._close_file(segment)

    def _close_file(self, segment: Segment) -> None:
        assert segment.file is not None, f"{segment} is not open"
        del self._open[segment]
        self._files.close(segment.file)
        segment.file = None

    # -- Removal

    def take_out(self, dead: list[Segment]) -> "SegmentRemoval":
        """Take sealed segments out of the chain; a range that is not at the front is replaced by a gap.

        `SegmentRemoval.run` removes the files; it may block and belongs in a worker thread.
        """
        doomed = set(dead)
        chain: list[Segment] = []
        gone: list[Segment] = []
        for segment in self._chain:
            if segment not in doomed and not segment.is_gap:
                chain.append(segment)
                continue
            gone.append(segment)
            if chain and chain[-1].is_gap:
                chain[-1] = Segment(chain[-1].start, segment.end, is_gap=True)
            elif chain:
                chain.append(Segment(segment.start, segment.end, is_gap=True))
        gaps = [segment for segment in chain if segment.is_gap]
        known = {gap.path for gap in gone if gap.is_gap}
        kept = {gap.path for gap in gaps}
        self._chain = chain
        for segment in gone:
            assert not segment.in_sync, f"{segment} is not durable yet"
            if segment.file is not None:
                self._close_file(segment)
        return SegmentRemoval(
            self._files,
            [gap.path for gap in gaps if gap.path not in known],
            [segment.path for segment in gone if segment.path not in kept],
        )


class SegmentRemoval:
    """Removes the files of segments. Gap files are created first, so that a crash leaves no hole in the chain."""

    def __init__(self, files: Files, gaps: list[str], gone: list[str]) -> None:
        self._files = files
        self.gaps = gaps
        self.gone = gone

    def run(self) -> None:
        for path in self.gaps:
            self._files.close(self._files.open(path, create=True))
        if self.gaps:
            self._files.sync_directory(LOG_DIRECTORY)
        for path in self.gone:
            # Each removal is synced before the next one, because a power failure may keep either of two.
            self._files.remove(path)
            self._files.sync_directory(LOG_DIRECTORY)
