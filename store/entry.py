"""The values that the store returns: where an entry was appended, when it is durable, what is read back."""

from typing import NamedTuple

Buffer = bytes | bytearray | memoryview

# Forms below FIRST_FRAME_FORM belong to the store; the bridge numbers the wire forms from FIRST_FRAME_FORM on.
CONTROL_FORM = 0  # The store's own entries (`store/log/control.py`).
STATE_FORM = 1  # A state record: the store does not interpret it and returns it at recovery.
FIRST_FRAME_FORM = 2


# Makes a named tuple from a tuple of its fields at half the cost of a call of its class. Used for what is made with
# every message.
new_tuple = tuple.__new__


class Slot(NamedTuple):
    """Where an entry lies in the log; assigned by the append."""

    position: int  # Of the entry in the log.
    base_offset: int  # Of the entry's first record in its queue; -1 for a state record.
    stored_ms: int  # Wall time of the append. It falls from unit to unit only at a step back (`store_times.py`).


class Promise(NamedTuple):
    """The condition under which an answer may be sent: the log is kept up to position `end`.

    If `durable` is false, `Store.write` must have written the log up to `end` (a killed process does not lose it); if
    `durable` is true, an fsync must have covered it (a power failure does not lose it).
    """

    end: int
    durable: bool


class Appended(NamedTuple):
    """The result of an append: the slot of each Part in order (of a FrameRun, the slot of its first frame), and the
    Promise that covers the whole unit."""

    slots: list[Slot]
    promise: Promise


class EntryLocation(NamedTuple):
    """The location of a frame, as callers keep it that read frames without an index."""

    position: int  # Of the entry in the log.
    size: int  # Of the frame in bytes.
    form: int


class Stored(NamedTuple):
    """One entry read back from a queue. `frame` is read-only and stays valid as long as it is referenced."""

    base_offset: int
    count: int  # type: ignore[assignment]  # This field hides tuple.count.
    form: int
    position: int
    stored_ms: int
    timestamp_ms: int  # The greatest record timestamp of this entry and all earlier entries of the queue.
    tags: int
    frame: memoryview

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count
