"""The class StoreOptions: the settings of a store, each with its default and its unit."""

from dataclasses import dataclass
from typing import Final, Literal

from duolog.store.entry import SHARED, SYNCED, WRITTEN

MIB = 1 << 20
LEVELS: Final = {"async": WRITTEN, "sync": SYNCED, "shared": SHARED}


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The settings of a store. The names are those of the section `store.` in the config file."""

    # When an answer is sent: after a write (async), after an fsync (sync), or once the object store has the unit
    # (shared). A topic may override it.
    flush: Literal["sync", "async", "shared"] = "sync"
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
    is_shared: bool = False  # Whether the log is copied to an object store (`store/shared/`).

    @property
    def level(self) -> int:
        """The level of durability that `flush` names, or the highest level that this store has."""
        return min(LEVELS[self.flush], self.level_max)

    @property
    def level_max(self) -> int:
        """The highest level of durability of this store."""
        return SHARED if self.is_shared else SYNCED
