"""The settings of a shared log."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The settings of a shared log. Times are in milliseconds."""

    flush_interval_ms: int = 100  # The longest time for which written units wait for their upload.
    object_bytes: int = 8 * MIB  # Units of this size are uploaded before the interval is over.
    in_flight_bytes: int = 64 * MIB  # The greatest size of all objects that are uploaded at a time.
    # The write buffer keeps units that wait for their upload in so many bytes beyond `store.tail_bytes`. Uploads read
    # other units from the disk.
    tail_bytes: int = 64 * MIB
    # The greatest number of bytes of the log that the store may lack; appends beyond it are refused. It is also the
    # most that topics with `flush.mode=sync` can lose at a takeover.
    behind_bytes_max: int = 256 * MIB
    segment_bytes: int = 64 * MIB  # The size of the largest segment object, which is in memory during its upload.
    compact_slots: int = 10_000  # The number of WAL objects of any size after which a compaction begins.
    # The number of newest WAL objects that are not compacted yet, because followers read them; at least 16.
    kept_slots: int = 1_000
    state_interval_ms: int = 10_000  # The time between two writes of the file `shared` in the data directory.
    cleanup_interval_ms: int = 3_600_000  # The time between two searches of the owner for orphans.
    # The size of the log on the disk above which sealed segments are dropped if the store has them; 0: no limit.
    cache_bytes: int = 0
    range_bytes: int = 2 * MIB  # The size of a chunk, which one request reads of a dropped segment.
    takeover_ms: int = 3_000  # The time without a new slot after which a standby takes over.
