"""The types that the store returns: EntrySlot and Promise from an append, Stored from a read."""

from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview

# Frame formats below FIRST_FRAME_FORM belong to the store; the bridge numbers its formats from FIRST_FRAME_FORM on.
CONTROL_FORM = 0  # A control entry (`store/log/control.py`).
STATE_FORM = 1  # A state record, which the store does not interpret.
FIRST_FRAME_FORM = 2


# Levels of durability, of a promise and of a queue: how safe the log must be before an answer may leave, or before
# readers may see an entry. They are ordered: what is awaited for two promises is the higher level.
WRITTEN: Final = 0  # A write covers it: a killed process does not lose it.
SYNCED: Final = 1  # An fsync covers it: a power failure does not lose it.
SHARED: Final = 2  # It is in the object store (`store/shared/`): the loss of the machine does not lose it.


# new_tuple(NamedTupleClass, fields) makes a named tuple at half the cost of a call of its class. Code that runs for
# every message uses it.
new_tuple = tuple.__new__


class EntrySlot(NamedTuple):
    """The position, offset and store time that the append has assigned to an entry."""

    position: int  # The position of the entry in the log.
    base_offset: int  # The offset of the entry's first record in its queue; -1 for a state record.
    # The store time: the wall time of the append in milliseconds. It decreases from unit to unit only at a step back
    # (`store/index/store_times.py`).
    stored_ms: int


class Promise(NamedTuple):
    """The condition under which an answer may be sent: the log must be safe up to position `end`.

    `level` says what safe means: WRITTEN, SYNCED or SHARED.
    """

    end: int
    level: int

    def and_also(self, other: "Promise") -> "Promise":
        """Return a promise that is kept when both are."""
        return Promise(max(self.end, other.end), max(self.level, other.level))


class Appended(NamedTuple):
    """The result of an append: one slot for each Part, in order, and the Promise that covers the whole unit.

    The slot of a FrameRun is that of its first frame.
    """

    slots: list[EntrySlot]
    promise: Promise


class EntryLocation(NamedTuple):
    """The location of one frame in the log. `EntryReader.read_at` reads frames by their locations, without an index."""

    position: int  # The position of the entry in the log.
    size: int  # The size of the frame in bytes.
    form: int


class Stored(NamedTuple):
    """One entry that was read from a queue. `frame` is read-only and valid as long as it is referenced."""

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
        """The offset after the last record of this entry."""
        return self.base_offset + self.count
