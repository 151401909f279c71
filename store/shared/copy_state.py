"""The file `shared` of a data directory: the stream of which the local log is a copy, and a position in both.

    magic u32 "DLC1" | crc u32 | epoch u32 | object_crc u32 | sequence u64 | position u64 | own_from u64
    | stream 16 bytes | owner 16 bytes | writer 16 bytes                                                    88 bytes

    crc          CRC-32C of all bytes after this field
    epoch        the epoch of the slot `sequence`; `owner` is its writer
    object_crc   the checksum of the last object that counts, up to the slot `sequence`
    sequence     the local log has the same units as the store up to this slot; 2^64 - 1 stands for none
    position     the end of the log at this slot
    own_from     units from this position on were appended by this broker; POSITION_MAX while it follows another one
    writer       the id of the process that wrote this file, if it owns the stream and no earlier owner has a lease any
                 more; zeros otherwise

The file is written to a temporary file, synced and renamed. It may be older than the log: a start reads the slots that
follow `sequence` and compares them with the local log (`store/shared/joining.py`).
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from struct import Struct, error
from typing import Final, NamedTuple

from crc32c import crc32c

from duolog.store.errors import Corruption
from duolog.store.files import Files, read_whole, replace
from duolog.store.shared.own_log import PATH
from duolog.store.shared.wal.slots import Tail
from duolog.store.shared.wal.wal_object import ID_BYTES, Identity
from duolog.store.workers import Executors, Failure

_MAGIC: Final = 0x444C4331  # "DLC1"
_STATE: Final = Struct(">IIIIQQQ16s16s16s")
_NO_SEQUENCE: Final = (1 << 64) - 1

NO_WRITER: Final = bytes(ID_BYTES)

log = logging.getLogger("store")


class CopyState(NamedTuple):
    """The content of the file."""

    owner: Identity  # Stream, writer and epoch of the last slot that the local log has.
    tail: Tail
    own_from: int
    writer: bytes


def write_copy_state(files: Files, state: CopyState) -> None:
    """Replace the file durably. Blocks; raises OSError."""
    (stream, owner, epoch), (sequence, position, object_crc), own_from, writer = state
    packed = bytearray(
        _STATE.pack(
            _MAGIC,
            0,
            epoch,
            object_crc,
            sequence & _NO_SEQUENCE,
            position,
            own_from,
            stream,
            owner,
            writer,
        )
    )
    packed[4:8] = crc32c(memoryview(packed)[8:]).to_bytes(4, "big")
    replace(files, PATH, packed)


def read_copy_state(files: Files) -> CopyState | None:
    """Return the content of the file; None if there is no file. Blocks; raises Corruption and OSError."""
    if PATH not in files.list("."):
        return None
    data = read_whole(files, PATH)
    try:
        magic, crc, epoch, object_crc, sequence, position, own_from, stream, owner, writer = _STATE.unpack(data)
    except error:
        raise Corruption(f"the file {PATH} has {len(data)} bytes, not {_STATE.size}; {_REMEDY}") from None
    actual = crc32c(data[8:])
    if magic != _MAGIC or actual != crc:
        raise Corruption(f"the file {PATH} has magic {magic:#010x} and CRC {crc:#010x}, not {actual:#010x}; {_REMEDY}")
    sequence = -1 if sequence == _NO_SEQUENCE else sequence
    return CopyState(Identity(stream, owner, epoch), Tail(sequence, position, object_crc), own_from, writer)


_REMEDY: Final = "remove the data directory, and the start downloads the log again; what was not uploaded is lost"


class CopyStateFile:
    """Writes the state to the file at intervals, in the background thread.

    A state is written once the local log is durable up to its position, because a start relies on the log up to there.
    """

    def __init__(
        self, files: Files, executors: Executors, durable: Callable[[], int], state: CopyState, interval_ms: int
    ) -> None:
        """`durable` returns the position up to which the log is durable. `state` is in the file already."""
        self._files, self._executors, self._durable = files, executors, durable
        self._state = state  # The state in the file.
        self._interval_ms = interval_ms  # The time between two writes of the file.
        self._newest: CopyState | None = None
        self._next_mono_ms = 0
        self._idle = asyncio.Event()  # No write of the file is under way.
        self._idle.set()

    @property
    def saved(self) -> Tail:
        """The tail of the state in the file."""
        return self._state.tail

    def note(self, owner: Identity, tail: Tail) -> None:
        """Note that the local log has what the store has, up to `tail`."""
        if self._newest is None or tail.position <= self._durable():
            self._newest = self._state._replace(owner=owner, tail=tail)

    def next_deadline_ms(self) -> int | None:
        """Return the monotonic time of the next `advance`; None if there is nothing to write."""
        return self._next_mono_ms if self._newest is not None and self._idle.is_set() else None

    def advance(self, mono_ms: int) -> None:
        """Begin to write the noted state, if it is time."""
        newest = self._newest
        if newest is None or not self._idle.is_set() or mono_ms < self._next_mono_ms:
            return
        self._next_mono_ms = mono_ms + self._interval_ms
        if newest.tail.position <= self._durable():
            self._newest = None
            self._idle.clear()
            write = partial(write_copy_state, self._files, newest)
            self._executors.background.submit(write, partial(self._written, newest))

    def _written(self, state: CopyState, outcome: Failure | None) -> None:
        self._idle.set()
        if outcome is None:
            self._state = state
        else:
            log.warning("state of the copy not written, a start will read more slots file=%s reason=%s", PATH, outcome)

    async def begin_ownership(self, identity: Identity, fence: Tail) -> None:
        """Write durably that units from the fence on are this broker's own. Blocks; raises OSError."""
        await self._idle.wait()
        self._write_at_once(CopyState(identity, fence, fence.position, NO_WRITER))

    async def end_wait(self, writer: bytes) -> None:
        """Write durably that no earlier owner has a lease, so a restart need not wait. Blocks; raises OSError."""
        await self._idle.wait()
        self._write_at_once(self._state._replace(writer=writer))

    def _write_at_once(self, state: CopyState) -> None:
        """Write a state. No write of the background thread may be under way, because it would replace this one."""
        self._state, self._newest = state, None
        write_copy_state(self._files, state)
