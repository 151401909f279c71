"""Requests of tools about replicas, cold data and RocksDB, none of which a single broker has.

    GET_BROKER_HA_STATUS (907)             a master without slaves; `mqadmin haStatus`
    GET_COLD_DATA_FLOW_CTR_INFO (2003)     an empty body, which tools print as "no cold ctr table"
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS (354)  success: there is one kind of queue index, and nothing to compare
    UPDATE_NAMESRV_CONFIG (318)            accepted and ignored: the embedded name server has no settings

mqadmin prints a stack trace for every code but SUCCESS, so the answers are successes with a remark.
Source: HARuntimeInfo.java, CheckRocksdbCqWriteResult.java.
"""

import logging
from collections.abc import Iterable

from duolog.bridge.net.answers import Answer
from duolog.bridge.rocketmq.context import RocketMQContext
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.rocketmq.requests.responses import answer
from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq.bodies import HaStatus, RocksdbCheck
from duolog.protocol.rocketmq.remoting import RemotingCommand

PROPERTIES_BYTES_MAX = 16 << 10

log = logging.getLogger("rocketmq")


def ha_status(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_BROKER_HA_STATUS."""
    return answer(command, body=HaStatus(master_commit_log_max_offset=context.store.next_position))


def cold_data(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer GET_COLD_DATA_FLOW_CTR_INFO."""
    return answer(command, remark="this broker does not limit reads of cold data")


def rocksdb_progress(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer CHECK_ROCKSDB_CQ_WRITE_PROGRESS."""
    return answer(command, body=RocksdbCheck(check_result="this broker has no RocksDB queue index to compare"))


def update_namesrv_config(context: RocketMQContext, connection: RocketMQConnection, command: RemotingCommand) -> Answer:
    """Answer UPDATE_NAMESRV_CONFIG; all properties are reported as unknown."""
    return answer(command, remark=report_ignored("name server", read_properties(command)))


def report_ignored(whose: str, names: Iterable[str]) -> str | None:
    """Log properties that are unknown to this broker, and return a remark about them; None if there are none."""
    ignored = ", ".join(sorted(names))[:500]
    if not ignored:
        return None
    log.warning("unknown properties ignored, of the %s: names=%r", whose, ignored)
    return f"unknown to this broker, and ignored: {ignored}"


def read_properties(command: RemotingCommand) -> dict[str, str]:
    """Parse a body that java.util.Properties has written: one property on each line, # begins a comment."""
    assert isinstance(command.body, memoryview), "a request that was decoded"
    if len(command.body) > PROPERTIES_BYTES_MAX:
        raise ProtocolError(f"properties of {len(command.body)} bytes; {PROPERTIES_BYTES_MAX} are allowed")
    lines = str(command.body, "utf-8", "replace").splitlines()
    pairs = [line.partition("=") for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {name.strip(): value.strip() for name, _, value in pairs}
