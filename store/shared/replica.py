"""The class Replica: the local copy of a stream on one broker. It follows, takes over, and uploads.

    replica = await Replica.join(...)             # prepares the data directory
    replica.open(options, replayer)               # recovers the local log and its state
    await replica.follow()                        # returns when this broker owns the stream
    await replica.begin(now_ms)                   # begins a run; `begin_due_uploads` must follow each write
    await replica.end()                           # uploads the remaining units; another broker may take over at once

The store's `Flusher` must run from `open` on, and `advance` must be called at `next_deadline_ms`. A deposed replica
cannot be used again, because its state may contain units that the shared log lacks. The broker makes a new one, from
`join` on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from duolog.store.entry import SYNCED, Promise
from duolog.store.errors import Corruption, StoreError
from duolog.store.files import Files
from duolog.store.objects.interface import ObjectStore
from duolog.store.options import StoreOptions
from duolog.store.recovery.replay import Replayer
from duolog.store.shared.cache.cached_files import CachedFiles
from duolog.store.shared.cache.dropping import RANGES_SHARE, SegmentDropper
from duolog.store.shared.cache.local_segments import CacheCounts
from duolog.store.shared.copy_state import CopyStateFile
from duolog.store.shared.events import NO_CLIENTS, Clients, Deposed, Event
from duolog.store.shared.files.named_files import NamedFiles
from duolog.store.shared.follower import Follower
from duolog.store.shared.joining import Joined, join
from duolog.store.shared.lease import RELEASE_CHECKS, OwnerLease, released_key
from duolog.store.shared.local_copy import REMEDY
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.requests import Requests, RequestsStopped
from duolog.store.shared.segments.compactor import CountedSlot, SlotsSeen, WalCompactor
from duolog.store.shared.segments.log_download import FellBehind
from duolog.store.shared.segments.orphans import Orphans
from duolog.store.shared.uploader import Uploader
from duolog.store.shared.wal.fencing import Won
from duolog.store.shared.wal.slots import Slots, Tail, Upload
from duolog.store.store import Store

COMPACT_RETRY_MS: Final = 10_000
UPKEEP_MS: Final = 1_000
FIRST_CLEANUP: Final = 60  # The first search for orphans comes after this part of the time between two of them.
DONE: Final = object()  # The end of an iterator of slices.

log = logging.getLogger("store")


class Replica:
    """The parts that one broker needs for one stream.

    The class has more than 20 methods and 15 fields because it makes all of these parts, replaces some of them when the
    broker becomes the owner, and runs their background work.
    """

    def __init__(
        self,
        requests: Requests,
        files: CachedFiles,
        lock: int,
        joined: Joined,
        writer: bytes,
        claim: bytes,
        options: SharedOptions,
        mono_ms: Callable[[], int],
        on_event: Callable[[Event], None],
        on_progress: Callable[[], None],
        clients: Clients,
    ) -> None:
        self.joined, self.options = joined, options
        self.store: Store
        self.dropper: SegmentDropper
        self.follower: Follower
        self.uploader: Uploader | None = None
        self._copy_state_file: CopyStateFile
        self._requests, self._files, self._lock = requests, files, lock
        self.named_files = NamedFiles(requests, files, writer.hex())
        self._writer, self._claim = writer, claim
        self._mono_ms, self._on_event, self._on_progress = mono_ms, on_event, on_progress
        self._clients = clients
        self._won: Won | None = joined.won
        self._seen = SlotsSeen()
        self._slots_max = options.kept_slots + 2 * options.compact_slots
        self._compacting: asyncio.Task[None] | None = None
        self._dropping: asyncio.Task[None] | None = None
        self._cleanup_mono_ms = 0  # The time of the next search for orphans.
        self._is_compaction_next = False  # The last work was a search for orphans.
        self._upkeep_mono_ms = 0  # The time of the next maintenance of the copy or the objects.
        self._dead_segments: Iterator[None] = iter(())
        self._progress = asyncio.Event()  # Set when an upload counts or this owner was deposed.

    @classmethod
    async def join(
        cls,
        objects: ObjectStore,
        files: Files,
        lock: int,
        *,
        writer: bytes,
        new_stream: bytes,
        claim: bytes,
        options: SharedOptions,
        mono_ms: Callable[[], int],
        on_event: Callable[[Event], None],
        on_progress: Callable[[], None],
        clients: Clients = NO_CLIENTS,
    ) -> "Replica":
        """Find the stream and prepare the data directory.

        `lock` is the handle from `lock_directory`. The lock must be taken before, because this function changes the
        directory, and may fence a stream whose owner is a process that still uses this directory. `open` passes the
        lock to the store. `writer` and `new_stream` are 16 random bytes each: the id of this process, and the id of the
        stream if none exists yet. `claim` is the claim of this broker's fences. `on_progress` is called in the loop
        when promises were kept or units were copied, so that the broker flushes its connections and wakes the flusher.

        Raises WrongStream, DamagedObject, Corruption and OSError.
        """
        requests = Requests(objects, options.takeover_ms, on_event)
        files = CachedFiles(files, objects, options.cache_bytes // RANGES_SHARE)
        joined = await join(requests, files, writer=writer, new_stream=new_stream, claim=claim, mono_ms=mono_ms)
        return cls(requests, files, lock, joined, writer, claim, options, mono_ms, on_event, on_progress, clients)

    def open(self, options: StoreOptions, replayer: Replayer) -> Store:
        """Recover the local log. Blocks; raises StoreError and OSError."""
        joined = self.joined
        store = self.store = Store.open_copy(self._files, options, replayer, self._lock, joined.own_from)
        position = joined.cursor.position
        if store.next_position < position or (joined.won is None and store.next_position > position):
            found = store.next_position
            store.close_without_writing()
            raise Corruption(f"the local log ends at position {found}, and should end at {position}: {REMEDY}")
        store.stream = joined.cursor.owner.stream
        store.durability.shared = position
        self._copy_state_file = CopyStateFile(
            self._files, store.executors, lambda: store.durable, joined.state, self.options.state_interval_ms
        )
        self.dropper = SegmentDropper(
            self._requests,
            self._files,
            store.local_segments(),
            store.executors,
            joined.manifests.copy(self._requests),
            lambda: self._copy_state_file.saved,
            lambda: store.next_position,
            self.options,
            self._mono_ms,
        )
        if joined.won is None:
            self.follower = Follower(
                self._requests,
                joined.cursor,
                joined.manifests,
                self._seen,
                store.log_copy(replayer),
                store.durability,
                self._copy_state_file,
                self.options,
                self._clients,
                self._mono_ms,
                self._on_progress,
            )
        return store

    # -- Standby

    @property
    def is_behind(self) -> bool:
        """Whether a standby may lack much of the log, because it was started or was away."""
        return self.joined.won is None and self.follower.is_behind

    async def follow(self) -> None:
        """Follow until this broker owns the stream. Raises RequestsStopped, DamagedObject, StoreError."""
        if self._won is not None:
            return
        try:
            self._won = await self.follower.run(self._writer, self._claim)
        except FellBehind as error:
            self.stop()
            self._on_event(Deposed(str(error)))
            raise RequestsStopped from None

    # -- Owner

    @property
    def is_owner(self) -> bool:
        """Whether this broker has won a fence and does not know that it is deposed. Then it may write."""
        return self.uploader is not None and not self.uploader.slots.deposed

    def may_answer(self, mono_ms: int) -> bool:
        """Return whether no other broker can be the owner at this time, so that requests may be answered."""
        uploader = self.uploader
        return uploader is not None and not uploader.slots.deposed and uploader.lease.is_valid(mono_ms)

    async def begin(self, now_ms: int) -> None:
        """Begin a run of the log, after `follow`; return once answers may leave. Raises StoreError, OSError.

        It waits until the lease of the previous owner has ended. A restarted owner may have units that it had not
        uploaded. It waits until the store has them, because readers must not see those of shared queues before.
        """
        won, store = self._won, self.store
        assert won is not None, "Replica.follow comes first"
        await self._sync()
        if self.joined.won is None:
            await self._copy_state_file.begin_ownership(won.identity, won.fence)
        store.take_over(now_ms, won.identity.epoch)
        self._seen.note(CountedSlot(won.identity, won.fence, is_fence=True), self._slots_max)
        self._compactor = WalCompactor(
            self._requests,
            self.joined.manifests,
            self._seen,
            store.local_ranges(),
            lambda: self._copy_state_file.saved,
            self.options,
        )
        self._orphans = Orphans(self._requests, self.joined.manifests, self._mono_ms)
        self._cleanup_mono_ms = self._mono_ms() + self.options.cleanup_interval_ms // FIRST_CLEANUP
        self.uploader = Uploader(
            self._requests,
            store.unit_source(),
            store.durability,
            store.write_state,
            Slots(won.identity, won.fence, won.first, self.options.in_flight_bytes),
            OwnerLease(self.options.takeover_ms, won.begun_mono_ms),
            won.took_ms,
            self.options,
            self._clients,
            self._mono_ms,
            self._on_event,
            self._counted,
        )
        self.uploader.begin_due_uploads(self._mono_ms())
        while self.joined.won is not None and store.durability.shared < store.written:
            await self._next_progress()
            store.write_state.raise_if_ended()
            self.uploader.begin_due_uploads(self._mono_ms())
        await self._wait_for_lease(won)
        self._won = won._replace(safe_mono_ms=0)
        if self.joined.won is None:
            await self._copy_state_file.end_wait(won.identity.writer)

    async def _wait_for_lease(self, won: Won) -> None:
        """Return once the previous owner has no lease: its time is over, or it has given it up."""
        key, left_ms = released_key(won.previous), won.safe_mono_ms - self._mono_ms()
        if left_ms <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(left_ms / 1000):
                while await self._requests.get(key) is None:
                    await self._requests.pause(self.options.takeover_ms // RELEASE_CHECKS)

    async def release(self) -> None:
        """Give up the lease of this owner. It must have answered clients, and must answer nothing any more.

        Raises ObjectStoreError.
        """
        assert self._won is not None, "Replica.follow comes first"
        await self._requests.create_once(released_key(self._won.identity))

    async def confirm(self) -> None:
        """Return once a slot counts whose create began after this call, as proof that this broker is still the owner.

        The caller must wait for this before it reports an object as lost, because a later owner may have deleted it.
        Meanwhile `begin_due_uploads` must be called. Raises RequestsStopped if this broker was deposed.
        """
        uploader, begun_mono_ms = self.uploader, self._mono_ms()
        assert uploader is not None, "Replica.begin comes first"
        while not uploader.lease.is_renewed_since(begun_mono_ms):
            if uploader.slots.deposed:
                raise RequestsStopped
            await self._next_progress()

    async def _sync(self) -> None:
        """Wait until the copy is durable, after which the flusher runs no task. Raises StoreError."""
        outcome: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.store.when(Promise(self.store.next_position, SYNCED), outcome.set_result)
        self._on_progress()
        error = await outcome
        if error is not None:
            raise error

    def _counted(self, uploads: Sequence[Upload]) -> None:
        won, uploader = self._won, self.uploader
        assert won is not None, "Replica.follow comes first"
        assert uploader is not None, "Replica.begin comes first"
        self._copy_state_file.note(won.identity, uploader.slots.counted)
        for each in uploads:
            header = each.header
            tail = Tail(header.sequence, header.end, header.crc)
            self._seen.note(CountedSlot(won.identity, tail, is_fence=False), self._slots_max)
        self._progress.set()
        self._on_progress()

    def begin_due_uploads(self, mono_ms: int) -> None:
        """Begin the uploads that are due. Must be called after each write of the log."""
        if self.uploader is not None:
            self.uploader.begin_due_uploads(mono_ms)

    # -- Time

    def next_deadline_ms(self) -> int:
        """Return the monotonic time at which `advance` must be called next."""
        deadline_ms = self._upkeep_mono_ms
        upload_ms = None if self.uploader is None else self.uploader.next_deadline_ms()
        if upload_ms is not None and upload_ms < deadline_ms:
            deadline_ms = upload_ms
        file_ms = self._copy_state_file.next_deadline_ms()
        return deadline_ms if file_ms is None or file_ms > deadline_ms else file_ms

    def advance(self, mono_ms: int) -> None:
        """Begin due work: uploads, writes of the file `shared`, drops, compactions and the search for orphans."""
        self.begin_due_uploads(mono_ms)
        self._copy_state_file.advance(mono_ms)
        if mono_ms >= self._upkeep_mono_ms:
            self._upkeep_mono_ms = mono_ms + UPKEEP_MS
            if self._dropping is None and self.dropper.is_due:
                self._dropping = asyncio.create_task(self._drop_segment())
            if self.uploader is None:
                self._keep_up(mono_ms)
            elif self.is_owner and self._compacting is None and (work := self._next_work(mono_ms)) is not None:
                self._compacting = asyncio.create_task(self._compact(work))

    def _next_work(self, mono_ms: int) -> Callable[[], Awaitable[None]] | None:
        """Return the work on its objects that an owner must begin now; None if nothing is due.

        A compaction and a search for orphans take turns if both are always due.
        """
        is_due = self._compactor.is_due
        if mono_ms >= self._cleanup_mono_ms and not (is_due and self._is_compaction_next):
            self._cleanup_mono_ms = mono_ms + self.options.cleanup_interval_ms
            self._is_compaction_next = True
            return self._orphans.delete
        self._is_compaction_next = False
        return self._compactor.run if is_due else None

    def _keep_up(self, mono_ms: int) -> None:
        """Write a checkpoint of the copy if one is due, and look for segments that it can remove.

        An owner has `bridge/maintenance.py` for that.
        """
        self.store.check_disk()
        if self.store.checkpoint_due(mono_ms):
            self.store.checkpoint(mono_ms)
        if next(self._dead_segments, DONE) is DONE:
            self._dead_segments = self.store.retention.remove_dead_segments()

    async def _compact(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a compaction or a search for orphans. One of them runs at a time, because they share the manifests."""
        try:
            await work()
        except (StoreError, OSError) as error:
            log.error("the shared log could not be compacted, it is tried again: %s", error)
            with suppress(RequestsStopped):
                await self._requests.pause(COMPACT_RETRY_MS)
        except RequestsStopped:
            pass
        finally:
            self._compacting = None

    async def _drop_segment(self) -> None:
        try:
            await self.dropper.run()
        except (StoreError, OSError) as error:
            log.error("a segment could not be dropped, it is tried again: %s", error)
            with suppress(RequestsStopped):
                await self._requests.pause(COMPACT_RETRY_MS)
        except RequestsStopped:
            pass
        finally:
            self._dropping = None

    def cache_counts(self) -> CacheCounts:
        """Return what is on the disk, for the metrics."""
        cache, dropper = self._files.cache, self.dropper
        return CacheCounts(dropper.bytes_on_disk, cache.total_bytes, dropper.dropped, cache.hits, cache.misses)

    # -- The end

    async def end(self) -> None:
        """Upload what is written, and say that this owner has ended. The caller limits the time; then `stop`.

        An owner that waits for the end of an earlier lease says nothing, because the next owner would not wait for it.
        """
        won, uploader = self._won, self.uploader
        if won is None or won.safe_mono_ms > self._mono_ms():
            return
        while uploader is not None and not uploader.end(self._mono_ms()):
            await self._next_progress()

    async def _next_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def stop(self) -> None:
        """Let no request be repeated any more."""
        self._requests.is_stopped = True
        self._files.cache.stop()
        for task in (self._compacting, self._dropping):
            if task is not None:
                task.cancel()
