"""The start of a broker that shares its log: finds the stream, compares the local log with it, and cuts the local log.

    data directory                        store                        result
    empty                                 empty                        a new stream begins
    empty                                 has a stream                 the log is downloaded
    a log without the file `shared`       has a stream, or is empty    the start is refused
    a copy of another stream              has a stream, or is empty    the start is refused
    a copy of the stream                  has this stream              see below

The start reads the slots after the tail in the file `shared`. The local log is kept as far as it has the same units. It
is cut at the position from which on the store has other units, or another broker has fenced the stream. The units
beyond that position were never uploaded, so only topics with `flush.mode` `sync` or `async` lose messages, and the loss
is reported.

A local log that cannot be cut, or that ends where the shared log has gaps, is removed and downloaded again
(`store/shared/segments/log_download.py`).

If the last object of the shared log is this broker's own, no other broker has taken over since it stopped. Then it
fences the stream at once, keeps the rest of its log, and uploads it. A broker that stopped while it waited for the end
of an earlier owner's lease starts as a standby, because it does not know any more when that lease ends.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from duolog.store.files import Files
from duolog.store.log.format import POSITION_MAX
from duolog.store.log.segment import LOG_DIRECTORY
from duolog.store.shared.copy_state import NO_WRITER, CopyState, read_copy_state, write_copy_state
from duolog.store.shared.local_copy import CannotCut, LocalCopy, Surplus, remove_log
from duolog.store.shared.requests import Requests
from duolog.store.shared.segments.log_download import FellBehind, download_log
from duolog.store.shared.segments.manifest import SegmentManifests
from duolog.store.shared.wal.fencing import Won, take_over
from duolog.store.shared.wal.log_cursor import LogCursor
from duolog.store.shared.wal.lost_slots import check_end
from duolog.store.shared.wal.slots import Tail
from duolog.store.shared.wal.stream import WrongStream, find_stream
from duolog.store.shared.wal.wal_object import DamagedObject, Identity, WalKind, decode, key_of

AHEAD: Final = 16  # The number of concurrent requests for slots.

log = logging.getLogger("store")


@dataclass(slots=True)
class Joined:
    """The result of a start: `Store.open_copy(..., own_from)` follows, and then a Follower unless `won` is set."""

    cursor: LogCursor
    manifests: SegmentManifests
    state: CopyState  # The content of the file `shared`.
    own_from: int  # Units of the local log from this position on were appended by this broker.
    lost: Surplus  # The units that were cut from the local log.
    won: Won | None = None  # The fence of this broker if it remains the owner. Then the local log may be longer.


async def join(
    requests: Requests, files: Files, *, writer: bytes, new_stream: bytes, claim: bytes, mono_ms: Callable[[], int]
) -> Joined:
    """Prepare the data directory. `writer` is a new id of this process, `new_stream` the id of a stream that begins.

    Raises WrongStream, DamagedObject, Corruption, RequestsStopped and OSError.
    """
    known = read_copy_state(files)
    local = LocalCopy(files)
    if known is None and not local.is_empty:
        raise WrongStream(
            f"the data directory has a log of its own, in {LOG_DIRECTORY}/, which is no copy of a stream: use an empty "
            "data directory, or make this log a stream of its own by `duolog move --data DIR --to URL`"
        )
    stream = await find_stream(requests, known.owner.stream if known else None, new_stream)
    state = known or _nothing(stream)
    manifests = SegmentManifests(requests)
    await manifests.refresh()
    if state.tail.position < manifests.first_whole:
        state, known = await _download(requests, files, manifests, stream), None
        local = LocalCopy(files)
    cursor, is_end = await _compare(requests, local, manifests, LogCursor(state.owner, state.tail))
    joined = Joined(cursor, manifests, state, state.own_from, Surplus(0, 0, 0))
    is_own = known is not None and known.writer != NO_WRITER and known.writer == cursor.owner.writer
    if is_end and is_own:
        joined.won = await take_over(requests, cursor, manifests, writer, claim, mono_ms)
    if joined.won is None:
        joined.lost = _surplus(local, cursor.position)
        try:
            local.cut(cursor.position)
        except CannotCut as reason:
            log.warning("the local log is downloaded again: %s", reason)
            state = await _download(requests, files, manifests, stream)
            cursor = joined.cursor = LogCursor(state.owner, state.tail)
        joined.own_from = POSITION_MAX
    joined.state = CopyState(cursor.owner, cursor.tail, joined.own_from, NO_WRITER if joined.won is None else writer)
    write_copy_state(files, joined.state)
    return joined


def _nothing(stream: bytes) -> CopyState:
    """Return the state of a data directory without a log."""
    return CopyState(Identity(stream, bytes(16), 0), Tail(-1, 0, 0), POSITION_MAX, NO_WRITER)


async def _download(requests: Requests, files: Files, manifests: SegmentManifests, stream: bytes) -> CopyState:
    """Remove the local log. If the shared log has gaps, download its segment objects instead. Return its state."""
    # The file comes first: a start that is interrupted after it begins again here.
    write_copy_state(files, _nothing(stream))
    while manifests.first_whole:
        with suppress(FellBehind):
            await download_log(requests, files, manifests)
            assert manifests.floor is not None, "a manifest has a floor"
            return CopyState(manifests.floor.owner, manifests.floor.tail, POSITION_MAX, NO_WRITER)
    remove_log(files)
    return _nothing(stream)


def _surplus(local: LocalCopy, position: int) -> Surplus:
    """Return what the local log has beyond the position, and report it: it is lost."""
    lost = local.surplus(position)
    if lost.units:
        log.warning(
            "units removed, the shared log does not have them: position=%d bytes=%d units=%d entries=%d",
            position,
            *lost,
        )
    return lost


async def _compare(
    requests: Requests, local: LocalCopy, manifests: SegmentManifests, cursor: LogCursor
) -> tuple[LogCursor, bool]:
    """Return a cursor at the first slot that is empty or whose units the local log lacks, and whether it is empty.

    If the slot was compacted, and the local log differs from the segment objects, the cursor stays where it is. What
    was read while a new manifest came is read again, because a deleted slot may have been created once more.
    """
    while True:
        await manifests.refresh()
        floor = manifests.floor
        if floor is not None and cursor.is_behind(floor.tail.sequence):
            is_whole = cursor.position >= manifests.first_whole
            if not (is_whole and await _has_segments(requests, local, manifests, cursor.position)):
                return cursor, False
            cursor = LogCursor(floor.owner, floor.tail)
        before = manifests.number
        found: tuple[LogCursor, bool] | DamagedObject
        try:
            found = await _compare_slots(requests, local, LogCursor(cursor.owner, cursor.tail))
            if found[1]:
                await check_end(requests, manifests, found[0])
        except DamagedObject as error:
            found = error
        await manifests.refresh()
        if manifests.number != before:
            continue
        if isinstance(found, DamagedObject):
            raise found
        return found


async def _compare_slots(requests: Requests, local: LocalCopy, cursor: LogCursor) -> tuple[LogCursor, bool]:
    """Do the same for slots above the floor; move the cursor.

    A restarted owner compares what it wrote in ten seconds. With a slow store, one slot after the other took minutes.
    """
    while True:
        asked = [requests.get(key_of(cursor.sequence + number)) for number in range(AHEAD)]
        for data in await asyncio.gather(*asked):
            if data is None:
                return cursor, True
            header, payload = decode(data, cursor.sequence)
            units = payload if header.kind == WalKind.UNITS else payload[:0]
            if header.epoch >= cursor.owner.epoch and not local.has(header.first, units):
                return cursor, False
            cursor.take(data)


async def _has_segments(requests: Requests, local: LocalCopy, manifests: SegmentManifests, position: int) -> bool:
    """Return whether the local log has the same bytes as the segment objects from this position on."""
    for segment in manifests.segments:
        begin, end = position - segment.start, segment.end - segment.start
        async with aclosing(requests.parts(segment.key, begin, end)) as parts:
            async for data in parts:
                if not local.has(position, memoryview(data)):
                    return False
                position += len(data)
        if position < segment.end:
            return False
    return True
