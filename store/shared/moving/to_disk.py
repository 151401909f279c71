"""Moves a stream from an object store into a data directory, whose broker then needs no object store.

The segment objects and the units of the slots above the floor become segment files. All brokers of the stream must be
stopped. A broker that still runs creates slots, so the move notices it and fails.

If the last owner did not stop in order, records that it had shown may be lost. Then the first start must begin a leader
epoch in all queues, as a takeover does, and its run must have another number than that owner, of which the log has
perhaps nothing. So the move ends the log with the first unit of a run of its own, whose number is above all fences.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from duolog.store.files import Files
from duolog.store.objects.interface import ObjectStore
from duolog.store.recovery.tail_writer import TailWriter, append_run
from duolog.store.shared.events import Event
from duolog.store.shared.files.named_files import NamedFiles
from duolog.store.shared.moving.to_store import MoveFailed
from duolog.store.shared.requests import CommandRequests, Requests
from duolog.store.shared.segments.log_download import FellBehind, download_log
from duolog.store.shared.segments.manifest import SegmentManifests
from duolog.store.shared.wal.log_cursor import Ignored, LogCursor, Units
from duolog.store.shared.wal.slots import WINDOW
from duolog.store.shared.wal.stream import KEY, decode_stream
from duolog.store.shared.wal.wal_object import ENDED_FLAG, FOLDER, damaged, decode, key_of, sequence_of


class WrittenLog(NamedTuple):
    """What a reader of the log that was written has found."""

    stored_ms: int  # The store time of its last unit.
    named: Sequence[tuple[str, int]]  # The paths and sizes of the files that it names.


class MovedLog(NamedTuple):
    position: int  # The end of the log.
    is_ended: bool  # The last owner stopped in order. If it did not, its disk may have units that the store lacks.


async def move_to_disk(
    objects: ObjectStore,
    url: str,
    files: Files,
    watch_ms: int,
    on_event: Callable[[Event], None],
    read_log: Callable[[], WrittenLog],
) -> MovedLog:
    """Write the log of a stream below an empty directory, and the files that it names.

    `read_log` reads the log that was written. `watch_ms` is how long no slot may come after the last one: more than the
    third of `cluster.takeover_ms` after which an idle owner creates one. Failed requests that are repeated are reported
    by `on_event`. Blocks while it writes. Raises MoveFailed, ObjectStoreError, DamagedObject and OSError.
    """
    requests = CommandRequests(objects, on_event)
    found = await requests.get(KEY)
    if found is None:
        raise MoveFailed(f"{url} has no object '{KEY}', so it has no stream: correct the URL")
    manifests = SegmentManifests(requests)
    cursor = LogCursor.at_start(decode_stream(found))
    await manifests.refresh()
    if manifests.floor is not None:
        await _download_log(requests, files, manifests)
        cursor = LogCursor(manifests.floor.owner, manifests.floor.tail)
    is_ended = await _copy_slots(requests, files, cursor)
    await requests.pause(watch_ms)
    number = manifests.number
    await manifests.refresh()
    if manifests.number != number or await requests.get(key_of(cursor.sequence)) is not None:
        raise MoveFailed(f"a broker is writing to {url}: stop all brokers of the stream, and run the command again")
    await _check_end(objects, requests, cursor)
    named_files = NamedFiles(requests, files, "")
    log = read_log()
    for path, size in log.named:
        missing = await named_files.download(path, size)
        if missing is not None:
            raise damaged(missing.key, "it does not exist, or is too short")
    end = cursor.position
    if not is_ended:
        end = append_run(files, end, cursor.owner.epoch + 1, log.stored_ms)
    return MovedLog(end, is_ended)


async def _download_log(requests: Requests, files: Files, manifests: SegmentManifests) -> None:
    while True:
        with suppress(FellBehind):
            return await download_log(requests, files, manifests)


async def _copy_slots(requests: Requests, files: Files, cursor: LogCursor) -> bool:
    """Append the units of all slots from the cursor on; return whether the last owner was stopped in order."""
    tail = TailWriter(files, cursor.position)
    is_ended = False
    try:
        while (data := await requests.get(key_of(cursor.sequence))) is not None:
            taken = cursor.take(data)
            if isinstance(taken, Units):
                await asyncio.to_thread(tail.write, taken.payload)
            if not isinstance(taken, Ignored):
                is_ended = isinstance(taken, Units) and bool(taken.flags & ENDED_FLAG)
    finally:
        tail.close()
    return is_ended


async def _check_end(objects: ObjectStore, requests: Requests, cursor: LogCursor) -> None:
    """Raise DamagedObject if a slot after the empty one has an object that counts, which proves that one was lost."""
    later = await objects.list(FOLDER, start_after=key_of(cursor.sequence), limit=WINDOW + 1)
    for key in [entry.key for entry in later]:
        sequence, data = sequence_of(key), await requests.get(key)
        if sequence is not None and data and decode(data, sequence).header.epoch >= cursor.owner.epoch:
            raise damaged(key_of(cursor.sequence), f"it is missing, and {key} follows it")
