"""Takes over a stream: creates the next slot with a fence of a higher epoch.

A fence is created after the last object that this broker has read, so the broker that wins the slot has read all units
that count. The previous owner cannot create that slot any more, and stops. A broker that loses the race continues to
follow.

    1. Create the fence.                                                                       one round trip
    2. Check by the segment manifests that the slot of the fence was not deleted. At the       one round trip
       same time, create objects without content in all slots in which deposed owners may
       still write.
    3. Begin the first upload.                                                                 one round trip

A deposed owner has at most WINDOW uploads in flight, and the first one never counts for it, because the slot of this
upload or an earlier one has a fence. So after step 2 no deposed owner can create an object after these slots, and the
new owner may have several uploads in flight from the beginning.

If the slot of the fence had been deleted, the objects of step 2 have no effect: their slots are below the last slot of
the owner, because a compaction leaves WINDOW slots (`segments/compactor.py`), and readers ignore objects without
content.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.manifest import SegmentManifests
from duolog.store.shared.wal.log_cursor import LogCursor
from duolog.store.shared.wal.slots import WINDOW, Tail
from duolog.store.shared.wal.wal_object import Identity, WalHeader, WalKind, decode, encode, key_of


class Won(NamedTuple):
    """This broker has fenced the stream and owns it."""

    identity: Identity
    previous: Identity  # The owner before.
    fence: Tail  # The fence itself.
    first: int  # The slot of the first upload.
    begun_mono_ms: int  # When the creates began of which other brokers know: the lease counts from it.
    took_ms: int  # How long the last round trip took.
    safe_mono_ms: int = 0  # From when on the previous owner has no lease.


async def take_over(
    requests: Requests,
    cursor: LogCursor,
    manifests: SegmentManifests,
    writer: bytes,
    claim: bytes,
    mono_ms: Callable[[], int],
) -> Won | None:
    """Create a fence of the next epoch in the slot of the cursor, and take the slots after it.

    Return None if one of them has an object of another broker by now, which the cursor must read next, or if the slot
    was deleted after a compaction. The latter is looked up after the create: a fence in a slot that was empty for that
    reason is below the floor and means nothing. Raises RequestsStopped and DamagedObject.
    """
    previous, sequence, begun_mono_ms = cursor.owner, cursor.sequence, mono_ms()
    _, position, crc = cursor.tail
    asked = WalHeader(WalKind.FENCE, 0, previous.epoch + 1, sequence, position, position, crc, previous.stream, writer)
    data, header = encode(asked, [claim])
    while not await requests.create(key_of(sequence), data):
        found = await requests.get(key_of(sequence))
        if found == data:
            break
        if found is not None:
            return None
    # No broker has written to a stream before its first epoch.
    first = sequence + (WINDOW if header.epoch > 1 else 1)
    voids_mono_ms = mono_ms()
    voids = [
        _occupy(requests, header._replace(kind=WalKind.VOID, sequence=each, previous=header.crc))
        for each in range(sequence + 1, first)
    ]
    writers, _ = await asyncio.gather(asyncio.gather(*voids), manifests.refresh())
    if cursor.is_behind(manifests.floor_sequence) or None in writers:
        return None
    cursor.take(data)
    # The next broker that fences has read an object that was created after this time.
    begun_mono_ms = voids_mono_ms if writer in writers else begun_mono_ms
    took_ms = mono_ms() - voids_mono_ms
    return Won(header.identity, previous, Tail(sequence, position, header.crc), first, begun_mono_ms, took_ms)


async def _occupy(requests: Requests, void: WalHeader) -> bytes | None:
    """Make sure that a slot has an object; return its writer, or None if another broker has taken over."""
    key = key_of(void.sequence)
    data, own = encode(void, [])
    while not await requests.create(key, data):
        found = await requests.get(key)
        if found is not None:
            other = decode(found, void.sequence).header
            is_harmless = other == own or (other.stream == own.stream and other.epoch < own.epoch)
            return other.writer if is_harmless else None
    return own.writer
