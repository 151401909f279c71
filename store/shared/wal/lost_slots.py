"""Detects that the object of a slot was deleted by hand or lost by the store.

A start, or a standby that was away, reads slots up to the first empty one. This slot is the end of the log unless a
later slot has an object that can only exist after an object in this slot:

    later object                                    why an object was in the empty slot
    any object WINDOW or more slots later           an upload begins only when the slot WINDOW before it counts
    a fence, or an object of a higher epoch         a fence is created after all objects that its writer has read
    an object with ENDED_FLAG                       it is created when all slots before it count
"""

import asyncio

from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.manifest import SegmentManifests
from duolog.store.shared.wal.log_cursor import LogCursor
from duolog.store.shared.wal.slots import WINDOW
from duolog.store.shared.wal.wal_object import (
    ENDED_FLAG,
    HEADER_SIZE,
    DamagedObject,
    WalHeader,
    WalKind,
    decode_header,
    key_of,
)


async def check_end(requests: Requests, manifests: SegmentManifests, cursor: LogCursor) -> None:
    """Raise DamagedObject if the empty slot of the cursor must have had an object that was lost.

    The caller must have read all manifests. The slot is not lost if there is a new manifest now, because the slot may
    have been compacted, or if the slot has an object now. Raises RequestsStopped.
    """
    later = range(cursor.sequence + 1, cursor.sequence + WINDOW + 1)
    heads = await asyncio.gather(*(requests.get_range(key_of(each), 0, HEADER_SIZE) for each in later))
    found = [(each, decode_header(head, each)[0]) for each, head in zip(later, heads, strict=True) if head is not None]
    proof = next((each for each, header in found if _is_proof(cursor, header)), None)
    if proof is None or await requests.get_range(key_of(cursor.sequence), 0, 1) is not None:
        return
    number = manifests.number
    await manifests.refresh()
    if manifests.number == number:
        raise DamagedObject(
            f"the object {key_of(cursor.sequence)} is missing, and {key_of(proof)} follows it: restore it from a "
            "backup or a version of the bucket"
        )


def _is_proof(cursor: LogCursor, header: WalHeader) -> bool:
    """Return whether this object proves that the slot of the cursor had an object."""
    epoch = cursor.owner.epoch
    if header.stream != cursor.owner.stream or header.epoch < epoch:
        return False
    is_far = header.sequence == cursor.sequence + WINDOW
    return is_far or header.epoch > epoch or header.kind == WalKind.FENCE or bool(header.flags & ENDED_FLAG)
