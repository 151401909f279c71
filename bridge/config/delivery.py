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
            "furthest time of delivery; what asks for a later one is refused",
            rocketmq="timerMaxDelaySec",
            ge=1,
            le=36_500,
        ),
    ] = 3_650
    pending_max: Annotated[int, setting("delayed messages waiting; further ones are refused", ge=1)] = 50_000_000
    batch_delayed_max: Annotated[
        int,
        setting(
            "records in one Kafka batch that are delayed, expire or are half messages; delayed ones in RocketMQ's",
            ge=1,
        ),
    ] = 10_000
    batch_schedules_max: Annotated[
        int, setting("records in one Kafka batch that have `AMQ_SCHEDULED_` headers, each of which may recur", ge=1)
    ] = 64
    near_ms: Annotated[
        int, setting("what is due later goes to files of its own, and comes back half so long before it is due", ge=10)
    ] = 600_000
    verdict_hours: Annotated[int, setting("that a message was cancelled is remembered for so long", ge=1)] = 24
    verdicts_max: Annotated[int, setting("and for so many messages, the latest ones", ge=1)] = 200_000
    time_zone: Annotated[str, setting("of `AMQ_SCHEDULED_CRON`; schedules have their own")] = "UTC"
    schedules_max: Annotated[int, setting("schedules that run; further ones are refused", ge=1)] = 10_000
    schedules_bytes: Annotated[int, setting("of the messages of all schedules, in memory", ge=KIB)] = 64 * MIB


class TxnOptions(Section, frozen=True):
    """Transactions."""

    check_interval_ms: Annotated[
        int, setting("time between two checks of a half message", rocketmq="transactionCheckInterval", ge=1)
    ] = 30 * SECOND_MS
    immunity_ms: Annotated[
        int, setting("age from which a half message is checked", rocketmq="transactionTimeOut", ge=0)
    ] = 6 * SECOND_MS
    check_max: Annotated[
        int, setting("checks before it is given up", rocketmq="transactionCheckMax", ge=1, le=CHECKS_MAX - 1)
    ] = 15
    half_ms: Annotated[
        int, setting("a half message that is open for so long is given up", rocketmq="fileReservedTime", ge=1)
    ] = 72 * HOUR_MS
    half_ids_max: Annotated[
        int, setting("open half messages of Kafka producers, about half a KiB each; further ones are refused", ge=1)
    ] = 100_000
    check_urls: Annotated[
        str,
        setting(
            "URLs that Kafka producers may have the broker call: prefixes of whole path segments, separated by blanks"
        ),
    ] = ""
    check_timeout_ms: Annotated[int, setting("time for an answer of such a URL", ge=1)] = 3 * SECOND_MS
    half_max: Annotated[
        int, setting("open half messages, 33 bytes of memory each; further ones are answered `system busy`", ge=1)
    ] = 2_000_000
    timeout_max_ms: Annotated[
        int, setting("greatest timeout of a Kafka transaction", kafka="transaction.max.timeout.ms", ge=1)
    ] = 15 * MINUTE_MS
    id_expiration_ms: Annotated[
        int,
        setting(
            "forget a Kafka transactional id that is idle for so long", kafka="transactional.id.expiration.ms", ge=1
        ),
    ] = 7 * DAY_MS
    ids_max: Annotated[int, setting("Kafka transactional ids known; further ones are refused", ge=1)] = 100_000
    pending_positions_max: Annotated[
        int, setting("positions of groups in open Kafka transactions; further ones are refused", ge=1)
    ] = 200_000
    groups_max: Annotated[
        int, setting("groups whose positions one Kafka transaction has; each counts as a position, too", ge=1)
    ] = 1_000
    partitions_max: Annotated[
        int, setting("partitions of one Kafka transaction, which one unit of the log ends; more are refused", ge=1)
    ] = 3_000
    pending_partitions_max: Annotated[
        int, setting("partitions of all open Kafka transactions; more are refused", ge=1)
    ] = 200_000
    aborted_max: Annotated[
        int,
        setting(
            "aborted Kafka transactions remembered, 32 bytes each, until retention takes their records; "
            "beyond, writes in transactions are refused",
            ge=1,
        ),
    ] = 1_000_000
