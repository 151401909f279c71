"""What admin clients ask by themselves: topics page by page, the names of what has configs, the quorum.

The expected answers are those of Apache Kafka 4.3.1, one node, to the same requests.
"""

from typing import Any

import pytest

from duolog.bridge.kafka import topic_pages
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.unit.bridge.kafka.desk import Client, Desk


@pytest.fixture(scope="module")
def client() -> Client:
    desk = Desk()
    for name, count in (("b", 3), ("a", 5)):
        desk.topics.create(name, count, {}, desk.clock.now_ms())
    desk.settle()
    return desk.connect()


def pages(client: Client, names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    return client.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": name} for name in names.split()],
        response_partition_limit=limit, cursor=at,
    )  # fmt: skip


def described(answer: Any) -> str:
    """What is told, in short: each topic with its partitions or its error, and the next cursor."""
    told = [
        f"{topic.name}:{''.join(str(part.partition_index) for part in topic.partitions)}"
        if topic.error_code is ErrorCode.none
        else f"{topic.name}!{topic.error_code.name}"
        for topic in answer.topics
    ]
    cursor = answer.next_cursor
    return " ".join([*told, *([f"> {cursor.topic_name} {cursor.partition_index}"] if cursor else [])])


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
        ("", 2000, ("aa", 1), "b:012"),  # Somebody has deleted it since the page before.
        ("zz a", 5, None, "a:01234 > zz 0"),
        ("zz a", 5, ("zz", 0), "zz!unknown_topic_or_partition"),
        ("a/b a", 2000, None, "a:01234 a/b!invalid_topic_exception"),
    ],
)
def test_topics_page_by_page(
    client: Client, names: str, limit: int, cursor: tuple[str, int] | None, expected: str
) -> None:
    assert described(pages(client, names, limit, cursor)) == expected


def test_topic_is_described_as_in_metadata(client: Client) -> None:
    (topic,) = pages(client, "a").topics
    (known,) = client.ask(
        ApiKey.METADATA, 12, topics=[{"name": "a"}], include_topic_authorized_operations=True
    ).topics  # fmt: skip
    assert (topic.topic_id, topic.is_internal, topic.topic_authorized_operations) == (
        known.topic_id, known.is_internal, known.topic_authorized_operations,
    )  # fmt: skip
    for part, other in zip(topic.partitions, known.partitions, strict=True):
        for name in ("partition_index", "leader_id", "leader_epoch", "replica_nodes", "isr_nodes", "offline_replicas"):
            assert getattr(part, name) == getattr(other, name)
        assert (part.eligible_leader_replicas, part.last_known_elr) == ((), ())  # Java's client fails on null.


def test_no_topic_is_made_by_asking_for_it(client: Client) -> None:
    pages(client, "never")
    assert client.desk.topics.by_kafka_name("never") is None


def test_pages_of_many_topics_join_to_all_of_them() -> None:
    desk = Desk()
    names = {f"t{n * 7919 % 1000:03}": n % 3 + 1 for n in range(1000)}
    for name, count in names.items():
        desk.topics.create(name, count, {}, desk.clock.now_ms())
    desk.settle()
    client, cursor, found = desk.connect(), None, []
    while True:
        number = client.send(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, response_partition_limit=1 << 30,
            cursor=cursor and {"topic_name": cursor.topic_name, "partition_index": cursor.partition_index},
        )  # fmt: skip
        while (page := client.answer_to(number)) is None:
            desk.loop.turn()
        part = [(topic.name, each.partition_index) for topic in page.topics for each in topic.partitions]
        assert len(part) <= topic_pages.PARTITIONS_MAX
        found += part
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == [(name, n) for name in sorted(names) for n in range(names[name])]


# -- ListConfigResources


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((), [(4, "0"), (2, "b"), (2, "a")]),
        ((2,), [(2, "b"), (2, "a")]),
        ((2, 2), [(2, "b"), (2, "a")]),
        ((4,), [(4, "0")]),
        ((8, 16, 32), []),
    ],
)
def test_names_of_what_has_configs(client: Client, types: tuple[int, ...], expected: list[tuple[int, str]]) -> None:
    answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=types)
    assert answer.error_code is ErrorCode.none
    assert [(each.resource_type, each.resource_name) for each in answer.config_resources] == expected


@pytest.mark.parametrize("types", [(99,), (0,), (-1,), (2, 99)])
def test_unknown_type_of_resource_is_refused(client: Client, types: tuple[int, ...]) -> None:
    answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=types)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.unsupported_version, ())


def test_first_version_asks_for_client_metrics_only(client: Client) -> None:
    answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 0)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.none, ())


def test_each_resource_that_is_listed_is_described(client: Client) -> None:
    listed = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1).config_resources
    asked = [{"resource_type": each.resource_type, "resource_name": each.resource_name} for each in listed]
    results = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=asked).results
    assert [(each.error_code, bool(each.configs)) for each in results] == [(ErrorCode.none, True)] * 3


# -- DescribeQuorum

METADATA = "__cluster_metadata"


@pytest.mark.parametrize("version", range(3))
def test_quorum_of_one_voter(client: Client, version: int) -> None:
    asked = [{"topic_name": METADATA, "partitions": [{"partition_index": 0}]}]
    answer = client.ask(ApiKey.DESCRIBE_QUORUM, version, topics=asked)
    ((part,),) = [topic.partitions for topic in answer.topics]
    assert (answer.error_code, part.error_code, part.leader_id) == (ErrorCode.none, ErrorCode.none, 0)
    assert (part.leader_epoch, part.high_watermark) == (client.desk.store.epoch, client.desk.store.durable)
    assert [(each.replica_id, each.log_end_offset) for each in part.current_voters] == [(0, client.desk.store.written)]
    assert part.observers == ()
    if version == 2:
        (node,) = answer.nodes
        (listener,) = node.listeners
        assert (node.node_id, listener.name, listener.host, listener.port) == (0, "PLAINTEXT", "broker.example", 9092)


@pytest.mark.parametrize("asked", [{METADATA: (1,)}, {METADATA: (0, 1)}, {"a": (0,)}, {METADATA: (0,), "a": (0,)}, {}])
def test_any_other_quorum_is_unknown(client: Client, asked: dict[str, tuple[int, ...]]) -> None:
    topics = [{"topic_name": name, "partitions": [{"partition_index": n} for n in of]} for name, of in asked.items()]
    answer = client.ask(ApiKey.DESCRIBE_QUORUM, 2, topics=topics)
    assert (answer.error_code, answer.nodes) == (ErrorCode.none, ())
    told = {topic.topic_name: tuple(part.partition_index for part in topic.partitions) for topic in answer.topics}
    assert told == asked
    for topic in answer.topics:
        assert {part.error_code for part in topic.partitions} == {ErrorCode.unknown_topic_or_partition}
