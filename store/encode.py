"""From what is appended to the bytes of entries (`store/format.py`), straight into the tail."""

from collections.abc import Sequence

from store.control import Control
from store.entry import CONTROL_FORM, STATE_FORM, Buffer, Frame, Slot, State
from store.errors import EntryTooLarge
from store.format import COUNT_MAX, ENTRY_HEADER, ENTRY_HEADER_SIZE, EXTRA_SIZE_MAX, entry_size, put_entry
from store.tail import Chunk

Entry = Frame | State | Control

_pack_header = ENTRY_HEADER.pack_into


def payload_size(entry: Entry) -> int:
    """Return the bytes of a frame, a state record or a control entry's payload."""
    if type(entry) is not Frame:
        return len(entry.payload)  # type: ignore[union-attr]
    body = entry.body
    return len(body) if type(body) in _BUFFER_TYPES else sum(map(len, body))  # type: ignore[arg-type]


_BUFFER_TYPES = (bytes, bytearray, memoryview)


def occupied_size(entry: Entry, size: int) -> int:
    """Return what an entry with a payload of `size` bytes will occupy; raises EntryTooLarge for what no header can say."""
    if type(entry) is not Frame:
        return entry_size(size, 0, 0)
    if not 0 < entry.count <= COUNT_MAX or len(entry.extra) > EXTRA_SIZE_MAX:
        raise EntryTooLarge(f"a frame of {entry.count} records with {len(entry.extra)} extra bytes")
    return entry_size(size, len(entry.extra), entry.count)


def put_frame(chunk: Chunk, at: int, frame: Frame, size: int, slot: Slot) -> None:
    """Encode a frame's entry at byte `at` of the chunk, which is zero there, and let the frame take note of its slot."""
    extra = frame.extra
    target = chunk.writable  # its slices are assigned in half the time of a bytearray's
    _pack_header(
        target, at, size, frame.form, 0, len(extra), frame.queue.key, slot[1], frame.count, frame.tags, frame.timestamp_ms
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


def put_other(chunk: Chunk, at: int, entry: Entry) -> None:
    """Encode an entry that lies in no queue."""
    if isinstance(entry, State):
        put_entry(chunk.buffer, at, STATE_FORM, 0, 0, entry.payload)
    elif isinstance(entry, Control):
        put_entry(chunk.buffer, at, CONTROL_FORM, entry.kind, entry.key, entry.payload)
