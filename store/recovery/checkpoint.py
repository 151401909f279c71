"""The format of checkpoints and snapshots: files with the state at a position of the log.

Such a file is a sequence of units as in the log (`store/log/format.py`). The header of each unit has the position whose
state the file contains, and the last unit has LAST_FLAG. The units contain these entries, in this order:

    CHECKPOINT   `read_from` and `closed`
    CLOCK_STEPS  the steps back of the clock, if there are any
    QUEUES ...   the queues, with the number of index rows in their files
    SEGMENT ...  for each segment, the last offset of each queue with entries in it; one or several entries
    STATE ...    state records, which rebuild the state of the replayer

A unit ends when it has PART_BYTES bytes. The file may therefore have any size, and its writer holds one unit in memory.

Two kinds of files have this format:

    checkpoint                   derived from the log. If it is missing or damaged, recovery reads the whole log.
    log/<position>.snapshot      part of the log: the state of segments that were removed. Recovery without a checkpoint
                                 takes the state from the newest snapshot and from the log above its position. Index
                                 rows are not taken from a snapshot: they are built from the segments.

Each file is written under a temporary name, synced and renamed, so a file with its final name is whole. It is renamed
only after the log is durable up to its position.

The index rows of a checkpoint belong to a lower position than its other content, because indexes are flushed one after
another while appends continue. The index files contain all rows of entries below `read_from`. Recovery therefore reads
the log from `read_from` on, and between `read_from` and `position` it only adds missing index rows.
"""

import logging
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from duolog.store.entry import CONTROL_FORM, STATE_FORM, Buffer
from duolog.store.errors import Corruption
from duolog.store.files import Files, ReadableFiles
from duolog.store.index.store_times import StepBack, pack_steps, read_steps
from duolog.store.log.control import (
    Control,
    ControlKind,
    QueueRow,
    checkpoint_control,
    queues_control,
    read_last_offsets,
    read_log_state,
    read_queue_rows,
    segment_control,
)
from duolog.store.log.format import (
    LAST_FLAG,
    UNIT_HEADER_SIZE,
    BadUnit,
    check_unit,
    entries_of,
    entry_size,
    put_entry,
    seal_unit,
    unit_size,
)
from duolog.store.log.segment import LOG_DIRECTORY
from duolog.store.log.unit_walk import units_of_file

CHECKPOINT_PATH = "checkpoint"
SNAPSHOT_SUFFIX = ".snapshot"
NO_SNAPSHOT = f"{LOG_DIRECTORY}/ has neither the segments from position 0 on nor a snapshot of the state in them"
PART_BYTES = 96 * 1024  # Size of a unit, unless a single entry is larger; it is encoded in some milliseconds.
PART_ENTRIES = 1024  # Largest number of entries in a unit; an entry costs as much time as about 256 bytes.
ROWS_IN_ENTRY = 2048  # Largest number of queues in a QUEUES or SEGMENT entry, at about 1 us each.
_NEW_SUFFIX = ".new"

log = logging.getLogger("store")


@dataclass(slots=True)
class Checkpoint:
    """The content of a checkpoint or snapshot. The state at the end of the log also needs the log above `position`."""

    position: int
    read_from: int  # The position from which recovery reads the log; at most `position`.
    epoch: int
    stored_ms: int  # The store time of the last unit below `position`.
    closed: bool  # Whether it was written by `Store.close`, after the last unit of a run.
    queues: Iterable[QueueRow] = ()
    # Start of a segment -> queue key -> last offset of the queue in the segment.
    last_offsets: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    records: Iterable[bytes] = ()  # Encoded state records.
    steps: tuple[StepBack, ...] = ()


# -- Writing


def parts_of(
    checkpoint: Checkpoint, part_bytes: int = PART_BYTES, rows_in_entry: int = ROWS_IN_ENTRY
) -> Iterator[bytearray]:
    """Yield the encoded units of the file. `checkpoint.records` is read as far as the next unit needs it."""
    entries = _entries(checkpoint, rows_in_entry)
    following = next(entries, None)
    while following is not None:
        part, size = [following], entry_size(len(following[3]), 0, 0)
        following = next(entries, None)
        while following is not None and size < part_bytes and len(part) < PART_ENTRIES:
            part.append(following)
            size += entry_size(len(following[3]), 0, 0)
            following = next(entries, None)
        yield _unit(checkpoint, part, size, LAST_FLAG if following is None else 0)


_Entry = tuple[int, int, int, bytes]  # form, kind, key, payload


def _entries(checkpoint: Checkpoint, rows_in_entry: int) -> Iterator[_Entry]:
    for control in _controls(checkpoint, rows_in_entry):
        yield CONTROL_FORM, int(control.kind), control.key, control.payload
    for record in checkpoint.records:
        yield STATE_FORM, 0, 0, record


def _controls(checkpoint: Checkpoint, rows_in_entry: int) -> Iterator[Control]:
    yield checkpoint_control(checkpoint.read_from, checkpoint.closed)
    if checkpoint.steps:
        yield Control(ControlKind.CLOCK_STEPS, 0, pack_steps(checkpoint.steps))
    rows = iter(checkpoint.queues)
    while some := [*islice(rows, rows_in_entry)]:
        yield queues_control(some)
    for start, last_offsets in checkpoint.last_offsets.items():
        pairs = iter(last_offsets.items())
        yield segment_control(start, islice(pairs, rows_in_entry))
        while more := [*islice(pairs, rows_in_entry)]:
            yield segment_control(start, more)


def _unit(checkpoint: Checkpoint, part: list[_Entry], size: int, flags: int) -> bytearray:
    unit = bytearray(UNIT_HEADER_SIZE + size)
    at = UNIT_HEADER_SIZE
    for form, kind, key, payload in part:
        at = put_entry(unit, at, form, kind, key, payload)
    position = checkpoint.position
    seal_unit(memoryview(unit), checkpoint.epoch, position, position, checkpoint.stored_ms, len(part), flags)
    return unit


class NewFile:
    """A checkpoint or snapshot that is being written: `write` for each unit, then `put_in_place`.

    Both methods block and raise OSError. After an error the previous file is unchanged, and the next NewFile overwrites
    the temporary file.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._directory = path.rpartition("/")[0] or "."
        self._new_path = f"{self._directory}/{CHECKPOINT_PATH}{_NEW_SUFFIX}"
        self._size = 0

    def write(self, part: Buffer) -> None:
        if not self._size:
            _remove(self._files, self._new_path)  # A crash or an abandoned checkpoint may have left it.
        handle = self._files.open(self._new_path, create=not self._size)
        try:
            self._files.write(handle, [part], self._size)
        finally:
            self._files.close(handle)
        self._size += len(part)

    def put_in_place(self) -> None:
        handle = self._files.open(self._new_path)
        try:
            self._files.sync(handle)
        finally:
            self._files.close(handle)
        self._files.rename(self._new_path, self._path)
        self._files.sync_directory(self._directory)


def snapshot_path(position: int) -> str:
    return f"{LOG_DIRECTORY}/{position:020}{SNAPSHOT_SUFFIX}"


def remove_checkpoint(files: Files) -> None:
    """Remove the checkpoint durably, if there is one. Blocks; raises OSError."""
    _remove(files, CHECKPOINT_PATH)
    files.sync_directory(".")


def remove_older_snapshots(files: Files, position: int) -> None:
    """Remove the snapshots with a lower position durably. Blocks; raises OSError."""
    older = [found for found in snapshot_positions(files) if found < position]
    for found in older:
        files.remove(snapshot_path(found))
    if older:
        files.sync_directory(LOG_DIRECTORY)


def _remove(files: Files, path: str) -> None:
    try:
        files.remove(path)
    except FileNotFoundError:
        pass


# -- Reading


def read_checkpoint(files: ReadableFiles) -> Checkpoint | None:
    """Return the checkpoint; None if it is missing or damaged, so that recovery must read the whole log."""
    try:
        return _read(files, CHECKPOINT_PATH)
    except FileNotFoundError:
        return None
    except BadUnit as reason:
        log.warning("checkpoint is damaged and ignored: the whole log will be read: %s", reason)
        return None


def snapshot_positions(files: ReadableFiles) -> list[int]:
    """Return the positions of the snapshots in the log's directory, in ascending order."""
    stems = [name.removesuffix(SNAPSHOT_SUFFIX) for name in files.list(LOG_DIRECTORY) if name.endswith(SNAPSHOT_SUFFIX)]
    return [int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal()]


def read_snapshot(files: ReadableFiles) -> Checkpoint | None:
    """Return the newest snapshot that is not damaged; None if there is no snapshot.

    An older snapshot may be used: it exists only if no segment was removed since. Raises Corruption if all snapshots
    are damaged.
    """
    damage = ""
    for position in reversed(snapshot_positions(files)):
        path = snapshot_path(position)
        try:
            return _read(files, path)
        except BadUnit as reason:
            damage = damage or f"{path} is damaged, and the log no longer contains the state that it has: {reason}"
            log.error("a snapshot is damaged: path=%s reason=%s", path, reason)
    if damage:
        raise Corruption(damage)
    return None


def _read(files: ReadableFiles, path: str) -> Checkpoint:
    """Read and verify a file. Raises BadUnit if it is damaged, and FileNotFoundError."""
    handle = files.open(path)
    try:
        return decode(_units(files, handle))
    except struct.error as error:
        raise BadUnit(f"an entry of {path} has an unknown layout: {error}") from error
    finally:
        files.close(handle)


def _units(files: ReadableFiles, handle: int) -> Iterator[memoryview]:
    for block, at, _ in units_of_file(files, handle, 0, 0, files.size(handle)):
        yield block[at : at + unit_size(block, at)]


def decode(units: Iterable[Buffer]) -> Checkpoint:
    """Decode the units of a file. Raises BadUnit if a unit is damaged or the last one is missing."""
    found: Checkpoint | None = None
    last_offsets: dict[int, dict[int, int]] = {}
    records: list[bytes] = []
    queues: list[QueueRow] = []
    is_whole = False
    for unit in units:
        block = memoryview(unit)
        header = check_unit(block, 0, None if found is None else found.position)
        if found is None:
            found = Checkpoint(header.position, header.position, header.epoch, header.stored_ms, closed=False)
        for entry in entries_of(block, header.position, header.entry_count):
            if entry.form == STATE_FORM:
                records.append(bytes(entry.frame))
            elif entry.kind == ControlKind.SEGMENT:
                last_offsets.setdefault(entry.key, {}).update(read_last_offsets(entry.frame))
            elif entry.kind == ControlKind.CLOCK_STEPS:
                found.steps = read_steps(entry.frame)
            elif entry.kind == ControlKind.QUEUES:
                queues += read_queue_rows(entry.frame)
            elif entry.kind == ControlKind.CHECKPOINT:
                found.read_from, found.closed = read_log_state(entry.frame)
        is_whole = header.flags & LAST_FLAG != 0
    if found is None or not is_whole:
        raise BadUnit("the last unit of the file is missing")
    found.queues, found.last_offsets, found.records = queues, last_offsets, records
    return found
