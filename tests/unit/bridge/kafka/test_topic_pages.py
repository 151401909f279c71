"""DescribeTopicPartitions: topics page by page.

The expected answers are those of Apache Kafka 4.3.1, one node, to the same requests.
"""

from typing import Any

import pytest

from duolog.bridge.kafka import topic_pages
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.bench import Client, KafkaBench


def pages(client: Client, names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    return client.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": name} for name in names.split()],
        response_partition_limit=limit, cursor=at,
    )  # fmt: skip


def described(answer: Any) -> str:
    """Summarize the answer: each topic with its partitions or its error, and the next cursor."""
    rows = [
        f"{topic.name}:{''.join(str(part.partition_index) for part in topic.partitions)}"
        if topic.error_code is ErrorCode.none
        else f"{topic.name}!{topic.error_code.name}"
        for topic in answer.topics
    ]
    cursor = answer.next_cursor
    return " ".join([*rows, *([f"> {cursor.topic_name} {cursor.partition_index}"] if cursor else [])])


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "expected"),
    [
        ("b a", 2000, None, "a:01234 b:012"),
        ("b b", 2000, None, "b:012"),
        ("", 2000, None, "a:01234 b:012"),
        ("b a", 4, None, "a:0123 > a 4"),
        ("b a", 5, None, "a:01234 > b 0"),
        ("b a", 8, None, "a:01234 b:012"),
        ("b a", 0, None, "a:0 > a 1"),
        ("b a", -1, None, "a:0 > a 1"),
        ("b a", 2000, ("a", 3), "a:34 b:012"),
        ("b a", 2, ("a", 3), "a:34 > b 0"),
        ("b a", 2000, ("a", 9), "a: b:012"),
        ("b a", 2000, ("b", 0), "b:012"),
        ("b a", 2000, ("a", -1), "b!invalid_request a!invalid_request"),
        ("b a", 2000, ("aa", 2), "b!invalid_request a!invalid_request"),
        ("b a", 2000, ("z", 0), "b!invalid_request a!invalid_request"),
        ("", 2000, ("b", 1), "b:12"),
        ("", 2000, ("aa", 1), "b:012"),  # The topic was deleted after the page before.
        ("zz a", 5, None, "a:01234 > zz 0"),
        ("zz a", 5, ("zz", 0), "zz!unknown_topic_or_partition"),
        ("a/b a", 2000, None, "a:01234 a/b!invalid_topic_exception"),
    ],
)
def test_topics_page_by_page(
    client_of_two_topics: Client, names: str, limit: int, cursor: tuple[str, int] | None, expected: str
) -> None:
    assert described(pages(client_of_two_topics, names, limit, cursor)) == expected


def test_topic_is_described_as_in_metadata(client_of_two_topics: Client) -> None:
    (topic,) = pages(client_of_two_topics, "a").topics
    (known,) = client_of_two_topics.ask(
        ApiKey.METADATA, 12, topics=[{"name": "a"}], include_topic_authorized_operations=True
    ).topics  # fmt: skip
    assert (topic.topic_id, topic.is_internal, topic.topic_authorized_operations) == (
        known.topic_id, known.is_internal, known.topic_authorized_operations,
    )  # fmt: skip
    for part, other in zip(topic.partitions, known.partitions, strict=True):
        for name in ("partition_index", "leader_id", "leader_epoch", "replica_nodes", "isr_nodes", "offline_replicas"):
            assert getattr(part, name) == getattr(other, name)
        # Java's admin client fails on null.
        assert (part.eligible_leader_replicas, part.last_known_elr) == ((), ())


def test_describing_a_missing_topic_does_not_create_it(client_of_two_topics: Client) -> None:
    pages(client_of_two_topics, "never")
    assert client_of_two_topics.bench.topics.by_kafka_name("never") is None


def test_pages_together_have_all_topics() -> None:
    bench = KafkaBench()
    names = {f"t{n * 7919 % 1000:03}": n % 3 + 1 for n in range(1000)}
    for name, count in names.items():
        bench.topics.create(name, count, {}, bench.clock.now_ms())
    bench.settle()
    client_of_two_topics, cursor, found = bench.connect(), None, []
    while True:
        number = client_of_two_topics.send(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, response_partition_limit=1 << 30,
            cursor=cursor and {"topic_name": cursor.topic_name, "partition_index": cursor.partition_index},
        )  # fmt: skip
        while (page := client_of_two_topics.answer_to(number)) is None:
            bench.loop.turn()
        part = [(topic.name, each.partition_index) for topic in page.topics for each in topic.partitions]
        assert len(part) <= topic_pages.PARTITIONS_MAX
        found += part
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == [(name, n) for name in sorted(names) for n in range(names[name])]
