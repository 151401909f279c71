"""The class StoreOptions: the settings of a store, each with its default and its unit."""

from dataclasses import dataclass
from typing import Literal

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The settings of a store. The names are those of the section `store.` in the config file."""

    # When an answer is sent: after an fsync (sync) or after a write (async). A topic may override it.
    flush: Literal["sync", "async"] = "sync"
    flush_interval_ms: int = 500  # Interval of background fsyncs.
    segment_bytes: int = 256 * MIB  # Size of a segment file. A unit must fit into one segment.
    reserve_bytes: int = 16 * MIB  # Blocks allocated beyond the end of the log, so that an fsync writes less metadata.
    tail_bytes: int = 32 * MIB  # Size of the write buffer; with more unwritten bytes, an append writes first.
    open_segments_max: int = 256  # Segment files that are open at the same time.
    cold_reads_max: int = 1024  # Reads that may wait for a reader thread; further reads are refused.
    reader_threads: int = 4  # Threads for reads that would block.
    checkpoint_bytes: int = 64 * MIB  # A checkpoint is due after these bytes of log; limits the work of a restart.
    recovery_checkpoint_bytes: int = 16 * MIB  # A start that has replayed more writes a checkpoint before it serves.
    checkpoint_interval_ms: int = 60_000  # A checkpoint is due after this time if anything was appended.
    spare_bytes: int = 32 * MIB  # Disk space that is freed when the disk is full; 0 for none (`store/spare_file.py`).
    disk_full_ratio: float = 0.95  # Used share of the disk above which appends are refused.
    disk_resume_ratio: float = 0.93  # Used share of the disk at which appends are accepted again.
