"""Topics for tests, over the Kafka protocol and without a JVM."""

from __future__ import annotations

from collections.abc import Mapping

import confluent_kafka
import confluent_kafka.admin

ANSWER_WITHIN_S = 20


def create_topic(bootstrap: str, topic: str, queues: int, config: Mapping[str, str] | None = None) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    new = confluent_kafka.admin.NewTopic(topic, queues, 1, config=dict(config or {}))
    admin.create_topics([new], request_timeout=ANSWER_WITHIN_S)[topic].result(ANSWER_WITHIN_S)


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """The high watermark of each queue."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        queues = consumer.list_topics(topic, timeout=ANSWER_WITHIN_S).topics[topic].partitions
        positions = [confluent_kafka.TopicPartition(topic, queue) for queue in queues]
        return {each.partition: consumer.get_watermark_offsets(each, timeout=ANSWER_WITHIN_S)[1] for each in positions}
    finally:
        consumer.close()


def committed_offsets(bootstrap: str, group: str, topic: str, queues: int) -> dict[int, int]:
    """The group's position in each queue that it has one in."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        asked = [confluent_kafka.TopicPartition(topic, queue) for queue in range(queues)]
        found = consumer.committed(asked, timeout=ANSWER_WITHIN_S)
        return {each.partition: each.offset for each in found if each.offset >= 0}
    finally:
        consumer.close()
