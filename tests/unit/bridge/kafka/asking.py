"""Requests that several test files send."""

from typing import Any, Final

from duolog.bridge.kafka import TABLE
from duolog.protocol.kafka.api_messages import ApiKey
from tests.unit.bridge.kafka.bench import Client


def versions_of(key: ApiKey) -> range:
    return range(TABLE[key].min_version, TABLE[key].max_version + 1)


JOIN_FIELDS: Final[dict[str, Any]] = {
    "group_id": "g", "protocol_type": "consumer", "session_timeout": 10_000, "rebalance_timeout": 60_000,
    "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\x01\0\x06orders"}],
}  # fmt: skip


def join(client: Client, version: int, member_id: str = "", **values: Any) -> Any:
    return client.ask(ApiKey.JOIN_GROUP, version, **{**JOIN_FIELDS, "member_id": member_id, **values})


def commit(client: Client, version: int, offset: int, partition: int = 0, **values: Any) -> Any:
    asked = [
        {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 0, **values.pop("of", {})}
    ]
    topics = [{"name": "orders", "partitions": asked}]
    asked_all = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics, **values}
    answer = client.ask(ApiKey.OFFSET_COMMIT, version, **asked_all)
    return answer and answer.topics[0].partitions[0].error_code


def fetch_positions(client: Client, version: int, *, everything: bool = False) -> Any:
    topics = None if everything else [{"name": "orders", "partition_indexes": (0, 1)}]
    groups = [{"group_id": "g", "topics": topics}]
    asked: dict[str, Any] = {"groups": groups} if version >= 8 else {"group_id": "g", "topics": topics}
    answer = client.ask(ApiKey.OFFSET_FETCH, version, **asked)
    found = answer.groups[0].topics if version >= 8 else answer.topics
    return [partition for topic in found for partition in topic.partitions]
