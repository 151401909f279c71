"""The types that are appended to the log: frames and state records, which together form a unit.

A *unit* holds the entries that one decision appends; after a crash either all of them are in the log or none is. The
store does not interpret frames: `form` is the number of the frame format, which the bridge assigns and interprets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from duolog.store.entry import Buffer, EntrySlot
from duolog.store.index.queue import Queue

# stamp(buffer, at, slot) writes the values that are known only at the append (offset, position, store time) into the
# frame that starts at `buffer[at]`. It must not change the size of the frame.
Stamp = Callable[[bytearray, int, EntrySlot], None]


@dataclass(slots=True)
class Frame:
    """One message or batch, in the wire format of its producer, to be appended to a queue.

    `body` may be a sequence of buffers, which are concatenated in the log. `count` is the number of records in the
    frame. `timestamp_ms` is the greatest timestamp of these records, -1 if they have none. `extra` is stored in the
    entry after the frame, and is passed to the function that `StateLog.on_extra` has registered for its first byte.
    """

    queue: Queue
    form: int
    body: Buffer | Sequence[Buffer]
    count: int = 1
    timestamp_ms: int = -1
    tags: int = 0  # A signed 32-bit tag hash, by which a TagScan filters entries without reading their frames.
    stamp: Stamp | None = None
    extra: bytes = b""

    @property
    def size(self) -> int:
        """The size of the frame in bytes."""
        body = self.body
        return len(body) if isinstance(body, bytes | bytearray | memoryview) else sum(map(len, body))


@dataclass(slots=True)
class FrameRun:
    """Frames of one record each, to be appended to one queue in this order. Each frame becomes one entry.

    The sequences have one item for each frame, with the meaning of the corresponding field of Frame. A FrameRun of some
    hundred frames is appended in half the time of as many Frames.
    """

    queue: Queue
    form: int
    frames: Sequence[Buffer]
    timestamps_ms: Sequence[int]
    tags: Sequence[int]
    stamp: Stamp
    extra: ClassVar[bytes] = b""  # No frame of a run has an extra.


@dataclass(slots=True)
class StateRecord:
    """One encoded state record, to be appended. Recovery passes the same bytes to `Replayer.replay_state`."""

    payload: bytes


Part = Frame | FrameRun | StateRecord
