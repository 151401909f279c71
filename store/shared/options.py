"""The settings of a shared log."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The settings of a shared log. Times are in milliseconds."""

    flush_interval_ms: int = 100  # Longest time for which written units wait before they are uploaded.
    object_bytes: int = 8 * MIB  # An object is uploaded earlier if it has this many bytes.
    in_flight_bytes: int = 64 * MIB  # Of objects that are uploaded at a time.
    # Bytes of the log that the store may lack; with more, appends are refused. It is also the most that topics with
    # `flush.mode=sync` can lose at a takeover.
    behind_bytes_max: int = 256 * MIB
    segment_bytes: int = 64 * MIB  # Largest segment object; it is in memory while it is uploaded.
    compact_slots: int = 10_000  # WAL objects after which a compaction begins, however small they are.
    kept_slots: int = (
        1_000  # Newest WAL objects that are not compacted yet, because followers are reading them; 16 or more.
    )
    state_interval_ms: int = 10_000  # Between two writes of the file `shared` of the data directory.
    cleanup_interval_ms: int = 3_600_000  # Between two searches of the owner for objects that nobody reads.
    # Bytes of the log on the disk, beyond which sealed segments that the store has are dropped; 0 for no limit.
    cache_bytes: int = 0
    range_bytes: int = 2 * MIB  # Of a dropped segment, read back by one request.
    takeover_ms: int = 3_000  # A standby takes over when nothing has come for so long.
