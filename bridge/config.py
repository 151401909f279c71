"""Settings: sections of plain values, each with its default, its unit and one line; the README's table is made of them.

    defaults  <-  duolog.toml (--config)  <-  --set KEY=VALUE  <-  flags of `duolog serve`

What stands further right wins. A key is `section.name`; the file has one table per section. `_ms` is milliseconds or
text with a unit (`"7d"`), `_bytes` bytes or text with a unit (`"256MB"`), `_ratio` a share between 0 and 1. Every bad
name or value raises `ConfigError`, one line that names the setting.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from duolog.bridge import units
from duolog.delay.recurring import BadSchedule, Cron
from duolog.txn.half import CHECKS_MAX

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000

DELAY_LEVELS_MAX = 128  # each is a queue
FOREVER = -1  # of retention: no limit


class ConfigError(Exception):
    """A setting that does not exist or has an impossible value; the message is one line and names it."""


def _setting(
    doc: str, *, kafka: str = "", rocketmq: str = "", ge: float | None = None, le: float | None = None
) -> Meta:
    """One line for people, and what Apache Kafka and Apache RocketMQ call the same thing."""
    return Meta(description=doc, ge=ge, le=le, extra={"kafka": kafka, "rocketmq": rocketmq})


_PORT = {"ge": 0, "le": 65535}


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of the config file."""


class ServerOptions(_Section, frozen=True):
    """Where the broker listens and what it tells clients."""

    host: Annotated[str, _setting("address that all ports listen on", kafka="listeners", rocketmq="bindAddress")] = (
        "127.0.0.1"
    )
    advertise: Annotated[
        str,
        _setting(
            "host that clients are told; empty: `server.host`, or this machine's name if that is a wildcard",
            kafka="advertised.listeners",
            rocketmq="brokerIP1",
        ),
    ] = ""
    stop_ms: Annotated[
        int, _setting("time given to unfinished requests, then to a last checkpoint, when stopping", ge=0, le=4_000)
    ] = 3_000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _setting("least severity written to standard error")
    ] = "info"


class StoreSection(_Section, frozen=True):
    """The commitlog and its files."""

    directory: Annotated[str, _setting("data directory", kafka="log.dirs", rocketmq="storePathRootDir")] = "duolog-data"
    flush: Annotated[
        Literal["sync", "async"],
        _setting(
            "`sync` answers after fsync, `async` after write(); a topic may choose for itself",
            kafka="log.flush.interval.messages",
            rocketmq="flushDiskType",
        ),
    ] = "sync"
    flush_interval_ms: Annotated[
        int,
        _setting(
            "under async, fsync at least this often",
            kafka="log.flush.interval.ms",
            rocketmq="flushIntervalCommitLog",
            ge=1,
        ),
    ] = 500
    segment_bytes: Annotated[
        int,
        _setting(
            "size of one file of the log, and the largest unit",
            kafka="log.segment.bytes",
            rocketmq="mappedFileSizeCommitLog",
            ge=64 * KIB,
            le=4 * GIB,
        ),
    ] = 256 * MIB
    reserve_bytes: Annotated[
        int, _setting("blocks allocated ahead of the log's end", kafka="log.preallocate", ge=0)
    ] = 16 * MIB
    tail_bytes: Annotated[int, _setting("end of the log kept in memory for readers", ge=MIB, le=4 * GIB)] = 32 * MIB
    open_segments_max: Annotated[int, _setting("log files open at a time", ge=4)] = 256
    reader_threads: Annotated[int, _setting("threads for reads that miss the page cache", ge=1, le=64)] = 4
    cold_reads_max: Annotated[int, _setting("such reads waiting at a time; further ones are refused", ge=1)] = 1024
    checkpoint_bytes: Annotated[
        int, _setting("write a checkpoint after this much log: bounds the work of a restart", ge=64 * KIB)
    ] = 64 * MIB
    recovery_checkpoint_bytes: Annotated[
        int, _setting("a start that read more log than this writes a checkpoint before the ports open", ge=0)
    ] = 16 * MIB
    checkpoint_interval_ms: Annotated[
        int,
        _setting(
            "and at least this often while anything is written", kafka="log.flush.offset.checkpoint.interval.ms", ge=100
        ),
    ] = 60 * SECOND_MS
    spare_bytes: Annotated[
        int,
        _setting(
            "disk space held in reserve: given up on a full disk, so that deletions and what removes files can be "
            "written; several times the size of `checkpoint`; 0: none",
            ge=0,
            le=4 * GIB,
        ),
    ] = 32 * MIB
    disk_full_ratio: Annotated[
        float,
        _setting(
            "used share of the disk above which writes are refused", rocketmq="diskMaxUsedSpaceRatio", ge=0.01, le=1
        ),
    ] = 0.95
    disk_resume_ratio: Annotated[float, _setting("and below which they resume by themselves", ge=0.01, le=1)] = 0.93


class TopicsOptions(_Section, frozen=True):
    """Topics and their defaults."""

    auto_create: Annotated[
        bool,
        _setting(
            "create a topic when a client first names it",
            kafka="auto.create.topics.enable",
            rocketmq="autoCreateTopicEnable",
        ),
    ] = True
    queues: Annotated[
        int,
        _setting(
            "queues (partitions) of a topic made without a number",
            kafka="num.partitions",
            rocketmq="defaultTopicQueueNums",
            ge=1,
            le=1024,
        ),
    ] = 4
    queues_max: Annotated[
        int,
        _setting(
            "queues that one topic may have, 8192 at most: one turn of the loop makes, pops or deletes all",
            ge=1,
            le=8192,
        ),
    ] = 1024
    queues_in_all_max: Annotated[
        int, _setting("queues of all topics together, half a KiB of memory each; making more is refused", ge=1)
    ] = 200_000
    topics_max: Annotated[
        int, _setting("topics that may exist, the broker's own aside; creating more is refused", ge=1)
    ] = 20_000
    message_bytes_max: Annotated[
        int,
        _setting(
            "largest record batch, or message with its properties",
            kafka="message.max.bytes",
            rocketmq="maxMessageSize",
            ge=1 * KIB,
            le=64 * MIB,
        ),
    ] = 4 * MIB + 64 * KIB


class RetentionOptions(_Section, frozen=True):
    """How long messages are kept where their topic does not say."""

    ms: Annotated[
        int,
        _setting(
            "age since the append; -1: forever", kafka="log.retention.ms", rocketmq="fileReservedTime", ge=FOREVER
        ),
    ] = 7 * DAY_MS
    bytes: Annotated[int, _setting("bytes per queue; -1: no limit", kafka="log.retention.bytes", ge=FOREVER)] = FOREVER
    records: Annotated[int, _setting("records per queue; -1: no limit", ge=FOREVER)] = FOREVER
    check_interval_ms: Annotated[
        int,
        _setting(
            "time between two looks", kafka="log.retention.check.interval.ms", rocketmq="cleanResourceInterval", ge=100
        ),
    ] = MINUTE_MS
    clock_confirm_ms: Annotated[
        int,
        _setting(
            "a clock that jumped forward deletes nothing by its time before it has run steadily for so long", ge=0
        ),
    ] = DAY_MS
    start_confirm_ms: Annotated[
        int,
        _setting("the same after a start that finds the log older than the clock, and after a jump back", ge=0),
    ] = 60 * MINUTE_MS


class GroupsOptions(_Section, frozen=True):
    """Consumer groups of both protocols."""

    initial_rebalance_delay_ms: Annotated[
        int,
        _setting(
            "wait for more members before an empty Kafka group's first assignment",
            kafka="group.initial.rebalance.delay.ms",
            ge=0,
        ),
    ] = 200
    session_timeout_min_ms: Annotated[
        int, _setting("least session timeout of a Kafka member", kafka="group.min.session.timeout.ms", ge=1)
    ] = 6_000
    session_timeout_max_ms: Annotated[
        int, _setting("greatest session timeout of a Kafka member", kafka="group.max.session.timeout.ms", ge=1)
    ] = 30 * MINUTE_MS
    members_max: Annotated[
        int,
        _setting(
            "members of one Kafka group, 4000 at most: one turn of the loop decides a rebalance",
            kafka="group.max.size",
            ge=1,
            le=4_000,
        ),
    ] = 2_000
    member_bytes_max: Annotated[
        int, _setting("protocols of one Kafka member, with their metadata; a larger JoinGroup is refused", ge=1 * KIB)
    ] = MIB
    group_bytes_max: Annotated[
        int, _setting("members of one Kafka group, with metadata and assignments; more is refused", ge=4 * KIB)
    ] = 8 * MIB
    bytes_max: Annotated[int, _setting("members of all Kafka groups; more is refused", ge=4 * KIB)] = 128 * MIB
    count_max: Annotated[int, _setting("groups with positions or members", ge=1)] = 100_000
    positions_max: Annotated[
        int, _setting("positions of all groups, some 200 bytes of memory each; further ones are refused", ge=1)
    ] = 1_000_000
    positions_text_bytes_max: Annotated[
        int, _setting("text that Kafka clients attach to all positions; more is refused", ge=0)
    ] = 64 * MIB
    positions_retention_ms: Annotated[
        int,
        _setting("positions of a group without members go after this time", kafka="offsets.retention.minutes", ge=1),
    ] = 7 * DAY_MS
    metadata_bytes_max: Annotated[
        int,
        _setting(
            "text that a Kafka client may attach to a position, in characters",
            kafka="offset.metadata.max.bytes",
            ge=0,
            le=8191,  # Four bytes each: older versions of OffsetFetch spell 32 KiB.
        ),
    ] = 4096


class KafkaOptions(_Section, frozen=True):
    """The Kafka port."""

    port: Annotated[int, _setting("port; 0: any free one", kafka="listeners", **_PORT)] = 9092
    frame_bytes_max: Annotated[int, _setting("largest request", kafka="socket.request.max.bytes", ge=1 * KIB)] = (
        100 * MIB
    )
    request_bytes_max: Annotated[
        int, _setting("largest request other than Produce; who sends a larger one is closed", ge=1 * KIB)
    ] = 8 * MIB
    elements_max: Annotated[
        int,
        _setting(
            "topics, partitions, groups and other array elements in one request; who sends more is closed", ge=100
        ),
    ] = 20_000
    answer_bytes_max: Annotated[
        int, _setting("largest answer other than Fetch's; who asks for a larger one is closed", ge=64 * KIB)
    ] = 32 * MIB
    fetch_bytes_max: Annotated[int, _setting("largest fetch answer", kafka="fetch.max.bytes", ge=1 * KIB)] = 55 * MIB
    unanswered_max: Annotated[
        int, _setting("requests of one connection in work; then it is not read from until answers left", ge=1)
    ] = 100
    idle_ms: Annotated[
        int, _setting("close a connection with no traffic for so long", kafka="connections.max.idle.ms", ge=1)
    ] = 10 * MINUTE_MS
    producer_id_expiration_ms: Annotated[
        int,
        _setting("forget an idempotent producer that is silent for so long", kafka="producer.id.expiration.ms", ge=1),
    ] = DAY_MS
    producers_max: Annotated[int, _setting("idempotent producers remembered, summed over queues", ge=1)] = 200_000


class RocketmqOptions(_Section, frozen=True):
    """The RocketMQ broker's port and the embedded name server."""

    port: Annotated[int, _setting("the broker's port; 0: any free one", rocketmq="listenPort", **_PORT)] = 10911
    namesrv_port: Annotated[int, _setting("the name server's port; 0: any free one", **_PORT)] = 9876
    cluster: Annotated[str, _setting("cluster name that clients see", rocketmq="brokerClusterName")] = "DefaultCluster"
    broker: Annotated[str, _setting("broker name that clients see", rocketmq="brokerName")] = "duolog"
    join_namesrv: Annotated[
        str,
        _setting("name servers of a cluster to register with, `host:port;host:port`", rocketmq="namesrvAddr"),
    ] = ""
    frame_bytes_max: Annotated[
        int, _setting("largest request", rocketmq="com.rocketmq.remoting.frameMaxLength", ge=1 * KIB)
    ] = 16 * MIB
    body_bytes_max: Annotated[int, _setting("largest message body", rocketmq="maxMessageSize", ge=1)] = 4 * MIB
    unanswered_max: Annotated[
        int,
        _setting(
            "requests of one connection in work, held pulls included; further ones are answered `system busy`",
            ge=1,
        ),
    ] = 20_000
    sends_max: Annotated[
        int,
        _setting(
            "sends waiting for the log; further ones are answered `system busy`, as with all limits below",
            rocketmq="sendThreadPoolQueueCapacity",
            ge=1,
        ),
    ] = 10_000
    transactions_max: Annotated[
        int,
        _setting("ends of transactions waiting for the log", rocketmq="endTransactionPoolQueueCapacity", ge=1),
    ] = 10_000
    acks_max: Annotated[
        int, _setting("acks and committed positions waiting for the log", rocketmq="ackThreadPoolQueueCapacity", ge=1)
    ] = 10_000
    pulls_max: Annotated[
        int, _setting("pulls and pops waiting for the disk", rocketmq="pullThreadPoolQueueCapacity", ge=1)
    ] = 512
    popped_bytes_max: Annotated[
        int, _setting("memory for pops that are not acked; then nothing is popped (`POLLING_FULL`)", ge=1 * KIB)
    ] = 128 * MIB
    retry_topic_v2: Annotated[
        bool,
        _setting(
            "name POP's new retry topics `%RETRY%group+topic`, which is unambiguous, not `%RETRY%group_topic`",
            rocketmq="enableRetryTopicV2",
        ),
    ] = False
    queries_max: Annotated[
        int,
        _setting(
            "queries by key and by id in work; and of each other kind, requests waiting for the disk",
            rocketmq="queryThreadPoolQueueCapacity",
            ge=1,
        ),
    ] = 128
    clients_max: Annotated[
        int,
        _setting(
            "heartbeats, locks, route look-ups and the like in work", rocketmq="heartbeatThreadPoolQueueCapacity", ge=1
        ),
    ] = 10_000
    admin_max: Annotated[
        int, _setting("all other requests in work", rocketmq="adminBrokerThreadPoolQueueCapacity", ge=1)
    ] = 10_000
    wait_ms: Annotated[
        int,
        _setting(
            "those of the last two that have not had their turn after so long are answered `broker busy`",
            rocketmq="waitTimeMillsInAdminBrokerQueue",
            ge=1,
        ),
    ] = 5 * SECOND_MS
    busy_ms: Annotated[
        int,
        _setting(
            "so long without the log keeping any promise, and sends are answered `broker busy` until it does",
            rocketmq="osPageCacheBusyTimeOutMills",
            ge=1,
        ),
    ] = 5 * SECOND_MS
    unsynced_bytes_max: Annotated[
        int, _setting("bytes of the log not on disk yet; beyond, sends are answered `system busy`", ge=MIB)
    ] = 512 * MIB
    idle_ms: Annotated[
        int,
        _setting("close a connection with no traffic for so long", rocketmq="serverChannelMaxIdleTimeSeconds", ge=1),
    ] = 120 * SECOND_MS
    groups_max: Annotated[int, _setting("producer and consumer groups with live members", ge=1)] = 20_000
    client_groups_max: Annotated[int, _setting("producer and consumer groups of one client", ge=1)] = 500
    subscriptions_max: Annotated[int, _setting("topics that one group may subscribe to", ge=1)] = 2_000
    group_config_bytes_max: Annotated[int, _setting("configs of all groups; further ones are refused", ge=KIB)] = (
        64 * MIB
    )
    subscribed_bytes_max: Annotated[
        int, _setting("memory for what all clients' groups subscribe to; half a KiB for each topic and group", ge=KIB)
    ] = 64 * MIB
    client_subscribed_bytes_max: Annotated[int, _setting("the same of one client", ge=KIB)] = 4 * MIB
    refuse_other_subscriptions: Annotated[
        bool,
        _setting(
            "refuse a member that subscribes to other messages than its group's members, instead of letting the newest"
            " subscription count for all; a group's attribute `refuse.other.subscriptions` goes first"
        ),
    ] = False


class HttpOptions(_Section, frozen=True):
    """The HTTP port: metrics, health, the API behind the admin commands."""

    port: Annotated[int, _setting("port; 0: any free one", **_PORT)] = 9644
    hosts: Annotated[
        str,
        _setting(
            "host names, besides the broker's own, by which clients may address the port, separated by blanks; "
            "requests to other names are refused, as from web pages by DNS rebinding"
        ),
    ] = ""
    origins: Annotated[
        str, _setting("origins of web pages that may change something, like `https://ops.example`, separated by blanks")
    ] = ""
    connections_max: Annotated[int, _setting("open connections; further ones are closed at once", ge=1)] = 256
    body_bytes_max: Annotated[int, _setting("largest request body", ge=1 * KIB)] = MIB
    held_bytes_max: Annotated[
        int,
        _setting(
            "bytes of requests and answers in memory over all connections; beyond, requests get status 503", ge=MIB
        ),
    ] = 128 * MIB
    readers_file: Annotated[
        str, _setting("TOML file of tokens and the topics that each may read from the log's files; empty: anyone all")
    ] = ""
    request_keys_max: Annotated[
        int, _setting("values of `Idempotency-Key` remembered; beyond, requests with new ones get status 503", ge=1)
    ] = 100_000
    request_key_ms: Annotated[int, _setting("an `Idempotency-Key` is remembered for so long", ge=1)] = HOUR_MS


class LeasesOptions(_Section, frozen=True):
    """Leases of those who read the log's files: what they read is not removed; see Spark."""

    count_max: Annotated[int, _setting("leases at a time; further ones are refused", ge=1)] = 256
    per_address_max: Annotated[int, _setting("leases of one client address at a time", ge=1)] = 64
    lease_ms_max: Annotated[int, _setting("longest time between two renewals of a lease", ge=1)] = HOUR_MS
    hold_ms_max: Annotated[int, _setting("a lease ends so long after it was given, however it is renewed", ge=1)] = (
        24 * HOUR_MS
    )
    held_bytes_max: Annotated[
        int,
        _setting(
            "bytes that leases keep from retention; beyond, the leases that reach back furthest end",
            ge=MIB,
        ),
    ] = 16 * GIB


class HooksOptions(_Section, frozen=True):
    """Python code of the operator's that is called around RocketMQ requests; see Hooks."""

    enabled: Annotated[bool, _setting("use the hooks that installed packages offer")] = True
    timeout_ms: Annotated[int, _setting("a request goes on without its hooks after so long", ge=1)] = 100
    threads: Annotated[int, _setting("threads that hooks run in", ge=1, le=64)] = 2
    waiting_max: Annotated[int, _setting("calls of hooks waiting at a time; further ones are skipped", ge=1)] = 1_000


class LimitsOptions(_Section, frozen=True):
    """What clients may cost together."""

    connections_max: Annotated[
        int, _setting("open connections; further ones are closed at once", kafka="max.connections", ge=1, le=1_000_000)
    ] = 16_000
    first_request_ms: Annotated[
        int, _setting("close a connection that has not sent one whole request after so long", ge=1)
    ] = 30 * SECOND_MS
    request_bytes_max: Annotated[
        int,
        _setting(
            "bytes of unfinished requests over all connections; beyond, the largest loses its connection",
            kafka="queued.max.request.bytes",
            ge=MIB,
        ),
    ] = 256 * MIB
    unsent_bytes_max: Annotated[
        int, _setting("unsent answers of one connection; beyond, it is not read from until it took them", ge=1 * KIB)
    ] = MIB
    unread_ms: Annotated[
        int, _setting("close a connection that took nothing of its unsent answers for so long", ge=1)
    ] = 30 * SECOND_MS
    answer_bytes_max: Annotated[
        int,
        _setting(
            "unsent answers over all connections; beyond, reads give one batch, and who has unsent answers waits",
            ge=MIB,
        ),
    ] = 128 * MIB
    held_bytes_max: Annotated[
        int,
        _setting("memory of long polls, 512 bytes for each queue that one watches; more are answered at once", ge=512),
    ] = 256 * MIB
    connection_held_bytes_max: Annotated[
        int, _setting("memory of long polls of one connection; more are answered at once", ge=512)
    ] = 32 * MIB


class ConvertOptions(_Section, frozen=True):
    """Reading one protocol's messages in the other's form."""

    inflate_bytes_max: Annotated[int, _setting("a compressed batch is opened up to this size", ge=MIB)] = 64 * MIB
    cache_bytes: Annotated[int, _setting("opened batches kept for the next pull", ge=0)] = 16 * MIB


class DelayOptions(_Section, frozen=True):
    """Delayed messages."""

    levels: Annotated[
        str, _setting("delay of each level of RocketMQ's `DELAY`, the first is level 1", rocketmq="messageDelayLevel")
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    max_days: Annotated[
        int,
        _setting(
            "furthest time of delivery; what asks for a later one is refused",
            rocketmq="timerMaxDelaySec",
            ge=1,
            le=36_500,
        ),
    ] = 3_650
    pending_max: Annotated[int, _setting("delayed messages waiting; further ones are refused", ge=1)] = 50_000_000
    batch_delayed_max: Annotated[
        int,
        _setting(
            "records in one Kafka batch that are delayed, expire or are half messages; delayed ones in RocketMQ's",
            ge=1,
        ),
    ] = 10_000
    batch_schedules_max: Annotated[
        int, _setting("records in one Kafka batch that have `AMQ_SCHEDULED_` headers, each of which may recur", ge=1)
    ] = 64
    near_ms: Annotated[
        int, _setting("what is due later goes to files of its own, and comes back half so long before it is due", ge=10)
    ] = 600_000
    verdict_hours: Annotated[int, _setting("that a message was cancelled is remembered for so long", ge=1)] = 24
    verdicts_max: Annotated[int, _setting("and for so many messages, the latest ones", ge=1)] = 200_000
    time_zone: Annotated[str, _setting("of `AMQ_SCHEDULED_CRON`; schedules have their own")] = "UTC"
    schedules_max: Annotated[int, _setting("schedules that run; further ones are refused", ge=1)] = 10_000
    schedules_bytes: Annotated[int, _setting("of the messages of all schedules, in memory", ge=KIB)] = 64 * MIB


class TxnOptions(_Section, frozen=True):
    """Transactions."""

    check_interval_ms: Annotated[
        int, _setting("time between two checks of a half message", rocketmq="transactionCheckInterval", ge=1)
    ] = 30 * SECOND_MS
    immunity_ms: Annotated[
        int, _setting("age from which a half message is checked", rocketmq="transactionTimeOut", ge=0)
    ] = 6 * SECOND_MS
    check_max: Annotated[
        int, _setting("checks before it is given up", rocketmq="transactionCheckMax", ge=1, le=CHECKS_MAX - 1)
    ] = 15
    half_ms: Annotated[
        int, _setting("a half message that is open for so long is given up", rocketmq="fileReservedTime", ge=1)
    ] = 72 * HOUR_MS
    half_ids_max: Annotated[
        int, _setting("open half messages of Kafka producers, about half a KiB each; further ones are refused", ge=1)
    ] = 100_000
    check_urls: Annotated[
        str,
        _setting(
            "URLs that Kafka producers may have the broker call: prefixes of whole path segments, separated by blanks"
        ),
    ] = ""
    check_timeout_ms: Annotated[int, _setting("time for an answer of such a URL", ge=1)] = 3 * SECOND_MS
    half_max: Annotated[
        int, _setting("open half messages, 33 bytes of memory each; further ones are answered `system busy`", ge=1)
    ] = 2_000_000
    timeout_max_ms: Annotated[
        int, _setting("greatest timeout of a Kafka transaction", kafka="transaction.max.timeout.ms", ge=1)
    ] = 15 * MINUTE_MS
    id_expiration_ms: Annotated[
        int,
        _setting(
            "forget a Kafka transactional id that is idle for so long", kafka="transactional.id.expiration.ms", ge=1
        ),
    ] = 7 * DAY_MS
    ids_max: Annotated[int, _setting("Kafka transactional ids known; further ones are refused", ge=1)] = 100_000
    pending_positions_max: Annotated[
        int, _setting("positions of groups in open Kafka transactions; further ones are refused", ge=1)
    ] = 200_000
    groups_max: Annotated[
        int, _setting("groups whose positions one Kafka transaction has; each counts as a position, too", ge=1)
    ] = 1_000
    partitions_max: Annotated[
        int, _setting("partitions of one Kafka transaction, which one unit of the log ends; more are refused", ge=1)
    ] = 3_000
    pending_partitions_max: Annotated[
        int, _setting("partitions of all open Kafka transactions; more are refused", ge=1)
    ] = 200_000
    aborted_max: Annotated[
        int,
        _setting(
            "aborted Kafka transactions remembered, 32 bytes each, until retention takes their records; "
            "beyond, writes in transactions are refused",
            ge=1,
        ),
    ] = 1_000_000


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings, by section."""

    server: ServerOptions = ServerOptions()
    store: StoreSection = StoreSection()
    topics: TopicsOptions = TopicsOptions()
    retention: RetentionOptions = RetentionOptions()
    groups: GroupsOptions = GroupsOptions()
    kafka: KafkaOptions = KafkaOptions()
    rocketmq: RocketmqOptions = RocketmqOptions()
    http: HttpOptions = HttpOptions()
    leases: LeasesOptions = LeasesOptions()
    hooks: HooksOptions = HooksOptions()
    limits: LimitsOptions = LimitsOptions()
    convert: ConvertOptions = ConvertOptions()
    delay: DelayOptions = DelayOptions()
    txn: TxnOptions = TxnOptions()


# -- Loading


def load(file: Path | None, overrides: Mapping[str, str | int]) -> Options:
    """Read the file (None: none), put `overrides` (by dotted name) over it, check everything; raises ConfigError."""
    document = _without_units(_read(file)) if file is not None else {}
    for key, value in overrides.items():
        section, name = _split(key)
        table = document.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{section}: expected a table of settings")
        table[name] = _convert(key, value, _field_types(section)[name])
    try:
        options = msgspec.convert(document, Options)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{_one_line(error, document)} (--config {file})") from error  # `_convert` saw the others.
    _check_together(options)
    return options


def parse_override(text: str) -> tuple[str, str]:
    """Split `KEY=VALUE` of `--set`; raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: expected KEY=VALUE")
    _split(key.strip())
    return key.strip(), value.strip()


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file}: {error}") from error


def _split(key: str) -> tuple[str, str]:
    section, _, name = key.partition(".")
    if section not in _SECTIONS or name not in _field_types(section):
        raise ConfigError(f"{key}: {_unknown(key)}")
    return section, name


def _convert(key: str, value: str | int, field_type: Any) -> Any:
    """Read the text of a flag as the setting's type: `10` as a number, `true` as a yes."""
    try:
        return msgspec.convert(units.without_unit(key, str(value)), field_type, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{key}: {_problem(key, str(error), field_type)}, got {str(value)!r}") from error


def _without_units(document: dict[str, Any]) -> dict[str, Any]:
    """Give the file's tables with numbers for values with units."""
    return {
        section: {name: _number(f"{section}.{name}", value) for name, value in table.items()}
        if isinstance(table, dict)
        else table
        for section, table in document.items()
    }


def _number(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    read = units.without_unit(key, value)
    return int(read) if read != value and _is_number(key) else value


def _is_number(key: str) -> bool:
    section, _, name = key.partition(".")
    return section in _SECTIONS and get_args(_field_types(section).get(name, str))[:1] == (int,)


def _check_together(options: Options) -> None:
    """Check what one field cannot say alone."""
    _check_advertised(options.server.advertise)
    name_servers(options.rocketmq.join_namesrv)
    if options.txn.check_urls:
        _check_urls(options.txn.check_urls)
    level_delays_ms(options.delay.levels)
    _check_zone(options.delay.time_zone)
    store, groups, topics = options.store, options.groups, options.topics
    for low, high, low_name, high_name in (
        (store.disk_resume_ratio, store.disk_full_ratio, "store.disk_resume_ratio", "store.disk_full_ratio"),
        (
            groups.session_timeout_min_ms,
            groups.session_timeout_max_ms,
            "groups.session_timeout_min_ms",
            "groups.session_timeout_max_ms",
        ),
        (topics.queues, topics.queues_max, "topics.queues", "topics.queues_max"),
    ):
        if low > high:
            raise ConfigError(f"{low_name}: {low} is above {high_name}, {high}")


def _check_urls(prefixes: str) -> None:
    from duolog.bridge.transactions.check_urls import BadUrl, CheckUrls  # yarl is slow to import.

    try:
        CheckUrls(prefixes)
    except BadUrl as error:
        raise ConfigError(f"txn.check_urls: {error}") from error


def level_delays_ms(levels: str) -> list[int]:
    """Read the table of delay levels; raises ConfigError."""
    delays = []
    for level in levels.split():
        found = re.fullmatch(r"(\d{1,9})([smhd])", level, re.ASCII)
        if found is None:
            raise ConfigError(f"delay.levels: expected numbers with s, m, h or d, got {level!r}")
        delays.append(int(found[1]) * units.UNITS_MS[found[2]])
    if not 1 <= len(delays) <= DELAY_LEVELS_MAX:
        raise ConfigError(f"delay.levels: expected 1 to {DELAY_LEVELS_MAX} levels, got {len(delays)}")
    return delays


def name_servers(text: str) -> list[tuple[str, int]]:
    """Read `rocketmq.join_namesrv`; raises ConfigError."""
    found = []
    for address in filter(None, map(str.strip, text.split(";"))):
        host, _, port = address.rpartition(":")
        if not host or any(sign in host for sign in "/, ") or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"rocketmq.join_namesrv: expected host:port;host:port, got {address!r}")
        found.append((host.strip("[]"), int(port)))
    return found


def _check_zone(name: str) -> None:
    try:
        Cron("0 0 * * *", name)
    except BadSchedule as error:
        raise ConfigError(f"delay.time_zone: {error}") from error


def _check_advertised(host: str) -> None:
    """Find the port or URL that Kafka's `advertised.listeners` would want: clients would only say "cannot resolve"."""
    # An IPv6 address has two colons at least.
    if host.count(":") == 1 or any(sign in host for sign in "/[], \t"):
        raise ConfigError(f"server.advertise: expected a host name or address, without a port, got {host!r}")


def _one_line(error: msgspec.ValidationError, document: Mapping[str, Any]) -> str:
    """Turn "Expected `int`, got `str` - at `$.kafka.port`" into "kafka.port: expected `int`, got `str`"."""
    found = re.fullmatch(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", str(error), re.DOTALL)
    assert found is not None
    problem, place = found[1], found[2] or ""
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem)
    if unknown:
        key = ".".join(filter(None, (place, unknown[1])))
        return f"{key}: {_unknown(key)}"
    section, _, name = place.partition(".")
    if not name:
        return f"{section or 'config'}: expected a table of settings"
    return f"{place}: {_problem(place, problem, _field_types(section)[name])}, got {document[section][name]!r}"


def _unknown(key: str) -> str:
    """Say that there is no such setting, and which one may have been meant."""
    names = [row.name for row in settings()]
    last = key.rpartition(".")[2]
    same = [name for name in names if name.partition(".")[2] == last]
    near = same or get_close_matches(key, [*names, *_SECTIONS], 3, 0.8) or get_close_matches(key, _lasts(names), 1, 0.8)
    meant = [name for name in names if name.partition(".")[2] in near] or [name for name in near if name != key]
    hint = f"did you mean {' or '.join(meant[:3])}? " if meant else ""
    return f"no such setting; {hint}`duolog settings` lists them"


def _lasts(names: list[str]) -> list[str]:
    return [name.partition(".")[2] for name in names]


def _problem(key: str, problem: str, field_type: Any) -> str:
    choices = get_args(get_args(field_type)[0])
    if choices:
        return f"expected one of {', '.join(choices)}"
    expected = problem.partition(", got")[0]
    unit = units.expected_of(key) if "`int`" in expected and "=" not in expected else ""
    return expected[:1].lower() + expected[1:] + (f" or {unit}" if unit else "")


_SECTIONS: dict[str, type[_Section]] = {field.name: field.type for field in msgspec.structs.fields(Options)}


def _field_types(section: str) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(_SECTIONS[section])}


# -- Listing


class Setting(NamedTuple):
    """One row of the README's table."""

    name: str
    default: str
    doc: str
    kafka: str
    rocketmq: str


def settings() -> Iterator[Setting]:
    """List all settings in the order of the sections."""
    for section_name, section in _SECTIONS.items():
        for field in msgspec.structs.fields(section):
            meta = next(arg for arg in get_args(field.type)[1:] if isinstance(arg, Meta))
            extra = meta.extra or {}
            yield Setting(
                f"{section_name}.{field.name}",
                _shown(field.default),
                meta.description or "",
                extra["kafka"],
                extra["rocketmq"],
            )


def values(options: Options) -> Iterator[tuple[str, Any]]:
    """Give each setting's dotted name and its value."""
    for section_name in _SECTIONS:
        section = getattr(options, section_name)
        for name in section.__struct_fields__:
            yield f"{section_name}.{name}", getattr(section, name)


def _shown(default: Any) -> str:
    return {True: "true", False: "false"}[default] if isinstance(default, bool) else str(default)
