"""DescribeQuorum 0..2: a quorum with one voter, this broker.

There is no Raft here. The commitlog does what the log of `__cluster_metadata` does in Apache Kafka, so its positions
stand for that log's offsets, and the epoch of the run, which every start raises, stands for the leader epoch.
"""

from typing import Any, Final

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.repeated_names import by_partition
from duolog.bridge.kafka.requests.request import KafkaRequest, Steps
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.response import Elements

_ONLY: Final = {"__cluster_metadata": {0: None}}
_LISTENER: Final = "PLAINTEXT"
_UNKNOWN: Final = "this server does not host this topic-partition"


def describe_quorum(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Describe partition 0 of `__cluster_metadata`; any other request gets UNKNOWN_TOPIC_OR_PARTITION."""
    types = request.types
    asked = by_partition(
        (topic.topic_name, part.partition_index, None) for topic in request.body.topics for part in topic.partitions
    )
    yield
    is_known = asked == _ONLY
    host, port = context.addresses.kafka
    node = () if "Node" not in types else _node(types, context.nodes.own.id, host, port)
    partition = _partition if is_known else _unknown
    entity = types.DescribeQuorumResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=Elements(
            types.TopicData(topic_name=name, partitions=Elements(partition(context, types, index) for index in indexes))
            for name, indexes in asked.items()
        ),
        nodes=node if is_known else (),
    )
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), None)


def _node(types: Any, number: int, host: str, port: int) -> tuple[Any, ...]:
    listener = types.Listener(name=_LISTENER, host=host, port=port)
    return (types.Node(node_id=number, listeners=(listener,)),)


def _partition(context: KafkaContext, types: Any, index: int) -> Any:
    end, now_ms = context.store.written, context.clock.now_ms()
    voter = types.ReplicaState(
        replica_id=context.nodes.own.id,
        replica_directory_id=None,
        log_end_offset=end,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return types.PartitionData(
        partition_index=index,
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=context.nodes.own.id,
        leader_epoch=context.store.epoch,
        high_watermark=context.store.durable,
        current_voters=(voter,),
        observers=(),
    )


def _unknown(context: KafkaContext, types: Any, index: int) -> Any:
    return types.PartitionData(
        partition_index=index,
        error_code=ErrorCode.unknown_topic_or_partition,
        error_message=_UNKNOWN,
        leader_id=-1,
        leader_epoch=-1,
        high_watermark=-1,
        current_voters=(),
        observers=(),
    )
