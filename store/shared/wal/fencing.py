"""Takes over a stream: creates the next slot with a fence of a higher epoch.

A fence is created behind the last object that this broker has read, so whoever wins the slot has read everything that
counts. The previous owner's create of that slot fails, and it stops. A broker that loses the race goes on following.
"""

from collections.abc import Callable
from typing import NamedTuple

from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.manifest import Manifests
from duolog.store.shared.wal.log_cursor import LogCursor
from duolog.store.shared.wal.slots import Tail
from duolog.store.shared.wal.wal_object import Identity, WalHeader, WalKind, encode, key_of


class Won(NamedTuple):
    """This broker has fenced the stream and owns it."""

    identity: Identity
    fence: Tail  # The fence itself.
    begun_mono_ms: int  # When its first create began.


async def take_over(
    requests: Requests, cursor: LogCursor, manifests: Manifests, writer: bytes, claim: bytes, mono_ms: Callable[[], int]
) -> Won | None:
    """Create a fence of the next epoch in the slot of the cursor.

    Return None if the slot has another object by now, which the cursor must read next, or if the slot was deleted after
    a compaction. The latter is looked up after the create: a fence in a slot that was empty for that reason is below
    the floor and means nothing. Raises RequestsStopped.
    """
    stream, sequence, begun_mono_ms = cursor.owner.stream, cursor.sequence, mono_ms()
    _, position, crc = cursor.tail
    asked = WalHeader(WalKind.FENCE, 0, cursor.owner.epoch + 1, sequence, position, position, crc, stream, writer)
    data, header = encode(asked, [claim])
    while not await requests.create(key_of(sequence), data):
        found = await requests.get(key_of(sequence))
        if found == data:
            break
        if found is not None:
            return None
    await manifests.refresh()
    if cursor.is_behind(manifests.floor_sequence):
        return None
    cursor.take(data)
    return Won(header.identity, Tail(sequence, position, header.crc), begun_mono_ms)
