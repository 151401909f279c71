"""The values that cross the store's border: what is appended, where it went, what is read back.

A *unit* is what one decision appends: frames and state records, kept whole or not at all.
Nothing here knows a wire form: `form` is a small number that the store carries and the bridge interprets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from duolog.store.index.queue import Queue

Buffer = bytes | bytearray | memoryview

# Forms below FIRST_FRAME_FORM are the log's own; the bridge numbers the wire forms from there on.
CONTROL_FORM = 0  # the store's own: queue trimmed, topic dropped, log opened, log closed
STATE_FORM = 1  # a state record: opaque here, given back at recovery
FIRST_FRAME_FORM = 2


# Makes a named tuple of its fields at half the cost of calling its class: for what is made with every message.
new_tuple = tuple.__new__


class Slot(NamedTuple):
    """Where an entry lies, known at the moment of its append."""

    position: int  # of the entry in the log
    base_offset: int  # of its first record in the queue; -1 for a state record
    stored_ms: int  # wall time of the append; below that of an earlier unit only behind a step back (`store_times.py`)


# Writes what is known only now into the frame that starts at `buffer[at]`; must not change its size.
Stamp = Callable[[bytearray, int, Slot], None]


@dataclass(slots=True)
class Frame:
    """One stored message or batch in its writer's wire form, about to be appended to a queue.

    `body` may come in pieces; they are copied once. `timestamp_ms` is the greatest record timestamp inside (-1: none).
    `extra` is kept in the entry header, outside the frame.
    """

    queue: "Queue"
    form: int
    body: Buffer | Sequence[Buffer]
    count: int = 1
    timestamp_ms: int = -1
    tags: int = 0  # a 32-bit signed hash that readers may filter on without reading the frame
    stamp: Stamp | None = None
    extra: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        body = self.body
        return len(body) if isinstance(body, bytes | bytearray | memoryview) else sum(map(len, body))


@dataclass(slots=True)
class FrameRun:
    """Frames of one record each, about to be appended to a queue one after the other: in the log as if each came alone.

    The lists have one item for each frame, with the meaning that it has in `Frame`. What appends hundreds at once takes
    half the time by this.
    """

    queue: "Queue"
    form: int
    frames: Sequence[Buffer]
    timestamps_ms: Sequence[int]
    tags: Sequence[int]
    stamp: Stamp


@dataclass(slots=True)
class State:
    """One change of state, about to be appended; recovery gives the same bytes back."""

    payload: bytes


Part = Frame | FrameRun | State  # of a unit


class Promise(NamedTuple):
    """What must hold before an answer may leave: the log is kept up to `end`.

    `durable` false asks for `write()` to have returned (kill -9 does not lose it), true for fsync.
    """

    end: int
    durable: bool


class Appended(NamedTuple):
    """What `Store.append` did: the slot of each entry in order (of a run, that of its first frame), and the promise
    that covers them all."""

    slots: list[Slot]
    promise: Promise


class Place(NamedTuple):
    """Where a frame lies, for who knows it without an index."""

    position: int  # of its entry
    size: int  # of the frame
    form: int


class Stored(NamedTuple):
    """One entry read back from a queue. `frame` is read-only and stays valid as long as it is referenced."""

    base_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    form: int
    position: int
    stored_ms: int
    timestamp_ms: int  # greatest record timestamp of this and all earlier entries of the queue
    tags: int
    frame: memoryview

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count
