"""All buckets of far timers: which of them count, looks over all of them, and how they change.

    timers/0000000007.bucket      immutable (delay/bucket.py)
    timers/0000000007.dead        grows (delay/tombstones.py)

Which files count, and how much of them, is said by the *manifest*: a tuple of `BucketEntry`, one record in the log.
Every change takes the same three steps, so that a crash leaves the old set or the new one, and never both:

    1. in a worker    write the files and make them durable            Writer.finish, Flush.run, Merge.run
    2. in the loop    commit the new manifest to the log               added, flushed, merged, finished; then `switch`
    3. in a worker    when that is durable, remove the old files       removal

`switch` is what replaying a manifest does, live and at recovery. During recovery it only remembers the last one; `open`
then opens its files and removes all others. A bucket that nobody named, tombstones that nobody counted, a removal that
was cut short: all gone with `open`, and the log still holds what the first two said.

Looks go through a `View`, which keeps the files of its moment open: a thread may read while the loop switches. Merges
keep buckets few and let go of the dead: eight of about one size become one, and one that is half dead is written anew.
What is large is cut by due time, so that a bucket stays handy.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge as in_order
from itertools import pairwise

from duolog.delay.bucket import (
    FOREVER_MS,
    Bucket,
    BucketEntry,
    FarTimer,
    Found,
    Here,
    TimerId,
    Writer,
    bucket_path,
)
from duolog.delay.tombstones import (
    TIMERS_DIRECTORY,
    Fate,
    Flush,
    tombstones_path,
)
from duolog.store.errors import Corruption
from duolog.store.files import Files

MERGE_WIDTH = 8  # buckets of about one size that are merged
BUCKET_BYTES = 256 << 20  # a merge begins another bucket here; larger ones are left alone
DEAD_SHARE = 0.5  # of a bucket, above which it is written anew

SET_ASIDE = ".damaged"  # behind the name of a file that could not be opened

Manifest = tuple[BucketEntry, ...]

log = logging.getLogger("delay")


def _go_on() -> None:
    pass


class Buckets:
    """The set that counts now. Belongs to the loop; what `run`s belongs into a worker, one at a time."""

    def __init__(self, files: Files) -> None:
        self.manifest: Manifest = ()
        self.pause: Callable[[], object] = _go_on  # lets other threads go on; called with each block that is written
        self._files = files
        self._open: dict[int, Bucket] | None = None  # None: the log is still being replayed
        self._pins: dict[Bucket, int] = {}
        self._ready: dict[int, Bucket] = {}  # for the next manifest: open already, for to switch must not fail
        self._retired: list[Bucket] = []  # their files are still there
        self._next_number = 1
        self._merge: Merge | None = None
        self.lost = 0  # timers of buckets that were set aside at the start
        self.is_repaired = False

    # -- The manifest

    def switch(self, manifest: Manifest) -> None:
        """Let exactly these buckets count: what replaying a manifest does."""
        self.manifest = manifest
        if self._open is None:
            return
        before, self._open = self._open, {}
        for entry in manifest:
            bucket = before.pop(entry.number, None)
            if bucket is None:
                bucket = self._ready.pop(entry.number)
            else:
                bucket.tombstones.counted(entry.tombstone_bytes - bucket.entry.tombstone_bytes)
                bucket.entry = entry
            self._open[entry.number] = bucket
        for bucket in before.values():
            self._retired.append(bucket)
            self._close_if_unused(bucket)

    def open(self) -> None:
        """Open what the last manifest names and remove the rest. Blocks; raises OSError.

        Damage does not refuse a start, it costs what it held: a bucket that is missing or cannot be read is set aside
        under another name, `lost` counts its timers, and the manifest is one without it. Of damaged tombstones those
        before the damage are kept. `is_repaired` says that the manifest should be committed anew.
        """
        assert self._open is None, "the buckets are open"
        self._files.make_directory(TIMERS_DIRECTORY)
        self._files.sync_directory(".")
        named = {bucket_path(entry.number) for entry in self.manifest}
        named |= {tombstones_path(entry.number) for entry in self.manifest if entry.tombstone_bytes}
        _remove(self._files, [path for path in _paths(self._files) if path not in named])
        self._next_number = 1 + max((entry.number for entry in self.manifest), default=0)
        self._open = {}
        for entry in self.manifest:
            try:
                self._open[entry.number] = self._open_bucket(entry)
            except Corruption as error:
                self._set_aside(entry, error)
        opened = tuple(bucket.entry for bucket in self._open.values())
        self.is_repaired, self.manifest = opened != self.manifest, opened

    def _open_bucket(self, entry: BucketEntry) -> Bucket:
        bucket = Bucket(self._files, entry)
        try:
            bucket.check_tables()
            if entry.tombstone_bytes:
                self._load_tombstones(bucket)
        except BaseException:
            bucket.close()
            raise
        return bucket

    def _load_tombstones(self, bucket: Bucket) -> None:
        """Read the tombstones that count, and cut off what follows them."""
        path, size = tombstones_path(bucket.entry.number), bucket.entry.tombstone_bytes
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            whole = 0
        else:
            try:
                whole = bucket.tombstones.load(self._files.read(file, size, 0))
                if self._files.size(file) > whole:
                    self._files.truncate(file, whole)
            finally:
                self._files.close(file)
        if whole < size:
            log.error(
                "cancelled delayed messages may be delivered: %s is damaged, or missing, from byte %d of %d on",
                path, whole, size,
            )  # fmt: skip
            bucket.entry = bucket.entry._replace(tombstone_bytes=whole)

    def _set_aside(self, entry: BucketEntry, error: Corruption) -> None:
        """Keep the files of a bucket that cannot be opened, for whoever wants to look at them."""
        timers = entry.count - entry.start
        self.lost += timers
        log.error("delayed messages are lost, their bucket is set aside: %s timers=%d", error, timers)
        names = set(_paths(self._files))
        for path in (bucket_path(entry.number), tombstones_path(entry.number)):
            if path in names:
                self._files.rename(path, path + SET_ASIDE)

    def close(self) -> None:
        """Close all files, at the end of the run."""
        for bucket in (*self._buckets.values(), *(bucket for bucket in self._retired if bucket in self._pins)):
            bucket.close()
        self._open, self._retired, self._pins = {}, [], {}

    # -- Looking

    def view(self) -> "View":
        """Keep the present set open for looks, in the loop or in a thread, until `View.close` in the loop."""
        buckets = tuple(self._buckets.values())
        for bucket in buckets:
            self._pins[bucket] = self._pins.get(bucket, 0) + 1
        return View(buckets, self)

    def unpin(self, buckets: Iterable[Bucket]) -> None:
        for bucket in buckets:
            self._pins[bucket] -= 1
            if not self._pins[bucket]:
                del self._pins[bucket]
                if self._buckets.get(bucket.entry.number) is not bucket:
                    bucket.close()

    def bury(self, bucket: Bucket, here: Here, fate: Fate) -> None:
        """Let a timer not be delivered from its bucket any more: what replaying its cancel or its delivery does.

        The log must keep saying so until a manifest counts the tombstone. A timer's first fate is its last.
        """
        assert self.has(bucket), f"{bucket.path} counts no more: find the timer again"
        if self._merge is not None and bucket in self._merge.inputs:
            self._merge.buried_late.append((here.id, fate))
        bucket.tombstones.add(here.ordinal, fate, here.topic)

    def has(self, bucket: Bucket) -> bool:
        """Whether a bucket counts still; a view may have one that does not."""
        return self._buckets.get(bucket.entry.number) is bucket

    @property
    def merging(self) -> frozenset[int]:
        """The numbers of the buckets that are being merged."""
        return frozenset() if self._merge is None else frozenset(bucket.entry.number for bucket in self._merge.inputs)

    @property
    def pending(self) -> int:
        return sum(bucket.pending for bucket in self._buckets.values())

    # -- Changing: what to run, and the manifest to commit after it

    def writer(self) -> Writer:
        """Begin a bucket; it comes from `finish`, and counts when the manifest of `added` is committed."""
        return self.new_writer()()

    def new_writer(self) -> Callable[[], Writer]:
        """Number a bucket, and leave it to a worker to begin it."""
        number = self._reserve(1)
        return lambda: Writer(self._files, number, pause=self.pause)

    def added(self, buckets: Iterable[Bucket]) -> Manifest:
        self._ready = {bucket.entry.number: bucket for bucket in buckets}
        return (*self.manifest, *(bucket.entry for bucket in self._ready.values()))

    def flushes(self) -> list[Flush]:
        """Take all tombstones that are not in files yet; run each, then commit the manifest of `flushed`."""
        return [
            Flush(self._files, bucket.tombstones, bucket.entry.tombstone_bytes)
            for bucket in self._buckets.values()
            if bucket.tombstones.pending
        ]

    def flushed(self, flushes: Sequence[Flush]) -> Manifest:
        ends = {flush.number: flush.end for flush in flushes}
        return tuple(
            entry._replace(tombstone_bytes=ends.get(entry.number, entry.tombstone_bytes)) for entry in self.manifest
        )

    def finished(self, starts: Mapping[int, int], manifest: Manifest | None = None) -> Manifest:
        """The timers before these ordinals are delivered or cancelled (`View.lower`); buckets without others go.

        Those that are being merged stay as they are. `manifest` is that of a change to be committed together with it.
        """
        merging = self.merging
        result = []
        for entry in self.manifest if manifest is None else manifest:
            if entry.number not in merging:
                entry = entry._replace(start=max(entry.start, starts.get(entry.number, 0)))
                if entry.count == entry.start + self._buckets[entry.number].tombstones.count(entry.start, entry.count):
                    continue
            result.append(entry)
        return tuple(result)

    def merge(self, inputs: Sequence[Bucket]) -> "Merge":
        """Begin to write these anew as one; run it, then commit the manifest of `merged`. One merge at a time."""
        assert self._merge is None, "a merge is under way"
        size = sum(bucket.entry.size for bucket in inputs)
        self._merge = Merge(self._files, inputs, self._reserve(size // BUCKET_BYTES + 1), self.pause)
        for bucket in inputs:
            self._pins[bucket] = self._pins.get(bucket, 0) + 1
        return self._merge

    def merge_wanted(self) -> list[Bucket]:
        """Name the buckets that are worth merging now; none, mostly."""
        if self._merge is not None:
            return []
        classes: dict[int, list[Bucket]] = {}
        for bucket in self._buckets.values():
            entry = bucket.entry
            if bucket.tombstones.dead > entry.count * DEAD_SHARE:
                return [bucket]
            if entry.size < BUCKET_BYTES // 2:
                classes.setdefault(entry.size.bit_length() // 2, []).append(bucket)
        return next((alike[: 2 * MERGE_WIDTH] for alike in classes.values() if len(alike) >= MERGE_WIDTH), [])

    def merged(self) -> Manifest:
        """The merge that has run is over: name its results instead of what went in.

        Reads where what died meanwhile is, so few of them should be left. Raises OSError and Corruption, and then the
        merge is to be abandoned.
        """
        merge = self._merge
        assert merge is not None, "no merge is under way"
        merge.bury_late()
        self._merge = None
        self.unpin(merge.inputs)
        inputs = {bucket.entry.number for bucket in merge.inputs}
        return tuple(entry for entry in self.added(merge.outputs) if entry.number not in inputs)

    def abandon_merge(self) -> None:
        """Forget a merge that has failed."""
        assert self._merge is not None, "no merge is under way"
        self.unpin(self._merge.inputs)
        self._merge = None

    def discard(self, buckets: Sequence[Bucket]) -> Callable[[], None]:
        """The manifest of `added` or `merged` came to nothing: close these; returns what removes them, in a worker."""
        self._ready = {}
        for bucket in buckets:
            bucket.close()
        return partial(_remove, self._files, [bucket.path for bucket in buckets])

    def removal(self) -> "Removal | None":
        """What may be removed once the present manifest is durable in the log."""
        retired, self._retired = self._retired, []
        return Removal(self._files, retired) if retired else None

    # -- Inside

    @property
    def _buckets(self) -> dict[int, Bucket]:
        assert self._open is not None, "the buckets are not open"
        return self._open

    def _reserve(self, count: int) -> int:
        number = self._next_number
        self._next_number += count
        return number

    def _close_if_unused(self, bucket: Bucket) -> None:
        if bucket not in self._pins:
            bucket.close()


class View:
    """The buckets of one moment, for any look over all of them. Reading may block, and raises Corruption.

    Times are half open: from the id `start` on, up to and not including what is due at `until_ms`.
    """

    def __init__(self, buckets: Sequence[Bucket], owner: Buckets) -> None:
        self.buckets, self._owner = tuple(buckets), owner

    def close(self) -> None:
        """Let go of the files; in the loop."""
        self._owner.unpin(self.buckets)
        self.buckets = ()

    def scan(self, start: TimerId, until_ms: int, without: frozenset[int] = frozenset()) -> Iterator[FarTimer]:
        """Yield the pending timers in due order, but for those of some topics."""
        return _in_order([bucket.scan(start, until_ms, without) for bucket in self._meeting(start, until_ms)])

    def of_topic(self, topic: int, start: TimerId, until_ms: int) -> Iterator[FarTimer]:
        """The same, of one topic."""
        return _in_order([bucket.of_topic(topic, start, until_ms) for bucket in self._meeting(start, until_ms)])

    def of_name(self, topic: int, name: bytes, start: TimerId, until_ms: int) -> Iterator[FarTimer]:
        """The same, of one topic and sender's key."""
        return _in_order([bucket.of_name(topic, name, start, until_ms) for bucket in self._meeting(start, until_ms)])

    def find(self, id: TimerId) -> Found | None:
        """Return the timer of this id, dead or alive."""
        return next(filter(None, (bucket.find(id) for bucket in self.buckets)), None)

    def named(self, topic: int, name: bytes) -> Iterator[Found]:
        """Yield all timers of this topic and sender's key, dead or alive, bucket by bucket."""
        for bucket in self.buckets:
            yield from bucket.named(topic, name)

    def count(self, start: TimerId, until_ms: int, topic: int | None = None) -> int:
        """Count the pending timers."""
        return sum(
            bucket.pending_before((until_ms, 0), topic) - bucket.pending_before(start, topic)
            for bucket in self._meeting(start, until_ms)
        )

    def histogram(self, edges_ms: Sequence[int], topic: int | None = None) -> list[int]:
        """Count the pending timers between each two neighbours of these times, which must rise."""
        meeting = self._meeting((edges_ms[0], 0), edges_ms[-1])
        before = [sum(bucket.pending_before((edge_ms, 0), topic) for bucket in meeting) for edge_ms in edges_ms]
        return [until - start for start, until in pairwise(before)]

    def lower(self, id: TimerId) -> dict[int, int]:
        """Return for each bucket how many of its timers are before this id: what `Buckets.finished` takes."""
        return {bucket.entry.number: bucket.lower(*id) for bucket in self.buckets}

    def _meeting(self, start: TimerId, until_ms: int) -> list[Bucket]:
        if (until_ms, 0) <= start:
            return []
        return [bucket for bucket in self.buckets if start <= bucket.last and bucket.first[0] < until_ms]


class Merge:
    """Buckets on their way into new ones, without their dead: made in the loop, `run` in a worker."""

    def __init__(
        self, files: Files, inputs: Sequence[Bucket], first_number: int, pause: Callable[[], object] = _go_on
    ) -> None:
        self.inputs = tuple(inputs)
        self._pause = pause
        self.outputs: list[Bucket] = []
        self.buried_late: list[tuple[TimerId, Fate]] = []  # since it began: they may have gone along
        self._placed = 0  # of these
        self._files, self._number = files, first_number
        self._writer: Writer | None = None

    def run(self) -> None:
        """Write, sync and open the results. Blocks; in a thread it gives up the interpreter with every block."""
        try:
            for timer in _in_order([bucket.scan((0, 0), FOREVER_MS) for bucket in self.inputs]):
                self._add(timer)
            self._finish()
        except (OSError, Corruption):
            self._clean_up()
            raise

    @property
    def late_count(self) -> int:
        """How many died since it began, or since `bury_late`."""
        return len(self.buried_late) - self._placed

    def bury_late(self) -> None:
        """Bury in the results what died meanwhile: for a worker, as long as there is much of it."""
        until = len(self.buried_late)
        late = dict(reversed(self.buried_late[self._placed : until]))  # The first fate is the last.
        try:
            for bucket in self.outputs:
                for here in bucket.places(sorted(late)):
                    bucket.tombstones.add(here.ordinal, late[here.id], here.topic)
        except (OSError, Corruption):
            self._clean_up()
            raise
        self._placed = until

    def _add(self, timer: FarTimer) -> None:
        if self._writer is None:
            self._writer = Writer(self._files, self._number, pause=self._pause)
            self._number += 1
        self._writer.add(timer)
        if self._writer.size >= BUCKET_BYTES:
            self._finish()

    def _finish(self) -> None:
        if self._writer is not None:
            self.outputs.append(self._writer.finish())
            self._writer = None

    def _clean_up(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        while self.outputs:
            bucket = self.outputs.pop()
            bucket.close()
            self._files.remove(bucket.path)


class Removal:
    """The files of buckets that count no more."""

    def __init__(self, files: Files, buckets: Sequence[Bucket]) -> None:
        self._files = files
        self._paths = {path(bucket.entry.number) for bucket in buckets for path in (bucket_path, tombstones_path)}

    def run(self) -> None:
        _remove(self._files, [path for path in _paths(self._files) if path in self._paths])


def _in_order(timers: Sequence[Iterator[FarTimer]]) -> Iterator[FarTimer]:
    return timers[0] if len(timers) == 1 else in_order(*timers)


def _paths(files: Files) -> list[str]:
    names = files.list(TIMERS_DIRECTORY)
    return [f"{TIMERS_DIRECTORY}/{name}" for name in names if name.endswith((".bucket", ".dead"))]


def _remove(files: Files, paths: Sequence[str]) -> None:
    for path in paths:
        files.remove(path)
    if paths:
        files.sync_directory(TIMERS_DIRECTORY)
