"""The checkpoint: what recovery would know after reading the log up to a position, so that it can start there.

Units as in the log (`store/log/format.py`), one behind the other in a file of its own. All carry the position whose
state
they hold, and the last one has LAST_FLAG. A unit is closed at PART_BYTES, so the file may be of any size, and its
writer never holds more than one unit:

    CHECKPOINT   the state of the log
    CLOCK_STEPS  where store times fall
    QUEUES ...   the queues, with the rows of their indexes that are durable
    SEGMENT ...  of each segment: the queues that may be live in it, and up to where, in one entry or several
    STATE ...    records that rebuild the replayer's state

Two kinds of files have this form:

    checkpoint                   derived. Without it, or when it is damaged, recovery reads the whole log.
    log/<position>.snapshot      part of the log: the state that segments held which were removed. Recovery without a
                                 checkpoint takes state from the newest one, and from the log behind its position. Of
                                 indexes it knows nothing: the rows are read from the segments that are left.

Each is written under another name, synced, renamed: a file with its proper name is whole. It may be put in place only
when the log is durable up to its position.

The indexes of a checkpoint are older than the rest: they are flushed queue by queue while appends go on. All rows of
entries below `read_from` are in their files, so recovery reads from there, and up to `position` takes nothing but
missing rows.
"""

import logging
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from duolog.store.entry import CONTROL_FORM, STATE_FORM, Buffer
from duolog.store.errors import Corruption
from duolog.store.files import Files
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

CHECKPOINT_PATH = "checkpoint"
SNAPSHOT_SUFFIX = ".snapshot"
PART_BYTES = 96 * 1024  # of a unit, unless a single entry is larger: some milliseconds of work to encode
PART_ENTRIES = 1024  # of a unit at most: an entry costs about as much as 256 bytes
ROWS_IN_ENTRY = 2048  # of queues, at about 1 us each: of the table, or of what may be live in a segment
_NEW_SUFFIX = ".new"

log = logging.getLogger("store")


@dataclass(slots=True)
class Checkpoint:
    """What a checkpoint says. Replaying the log behind `position` completes it."""

    position: int
    read_from: int  # at most `position`
    epoch: int
    stored_ms: int
    closed: bool  # taken behind the last unit of a run that ended in order
    queues: Iterable[QueueRow] = ()
    last_offsets: Mapping[int, Mapping[int, int]] = field(default_factory=dict)  # start of a segment -> key -> offset
    records: Iterable[bytes] = ()
    steps: tuple[StepBack, ...] = ()  # of store times


# -- Writing


def parts_of(
    checkpoint: Checkpoint, part_bytes: int = PART_BYTES, rows_in_entry: int = ROWS_IN_ENTRY
) -> Iterator[bytearray]:
    """Yield the units of the file, one at a time: the records are asked for only as they are needed."""
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
    """A checkpoint that is being written: some `write`, then `put_in_place`. All block; any may raise OSError.

    After an error the file that was there before is still there, and the next one overwrites what was written.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._directory = path.rpartition("/")[0] or "."
        self._new_path = f"{self._directory}/{CHECKPOINT_PATH}{_NEW_SUFFIX}"
        self._size = 0

    def write(self, part: Buffer) -> None:
        if not self._size:
            _remove(self._files, self._new_path)  # left by a crash, or by one that came to nothing
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
    _remove(files, CHECKPOINT_PATH)
    files.sync_directory(".")


def remove_older_snapshots(files: Files, position: int) -> None:
    """Remove the snapshots before the one of this position, durably. Blocks; raises OSError."""
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


def read_checkpoint(files: Files) -> Checkpoint | None:
    """Return the checkpoint; None when there is none or it is damaged, and the log has to be read whole."""
    try:
        return _read(files, CHECKPOINT_PATH)
    except FileNotFoundError:
        return None
    except BadUnit as reason:
        log.warning("checkpoint is damaged and ignored: the whole log will be read: %s", reason)
        return None


def snapshot_positions(files: Files) -> list[int]:
    """Return the positions of the snapshots in the log's directory, the newest last."""
    stems = [name.removesuffix(SNAPSHOT_SUFFIX) for name in files.list(LOG_DIRECTORY) if name.endswith(SNAPSHOT_SUFFIX)]
    return [int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal()]


def read_snapshot(files: Files) -> Checkpoint | None:
    """Return the newest snapshot that is whole; None if there is no snapshot. Raises Corruption if none is whole.

    An older one is there only as long as no segment was removed because of a newer one.
    """
    damage = ""
    for position in reversed(snapshot_positions(files)):
        path = snapshot_path(position)
        try:
            return _read(files, path)
        except BadUnit as reason:
            damage = damage or f"{path} is damaged, and without it there is no state from before it: {reason}"
            log.error("a snapshot is damaged: path=%s reason=%s", path, reason)
    if damage:
        raise Corruption(damage)
    return None


def _read(files: Files, path: str) -> Checkpoint:
    """Read and check a whole file; raises BadUnit, FileNotFoundError."""
    handle = files.open(path)
    try:
        return decode(_units(files, handle, files.size(handle)))
    except struct.error as error:
        raise BadUnit(f"an entry that is no {path}'s: {error}") from error
    finally:
        files.close(handle)


def _units(files: Files, handle: int, end: int) -> Iterator[bytes]:
    at = 0
    while at < end:
        size = unit_size(memoryview(files.read(handle, UNIT_HEADER_SIZE, at)), 0)
        if size > end - at:
            raise BadUnit(f"a unit of {size} bytes where {end - at} are left")
        yield files.read(handle, size, at)
        at += size


def decode(units: Iterable[Buffer]) -> Checkpoint:
    """Read the units of a file; raises BadUnit if one is damaged, or the last is missing."""
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
        raise BadUnit("its last unit is missing")
    found.queues, found.last_offsets, found.records = queues, last_offsets, records
    return found
