"""DescribeQuorum: one voter, and errors for any other partition.

The expected answers are those of Apache Kafka 4.3.1, one node, to the same requests.
"""

import pytest

from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.bench import Client

METADATA = "__cluster_metadata"


@pytest.mark.parametrize("version", range(3))
def test_quorum_of_one_voter(client_of_two_topics: Client, version: int) -> None:
    asked = [{"topic_name": METADATA, "partitions": [{"partition_index": 0}]}]
    answer = client_of_two_topics.ask(ApiKey.DESCRIBE_QUORUM, version, topics=asked)
    ((part,),) = [topic.partitions for topic in answer.topics]
    assert (answer.error_code, part.error_code, part.leader_id) == (ErrorCode.none, ErrorCode.none, 0)
    assert (part.leader_epoch, part.high_watermark) == (
        client_of_two_topics.bench.store.epoch,
        client_of_two_topics.bench.store.durable,
    )
    assert [(each.replica_id, each.log_end_offset) for each in part.current_voters] == [
        (0, client_of_two_topics.bench.store.written)
    ]
    assert part.observers == ()
    if version == 2:
        (node,) = answer.nodes
        (listener,) = node.listeners
        assert (node.node_id, listener.name, listener.host, listener.port) == (0, "PLAINTEXT", "broker.example", 9092)


@pytest.mark.parametrize("asked", [{METADATA: (1,)}, {METADATA: (0, 1)}, {"a": (0,)}, {METADATA: (0,), "a": (0,)}, {}])
def test_any_other_quorum_is_unknown(client_of_two_topics: Client, asked: dict[str, tuple[int, ...]]) -> None:
    topics = [{"topic_name": name, "partitions": [{"partition_index": n} for n in of]} for name, of in asked.items()]
    answer = client_of_two_topics.ask(ApiKey.DESCRIBE_QUORUM, 2, topics=topics)
    assert (answer.error_code, answer.nodes) == (ErrorCode.none, ())
    partitions_by_topic = {
        topic.topic_name: tuple(part.partition_index for part in topic.partitions) for topic in answer.topics
    }
    assert partitions_by_topic == asked
    for topic in answer.topics:
        assert {part.error_code for part in topic.partitions} == {ErrorCode.unknown_topic_or_partition}
