"""The class LogCursor: reads the slots of a stream in order, and decides which objects count.

    object in the next slot                                              what it is
    of a lower epoch than the last fence                                 ignored: a deposed owner wrote it
    of kind VOID                                                         ignored: a new owner has taken the slot
    units of the current epoch and writer, at the end of the log         they count
    a fence of a higher epoch, at the end of the log                     it counts: a new epoch begins
    any other                                                            damage: DamagedObject

Each object that counts names the checksum of the one before it, so that a slot which was lost, changed, or restored
from an older state of the bucket is noticed.
"""

from typing import NamedTuple

from duolog.store.entry import Buffer
from duolog.store.shared.wal.slots import Tail
from duolog.store.shared.wal.wal_object import DamagedObject, Identity, WalHeader, WalKind, decode, key_of


class Units(NamedTuple):
    """Units that count. `payload` is valid as long as the object's buffer."""

    first: int
    payload: memoryview
    flags: int


class Fence(NamedTuple):
    """A broker has taken over the stream."""

    writer: bytes
    epoch: int
    claim: bytes


class Ignored(NamedTuple):
    """An object after a fence that has a lower epoch or no content."""

    epoch: int


class LogCursor:
    """How far one stream was read: all slots below `sequence`."""

    def __init__(self, owner: Identity, tail: Tail) -> None:
        """Continue after `tail`, whose epoch and writer are those of `owner`."""
        self._stream = owner.stream
        self.owner = owner
        self.tail = tail  # The last object that counts.
        self.sequence = tail.sequence + 1  # The next slot to read. Objects between it and the tail were ignored.

    def go_to(self, owner: Identity, tail: Tail) -> None:
        """Continue after a later `tail`."""
        self.owner, self.tail, self.sequence = owner, tail, tail.sequence + 1

    @classmethod
    def at_start(cls, stream: bytes) -> "LogCursor":
        """Return a cursor before the first slot of a stream."""
        return cls(Identity(stream, b"", 0), Tail(-1, 0, 0))

    @property
    def position(self) -> int:
        """The end of the log that was read."""
        return self.tail.position

    def is_behind(self, floor_sequence: int) -> bool:
        """Whether slots that were deleted are missing to this cursor, as the log was compacted up to this slot.

        This may be so although the cursor has read slots above it: a deposed owner may create objects in slots that
        were deleted, and these are ignored.
        """
        return floor_sequence > self.tail.sequence

    def take(self, data: Buffer) -> Units | Fence | Ignored:
        """Take the object of slot `sequence`. Raises DamagedObject, and then the cursor has not moved."""
        header, payload = decode(data, self.sequence)
        if not self.pass_over(header):
            return Ignored(header.epoch)
        if header.kind == WalKind.FENCE:
            return Fence(header.writer, header.epoch, bytes(payload))
        return Units(header.first, payload, header.flags)

    def pass_over(self, header: WalHeader) -> bool:
        """Move past the object of slot `sequence`, which has this header; return whether it counts.

        Raises DamagedObject, and then the cursor has not moved.
        """
        if header.stream != self._stream:
            raise DamagedObject(
                f"{key_of(self.sequence)} belongs to stream {header.stream.hex()}, and this one is "
                f"{self._stream.hex()}: two clusters use one prefix; give each its own"
            )
        if header.kind == WalKind.VOID or header.epoch < self.owner.epoch:
            self.sequence += 1
            return False
        is_fence = header.kind == WalKind.FENCE
        wrong = ""
        if is_fence != (header.epoch > self.owner.epoch):
            wrong = f"has kind {header.kind.name} and epoch {header.epoch}, and the log has epoch {self.owner.epoch}"
        elif not is_fence and header.writer != self.owner.writer:
            wrong = f"is of writer {header.writer.hex()}, and epoch {header.epoch} is that of {self.owner.writer.hex()}"
        elif header.first != self.position:
            wrong = f"begins at position {header.first}, and the log before it ends at {self.position}"
        elif header.previous != self.tail.crc:
            wrong = f"follows an object with checksum {header.previous:#010x}, and that is {self.tail.crc:#010x}"
        if wrong:
            raise DamagedObject(
                f"{key_of(self.sequence)} {wrong}: an object before it was lost or changed; restore it from a backup "
                "or a version of the bucket"
            )
        self.tail = Tail(self.sequence, header.end, header.crc)
        self.sequence += 1
        if is_fence:
            self.owner = header.identity
        return True
