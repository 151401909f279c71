"""The class Follower: a standby. It reads new slots, keeps its copy of the log and its state, and takes over.

    slot has an object     its units are appended to the copy and replayed (`store/log/log_copy.py`)
    slot is empty          the follower asks for it again after a pause; if it has found no new slot for
                           `cluster.takeover_ms`, it creates a fence
    slot says that no      if clients ask this broker, and this broker does not reach the owner (`Clients`), it creates
    client asks            a fence in the next slot; if the owner has created that slot, and it says the same, the
                           follower tries the slot after it

`polling.py` decides which slots a follower asks for, and when.

The follower sends the fence one round trip, at most two thirds of `cluster.takeover_ms`, before that time is over, so
that the answer comes when it is over. This time only decides when the owner is considered dead. An owner that is still
alive either has created the slot before the fence, or finds the fence in the slot. The new owner answers clients only
from `Won.safe_mono_ms` on, because the old owner may answer until its lease ends.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from duolog.store.durability import Durability
from duolog.store.log.format import UNIT_HEADER_SIZE, BadUnit, unit_size
from duolog.store.log.log_copy import LogCopy
from duolog.store.shared.copy_state import CopyStateFile
from duolog.store.shared.events import Clients
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.polling import AHEAD_BYTES, AHEAD_MAX, Polling
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.compactor import CountedSlot, SlotsSeen
from duolog.store.shared.segments.log_download import FellBehind, missing
from duolog.store.shared.segments.manifest import SegmentManifests, SegmentObject
from duolog.store.shared.uploader import HEARTBEATS
from duolog.store.shared.wal.fencing import Won, take_over
from duolog.store.shared.wal.log_cursor import Fence, Ignored, LogCursor, Units
from duolog.store.shared.wal.lost_slots import check_end
from duolog.store.shared.wal.wal_object import (
    ENDED_FLAG,
    UNASKED_FLAG,
    DamagedObject,
    WalKind,
    damaged,
    decode_header,
    key_of,
)

DISK_FULL_MS: Final = 500  # The pause between two attempts to write to a full disk.
CUT_OFF_CHECKS: Final = 12  # The checks in `cluster.takeover_ms` of whether an owner that no client asks is cut off.
SLICE_BYTES: Final = 256 * 1024  # The size of the units that one turn of the loop replays.
SLICE_UNITS: Final = 256  # The number of these units.

log = logging.getLogger("store")


class Follower:
    """Follows one stream in the loop.

    The class has more than 15 fields, because what it is given are eight parts of the replica.
    """

    def __init__(
        self,
        requests: Requests,
        cursor: LogCursor,
        manifests: SegmentManifests,
        seen: SlotsSeen,
        copy: LogCopy,
        durability: Durability,
        copy_state_file: CopyStateFile,
        options: SharedOptions,
        clients: Clients,
        mono_ms: Callable[[], int],
        on_written: Callable[[], None],
    ) -> None:
        """`on_written` is called after units were appended and written, so that the flusher syncs them."""
        assert copy.position == cursor.position, f"the copy ends at {copy.position}, the slots at {cursor.position}"
        self.cursor = cursor
        self._requests, self._copy, self._durability = requests, copy, durability
        self._copy_state_file = copy_state_file
        self._manifests, self._seen = manifests, seen
        self._options, self._clients, self._mono_ms = options, clients, mono_ms
        self._on_written = on_written
        self._seen_mono_ms = mono_ms()  # The time at which the newest slot was read.
        # The flags of the newest slot. A stream that has no owner yet is taken over as if its owner had ended.
        self._flags = 0 if cursor.owner.epoch else ENDED_FLAG
        self._polling = Polling(options.takeover_ms, cursor.sequence)
        # By request without an answer: its slot, and the time at which the request began.
        self._asked: dict[asyncio.Task[bytes | None], tuple[int, int]] = {}
        self._found: dict[int, bytes] = {}  # The objects that were read, by slot, from the cursor on.

    # -- Slots

    @property
    def is_behind(self) -> bool:
        """Whether the copy may lack much of the log."""
        return self._polling.is_behind

    async def _follow(self) -> None:
        """Take slots until this broker should take over. Raises RequestsStopped, DamagedObject and StoreError."""
        while True:
            self._collect()  # Requests may have ended while this follower waited for something else or was paused.
            for sequence in () if self._is_full else self._polling.due(self._mono_ms()):
                is_hedged = not self._polling.asks_again
                task = asyncio.create_task(self._requests.get(key_of(sequence), is_hedged=is_hedged))
                task.add_done_callback(_retrieve)
                self._asked[task] = sequence, self._mono_ms()
            if (data := self._found.pop(self.cursor.sequence, None)) is not None:
                await self._take(data)
            elif self.is_overdue or self._is_cut_off:
                return
            else:
                await self._wait()

    @property
    def _is_full(self) -> bool:
        """Whether found slots wait to be applied in such a number that no further ones are requested now."""
        if self.cursor.sequence not in self._found:
            return False
        return len(self._found) >= AHEAD_MAX or sum(map(len, self._found.values())) >= AHEAD_BYTES

    async def _wait(self) -> None:
        """Wait for an answer, or until it is time for a request, for a fence, or for a check of `_is_cut_off`."""
        check_ms = self._mono_ms() + self._options.takeover_ms // CUT_OFF_CHECKS if self._flags & UNASKED_FLAG else None
        deadlines = [each for each in (self._polling.next_ms(), self._overdue_mono_ms, check_ms) if each is not None]
        left_ms = max(0, min(deadlines) - self._mono_ms()) if deadlines else None
        if self._asked:
            timeout = None if left_ms is None else left_ms / 1000
            await asyncio.wait(self._asked, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            assert left_ms is not None, "something is to be asked for"
            await self._requests.pause(left_ms)

    def _collect(self) -> None:
        """Process the answers to requests that have ended. Raises RequestsStopped."""
        mono_ms = self._mono_ms()
        for task in [each for each in self._asked if each.done()]:
            sequence, asked_mono_ms = self._asked.pop(task)
            data = task.result()
            if data is None:
                self._polling.missed(sequence, asked_mono_ms, mono_ms)
                continue
            self._polling.found(sequence, len(data), asked_mono_ms, mono_ms)
            if sequence >= self.cursor.sequence and sequence not in self._found:
                self._found[sequence] = data
                self._seen_mono_ms = mono_ms

    def _forget(self) -> None:
        """Cancel all requests, because the cursor has moved away from their slots, or because the follower stops."""
        for task in self._asked:
            task.cancel()
        self._asked.clear()
        self._found.clear()
        self._polling.restart(self.cursor.sequence)

    async def _take(self, data: bytes) -> None:
        try:
            if await self._skip_if_compacted(data):
                return
            outcome = self.cursor.take(data)
        except DamagedObject:
            if await self.catch_up_from_segments():  # The slots before this one were compacted meanwhile.
                return
            raise
        if not isinstance(outcome, Ignored):
            slot = CountedSlot(self.cursor.owner, self.cursor.tail, isinstance(outcome, Fence))
            self._seen.note(slot, self._options.kept_slots + 2 * self._options.compact_slots)
        if isinstance(outcome, Units):
            self._flags = outcome.flags
            await self._apply(outcome.payload)
            self._durability.stored(self._copy.position)
            self._copy_state_file.note(self.cursor.owner, self.cursor.tail)
        elif isinstance(outcome, Fence):
            self._flags = 0

    async def _skip_if_compacted(self, data: bytes) -> bool:
        """If the slot of the cursor was compacted, read segment objects instead; return whether it was.

        A fence in such a slot may be from a broker, this one included, that mistook the empty slot for the end of the
        log, and units may be from a deposed owner. So this must be checked after the object was read: for each fence,
        and for any object if this follower was away. Raises as `catch_up_from_segments`.
        """
        is_fence = decode_header(data, self.cursor.sequence)[0].kind == WalKind.FENCE
        if not is_fence and not self._polling.was_away:
            return False
        self._polling.was_away = False
        return await self.catch_up_from_segments()

    async def _apply(self, units: memoryview) -> None:
        """Append and replay the units of one object, in slices."""
        at = 0
        while at < len(units):
            end = at + SLICE_BYTES
            for _ in range(SLICE_UNITS):
                at = self._copy.take(units, at)
                if at >= min(end, len(units)):
                    break
            await self._write()
            self._on_written()
            await asyncio.sleep(0)

    async def _write(self) -> None:
        """Write the appended units, and wait while the disk is full. Raises WritingEnded and RequestsStopped."""
        self._durability.write()
        while self._durability.written < self._copy.position:
            self._durability.raise_if_ended()
            await self._requests.pause(DISK_FULL_MS)
            self._durability.write()

    # -- Segment objects

    async def catch_up_from_segments(self) -> bool:
        """If the next slots were compacted, apply segment objects instead; return whether they were.

        Raises RequestsStopped, DamagedObject and FellBehind.
        """
        await self._manifests.refresh()
        floor = self._manifests.floor
        if floor is None or not self.cursor.is_behind(floor.tail.sequence):
            return False
        if self._copy.position < self._manifests.first_whole:
            raise FellBehind(
                f"the copy ends at position {self._copy.position}, and segments up to {self._manifests.first_whole} "
                "were removed meanwhile"
            )
        for segment in self._manifests.segments:
            if segment.end > self._copy.position:
                await self._apply_segment(segment)
        self.cursor.go_to(floor.owner, floor.tail)
        self._seen.forget(floor.tail.sequence)
        self._flags = 0
        self._seen_mono_ms = self._mono_ms()
        self._forget()
        self._durability.stored(self._copy.position)
        self._copy_state_file.note(floor.owner, floor.tail)
        return True

    async def _apply_segment(self, segment: SegmentObject) -> None:
        """Append and replay the rest of a segment object, some units at a time."""
        rest = b""  # The beginning of a unit that the next block completes.
        begin, end = self._copy.position - segment.start, segment.end - segment.start
        async with aclosing(self._requests.parts(segment.key, begin, end)) as parts:
            async for data in parts:
                units = memoryview(rest + data if rest else data)
                size = whole_units(units)
                await self._apply(units[:size])
                rest = bytes(units[size:])
        if self._copy.position + len(rest) < segment.end:
            raise await missing(self._manifests, segment.key)
        if rest:
            raise damaged(segment.key, f"it has no whole unit at position {self._copy.position}")

    # -- Time

    @property
    def is_overdue(self) -> bool:
        """Whether this broker should take over, because the owner has ended or was silent for too long."""
        overdue_mono_ms = self._overdue_mono_ms
        return overdue_mono_ms is not None and self._mono_ms() >= overdue_mono_ms

    @property
    def _overdue_mono_ms(self) -> int | None:
        """When to take over if no slot is found until then; None while the next slot may already have an object."""
        if not self._polling.is_at_end:
            return None
        if self._flags & ENDED_FLAG:
            return 0
        takeover_ms = self._options.takeover_ms
        if not self._polling.is_silent_since(self._seen_mono_ms + takeover_ms // HEARTBEATS):
            return None  # It may be the store that is silent, and not the owner.
        return self._seen_mono_ms + takeover_ms - min(self._polling.latency_ms, takeover_ms * 2 // 3)

    @property
    def _is_cut_off(self) -> bool:
        """Whether the owner writes and no client reaches it, so that this broker should take over.

        While the store is slow, each fence would come too late. The tries would take the time of reading, and with it
        that of a takeover from an owner that writes no more.
        """
        return bool(self._flags & UNASKED_FLAG) and not self._polling.is_slow and self._clients.is_owner_cut_off

    async def run(self, writer: bytes, claim: bytes) -> Won:
        """Follow until this broker owns the stream. Raises RequestsStopped, DamagedObject and StoreError."""
        try:
            await self.catch_up_from_segments()
            while True:
                await self._follow()
                if self._polling.is_doubtful:
                    if not await self.catch_up_from_segments():
                        await check_end(self._requests, self._manifests, self.cursor)
                        self._polling.end_doubt(self._mono_ms())
                    continue
                is_alive = not self.is_overdue
                won = await self.take_over(writer, claim)
                if won is not None:
                    if is_alive:
                        log.warning("no client reaches the owner, this broker takes over epoch=%d", won.identity.epoch)
                    safe_mono_ms = 0 if self._flags & ENDED_FLAG else self._seen_mono_ms + self._options.takeover_ms
                    return won._replace(safe_mono_ms=safe_mono_ms)
                if is_alive:
                    # The owner has created its next slot before the fence. The flags of that slot decide whether this
                    # broker tries again.
                    self._flags &= ~UNASKED_FLAG
                    self._polling.ask_at_once()
                else:
                    self._polling.doubt()
        finally:
            self._forget()

    async def take_over(self, writer: bytes, claim: bytes) -> Won | None:
        """Fence the stream. Return None if another broker has taken the slot. Raises RequestsStopped."""
        return await take_over(self._requests, self.cursor, self._manifests, writer, claim, self._mono_ms)


def _retrieve(task: asyncio.Task[bytes | None]) -> None:
    """Retrieve an exception that has no effect because the follower stops, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def whole_units(block: memoryview) -> int:
    """Return the size of the whole units at the beginning of a block."""
    at = 0
    while len(block) - at >= UNIT_HEADER_SIZE:
        try:
            size = unit_size(block, at)
        except BadUnit:
            break
        if size > len(block) - at:
            break
        at += size
    return at
