"""The class Follower: a standby. It reads new slots, keeps its copy of the log and its state, and takes over.

    slot is there     its units are appended to the copy and replayed (`store/log/log_copy.py`)
    slot is empty     asked again after a pause; if nothing has come for `cluster.takeover_ms`, a fence is created

An owner that is idle writes one object in every third of `cluster.takeover_ms`. A follower asks shortly after each of
them: after a slot that was there it waits a little less than that time, after an empty one a tenth of it. So it needs
hardly more requests than the owner, and notices a slot within a tenth of that time.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from duolog.store.durability import Durability
from duolog.store.log.format import UNIT_HEADER_SIZE, BadUnit, unit_size
from duolog.store.log.log_copy import LogCopy
from duolog.store.shared.copy_state import CopyStateKeeper
from duolog.store.shared.options import SharedOptions
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.compactor import CountedSlot, SlotsSeen
from duolog.store.shared.segments.manifest import Manifests, SegmentObject
from duolog.store.shared.segments.materialize import FellBehind, missing
from duolog.store.shared.uploader import BEATS
from duolog.store.shared.wal.fencing import Won, take_over
from duolog.store.shared.wal.log_cursor import Fence, Ignored, LogCursor, Units
from duolog.store.shared.wal.wal_object import DamagedObject, damaged, key_of

DISK_FULL_MS: Final = 500  # Between two tries to write to a full disk.
HITS_MAX: Final = 40  # Slots in a row that were there, after which the next one is asked for at once.
AHEAD_MAX: Final = 8  # Slots that are asked for at a time while they are all there.
READ_BYTES: Final = 8 << 20  # Of a segment object, in one request.
SLICE_BYTES: Final = 256 * 1024  # Units that are replayed in one turn of the loop,
SLICE_UNITS: Final = 256  # and their number.


class Polling:
    """How many slots a follower asks for at a time, and when. An idle owner writes one in every `beat_ms`.

    A follower that is behind asks without pauses until a slot is empty. It may be behind at the start, after a pause of
    its own, and after many slots in a row that were there, because a slow owner writes more of them.
    """

    def __init__(self, beat_ms: int) -> None:
        self.ahead = 1  # Slots to ask for.
        self._beat_ms = beat_ms
        self._is_behind = True  # No slot was empty since this follower may have fallen behind.
        self._is_busy = False  # All slots that were asked for were there, and more may be.
        self._hits = self._misses = 0  # Requests in a row that found all slots, or an empty one.
        self._asked_mono_ms: int | None = None

    def asks(self, mono_ms: int) -> None:
        """Note that slots are asked for now."""
        if self._asked_mono_ms is not None and mono_ms - self._asked_mono_ms > 2 * self._beat_ms:
            self._is_behind = True
        self._asked_mono_ms = mono_ms

    def found(self, *, has_units: bool) -> None:
        """Note that all slots were there. Slots without units say that the owner is idle."""
        self._hits, self._misses = self._hits + 1, 0
        self._is_behind = self._is_behind or self._hits >= HITS_MAX
        if self._is_busy:
            self.ahead = min(2 * self.ahead, AHEAD_MAX)
        self._is_busy = has_units or self._is_behind

    def missed(self) -> None:
        """Note that a slot was empty."""
        self.ahead, self._hits, self._is_busy, self._is_behind = 1, 0, False, False
        self._misses += 1

    @property
    def pause_ms(self) -> int:
        """How long to wait before the next slots are asked for."""
        if self._is_busy:
            return 0
        return self._beat_ms // 10 if self._misses == 1 else self._beat_ms * 99 // 100


class Follower:
    """Follows one stream in the loop. Between two calls of `follow` the copy is at the end of a slot."""

    def __init__(
        self,
        requests: Requests,
        cursor: LogCursor,
        manifests: Manifests,
        seen: SlotsSeen,
        copy: LogCopy,
        durability: Durability,
        keeper: CopyStateKeeper,
        options: SharedOptions,
        mono_ms: Callable[[], int],
        on_written: Callable[[], None],
    ) -> None:
        """`on_written` is called after units were appended and written: the flusher may sync them."""
        assert copy.position == cursor.position, f"the copy ends at {copy.position}, the slots at {cursor.position}"
        self.cursor = cursor
        self._requests, self._copy, self._durability = requests, copy, durability
        self._keeper = keeper
        self._manifests, self._seen = manifests, seen
        self._options, self._mono_ms = options, mono_ms
        self._on_written = on_written
        self._seen_mono_ms = mono_ms()  # When the newest slot was read.
        self._is_released = not cursor.owner.epoch  # The owner has ended, or the stream has had none yet.
        self._polling = Polling(options.takeover_ms // BEATS)

    async def follow(self) -> None:
        """Ask for the next slots once, and take those that are there. Raises RequestsStopped and DamagedObject."""
        first, position = self.cursor.sequence, self.cursor.position
        self._polling.asks(self._mono_ms())
        asked = [self._requests.get(key_of(first + number)) for number in range(self._polling.ahead)]
        for number, found in enumerate(await asyncio.gather(*asked)):
            if found is None:
                self._polling.missed()
                return
            if self.cursor.sequence == first + number:
                await self._take(found)
        self._polling.found(has_units=self.cursor.position > position)

    async def _take(self, data: bytes) -> None:
        try:
            outcome = self.cursor.take(data)
        except DamagedObject:
            if await self.bridge():  # The slots before this one were compacted meanwhile.
                return
            raise
        self._seen_mono_ms = self._mono_ms()
        if not isinstance(outcome, Ignored):
            slot = CountedSlot(self.cursor.owner, self.cursor.tail, isinstance(outcome, Fence))
            self._seen.note(slot, self._options.kept_slots + 2 * self._options.compact_slots)
        if isinstance(outcome, Units):
            self._is_released = outcome.is_last
            await self._apply(outcome.payload)
            self._durability.stored(self._copy.position)
            self._keeper.note(self.cursor.owner, self.cursor.tail)
        elif isinstance(outcome, Fence):
            self._is_released = False

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
        """Write what was appended, and wait while the disk is full. Raises WritingEnded and RequestsStopped."""
        self._durability.write()
        while self._durability.written < self._copy.position:
            self._durability.raise_if_ended()
            await self._requests.pause(DISK_FULL_MS)
            self._durability.write()

    # -- Segment objects

    async def bridge(self) -> bool:
        """Read segment objects if the next slots were compacted; return whether they were.

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
        self.cursor = LogCursor(floor.owner, floor.tail)
        self._seen.forget(floor.tail.sequence)
        self._is_released = False
        self._seen_mono_ms = self._mono_ms()
        self._durability.stored(self._copy.position)
        self._keeper.note(floor.owner, floor.tail)
        return True

    async def _apply_segment(self, segment: SegmentObject) -> None:
        """Append and replay the rest of a segment object, some units at a time."""
        wanted = READ_BYTES
        while (position := self._copy.position) < segment.end:
            data = await self._requests.get_range(
                segment.key, position - segment.start, min(wanted, segment.end - position)
            )
            if not data:
                raise await missing(self._manifests, segment.key)
            units = memoryview(data)
            size = whole_units(units)
            if not size and len(data) < wanted:
                raise damaged(segment.key, f"it has no whole unit at position {position}")
            wanted = READ_BYTES if size else 2 * wanted
            await self._apply(units[:size])

    # -- Time

    @property
    def is_overdue(self) -> bool:
        """Whether the owner has been silent for so long, or has ended, that this broker should take over."""
        return self._is_released or self._mono_ms() - self._seen_mono_ms >= self._options.takeover_ms

    async def run(self, writer: bytes, claim: bytes) -> Won:
        """Follow until this broker owns the stream. Raises RequestsStopped, DamagedObject and StoreError."""
        await self.bridge()
        while True:
            await self.follow()
            if self.is_overdue:
                if await self.bridge():
                    continue
                won = await self.take_over(writer, claim)
                if won is not None:
                    return won
                continue
            left_ms = self._seen_mono_ms + self._options.takeover_ms - self._mono_ms()
            await self._requests.pause(max(0, min(self._polling.pause_ms, left_ms)))

    async def take_over(self, writer: bytes, claim: bytes) -> Won | None:
        """Fence the stream; None if another broker's object was first. Raises RequestsStopped."""
        return await take_over(self._requests, self.cursor, self._manifests, writer, claim, self._mono_ms)


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
