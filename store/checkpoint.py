"""The checkpoint: what recovery would know after reading the log up to a position, so that it can start there.

One unit as in the log (`store/format.py`), with the CRC over all of it, in a file of its own:

    checkpoint       unit header: the position whose state this is, epoch, stored_ms
                     CHECKPOINT   the state of the log
                     SNAPSHOT     the queues, with the rows of their indexes that are durable
                     SEGMENT ...  one for each segment: the queues that may be live in it, and up to where
                     STATE ...    records that rebuild the replayer's state

Written under another name, synced, renamed: there is always a whole one. It is derived; without it, or when it is
damaged, recovery reads the whole log. It may only be written when the log is durable up to its position.

The indexes are older than the rest: they are flushed queue by queue while appends go on. All rows of entries below
`read_from` are in their files, so recovery reads from there, and up to `position` takes nothing but missing rows.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

from store.control import (
    NO_SNAPSHOT,
    Kind,
    QueueRow,
    checkpoint_control,
    read_last_offsets,
    read_log_state,
    read_queue_rows,
    segment_control,
    snapshot_control,
)
from store.entry import CONTROL_FORM, STATE_FORM
from store.files import Files
from store.format import UNIT_HEADER_SIZE, BadUnit, check_unit, entries_of, entry_size, put_entry, seal_unit

CHECKPOINT_PATH = "checkpoint"
_NEW_PATH = "checkpoint.new"

log = logging.getLogger("store")


@dataclass(slots=True)
class Checkpoint:
    """What a checkpoint says. Replaying the log behind `position` completes it."""

    position: int
    read_from: int  # at most `position`
    epoch: int
    stored_ms: int
    snapshot_position: int  # of the newest snapshot unit in the log
    closed: bool  # taken behind the last unit of a run that ended in order
    queues: list[QueueRow]
    last_offsets: Mapping[int, Mapping[int, int]]  # start of a segment -> queue key -> last offset
    records: Sequence[bytes]


def encode_checkpoint(checkpoint: Checkpoint) -> bytearray:
    """Return the bytes of the file."""
    controls = [
        checkpoint_control(checkpoint.read_from, checkpoint.snapshot_position, checkpoint.closed),
        snapshot_control(checkpoint.queues),
        *starmap(segment_control, checkpoint.last_offsets.items()),
    ]
    entries = [(CONTROL_FORM, int(control.kind), control.key, control.payload) for control in controls]
    entries += [(STATE_FORM, 0, 0, record) for record in checkpoint.records]
    buffer = bytearray(UNIT_HEADER_SIZE + sum(entry_size(len(entry[3]), 0, 0) for entry in entries))
    at = UNIT_HEADER_SIZE
    for form, kind, key, payload in entries:
        at = put_entry(buffer, at, form, kind, key, payload)
    position = checkpoint.position
    seal_unit(memoryview(buffer), checkpoint.epoch, position, position, checkpoint.stored_ms, len(entries))
    return buffer


def decode_checkpoint(found: bytes) -> Checkpoint:
    """Read the bytes of the file; raises BadUnit."""
    block = memoryview(found)
    header = check_unit(block, 0)
    checkpoint = Checkpoint(
        header.position, header.position, header.epoch, header.stored_ms, NO_SNAPSHOT, False, [], {}, []
    )
    last_offsets: dict[int, dict[int, int]] = {}
    records = []
    for entry in entries_of(block[: header.size], header.position, header.entry_count):
        if entry.form == STATE_FORM:
            records.append(bytes(entry.frame))
        elif entry.kind == Kind.SEGMENT:
            last_offsets[entry.key] = read_last_offsets(entry.frame)
        elif entry.kind == Kind.SNAPSHOT:
            checkpoint.queues = list(read_queue_rows(entry.frame))
        elif entry.kind == Kind.CHECKPOINT:
            checkpoint.read_from, checkpoint.snapshot_position, checkpoint.closed = read_log_state(entry.frame)
    checkpoint.last_offsets, checkpoint.records = last_offsets, records
    return checkpoint


def read_checkpoint(files: Files) -> Checkpoint | None:
    """Return the checkpoint; None when there is none or it is damaged, and the log has to be read whole."""
    try:
        handle = files.open(CHECKPOINT_PATH)
    except FileNotFoundError:
        return None
    try:
        found = files.read(handle, files.size(handle), 0)
        return decode_checkpoint(found)
    except BadUnit as reason:
        log.warning("checkpoint is damaged and ignored: the whole log will be read: %s", reason)
        return None
    finally:
        files.close(handle)


def write_checkpoint(files: Files, content: bytearray) -> None:
    """Put the file in place of the one before, durably. Blocks; raises OSError, and then the old one is still there."""
    _remove(files, _NEW_PATH)  # left by a crash
    handle = files.open(_NEW_PATH, create=True)
    try:
        files.write(handle, [content], 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.rename(_NEW_PATH, CHECKPOINT_PATH)
    files.sync_directory(".")


def remove_checkpoint(files: Files) -> None:
    _remove(files, CHECKPOINT_PATH)
    files.sync_directory(".")


def _remove(files: Files, path: str) -> None:
    try:
        files.remove(path)
    except FileNotFoundError:
        pass
