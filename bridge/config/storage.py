"""Settings of the store: the log, the object store, topics, retention, groups, leases."""

from typing import Annotated, Literal

from duolog.bridge.config.section import DAY_MS, GIB, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS, Section, setting
from duolog.store.options import StoreOptions

OF_BROKER = ("directory", "verify_bytes_per_s")  # Settings of the section `store` that the store does not know.
FOREVER = -1  # The value of a retention setting without a limit.


class StoreSection(Section, frozen=True):
    """The commitlog and its files.

    The class has more than 15 fields because each is a setting of the section `store`.
    """

    directory: Annotated[str, setting("data directory", kafka="log.dirs", rocketmq="storePathRootDir")] = "duolog-data"
    flush: Annotated[
        Literal["sync", "async", "shared"],
        setting(
            "`sync` answers after fsync, `async` after write(), `shared` when the object store has it; a topic "
            "may choose for itself",
            kafka="log.flush.interval.messages",
            rocketmq="flushDiskType",
        ),
    ] = "sync"
    flush_interval_ms: Annotated[
        int,
        setting(
            "with `async`, longest time between two fsyncs",
            kafka="log.flush.interval.ms",
            rocketmq="flushIntervalCommitLog",
            ge=1,
        ),
    ] = 500
    segment_bytes: Annotated[
        int,
        setting(
            "size of one file of the log, and the largest unit",
            kafka="log.segment.bytes",
            rocketmq="mappedFileSizeCommitLog",
            ge=64 * KIB,
            le=4 * GIB,
        ),
    ] = 256 * MIB
    reserve_bytes: Annotated[int, setting("blocks allocated ahead of the log's end", kafka="log.preallocate", ge=0)] = (
        16 * MIB
    )
    tail_bytes: Annotated[
        int, setting("size of the write buffer: the end of the log that readers get from memory", ge=MIB, le=4 * GIB)
    ] = 32 * MIB
    open_segments_max: Annotated[int, setting("log files open at a time", ge=4)] = 256
    reader_threads: Annotated[int, setting("threads for reads that miss the page cache", ge=1, le=64)] = 4
    cold_reads_max: Annotated[
        int, setting("reads that miss the page cache and wait for a thread; further ones are refused", ge=1)
    ] = 1024
    verify_bytes_per_s: Annotated[
        int,
        setting(
            "bytes of sealed segments, indexes and tables that are checked for damage each second; 0: none",
            ge=0,
        ),
    ] = MIB
    checkpoint_bytes: Annotated[
        int, setting("bytes of log after which a checkpoint is written; bounds the work of a restart", ge=64 * KIB)
    ] = 64 * MIB
    recovery_checkpoint_bytes: Annotated[
        int, setting("a start that read more log than this writes a checkpoint before the ports open", ge=0)
    ] = 16 * MIB
    checkpoint_interval_ms: Annotated[
        int,
        setting(
            "longest time between two checkpoints while the log grows",
            kafka="log.flush.offset.checkpoint.interval.ms",
            ge=100,
        ),
    ] = 60 * SECOND_MS
    spare_bytes: Annotated[
        int,
        setting(
            "disk space in reserve, which is given up on a full disk so that deletions and "
            "checkpoints can be written; should be several times the size of `checkpoint`; "
            "0: none",
            ge=0,
            le=4 * GIB,
        ),
    ] = 32 * MIB
    disk_full_ratio: Annotated[
        float,
        setting(
            "used share of the disk above which writes are refused", rocketmq="diskMaxUsedSpaceRatio", ge=0.01, le=1
        ),
    ] = 0.95
    disk_resume_ratio: Annotated[
        float, setting("used share of the disk below which refused writes resume", ge=0.01, le=1)
    ] = 0.93


class SharedSection(Section, frozen=True):
    """The object store that has the log of a stream; see Shared storage. `--shared` sets the URL."""

    url: Annotated[
        str,
        setting(
            "`s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or `file:///directory` for trials; "
            "empty: the log is on this machine's disk alone"
        ),
    ] = ""
    endpoint: Annotated[
        str,
        setting(
            "address of the object store, `https://host:port`, or for Azure `https://host:port/account` if the host "
            "does not name the account; empty: the provider's own"
        ),
    ] = ""
    region: Annotated[
        str, setting("region of the bucket (S3); empty: the one of the environment or of the profile file")
    ] = ""
    flush_interval_ms: Annotated[
        int, setting("longest time for which the end of the log waits before it is uploaded", ge=1, le=10_000)
    ] = 100
    object_bytes: Annotated[
        int, setting("size at which the end of the log is uploaded earlier", ge=64 * KIB, le=64 * MIB)
    ] = 8 * MIB
    in_flight_bytes: Annotated[int, setting("bytes that are uploaded at a time", ge=64 * KIB)] = 64 * MIB
    tail_bytes: Annotated[
        int,
        setting(
            "bytes of memory beyond `store.tail_bytes` for the end of the log that waits for its upload; what is "
            "further behind is read from the disk",
            ge=0,
        ),
    ] = 64 * MIB
    behind_bytes_max: Annotated[
        int,
        setting(
            "bytes of the log that the object store may lack; beyond, writes are refused. It is the most that topics "
            "without `flush.mode=shared` can lose with this machine",
            ge=MIB,
        ),
    ] = 256 * MIB
    cache_bytes: Annotated[
        int,
        setting(
            "bytes of the log that this broker keeps on its disk; beyond, sealed segments that the object store has "
            "are dropped, oldest first, and read back when somebody reads there; at least four times "
            "`store.segment_bytes`, or 0 for no limit",
            ge=0,
        ),
    ] = 0
    connect_timeout_ms: Annotated[
        int, setting("longest time in which a connection to the object store opens", ge=1, le=60_000)
    ] = SECOND_MS
    request_timeout_ms: Annotated[
        int,
        setting(
            "longest time from a request to the object store to its answer, without the time that the content takes",
            ge=1,
            le=60_000,
        ),
    ] = 5 * SECOND_MS


class ClusterSection(Section, frozen=True):
    """The brokers that share a log."""

    takeover_ms: Annotated[
        int, setting("a standby takes over when the owner has written nothing for so long", ge=500, le=600_000)
    ] = 3 * SECOND_MS
    takeover_if_cut_off: Annotated[
        bool,
        setting(
            "a standby also takes over when no client asks the owner for anything, clients ask the standby, and the "
            "standby does not reach the owner's ports any more"
        ),
    ] = True


class TopicsOptions(Section, frozen=True):
    """Topics and their defaults."""

    auto_create: Annotated[
        bool,
        setting(
            "create a topic when a client first names it",
            kafka="auto.create.topics.enable",
            rocketmq="autoCreateTopicEnable",
        ),
    ] = True
    queues: Annotated[
        int,
        setting(
            "queues (partitions) of a topic that is created without a number",
            kafka="num.partitions",
            rocketmq="defaultTopicQueueNums",
            ge=1,
            le=1024,
        ),
    ] = 4
    queues_max: Annotated[
        int,
        setting(
            "queues that one topic may have; 8192 at most, because one turn of the event "
            "loop creates, pops or deletes all of them",
            ge=1,
            le=8192,
        ),
    ] = 1024
    queues_in_all_max: Annotated[
        int, setting("queues of all topics together, some 0.5 KiB of memory each; further ones are refused", ge=1)
    ] = 200_000
    topics_max: Annotated[
        int, setting("topics that may exist, not counting the broker's own; further ones are refused", ge=1)
    ] = 20_000
    group_topics_ratio: Annotated[
        float,
        setting(
            "share of topics_max and queues_in_all_max that the retry topics of RocketMQ's groups may take; their "
            "dead-letter topics may take as much again, the rest is left to other topics",
            ge=0.01,
            le=0.5,
        ),
    ] = 0.4
    message_bytes_max: Annotated[
        int,
        setting(
            "largest record batch, or message with its properties",
            kafka="message.max.bytes",
            rocketmq="maxMessageSize",
            ge=1 * KIB,
            le=64 * MIB,
        ),
    ] = 4 * MIB + 64 * KIB


class RetentionOptions(Section, frozen=True):
    """How long messages are kept where their topic does not say."""

    ms: Annotated[
        int,
        setting(
            "how long records are kept after their append; -1: for ever",
            kafka="log.retention.ms",
            rocketmq="fileReservedTime",
            ge=FOREVER,
        ),
    ] = 7 * DAY_MS
    bytes: Annotated[
        int, setting("bytes that are kept in each queue; -1: no limit", kafka="log.retention.bytes", ge=FOREVER)
    ] = FOREVER
    records: Annotated[int, setting("records that are kept in each queue; -1: no limit", ge=FOREVER)] = FOREVER
    check_interval_ms: Annotated[
        int,
        setting(
            "time between two runs of retention",
            kafka="log.retention.check.interval.ms",
            rocketmq="cleanResourceInterval",
            ge=100,
        ),
    ] = MINUTE_MS
    clock_confirm_ms: Annotated[
        int,
        setting("how long a clock that jumped forward must run steadily before retention trusts it", ge=0),
    ] = DAY_MS
    start_confirm_ms: Annotated[
        int,
        setting("the same after a start that finds the clock far ahead of the log, and after a jump back", ge=0),
    ] = 60 * MINUTE_MS


class GroupsOptions(Section, frozen=True):
    """Consumer groups of both protocols."""

    initial_rebalance_delay_ms: Annotated[
        int,
        setting(
            "wait for more members before an empty Kafka group's first assignment",
            kafka="group.initial.rebalance.delay.ms",
            ge=0,
        ),
    ] = 200
    session_timeout_min_ms: Annotated[
        int, setting("least session timeout of a Kafka member", kafka="group.min.session.timeout.ms", ge=1)
    ] = 6_000
    session_timeout_max_ms: Annotated[
        int, setting("greatest session timeout of a Kafka member", kafka="group.max.session.timeout.ms", ge=1)
    ] = 30 * MINUTE_MS
    members_max: Annotated[
        int,
        setting(
            "members of one Kafka group, 4000 at most: one turn of the loop decides a rebalance",
            kafka="group.max.size",
            ge=1,
            le=4_000,
        ),
    ] = 2_000
    member_bytes_max: Annotated[
        int,
        setting("size of one Kafka member's protocols with their metadata; a larger JoinGroup is refused", ge=1 * KIB),
    ] = MIB
    group_bytes_max: Annotated[
        int, setting("size of the metadata and assignments of one Kafka group; more is refused", ge=4 * KIB)
    ] = 8 * MIB
    bytes_max: Annotated[
        int, setting("size of the metadata and assignments of all Kafka groups; more is refused", ge=4 * KIB)
    ] = 128 * MIB
    count_max: Annotated[int, setting("groups with committed offsets or members", ge=1)] = 100_000
    positions_max: Annotated[
        int, setting("committed offsets of all groups, some 200 bytes of memory each; further ones are refused", ge=1)
    ] = 1_000_000
    positions_text_bytes_max: Annotated[
        int, setting("text that Kafka clients attach to all committed offsets; more is refused", ge=0)
    ] = 64 * MIB
    positions_retention_ms: Annotated[
        int,
        setting(
            "time after which the committed offsets of a group without members are removed",
            kafka="offsets.retention.minutes",
            ge=1,
        ),
    ] = 7 * DAY_MS
    metadata_bytes_max: Annotated[
        int,
        setting(
            "characters that a Kafka client may attach to a committed offset",
            kafka="offset.metadata.max.bytes",
            ge=0,
            le=8191,  # Each takes up to four bytes. The first versions of OffsetFetch encode up to 32 KiB.
        ),
    ] = 4096


class LeasesOptions(Section, frozen=True):
    """Leases of programs that read the log's files: the files that they read are not removed; see Spark."""

    count_max: Annotated[int, setting("leases at a time; further ones are refused", ge=1)] = 256
    per_address_max: Annotated[int, setting("leases of one client address at a time", ge=1)] = 64
    lease_ms_max: Annotated[int, setting("longest time between two renewals of a lease", ge=1)] = HOUR_MS
    hold_ms_max: Annotated[int, setting("longest time that a lease may be held, with all its renewals", ge=1)] = (
        24 * HOUR_MS
    )
    held_bytes_max: Annotated[
        int,
        setting(
            "bytes that leases protect from retention; beyond, the leases with the lowest positions end",
            ge=MIB,
        ),
    ] = 16 * GIB


def store_options(section: StoreSection, *, is_shared: bool = False) -> StoreOptions:
    """Return the store's options: the section without what the broker itself uses."""
    names = [name for name in section.__struct_fields__ if name not in OF_BROKER]
    return StoreOptions(**{name: getattr(section, name) for name in names}, is_shared=is_shared)
