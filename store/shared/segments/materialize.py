"""Writes the log of a stream up to its floor into an empty data directory.

A follower cannot replay a log with gaps, unit by unit. A recovery can: from a snapshot and the segments that are left.
So the segment objects become segment files, and removed ranges become gaps. A log without gaps has no snapshot.
"""

from crc32c import crc32c

from duolog.store.errors import StoreError
from duolog.store.files import Files, write_new
from duolog.store.log.segment import LOG_DIRECTORY, Segment
from duolog.store.recovery.checkpoint import snapshot_path
from duolog.store.shared.local_copy import remove_log
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.manifest import Manifests, SegmentObject, snapshot_key
from duolog.store.shared.wal.wal_object import damaged

READ_BYTES = 8 << 20  # Of a segment object, in one request.


class FellBehind(StoreError):
    """The shared log no longer has what this copy needs next. The broker must join again, which downloads the log."""


async def missing(manifests: Manifests, key: str) -> StoreError:
    """Return the exception for an object that a manifest names and that is not there.

    It is FellBehind if a later manifest has removed the object.
    """
    before = manifests.number
    await manifests.refresh()
    if manifests.number > before:
        return FellBehind(f"{key} was removed while the log was read")
    return damaged(key, "it does not exist, or is too short")


async def materialize(requests: Requests, files: Files, manifests: Manifests) -> None:
    """Replace the local log by the segment objects and the snapshot, if any, of the manifests.

    Blocks while it writes. Raises FellBehind, after which it can be called again, and DamagedObject, OSError,
    RequestsStopped.
    """
    files.make_directory(LOG_DIRECTORY)
    remove_log(files)
    if manifests.snapshot >= 0:
        key = snapshot_key(manifests.snapshot)
        snapshot = await requests.get(key)
        if snapshot is None:
            raise await missing(manifests, key)
        write_new(files, snapshot_path(manifests.snapshot), snapshot)
    position = manifests.segments[0].start if manifests.segments else None
    for segment in manifests.segments:
        if position is not None and segment.start > position:
            write_new(files, Segment(position, segment.start, is_gap=True).path, b"")
        await _download(requests, files, manifests, segment)
        position = segment.end
    assert manifests.floor is not None, "there is a manifest"
    end = manifests.floor.tail.position
    if position is not None and position < end:
        write_new(files, Segment(position, end, is_gap=True).path, b"")
    if position != end:
        write_new(files, Segment(end).path, b"")
    files.sync_directory(LOG_DIRECTORY)
    files.sync_directory(".")


async def _download(requests: Requests, files: Files, manifests: Manifests, segment: SegmentObject) -> None:
    handle = files.open(Segment(segment.start).path, create=True)
    try:
        crc = at = 0
        while at < segment.end - segment.start:
            data = await requests.get_range(segment.key, at, min(READ_BYTES, segment.end - segment.start - at))
            if not data:
                raise await missing(manifests, segment.key)
            files.write(handle, [data], at)
            crc, at = crc32c(data, crc), at + len(data)
        if crc != segment.crc:
            raise damaged(segment.key, f"its CRC is {crc:#010x}, and the manifest has {segment.crc:#010x}")
        files.sync(handle)
    finally:
        files.close(handle)
