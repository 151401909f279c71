"""The class Uploader: uploads what the owner of a stream appends, and keeps the promises of level SHARED.

    end of a turn, deadline   begin_due_uploads   cuts written units into uploads that are due, while `Slots` has room
    task of one upload        _upload             creates the object; reads the slot back if the outcome is unknown
    an upload counts          _count              reports it to `Durability.stored` and renews the lease

An upload is due when `shared.flush_interval_ms` have passed since the last one, or when `shared.object_bytes` of units
wait; the upload window may lower that size (`upload_window.py`). So a unit waits for at most one interval. An owner
that appends nothing uploads heartbeat slots, which are objects without units, every third of `cluster.takeover_ms`, so
that followers know that it is alive. While the store is slow it does so more often, because the lease counts from the
beginning of a request.

Each object says whether a client has sent this owner a request lately (`UNASKED_FLAG`).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from duolog.store.durability import Durability
from duolog.store.errors import StoreBehind
from duolog.store.log.unit_source import Cut, UnitSource
from duolog.store.shared.events import Clients, Deposed, Event
from duolog.store.shared.lease import OwnerLease
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.requests import Requests, RequestsStopped
from duolog.store.shared.upload_window import UploadWindow
from duolog.store.shared.wal.slots import Slots, Upload, UploadStep
from duolog.store.shared.wal.wal_object import ENDED_FLAG, UNASKED_FLAG
from duolog.store.workers import Failure
from duolog.store.write_state import WriteState

HEARTBEATS: Final = 3  # The number of heartbeat slots in `cluster.takeover_ms` while the store is fast.
HEARTBEATS_IF_SLOW: Final = 12  # The same number while the store is slow.
SLOW_SHARE: Final = 10  # The store is slow if a create takes more than a tenth of `cluster.takeover_ms`.
# The part of `cluster.takeover_ms` after whose time without a request an owner says that no client asks it: 750 ms. A
# Kafka consumer asks every 500 ms (`fetch.max.wait.ms`), and the time of a request is exact to 250 ms.
UNASKED_SHARE: Final = 4


class Uploader:
    """The uploads of one owner. All methods are called in the loop.

    The class has more than 15 fields, because ten of them are what it is given.
    """

    def __init__(
        self,
        requests: Requests,
        source: UnitSource,
        durability: Durability,
        write_state: WriteState,
        slots: Slots,
        lease: OwnerLease,
        took_ms: int,
        options: SharedOptions,
        clients: Clients,
        mono_ms: Callable[[], int],
        on_event: Callable[[Event], None],
        on_counted: Callable[[Sequence[Upload]], None],
    ) -> None:
        """`took_ms` is the duration of a create before the first upload, which shows whether the store is slow."""
        self.slots, self.lease = slots, lease
        self._requests, self._source = requests, source
        self._durability, self._write_state = durability, write_state
        self._options, self._clients, self._mono_ms = options, clients, mono_ms
        self._on_event, self._on_counted = on_event, on_counted
        self._window = UploadWindow(options.in_flight_bytes, options.takeover_ms, took_ms)
        self.slots.bytes_max = self._window.bytes
        self._cut_mono_ms = -options.takeover_ms  # The time at which the last upload began.
        self._is_preparing = False  # A thread prepares the units of the next upload.
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ended = False  # The upload with ENDED_FLAG has begun.

    # -- Cutting

    @property
    def behind_bytes(self) -> int:
        """The number of written bytes that are not known to be in the object store."""
        return self._durability.written - self._durability.shared

    def next_deadline_ms(self) -> int | None:
        """Return the monotonic time of the next `begin_due_uploads`; None if the end of an upload comes first."""
        return self._cut_mono_ms + self._interval_ms if self._may_begin else None

    @property
    def _may_begin(self) -> bool:
        return self.slots.has_room and not self._is_preparing and not self._is_ended

    @property
    def _object_bytes(self) -> int:
        """The size at which an object is uploaded before the interval is over."""
        return min(self._options.object_bytes, self._window.bytes)

    @property
    def _interval_ms(self) -> int:
        """The time from the beginning of the last upload to that of the next one."""
        waiting = self._durability.written - self.slots.end
        if waiting >= self._object_bytes:
            return 0
        takeover_ms = self._options.takeover_ms
        is_slow = self._window.took_ms * SLOW_SHARE > takeover_ms
        heartbeat_ms = takeover_ms // (HEARTBEATS_IF_SLOW if is_slow else HEARTBEATS)
        return min(self._options.flush_interval_ms, heartbeat_ms) if waiting else heartbeat_ms

    def begin_due_uploads(self, mono_ms: int) -> None:
        """Begin the uploads that are due. Must be called after each write of the log, and at `next_deadline_ms`."""
        self._watch_backlog()
        while self._may_begin and mono_ms - self._cut_mono_ms >= self._interval_ms:
            self._begin_next(mono_ms)

    def _begin_next(self, mono_ms: int) -> None:
        """Begin the next upload, now or when a thread has prepared its units."""
        self._durability.cut()
        self._is_preparing = True
        cut = self._source.cut(self.slots.end, self._durability.written, self._object_bytes, self._prepared)
        if cut is not None:
            self._is_preparing = False
            self._begin(cut, mono_ms)

    def _prepared(self, outcome: Cut | Failure) -> None:
        self._is_preparing = False
        if isinstance(outcome, Exception):
            self._depose(f"the local log cannot be read for the upload: {outcome}")
        elif self.slots.has_room:
            self._begin(outcome, self._mono_ms())
            self.begin_due_uploads(self._mono_ms())

    def _begin(self, cut: Cut, mono_ms: int, flags: int = 0) -> None:
        self._cut_mono_ms = mono_ms
        if mono_ms - self._clients.heard_mono_ms > self._options.takeover_ms // UNASKED_SHARE:
            flags |= UNASKED_FLAG
        upload = self.slots.begin(cut, flags)
        self._source.keep_from(self.slots.end, self._options.tail_bytes)
        task = asyncio.create_task(self._upload(upload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _watch_backlog(self) -> None:
        """Refuse appends while the store lacks too much of the log."""
        behind, limit = self.behind_bytes, self._options.behind_bytes_max
        if behind > limit:
            self._write_state.fall_behind(
                StoreBehind(f"the object store lacks {behind} bytes of the log; shared.behind_bytes_max is {limit}")
            )
        elif self._write_state.behind is not None and behind <= limit // 2:
            self._write_state.catch_up()

    # -- Uploading

    async def _upload(self, upload: Upload) -> None:
        """Repeat the create of one object until the object counts or this owner is deposed."""
        # The lease counts from the first request. It may have created the object, and a later one may have created it
        # anew, after another broker has taken over and deleted the slot.
        begun_mono_ms = upload.begun_mono_ms = self._mono_ms()
        in_flight_bytes = self.slots.in_flight_bytes
        try:
            step = UploadStep.CREATE
            while step is UploadStep.CREATE:
                if await self._requests.create(upload.key, upload.parts):
                    step = UploadStep.DONE
                else:
                    step = self.slots.found(upload, await self._requests.get(upload.key))
        except RequestsStopped:
            return
        except Exception as bug:
            self._depose(f"an upload ended with an unexpected error: {bug!r}")
            raise
        self._window.note(upload.size, in_flight_bytes, self._mono_ms() - begun_mono_ms)
        self.slots.bytes_max = self._window.bytes
        if step is UploadStep.DONE:
            self._count(upload)
        else:
            self._depose(self.slots.deposed)

    def _count(self, upload: Upload) -> None:
        counted = self.slots.created(upload)
        if not counted or self.slots.deposed:
            return
        for each in counted:
            self.lease.renew(each.begun_mono_ms)
        self._durability.stored(self.slots.counted.position)
        self.begin_due_uploads(self._mono_ms())
        self._on_counted(counted)

    def _depose(self, reason: str) -> None:
        """End writing, after which no append is acknowledged."""
        self.slots.deposed = self.slots.deposed or reason
        self._requests.is_stopped = True
        self.lease.until_mono_ms = 0
        self._write_state.end_writing(f"this broker is not the owner any more: {reason}")
        self._on_event(Deposed(reason))
        self._on_counted([])

    # -- Stopping

    def end(self, mono_ms: int) -> bool:
        """Upload the remaining units, and then an object with ENDED_FLAG; return whether all objects count.

        The caller must call this after the last append, and again after each end of an upload, until it returns True.
        """
        if self.slots.deposed:
            return True
        if self._is_ended:
            return not self.slots
        if self._may_begin:
            if self.slots.end < self._durability.written:
                self._begin_next(mono_ms)
            elif not self.slots:
                self._is_ended = True
                self._begin(Cut.of(self.slots.end, []), mono_ms, ENDED_FLAG)
        return False
