"""The store as its users see it: queues, units, promises, recovery.

One thread (the event loop's) calls everything here; only `Flusher` and `Readers` own other threads, and they
come back through the `post` callable they were given. Nothing here awaits, and nothing asks the time.

    store = Store.open(files, options, replayer, now_ms)          # recovery happens here
    queue = store.queue(key)                                      # key = topic number << 16 | queue id
    appended = store.append([Frame(queue, form, body)], now_ms)   # in memory, offsets assigned
    store.when(appended.promise, answer)                          # called once written / fsynced
    found = store.read(queue, offset, max_bytes=1 << 20, until=queue.visible_end)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from store.entry import Appended, Frame, Promise, Slot, State, Stored
from store.errors import StoreError
from store.queue import Queue


class Replayer(Protocol):
    """Whoever owns the state that the log holds. The same methods run live and at recovery."""

    def replay_state(self, payload: bytes, slot: Slot) -> None:
        """Apply one state record; replaying a record of something that is gone is a no-op."""

    def replay_frame(self, key: int, slot: Slot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        """See one frame (for what is derived from frames: producer windows, later timers and transactions)."""

    def snapshot(self) -> Iterable[bytes]:
        """Yield state records that, replayed into an empty replayer, give the present state.

        They go into checkpoints, and are appended again before a segment that holds state is removed.
        """


# INTERFACE ONLY, to be replaced by the implementation (same names and signatures):
#
# class Store:
#     @classmethod
#     def open(cls, files: Files, options: StoreOptions, replayer: Replayer, now_ms: int) -> "Store": ...
#     recovery: RecoveryReport                 # what open() did, for the start-up log line
#     clean: bool                              # the last run closed the log in order
#     next_position / written / durable: int   # invariant: durable <= written <= next_position
#
#     def queue(self, key: int) -> Queue                      # creates it on first use
#     def queues(self) -> Iterable[Queue]
#     def append(self, entries: Sequence[Frame | State], now_ms: int) -> Appended    # one unit; raises DiskFull, WritingEnded, EntryTooLarge
#     def kept(self, promise: Promise) -> bool
#     def when(self, promise: Promise, done: Callable[[StoreError | None], None]) -> None   # called at once if kept already
#     def promise(self) -> Promise                            # for all appended so far, at the broker's own durability
#     on_visible: Callable[[list[Queue]], None]               # set by the bridge: these queues' visible_end moved
#
#     def read(self, queue, offset, *, max_bytes, until, max_entries=...) -> list[Stored] | ColdRead
#         whole entries from the one that covers `offset`, below offset `until`; the first entry comes even if larger than max_bytes;
#         [] at the end; OffsetOutOfRange outside start_offset..until. Never blocks: what neither the tail nor the page cache holds
#         comes back as a ColdRead:  `ColdRead.start(done: Callable[[list[Stored] | StoreError], None])` reads in a reader thread.
#     def find_by_time(self, queue, timestamp_ms, until) -> Stored | ColdRead | None     # first entry whose greatest record timestamp >= t
#     def find_by_store_time(self, queue, stored_ms, until) -> offset ...                # first offset stored at or after
#
#     def trim(self, queue, start_offset, now_ms) -> None     # a unit; log start moves; never back
#     def expire(self, queue, *, keep_ms, keep_bytes, keep_records, now_ms) -> int | None   # the new start by these limits, for trim
#     def drop_topic(self, number, now_ms) -> None            # a unit; its queues and indexes go
#     def remove_dead_segments(self, now_ms) -> int           # re-appends state first, waits for durability, then unlinks
#     def checkpoint_due(self, mono_ms) -> bool;  def checkpoint(...)      # snapshot + index sync + atomic checkpoint file
#     def close(self, now_ms) -> None                         # writes, syncs, checkpoints, Closed entry, releases the lock
#
# The steps that a flusher drives, so that tests can drive them one by one:
#     def write(self) -> None                   # everything appended goes to the file (one pwritev); async queues become visible
#     def sync_wanted(self) -> SyncTask | None  # what an fsync would cover now; runs in the flusher thread: task.run()
#     def synced(self, task, error: OSError | None) -> None     # durable moves, sync queues become visible, promises are kept
