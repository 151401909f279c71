"""Bugs that a simulation must find. Each replaces one function of the shared log while it runs.

The name says what is wrong. A bug that many seeds do not find shows what the checkers do not see.
"""

from contextlib import suppress
from typing import Any

from duolog.store.log.unit_source import checksum
from duolog.store.objects.errors import ObjectStoreError, StoreUnknown
from duolog.store.objects.interface import Content, Creation
from duolog.store.shared import replica
from duolog.store.shared.follower import Follower
from duolog.store.shared.lease import RELEASED_FOLDER, OwnerLease
from duolog.store.shared.local_copy import LocalCopy
from duolog.store.shared.replica import Replica
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.local_ranges import LocalRanges
from duolog.store.shared.segments.manifest import SegmentManifests
from duolog.store.shared.uploader import Uploader
from duolog.store.shared.wal import fencing, log_cursor
from duolog.store.shared.wal.slots import Slots, Upload, UploadStep
from duolog.store.shared.wal.wal_object import encode_parts
from duolog.store.store import Store
from tests.simulation.replacing import Replacement, always, by_name


def fence_not_checked() -> list[Replacement]:
    right = Slots.found

    def found(self: Slots, upload: Upload, data: bytes | None) -> UploadStep:
        step = right(self, upload, data)
        if step is UploadStep.DEPOSED:
            self.deposed, step = "", UploadStep.DONE
        return step

    return [(Slots, "found", found)]


def acknowledged_before_the_slot_counts() -> list[Replacement]:
    right = Uploader._count

    def count(self: Uploader, upload: Upload) -> None:
        durability = self._durability
        if upload.header.end > durability.shared:
            durability.stored(min(upload.header.end, durability.written))
        self._durability = _Deaf(durability)  # type: ignore[assignment]
        right(self, upload)
        self._durability = durability

    return [(Uploader, "_count", count)]


class _Deaf:
    """A Durability whose `stored` does nothing, because it was already called."""

    def __init__(self, durability: Any) -> None:
        self._durability = durability

    def stored(self, position: int) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._durability, name)


def time_out_taken_for_success() -> list[Replacement]:
    async def create(self: Requests, key: str, content: Content) -> bool:
        try:
            return await self._hedged(lambda: self._objects.create(key, content)) is Creation.CREATED
        except StoreUnknown:
            return True
        except Exception:  # noqa: BLE001 - a bug that is planted
            return False

    return [(Requests, "create", create)]


def time_out_taken_for_a_failure() -> list[Replacement]:
    right = Slots.found

    def found(self: Slots, upload: Upload, data: bytes | None) -> UploadStep:
        step = right(self, upload, data)
        if step is UploadStep.DONE and len(self) == 1:
            _, *payload = upload.parts
            moved = upload.header._replace(sequence=self._next_sequence)
            upload.parts, upload.header = encode_parts(moved, payload, checksum(payload))
            self._next_sequence, self._previous = self._next_sequence + 1, upload.header.crc
            return UploadStep.CREATE
        return step

    return [(Slots, "found", found)]


def object_that_exists_taken_for_ones_own() -> list[Replacement]:
    return [(Slots, "found", lambda self, upload, data: UploadStep.DONE if data else UploadStep.CREATE)]


def stale_read_after_a_takeover() -> list[Replacement]:
    return always(OwnerLease, "is_valid", value=True)


def lease_renewed_by_the_answer() -> list[Replacement]:
    right = OwnerLease.renew
    return [(OwnerLease, "renew", lambda self, begun_mono_ms: right(self, begun_mono_ms + 3_000))]


def lease_released_while_the_owner_answers() -> list[Replacement]:
    right = Replica.begin

    async def begin(self: Replica, now_ms: int) -> None:
        await right(self, now_ms)
        with suppress(ObjectStoreError):
            await self.release()

    return [(Replica, "begin", begin)]


def release_of_an_earlier_epoch_counts() -> list[Replacement]:
    return [(replica, "released_key", lambda owner: f"{RELEASED_FOLDER}any")]


def fence_behind_a_slot_that_was_not_read() -> list[Replacement]:
    async def take_over(self: Follower, writer: bytes, claim: bytes) -> Any:
        self.cursor.sequence += 1
        won = await fencing.take_over(self._requests, self.cursor, self._manifests, writer, claim, self._mono_ms)
        if won is None:
            self.cursor.sequence -= 1
        return won

    return [(Follower, "take_over", take_over)]


def no_caution_behind_the_fence() -> list[Replacement]:
    return [(fencing, "WINDOW", 1)]


def what_was_not_uploaded_is_kept() -> list[Replacement]:
    return always(LocalCopy, "cut", value=None)


def old_epoch_counts() -> list[Replacement]:
    right = log_cursor.decode

    def decode(data: bytes, sequence: int) -> Any:
        found = right(data, sequence)
        header = found.header
        return found._replace(header=header._replace(epoch=max(header.epoch, _newest[0]))) if _newest[0] else found

    _newest = [0]

    def take(self: log_cursor.LogCursor, data: bytes) -> Any:
        _newest[0] = self.owner.epoch
        try:
            return right_take(self, data)
        finally:
            _newest[0] = 0

    right_take = log_cursor.LogCursor.take
    return [(log_cursor, "decode", decode), (log_cursor.LogCursor, "take", take)]


def units_not_replayed_at_the_end_of_a_slice() -> list[Replacement]:
    right = Store.log_copy

    def log_copy(self: Store, replayer: Any) -> Any:
        copy = right(self, replayer)
        replay, count = copy._replay.take, [0]

        def take(block: memoryview, at: int, position: int) -> None:
            count[0] += 1
            if count[0] % 256:
                replay(block, at, position)

        copy._replay.take = take  # type: ignore[method-assign]
        return copy

    return [(Store, "log_copy", log_copy)]


def wal_objects_deleted_before_a_manifest_names_their_segments() -> list[Replacement]:
    return always(SegmentManifests, "add", value=True)


def deleted_slot_taken_for_the_end_of_the_log() -> list[Replacement]:
    async def refresh(self: SegmentManifests) -> None:
        if not self.number:
            await right(self)

    right = SegmentManifests.refresh
    return [(SegmentManifests, "refresh", refresh)]


def fence_in_a_deleted_slot_followed() -> list[Replacement]:
    async def skip_if_compacted(self: Follower, data: bytes) -> bool:
        return False

    return [(Follower, "_skip_if_compacted", skip_if_compacted)]


def segment_without_its_last_unit() -> list[Replacement]:
    right = LocalRanges.__init__

    def init(self: LocalRanges, *parts: Any) -> None:
        right(self, *parts)
        read = self.read
        self.read = lambda first, end: read(first, end)[:-48] + bytes(48)  # type: ignore[method-assign]

    return [(LocalRanges, "__init__", init)]


LOG_BUGS = by_name(
    fence_not_checked,
    acknowledged_before_the_slot_counts,
    time_out_taken_for_success,
    time_out_taken_for_a_failure,
    object_that_exists_taken_for_ones_own,
    stale_read_after_a_takeover,
    lease_renewed_by_the_answer,
    fence_behind_a_slot_that_was_not_read,
    no_caution_behind_the_fence,
    what_was_not_uploaded_is_kept,
    old_epoch_counts,
    units_not_replayed_at_the_end_of_a_slice,
    wal_objects_deleted_before_a_manifest_names_their_segments,
    deleted_slot_taken_for_the_end_of_the_log,
    segment_without_its_last_unit,
)
# A lease is wrongly taken for released, so that a takeover does not wait for its end. Simulations of logs find these
# bugs, because their owners are read all the time. In simulations of whole brokers, a takeover waits for the lease only
# if no client reaches the old owner. Then no client reads from it, unless the network heals in the second before the
# old owner finds the fence.
RELEASE_BUGS = by_name(
    lease_released_while_the_owner_answers,
    release_of_an_earlier_epoch_counts,
)
# This bug was a real one, which 6 of 1,700 simulations of whole brokers found. A standby seldom creates a fence in a
# deleted slot there.
FENCE_BUGS = by_name(fence_in_a_deleted_slot_followed)
