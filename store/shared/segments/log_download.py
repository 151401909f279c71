"""Writes the log of a stream up to its floor into an empty data directory.

A follower cannot replay a log with gaps, unit by unit. A recovery can: from a snapshot and the segments that are left.
So the segment objects become segment files, and removed ranges become gaps. A log without gaps has no snapshot.
"""

import asyncio
from contextlib import aclosing

from crc32c import crc32c

from duolog.store.errors import StoreError
from duolog.store.files import Files, write_new
from duolog.store.log.segment import LOG_DIRECTORY, Segment
from duolog.store.recovery.checkpoint import snapshot_path
from duolog.store.shared.local_copy import remove_log
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.manifest import SegmentManifests, SegmentObject, snapshot_key
from duolog.store.shared.wal.wal_object import damaged


class FellBehind(StoreError):
    """The shared log no longer has what this copy needs next. The broker must join again, which downloads the log."""


async def missing(manifests: SegmentManifests, key: str) -> StoreError:
    """Return the exception for an object that a manifest names and that is not there.

    It is FellBehind if a later manifest has removed the object.
    """
    before = manifests.number
    await manifests.refresh()
    if manifests.number > before:
        return FellBehind(f"{key} was removed while the log was read")
    return damaged(key, "it does not exist, or is too short")


async def download_log(requests: Requests, files: Files, manifests: SegmentManifests) -> None:
    """Replace the local log by the segment objects and the snapshot, if any, of the manifests.

    Raises FellBehind, after which it can be called again, and DamagedObject, OSError, RequestsStopped.
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


async def _download(requests: Requests, files: Files, manifests: SegmentManifests, segment: SegmentObject) -> None:
    """Write a segment object into a file. Parts are written while the next ones are on their way."""
    path, size = Segment(segment.start).path, segment.end - segment.start
    files.close(files.open(path, create=True))
    crc = at = 0
    async with aclosing(requests.parts(segment.key, 0, size)) as parts:
        async for data in parts:
            crc = await asyncio.to_thread(_write, files, path, data, at, crc)
            at += len(data)
    if at < size:
        raise await missing(manifests, segment.key)
    if crc != segment.crc:
        raise damaged(segment.key, f"its CRC is {crc:#010x}, and the manifest has {segment.crc:#010x}")
    await asyncio.to_thread(_sync, files, path)


def _write(files: Files, path: str, data: bytes, at: int, crc: int) -> int:
    """Write a part of a file, and return the CRC up to its end. Blocks; raises OSError.

    The thread opens the file itself, because it goes on when its caller is cancelled.
    """
    handle = files.open(path)
    try:
        files.write(handle, [data], at)
    finally:
        files.close(handle)
    return crc32c(data, crc)


def _sync(files: Files, path: str) -> None:
    handle = files.open(path)
    try:
        files.sync(handle)
    finally:
        files.close(handle)
