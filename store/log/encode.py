"""Encodes entries into the write buffer. Their layout is described in `store/log/format.py`."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from duolog.store.entry import CONTROL_FORM, STATE_FORM, Buffer, EntrySlot, new_tuple
from duolog.store.errors import EntryTooLarge
from duolog.store.log.control import Control
from duolog.store.log.format import (
    COUNT_MAX,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    EXTRA_SIZE_MAX,
    entry_size,
    put_entry,
)
from duolog.store.log.write_buffer import Chunk
from duolog.store.unit import Frame, FrameRun, StateRecord

Entry = Frame | FrameRun | StateRecord | Control

_pack_header = ENTRY_HEADER.pack_into


_BUFFER_TYPES = (bytes, bytearray, memoryview)


def sizes_of(entry: Entry) -> tuple[int, int]:
    """Return (size of the entry's frame or payload, size of the entry in the log), both in bytes.

    For a FrameRun both are sums over its frames. Raises EntryTooLarge if a field of the header cannot hold a value.
    """
    if type(entry) is FrameRun:
        sizes = [*map(len, entry.frames)]
        # The same value as `entry_size(size, 0, 1)`.
        return sum(sizes), sum([(ENTRY_HEADER_SIZE + size + 7) & ~7 for size in sizes])
    if type(entry) is not Frame:
        size = len(entry.payload)  # type: ignore[union-attr]
        return size, entry_size(size, 0, 0)
    body = entry.body
    size = len(body) if type(body) in _BUFFER_TYPES else sum(map(len, body))  # type: ignore[arg-type]
    if entry.count == 1 and not entry.extra:  # Nearly all messages of RocketMQ.
        return size, (ENTRY_HEADER_SIZE + size + 7) & ~7  # The same value as `entry_size(size, 0, 1)`.
    count, extra_size = entry.count, len(entry.extra)
    if not 0 < count <= COUNT_MAX or extra_size > EXTRA_SIZE_MAX:
        raise EntryTooLarge(
            f"the frame has {count} records and {extra_size} bytes of extra; "
            f"an entry holds 1 to {COUNT_MAX} records and at most {EXTRA_SIZE_MAX} bytes of extra"
        )
    return size, entry_size(size, extra_size, count)


def put_frame(chunk: Chunk, at: int, frame: Frame, size: int, slot: EntrySlot) -> None:
    """Encode the entry of a Frame at byte `at` of the chunk, and call its Stamp. The chunk must have zeros there."""
    extra = frame.extra
    target = chunk.writable  # Assigning to a slice of a memoryview takes half the time that a bytearray takes.
    _pack_header(
        target, at, size, frame.form, 0, len(extra), frame.queue.key,
        slot[1], frame.count, frame.tags, frame.timestamp_ms,
    )  # fmt: skip
    frame_at = at + ENTRY_HEADER_SIZE
    body = frame.body
    if type(body) in _BUFFER_TYPES:
        target[frame_at : frame_at + size] = body  # type: ignore[assignment]
    else:
        _put_pieces(target, frame_at, body)  # type: ignore[arg-type]
    if extra:
        target[frame_at + size : frame_at + size + len(extra)] = extra
    if frame.stamp is not None:
        frame.stamp(chunk.buffer, frame_at, slot)


def _put_pieces(target: memoryview, at: int, pieces: Sequence[Buffer]) -> None:
    for piece in pieces:
        target[at : at + len(piece)] = piece
        at += len(piece)


def put_run(chunk: Chunk, at: int, run: FrameRun, slot: EntrySlot) -> list[tuple[int, int]]:
    """Encode the entries of a FrameRun from byte `at` of the chunk on. `slot` is the slot of the first one.

    Returns (position of the entry, size of the frame) of each frame.
    """
    target, buffer, stamp = chunk.writable, chunk.buffer, run.stamp
    key, form = run.queue.key, run.form
    _, offset, stored_ms = slot
    locations: list[tuple[int, int]] = []
    for frame, timestamp_ms, tags in zip(run.frames, run.timestamps_ms, run.tags, strict=True):
        size = len(frame)
        _pack_header(target, at, size, form, 0, 0, key, offset, 1, tags, timestamp_ms)
        frame_at = at + ENTRY_HEADER_SIZE
        target[frame_at : frame_at + size] = frame
        position = chunk.start + at
        stamp(buffer, frame_at, new_tuple(EntrySlot, (position, offset, stored_ms)))
        locations.append((position, size))
        # The same value as `entry_size(size, 0, 1)`, whose call would be a tenth of the cost of this loop.
        at += (ENTRY_HEADER_SIZE + size + 7) & ~7
        offset += 1
    return locations


def run_positions(first: int, frames: Sequence[Buffer]) -> Iterator[int]:
    """Yield the positions of the entries of a FrameRun, the first of which is at `first`."""
    # The same value as `entry_size(size, 0, 1)`, as in `put_run`.
    return accumulate([(ENTRY_HEADER_SIZE + len(frame) + 7) & ~7 for frame in frames[:-1]], initial=first)


def put_other(chunk: Chunk, at: int, entry: Entry) -> None:
    """Encode the entry of a StateRecord or Control at byte `at` of the chunk."""
    if isinstance(entry, StateRecord):
        put_entry(chunk.buffer, at, STATE_FORM, 0, 0, entry.payload)
    elif isinstance(entry, Control):
        put_entry(chunk.buffer, at, CONTROL_FORM, entry.kind, entry.key, entry.payload)
