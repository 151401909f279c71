"""The store's settings: one dataclass, each field with its default, its unit and one line."""

from dataclasses import dataclass
from typing import Literal

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of a store; names are those of the config file's `store.` section."""

    flush: Literal["sync", "async"] = (
        "sync"  # answer after fsync (sync) or after write() (async); topics may override it
    )
    flush_interval_ms: int = 500  # async: a background fsync at least this often
    segment_bytes: int = 256 * MIB  # size of a log file, and the greatest unit
    reserve_bytes: int = 16 * MIB  # blocks allocated ahead of the log's end, so that fsync writes little metadata
    tail_bytes: int = 32 * MIB  # the log's end kept in memory; with so much unwritten, append writes at once
    open_segments_max: int = 256  # log files open at a time
    cold_reads_max: int = 1024  # reads waiting for a reader thread; beyond it a read is refused
    reader_threads: int = 4  # threads for reads that would block
    checkpoint_bytes: int = 64 * MIB  # a checkpoint after so much log: bounds the work of a restart
    recovery_checkpoint_bytes: int = 16 * MIB  # a start that replayed more writes a checkpoint before it serves
    checkpoint_interval_ms: int = 60_000  # a checkpoint after so long, if anything was appended
    spare_bytes: int = 32 * MIB  # disk space freed when the disk is full, so that deletions can be written; 0: none
    disk_full_ratio: float = 0.95  # used share of the disk above which appends are refused
    disk_resume_ratio: float = 0.93  # used share of the disk at which appends are accepted again
