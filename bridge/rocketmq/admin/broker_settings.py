"""The broker's settings, which tools read and change, and its runtime figures.

    GET_BROKER_CONFIG (26), UPDATE_BROKER_CONFIG (25), GET_BROKER_RUNTIME_INFO (28)

Source: AdminBrokerProcessor.java.
"""

import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from duolog.bridge.config import HOUR_MS
from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.admin.single_broker import read_properties, report_ignored
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.admission import Admission, Kind
from duolog.bridge.rocketmq.requests.background_requests import Steps
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.errors import RequestRefused
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.protocol.rocketmq.bodies import (
    DataVersion,
    KVTable,
)
from duolog.protocol.rocketmq.codes import ResponseCode
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.messages.flags import PERM_READ_WRITE
from duolog.protocol.rocketmq.remoting import VERSION, RemotingCommand

STORED_AT_ONCE: Final = 4000
WHOLE_DIGITS_MAX: Final = 18
CAPACITY_MAX: Final = 1_000_000  # The greatest limit that a tool may set for a kind of requests.

# The rates over 10, 60 and 600 s when none are known; tools split the text at the blanks.
_NO_RATE: Final = "0.0 0.0 0.0"

log = logging.getLogger("rocketmq")


def broker_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_BROKER_CONFIG: settings as Java properties, with the names of Apache RocketMQ."""
    options = context.options
    host, port = context.node.addresses.rocketmq
    settings = {
        "brokerName": options.rocketmq.broker,
        "brokerClusterName": options.rocketmq.cluster,
        "brokerId": "0",
        "brokerIP1": host,
        "listenPort": str(port),
        "brokerPermission": str(PERM_READ_WRITE),
        "autoCreateTopicEnable": str(context.topics.auto_create).lower(),
        "autoCreateSubscriptionGroup": "true",
        "enablePropertyFilter": "true",
        "traceTopicEnable": "true",
        "flushDiskType": "SYNC_FLUSH" if options.store.flush == "sync" else "ASYNC_FLUSH",
        "storePathRootDir": options.store.directory,
        "maxMessageSize": str(context.messages.publisher.messages.body_bytes_max),
        "fileReservedTime": str(options.retention.ms // HOUR_MS),
        **{name: str(context.requests.admission.limit_of(kind)) for name, kind in _CAPACITIES.items()},
    }
    version = fastjson.write(DataVersion()).decode()
    body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
    return answer(command, ext={"version": version}, body=body)


def update_broker_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Change settings that can change at run time, until the broker stops; the config file is not changed.

    Properties with other names are accepted and reported in the answer, because tools send the same set of properties
    to brokers of several versions.
    """
    asked = read_properties(command)
    known = {name: value for name, value in asked.items() if name in _CHANGES}
    changes = [_CHANGES[name](context, value) for name, value in known.items()]
    for change in changes:
        change()
    for name, value in known.items():
        log.info("setting changed, until the broker ends: name=%s value=%s", name, value)
    return answer(command, remark=report_ignored("broker", asked.keys() - known.keys()))


def _change_auto_create(context: RocketMQContext, value: str) -> Callable[[], None]:
    if value.lower() not in ("true", "false"):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"autoCreateTopicEnable: true or false, got {value[:80]!r}"
        )
    return lambda: setattr(context.topics, "auto_create", value.lower() == "true")


def _change_body_bytes(context: RocketMQContext, value: str) -> Callable[[], None]:
    count = _whole("maxMessageSize", value, context.options.rocketmq.frame_bytes_max)
    return lambda: setattr(context.messages.publisher.messages, "body_bytes_max", count)


def _change_capacity(name: str, kind: Kind, context: RocketMQContext, value: str) -> Callable[[], None]:
    count = _whole(name, value, CAPACITY_MAX)
    return lambda: context.requests.admission.limit(kind, count)


def _whole(name: str, value: str, most: int) -> int:
    """Parse an integer from 0 to `most`; Python's own parser refuses texts of more than 4300 digits."""
    is_number = value.isascii() and value.isdecimal() and len(value) <= WHOLE_DIGITS_MAX
    if not is_number or not 0 < int(value) <= most:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{name}: 1 to {most}, got {value[:80]!r}")
    return int(value)


_CAPACITIES: Final = {
    "sendThreadPoolQueueCapacity": Kind.SEND,
    "endTransactionPoolQueueCapacity": Kind.TRANSACTION,
    "ackThreadPoolQueueCapacity": Kind.ACK,
    "pullThreadPoolQueueCapacity": Kind.PULL,
    "queryThreadPoolQueueCapacity": Kind.QUERY,
    "heartbeatThreadPoolQueueCapacity": Kind.CLIENT,
    "adminBrokerThreadPoolQueueCapacity": Kind.ADMIN,
}

# For each property a function that checks a value and returns the change, which runs after all values were checked.
_CHANGES: Final[dict[str, Callable[[RocketMQContext, str], Callable[[], None]]]] = {
    "autoCreateTopicEnable": _change_auto_create,
    "maxMessageSize": _change_body_bytes,
    **{name: partial(_change_capacity, name, kind) for name, kind in _CAPACITIES.items()},
}


def broker_runtime(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer | None:
    """Return the figures that tools need, and those that the broker knows."""
    return connection.in_slices(command, _broker_runtime(context, command))


def _broker_runtime(context: RocketMQContext, command: RemotingCommand) -> Steps:
    first_stored_ms = yield from _first_stored_ms(context)
    metrics, store, now_ms, mono_ms = context.metrics, context.store, context.clock.now_ms(), context.clock.mono_ms()
    written, read = (" ".join(f"{rate:.2f}" for rate in rates) for rates in context.node.rates.per_second(mono_ms))
    used, total = store.write_state.usage
    rates = context.node.rates
    morning, yesterday = rates.this_morning, rates.yesterday_morning
    table = {
        "brokerVersionDesc": "V5_3_3",
        "brokerVersion": str(VERSION),
        "brokerActive": "true",
        "bootTimestamp": str(now_ms - mono_ms + context.node.started_mono_ms),
        "runtime": f"[ {(mono_ms - context.node.started_mono_ms) // 1000} seconds ]",
        "msgPutTotalTodayMorning": str(morning.written),
        "msgPutTotalYesterdayMorning": str(yesterday.written),
        "msgPutTotalTodayNow": str(sum(metrics.records_in.values())),
        "msgGetTotalTodayMorning": str(morning.read),
        "msgGetTotalYesterdayMorning": str(yesterday.read),
        "msgGetTotalTodayNow": str(sum(metrics.records_out.values())),
        "putTps": written,
        "getTotalTps": read,
        "getFoundTps": read,
        "getMissTps": _NO_RATE,
        "getTransferredTps": read,
        "commitLogMinOffset": str(next(iter(store.segments())).start),
        "commitLogMaxOffset": str(store.next_position),
        "commitLogDiskRatio": f"{used / max(total, 1):.4f}",
        "consumeQueueDiskRatio": f"{used / max(total, 1):.4f}",
        "earliestMessageTimeStamp": str(first_stored_ms or now_ms),
        "dispatchBehindBytes": "0",
        "pageCacheLockTimeMills": "0",
        **_request_queues(context.requests.admission),
        "remainHowManyDataToFlush": f"{store.next_position - store.durable} B",
    }
    return answer(command, body=KVTable(table=table))


def _request_queues(admission: Admission) -> dict[str, str]:
    """Return the figures that stand for the queues of a RocketMQ broker's thread pools."""
    table = {}
    for name, kind in (("send", Kind.SEND), ("pull", Kind.PULL), ("query", Kind.QUERY)):
        table[f"{name}ThreadPoolQueueSize"] = str(admission.in_work[kind])
        table[f"{name}ThreadPoolQueueCapacity"] = str(admission.limit_of(kind))
        table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return table


def _first_stored_ms(context: RocketMQContext) -> Generator[None, None, int]:
    """Return the store time of the oldest message; 0 if there is none, or if its index row is not in memory."""
    first, left = 0, STORED_AT_ONCE
    for topic in list(context.topics.all()):
        stored = [context.store.reader.stored_ms_at(queue, queue.start_offset) for queue in topic.queues]
        first = min(filter(None, (first, *stored)), default=0)
        left -= len(stored)
        if left <= 0:
            left = STORED_AT_ONCE
            yield
    return first
