"""The segments of the commitlog: consecutive ranges of positions, one file for each.

    log/00000000000000000000.log                        positions 0 .. 268435447
    log/00000000000268435448-00000000000536870904.gap   an empty file: the segments of this range were removed
    log/00000000000536870904.log                        the active segment, to which units are written

A unit never crosses the end of a segment, and each segment begins where the previous one ends, so the names of the
files show whether a file is missing. When the first segments of the log are removed, no file replaces them. When
segments between others are removed, a gap file replaces them; neighbouring gap files are merged.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from operator import attrgetter

from duolog.store.errors import StoreError
from duolog.store.files import Files
from duolog.store.log.format import POSITION_MAX
from duolog.store.workers import Executor, Failure, Inline

LOG_DIRECTORY = "log"
REMOTE_SUFFIX = ".remote"  # The suffix of the drop marker of a segment (`store/shared/cache/remote_segment.py`).
_START = attrgetter("start")


class Segment:
    """One segment of the log, or a gap: a range of positions whose segments were removed."""

    __slots__ = (
        "end", "exists", "file", "in_sync", "is_dead", "is_gap", "is_opening", "is_remote", "last_offsets", "reserved",
        "start"
    )  # fmt: skip

    def __init__(self, start: int, end: int | None = None, *, is_gap: bool = False) -> None:
        self.start = start
        self.end = end  # None for the active segment.
        self.is_gap = is_gap
        self.is_remote = False  # Only the object store has it, for programs that read the data directory without it.
        self.file: int | None = None  # The handle of the file if it is open.
        self.is_opening = False  # A reader thread is opening the file.
        self.reserved = 0  # Bytes of the file for which blocks are allocated.
        self.exists = False  # Whether the file exists; the first write to a new segment creates its file.
        self.in_sync = False  # The flusher's thread is using the handle.
        self.is_dead = False  # No entry in the segment is live (`DeadSegments.find`).
        self.last_offsets: dict[int, int] = {}  # Queue key -> last offset in this segment.

    @property
    def path(self) -> str:
        """The path of the file, relative to the data directory."""
        name = f"{self.start:020}-{self.end:020}.gap" if self.is_gap else f"{self.start:020}.log"
        return f"{LOG_DIRECTORY}/{name}"

    @property
    def is_sealed(self) -> bool:
        """Whether no unit will be appended to the segment any more."""
        return self.end is not None

    @property
    def known_end(self) -> int:
        """The position after the segment; POSITION_MAX for the active segment."""
        return POSITION_MAX if self.end is None else self.end

    def __repr__(self) -> str:
        return f"Segment({self.path})"


def list_segments(files: Files) -> list[Segment]:
    """Return the segments and gaps of the log, and remove the files that `read_chain` does not count.

    Raises StoreError if a segment is in the object store only, and `files` are not those of a broker that shares it.
    """
    chain, leftovers = read_chain(files.list(LOG_DIRECTORY))
    remote = [segment.path for segment in chain if segment.is_remote]
    if remote:
        raise StoreError(
            f"{remote[0]} and {len(remote) - 1} more segments are in the object store only: start the broker with "
            "--shared and the URL of its log, or make a data directory with the whole log: duolog move"
        )
    for path in leftovers:
        files.remove(path)
    return chain


def read_chain(names: Iterable[str]) -> tuple[list[Segment], list[str]]:
    """Return the segments and gaps that the names in the log's directory describe, in the order of their positions.

    The second list has the paths of leftover files: segments within the range of a gap, whose removal was interrupted
    when the process ended, and gap files that a merged gap file contains. Unknown names are ignored.
    """
    names = [*names]
    gaps = [Segment(start, end, is_gap=True) for start, end in filter(None, map(partial(_range, suffix="gap"), names))]
    found, leftovers = list(gaps), list[str]()
    on_disk = {start for start in map(_log_start, names) if start is not None}
    remote = {start for start, _ in filter(None, map(partial(_range, suffix="remote"), names))}
    for start in on_disk | remote:
        segment = Segment(start)
        segment.is_remote = start not in on_disk
        segment.exists = True
        if any(gap.start <= start < _end(gap) for gap in gaps):
            leftovers.append(segment.path)
        else:
            found.append(segment)
    chain = list[Segment]()
    covered_to = 0
    for segment in sorted(found, key=lambda segment: (segment.start, -_end(segment))):
        if segment.is_gap and _end(segment) <= covered_to:
            leftovers.append(segment.path)
            continue
        if segment.is_gap:
            covered_to = _end(segment)
        chain.append(segment)
    for segment, following in pairwise(chain):
        if not segment.is_gap:
            segment.end = following.start
    return chain, leftovers


def is_complete(chain: Iterable[Segment]) -> bool:
    """Return whether no segment of the log was removed, so that the log contains all state."""
    segments = [*chain]
    return not any(segment.is_gap for segment in segments) and (not segments or not segments[0].start)


def _end(segment: Segment) -> int:
    return segment.start if segment.end is None else segment.end


def _log_start(name: str) -> int | None:
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "log" and len(stem) == 20 and stem.isdecimal() else None


def _range(name: str, suffix: str) -> tuple[int, int] | None:
    stem, _, found = name.partition(".")
    start, _, end = stem.partition("-")
    if found != suffix or not (len(start) == len(end) == 20 and start.isdecimal() and end.isdecimal()):
        return None
    return int(start), int(end)


class Segments:
    """The segments of the log in the order of their positions, and the open handles of their files.

    At most `open_max` files are open, besides those of the active segment and of a running sync.
    """

    def __init__(self, files: Files, chain: list[Segment], open_max: int) -> None:
        self._files = files
        # Reader threads search the list, too, so it is only appended to, or replaced by another list.
        self._chain = chain
        self._open: dict[Segment, None] = {}  # Segments whose file is open, the least recently used one first.
        self._open_max = open_max
        self.opener: Callable[[], Executor] = Inline  # Returns the executor that opens files for reads.

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
        """The segment to which units are appended."""
        return self._chain[-1]

    def find(self, position: int) -> Segment:
        """Return the segment or gap that contains `position`. Raises StoreError if it is below the first segment."""
        chain = self._chain
        number = bisect_right(chain, position, key=_START) - 1
        if number < 0:
            raise StoreError(f"position {position} is below the first position of the log, {chain[0].start}")
        return chain[number]

    def between(self, start: int, end: int) -> list[Segment]:
        """Return the segments and gaps that contain the positions from `start` up to, but not including, `end`."""
        first = max(0, bisect_right(self._chain, start, key=_START) - 1)
        return [segment for segment in self._chain[first:] if segment.start < end]

    def add(self, start: int) -> Segment:
        """Seal the active segment at position `start`, and add a new one, whose file the first write creates."""
        if self._chain:
            assert self.active.end is None, f"{self.active} is sealed already"
            self.active.end = start
        segment = Segment(start)
        self._chain.append(segment)
        return segment

    def cut(self, end: int) -> list[Segment]:
        """Make the segment that contains position `end` the active one.

        Returns the later segments, whose files the caller must remove.
        """
        active = self.find(end)
        later = [segment for segment in self._chain if segment.start > active.start]
        for segment in later:
            if segment.file is not None:
                self._close_file(segment)
        self._chain = [segment for segment in self._chain if segment.start <= active.start]
        active.end = None
        return later

    # -- Handles

    def open_file_of(self, segment: Segment) -> int | None:
        """Return the handle of a segment's file if it is open; otherwise return None and open the file in a thread."""
        if segment.file is None and not segment.is_opening:
            segment.is_opening = True
            self.opener().submit(partial(self._files.open, segment.path), partial(self._opened, segment))
        if segment.file is None:
            return None
        return self.file_of(segment)

    def _opened(self, segment: Segment, outcome: int | Failure) -> None:
        segment.is_opening = False
        if not isinstance(outcome, int):
            return  # The cold read of the same segment reports the error.
        if segment.file is not None or segment not in self._chain:
            self._files.close(outcome)
            return
        segment.file = outcome
        self._open[segment] = None
        self._close_idle()

    def file_of(self, segment: Segment) -> int:
        """Return the handle of a segment's file, opening the file if needed. Blocks; raises OSError."""
        if segment.file is None:
            segment.file = self._files.open(segment.path)
            self._close_idle()
        self._open.pop(segment, None)
        self._open[segment] = None
        return segment.file

    def create_file(self, segment: Segment) -> int:
        """Create the file of a new segment and return its handle. Its name is durable after the directory is synced."""
        segment.file = self._files.open(segment.path, create=True)
        segment.exists = True
        self._open[segment] = None
        return segment.file

    def close_file(self, segment: Segment) -> None:
        """Close the file of a sealed segment if it is open and no sync is using it."""
        if segment.file is not None and not segment.in_sync:
            self._close_file(segment)

    def close(self) -> None:
        """Close all files."""
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
        """Remove sealed segments from the chain; replace those that are not the first ones by gaps.

        `SegmentRemoval.run` removes the files. It blocks, so a worker thread calls it.
        """
        dead_segments = set(dead)
        chain: list[Segment] = []
        removed: list[Segment] = []
        for segment in self._chain:
            if segment not in dead_segments and not segment.is_gap:
                chain.append(segment)
                continue
            removed.append(segment)
            if chain and chain[-1].is_gap:
                chain[-1] = Segment(chain[-1].start, segment.end, is_gap=True)
            elif chain:
                chain.append(Segment(segment.start, segment.end, is_gap=True))
        gaps = [segment for segment in chain if segment.is_gap]
        old_gap_paths = {gap.path for gap in removed if gap.is_gap}
        gap_paths = {gap.path for gap in gaps}
        self._chain = chain
        for segment in removed:
            assert not segment.in_sync, f"{segment} is not durable yet"
            if segment.file is not None:
                self._close_file(segment)
        return SegmentRemoval(
            self._files,
            created=[gap.path for gap in gaps if gap.path not in old_gap_paths],
            removed=[segment.path for segment in removed if segment.path not in gap_paths],
        )


class SegmentRemoval:
    """Creates new gap files and removes the files of removed segments and gaps.

    Gap files are created first, so that no position of the log is without a file after a crash.
    """

    def __init__(self, files: Files, *, created: list[str], removed: list[str]) -> None:
        self._files = files
        self._created = created  # Paths of gap files.
        self._removed = removed  # Paths of segment and gap files.

    def run(self) -> None:
        """Create and remove the files durably. Blocks; raises OSError."""
        for path in self._created:
            self._files.close(self._files.open(path, create=True))
        if self._created:
            self._files.sync_directory(LOG_DIRECTORY)
        for path in self._removed:
            # Each removal is synced before the next one: otherwise a power failure could undo the first of two removals
            # and not the second, and the names would show a missing file.
            self._files.remove(path)
            self._files.sync_directory(LOG_DIRECTORY)
