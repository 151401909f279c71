"""Settings of delayed messages and of transactions."""

from typing import Annotated

from duolog.bridge.config.section import DAY_MS, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS, Section, setting
from duolog.txn.half import CHECKS_MAX


class DelayOptions(Section, frozen=True):
    """Delayed messages."""

    levels: Annotated[
        str, setting("delay of each level of RocketMQ's `DELAY`, the first is level 1", rocketmq="messageDelayLevel")
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    max_days: Annotated[
        int,
        setting(
            "longest delay; messages that ask for a longer one are refused",
            rocketmq="timerMaxDelaySec",
            ge=1,
            le=36_500,
        ),
    ] = 3_650
    pending_max: Annotated[int, setting("pending messages; further delayed messages are refused", ge=1)] = 50_000_000
    batch_delayed_max: Annotated[
        int,
        setting(
            "records in one Kafka batch that are delayed, expire or are half messages; "
            "delayed messages in one RocketMQ batch",
            ge=1,
        ),
    ] = 10_000
    batch_schedules_max: Annotated[
        int, setting("records in one Kafka batch that have `AMQ_SCHEDULED_` headers, each of which may recur", ge=1)
    ] = 64
    near_ms: Annotated[
        int,
        setting(
            "messages that are due later than this are stored in sorted tables, and "
            "read into memory half this time before they are due",
            ge=10,
        ),
    ] = 600_000
    cancelled_hours: Annotated[int, setting("hours for which a cancelled message is remembered", ge=1)] = 24
    cancelled_max: Annotated[
        int, setting("cancelled messages that are remembered; the oldest are forgotten first", ge=1)
    ] = 200_000
    time_zone: Annotated[str, setting("time zone of `AMQ_SCHEDULED_CRON`; schedules have their own")] = "UTC"
    schedules_max: Annotated[int, setting("schedules that run; further ones are refused", ge=1)] = 10_000
    schedules_bytes: Annotated[
        int, setting("memory for the messages of all schedules; further schedules are refused", ge=KIB)
    ] = 64 * MIB


class TxnOptions(Section, frozen=True):
    """Transactions.

    The class has more than 15 fields because each is a setting of the section `txn`.
    """

    check_interval_ms: Annotated[
        int, setting("time between two check-backs of a half message", rocketmq="transactionCheckInterval", ge=1)
    ] = 30 * SECOND_MS
    immunity_ms: Annotated[
        int, setting("age of a half message at its first check-back", rocketmq="transactionTimeOut", ge=0)
    ] = 6 * SECOND_MS
    check_max: Annotated[
        int,
        setting(
            "check-backs before a half message is given up", rocketmq="transactionCheckMax", ge=1, le=CHECKS_MAX - 1
        ),
    ] = 15
    half_ms: Annotated[
        int, setting("age at which an open half message is given up", rocketmq="fileReservedTime", ge=1)
    ] = 72 * HOUR_MS
    half_ids_max: Annotated[
        int, setting("open half messages of Kafka producers, about half a KiB each; further ones are refused", ge=1)
    ] = 100_000
    check_urls: Annotated[
        str,
        setting(
            "URLs that the broker may call for check-backs of Kafka producers: prefixes of "
            "whole path segments, separated by blanks; a path may be a secret",
            is_secret=True,
        ),
    ] = ""
    check_timeout_ms: Annotated[int, setting("time for the answer of a check-back URL", ge=1)] = 3 * SECOND_MS
    half_max: Annotated[
        int, setting("open half messages, 33 bytes of memory each; further ones are answered `system busy`", ge=1)
    ] = 2_000_000
    timeout_max_ms: Annotated[
        int, setting("greatest timeout of a Kafka transaction", kafka="transaction.max.timeout.ms", ge=1)
    ] = 15 * MINUTE_MS
    id_expiration_ms: Annotated[
        int,
        setting(
            "time after which an idle Kafka transactional id is forgotten", kafka="transactional.id.expiration.ms", ge=1
        ),
    ] = 7 * DAY_MS
    ids_max: Annotated[int, setting("Kafka transactional ids known; further ones are refused", ge=1)] = 100_000
    pending_positions_max: Annotated[
        int, setting("offsets of groups in open Kafka transactions; further ones are refused", ge=1)
    ] = 200_000
    groups_max: Annotated[
        int, setting("groups whose offsets one Kafka transaction commits; each also counts as an offset", ge=1)
    ] = 1_000
    partitions_max: Annotated[
        int,
        setting(
            "partitions of one Kafka transaction, because one unit of the log ends it; further ones are refused", ge=1
        ),
    ] = 3_000
    pending_partitions_max: Annotated[
        int, setting("partitions of all open Kafka transactions; further ones are refused", ge=1)
    ] = 200_000
    aborted_max: Annotated[
        int,
        setting(
            "aborted Kafka transactions remembered, 32 bytes each, until retention takes their records; "
            "beyond, writes in transactions are refused",
            ge=1,
        ),
    ] = 1_000_000


class ConvertOptions(Section, frozen=True):
    """Reading one protocol's messages in the other's form."""

    inflate_bytes_max: Annotated[int, setting("largest size of a decompressed batch", ge=MIB)] = 64 * MIB
    cache_bytes: Annotated[int, setting("decompressed batches that are kept for the next pull", ge=0)] = 16 * MIB
