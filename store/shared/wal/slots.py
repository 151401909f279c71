"""The class Slots: which ranges of the log an owner has given to slots, and which slots count.

    state of an upload   event                                                next state
    in flight            the store created the object                         stored
    in flight            the store says that an object exists, or the
                         outcome is unknown: the slot is read back
                           it is empty                                        in flight: create it again
                           it has this object                                 stored
                           it has an object of a higher epoch                 deposed
                           it has any other object                            deposed: another program wrote it
    stored               all slots before it count                            it counts

A slot counts when it is stored and all slots before it count. Up to WINDOW uploads are in flight at a time.

A deposed owner that has not noticed the fence yet may still create objects in the WINDOW - 1 slots after the fence. It
creates none after these, because the slot of the fence never counts for it. All brokers ignore these objects. The new
owner takes all these slots before its first upload (`fencing.py`), so an upload never finds a lower epoch in its slot.

This module reads no clock and sends no request; `store/shared/uploader.py` does both.
"""

from collections import deque
from enum import Enum
from typing import Final, NamedTuple

from duolog.store.entry import Buffer
from duolog.store.log.unit_source import Cut
from duolog.store.shared.wal.wal_object import DamagedObject, Identity, WalHeader, WalKind, decode, encode_parts, key_of

WINDOW: Final = 16  # Uploads in flight. It is a part of the format: all brokers of a stream must have the same value.


class UploadStep(Enum):
    """The next step of an upload."""

    CREATE = "create"  # Send the object again.
    DONE = "done"  # The object is stored.
    DEPOSED = "deposed"  # `Slots.deposed` says why.


class Tail(NamedTuple):
    """The last object of the log that counts. The next object follows it."""

    sequence: int
    position: int  # The end of the log.
    crc: int  # The CRC of this object, which the next one contains.


class Upload:
    """One object that is being stored."""

    __slots__ = ("begun_mono_ms", "header", "is_stored", "parts", "size")

    def __init__(self, parts: tuple[Buffer, ...], header: WalHeader) -> None:
        self.parts, self.header = parts, header
        self.size = sum(map(len, parts))
        self.is_stored = False
        self.begun_mono_ms = 0  # When the first create of the object began; set by the uploader.

    @property
    def key(self) -> str:
        return key_of(self.header.sequence)


class Slots:
    """The slots of one owner after its fence."""

    def __init__(self, identity: Identity, fence: Tail, first: int, bytes_max: int) -> None:
        """Begin in slot `first`, which follows the fence and the slots that a deposed owner may still take.

        `bytes_max` is the size of the objects in flight above which no further upload begins; it may be changed.
        """
        self._identity = identity
        self.bytes_max = bytes_max
        self._in_flight: deque[Upload] = deque()
        self._next_sequence, self._previous = first, fence.crc
        self.end = fence.position  # All units below this position belong to a slot.
        self.counted = fence  # The last object that counts.
        self.in_flight_bytes = 0
        self.deposed = ""  # The reason why this owner may write no more; empty while it may write.

    def __len__(self) -> int:
        """Return the number of uploads that do not count yet."""
        return len(self._in_flight)

    @property
    def has_room(self) -> bool:
        """Whether `begin` may be called."""
        if self.deposed:
            return False
        if not self._in_flight:
            return True
        return len(self._in_flight) < WINDOW and self.in_flight_bytes < self.bytes_max

    def begin(self, cut: Cut, flags: int = 0) -> Upload:
        """Give the units from `self.end` up to the end of `cut` to the next slot, and return its upload.

        The upload keeps the payload, which must not change.
        """
        assert self.has_room, "no further upload may begin"
        stream, writer, epoch = self._identity
        header = WalHeader(
            WalKind.UNITS, flags, epoch, self._next_sequence, self.end, cut.end, self._previous, stream, writer
        )
        upload = Upload(*encode_parts(header, cut.payload, cut.crc))
        self._in_flight.append(upload)
        self.in_flight_bytes += upload.size
        self._next_sequence += 1
        self._previous, self.end = upload.header.crc, cut.end
        return upload

    # -- Outcomes

    def created(self, upload: Upload) -> list[Upload]:
        """Note that the store created the object of an upload; return the uploads that count by that, in order."""
        upload.is_stored = True
        counted: list[Upload] = []
        while self._in_flight and self._in_flight[0].is_stored:
            first = self._in_flight.popleft()
            self.in_flight_bytes -= first.size
            self.counted = Tail(first.header.sequence, first.header.end, first.header.crc)
            counted.append(first)
        return counted

    def found(self, upload: Upload, data: Buffer | None) -> UploadStep:
        """Decide what the object in the slot of an upload means; `data` is None if the slot is empty.

        After DONE, `created` must be called.
        """
        if data is None:
            return UploadStep.CREATE
        own = upload.header
        try:
            other = decode(data, own.sequence).header
        except DamagedObject as error:
            return self._depose(str(error))
        if other == own:
            return UploadStep.DONE
        if other.stream != own.stream:
            return self._depose(f"{upload.key} belongs to another stream: two clusters use one prefix of the bucket")
        if other.epoch > own.epoch:
            return self._depose(f"{upload.key} has epoch {other.epoch}: another broker has taken over")
        return self._depose(
            f"{upload.key} has epoch {other.epoch} of writer {other.writer.hex()}, which cannot be: this owner has "
            f"epoch {own.epoch}, and its writer is {own.writer.hex()}"
        )

    def _depose(self, reason: str) -> UploadStep:
        self.deposed = self.deposed or reason
        return UploadStep.DEPOSED
