"""What is appended to the log: the frames and state records of one unit.

A *unit* holds the entries that one decision appends; after a crash either all of them are in the log or none is. The
store does not know the wire form of a frame: `form` is a small number that the bridge assigns and interprets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duolog.store.entry import Buffer, Slot
from duolog.store.index.queue import Queue

# Writes the values that are known only at the append (offset, position, store time) into the frame that starts at
# `buffer[at]`. A Stamp must not change the size of the frame.
Stamp = Callable[[bytearray, int, Slot], None]


@dataclass(slots=True)
class Frame:
    """One message or batch in its writer's wire form, about to be appended to a queue.

    `body` may be a sequence of buffers; they are copied into the log once. `timestamp_ms` is the greatest timestamp of
    the records in the frame, -1 if they have none. `extra` is stored in the entry, outside the frame.
    """

    queue: Queue
    form: int
    body: Buffer | Sequence[Buffer]
    count: int = 1
    timestamp_ms: int = -1
    tags: int = 0  # A signed 32-bit hash by which readers filter entries without reading their frames.
    stamp: Stamp | None = None
    extra: bytes = b""

    @property
    def size(self) -> int:
        """The size of the frame in bytes."""
        body = self.body
        return len(body) if isinstance(body, bytes | bytearray | memoryview) else sum(map(len, body))


@dataclass(slots=True)
class FrameRun:
    """Frames of one record each, about to be appended to one queue in order; each becomes an entry of its own.

    The lists have one item for each frame; the items have the meaning of the `Frame` fields of that name. A FrameRun of
    some hundred frames is appended in half the time of as many Frames.
    """

    queue: Queue
    form: int
    frames: Sequence[Buffer]
    timestamps_ms: Sequence[int]
    tags: Sequence[int]
    stamp: Stamp


@dataclass(slots=True)
class StateRecord:
    """One encoded change of state, about to be appended; recovery returns the same bytes."""

    payload: bytes


Part = Frame | FrameRun | StateRecord
