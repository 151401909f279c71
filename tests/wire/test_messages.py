"""Rows of `spark.messages` equal what clients of both protocols sent; the options have their documented effects.

One topic with a message of every kind is written once, and read by all; the options are tried on topics of their own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka.admin
import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import KafkaJava
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.spark import Spark
from tests.wire.clients.topics import create_topic, end_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.usefixtures("both_protocols")

WITHIN_S = 90
QUEUES = 2
_numbers = itertools.count()

FROM_KAFKA = [
    Message(b"plain", 0, b"one two", (("city", b"Bern"),), tags="paid", timestamp_ms=1_700_000_000_123),
    Message(None, 0, b"\xff\xfe", (("blob", b"\xff"), ("twice", b"first"), ("twice", b"second"), ("none", None))),
    Message(b"", 1, None),
]
FROM_ROCKETMQ = [Message(b"from afar", 1, b"k1 k2", (("city", b"Basel"),), tags="open")]


def new_topic(broker: Broker, prefix: str = "rows", queues: int = QUEUES) -> str:
    name = f"{prefix}-{next(_numbers)}-{int(time.time())}"
    create_topic(broker.kafka, name, queues)
    return name


def write(broker: Broker, agents: Agents, topic: str, texts: Sequence[str], queue: int | None = None) -> None:
    """Send half of the messages with each protocol, round robin or to one queue."""
    sent = [Message(text.encode(), at % QUEUES if queue is None else queue) for at, text in enumerate(texts)]
    middle = len(sent) // 2
    java = KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3")
    java.write(topic, sent[:middle], way="batch", codec="lz4")
    rocketmq = RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json")
    rocketmq.write(topic.replace(".", "|"), sent[middle:], way="sync", codec="none")


def texts_of(frame: DataFrame) -> list[str]:
    return sorted(row.text for row in frame.selectExpr("cast(body as string) as text").collect())


# -- What a row says


@pytest.fixture(scope="module")
def rows(broker: Broker, agents: Agents, spark: Spark) -> Mapping[bytes | None, Row]:
    from duolog.spark.messages import messages

    topic = new_topic(broker)
    KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3").write(topic, FROM_KAFKA, way="single", codec="none")
    rocketmq = RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json")
    rocketmq.write(topic, FROM_ROCKETMQ, way="sync", codec="none")
    found = messages(spark.session, topic, bootstrap=broker.kafka).selectExpr(
        "*", "unix_millis(born_time) as born_ms", "unix_millis(timestamp) as timestamp_ms"
    )
    return {None if row.body is None else bytes(row.body): row for row in found.collect()}


def test_row_of_a_kafka_message(rows: Mapping[bytes | None, Row]) -> None:
    row = rows[b"plain"]
    assert (row.queue, row.offset, bytes(row.key), row.producer) == (0, 0, b"one two", "kafka")
    assert (row.keys, row.tags, row.properties) == (["one", "two"], "paid", {"city": "Bern", "TAGS": "paid"})
    assert (row.born_ms, row.timestamp_ms) == (1_700_000_000_123, 1_700_000_000_123)
    assert (row.store_time, row.deliver_time) == (None, None)


def test_row_of_a_rocketmq_message(rows: Mapping[bytes | None, Row]) -> None:
    row = rows[b"from afar"]
    assert (row.queue, row.offset, bytes(row.key), row.producer) == (1, 1, b"k1 k2", "rocketmq")
    assert (row["keys"], row.tags, row.properties["city"]) == (["k1", "k2"], "open", "Basel")
    assert row.properties.keys() >= {"UNIQ_KEY", "TAGS", "city"}


def test_what_is_no_text_is_a_row_all_the_same(rows: Mapping[bytes | None, Row]) -> None:
    """A key that is no text has no keys; a header that is none is no property; of a repeated name the first counts."""
    row = rows[None]
    assert (bytes(row.key), row["keys"], row.properties) == (b"\xff\xfe", None, {"twice": "first"})
    assert [(header.key, header.value and bytes(header.value)) for header in row.headers] == [
        ("blob", b"\xff"),
        ("twice", b"first"),
        ("twice", b"second"),
        ("none", None),
    ]
    empty = rows[b""]
    assert (empty.key, empty["keys"], empty.tags, empty.properties) == (None, None, None, {})


def test_rows_of_delayed_and_transactional_messages(broker: Broker, agents: Agents, spark: Spark) -> None:
    """Delayed ones come once, with their due time; of transactions what is committed, unless more is asked for."""
    from duolog.spark.messages import messages

    topic = new_topic(broker, queues=1)
    for name, ends in (("kept", "commit"), ("lost", "abort")):
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "transactional.id": f"{topic}-{name}"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(topic, name.encode(), headers=[("n", b"1")])
        producer.flush(20)
        producer.commit_transaction(20) if ends == "commit" else producer.abort_transaction(20)
    KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3").write(
        topic, [Message(b"late", 0, headers=(("TIMER_DELAY_MS", b"200"),))], way="single", codec="none"
    )
    later = Message(b"late too", tags="t").as_rocketmq_json() | {"setDelayTimeMs": 200}
    agents.rocketmq("5.5").call("write_delayed", namesrv=broker.namesrv, topic=topic, messages=[later])
    # Two records, two markers, two that were delayed.
    eventually("deliveries", lambda: end_offsets(broker.kafka, topic), lambda ends: ends == {0: 6}, WITHIN_S)

    def read(**options: Any) -> dict[str, Row]:
        frame = messages(spark.session, topic, bootstrap=broker.kafka, **options)
        rows = frame.selectExpr("*", "cast(body as string) as text").collect()
        assert len({row.text for row in rows}) == len(rows)
        return {row.text: row for row in rows}

    rows = read()
    assert {text: (row.producer, row.deliver_time is not None) for text, row in rows.items()} == {
        "kept": ("kafka", False),
        "late": ("kafka", True),
        "late too": ("rocketmq", True),  # RocketMQ's keep their born time for a timestamp.
    }
    late = rows["late"]
    assert late.deliver_time == late.timestamp >= late.born_time + timedelta(milliseconds=200)
    assert rows["late too"].tags == "t"
    assert read(committed_only=False).keys() == rows.keys() | {"lost"}
    stream = Collected(broker, spark, topic, topics=topic)
    stream.run()
    assert stream.texts == ["kept", "late", "late too"]


# -- What is read


def test_topics_are_chosen_by_name_pattern_and_queue(broker: Broker, agents: Agents, spark: Spark) -> None:
    from duolog.spark.messages import messages

    one, two = new_topic(broker, "choice.a"), new_topic(broker, "choice.b")
    write(broker, agents, one, ["1a", "1b", "1c", "1d"])
    write(broker, agents, two, ["2a", "2b"])

    def read(**options: Any) -> list[str]:
        return texts_of(messages(spark.session, bootstrap=broker.kafka, **options))

    assert read(topics=[one, two]) == ["1a", "1b", "1c", "1d", "2a", "2b"]
    assert read(topics=two.replace("choice.b", "choice|b")) == ["2a", "2b"]  # as RocketMQ spells it
    assert read(pattern=r"choice\.a.*") == ["1a", "1b", "1c", "1d"]
    assert read(assign={one: [1], two: [0]}) == ["1b", "1d", "2a"]
    with pytest.raises(ValueError, match="given: topics, pattern"):
        read(topics=one, pattern="x")


def test_range_is_chosen_by_offset_and_by_time(broker: Broker, agents: Agents, spark: Spark) -> None:
    from duolog.spark.messages import EARLIEST, LATEST, messages

    topic = new_topic(broker)
    for queue in range(QUEUES):
        sent = [Message(b"%d%d" % (queue, at), queue, timestamp_ms=1_700_000_000_000 + at) for at in range(5)]
        KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3").write(topic, sent, way="single", codec="none")

    def read(**options: Any) -> list[str]:
        return texts_of(messages(spark.session, topic, bootstrap=broker.kafka, **options))

    some = {topic: {0: 3, 1: EARLIEST}}
    assert read(starting=some, ending={topic: {0: LATEST, 1: 1}}) == ["03", "04", "10"]
    assert read(starting="earliest", ending={topic: {0: 1, 1: 0}}) == ["00"]
    assert read(starting_at_ms=1_700_000_000_003, ending_at_ms=1_700_000_000_004) == ["03", "13"]
    by_queue = {topic: {0: 1_700_000_000_004, 1: 1_700_000_000_002}}
    assert read(starting_at_ms=by_queue) == ["04", "12", "13", "14"]
    assert read(starting_at_ms=1_900_000_000_000, latest_if_no_later=True) == []
    with pytest.raises(Exception, match="timestamp"):
        read(starting_at_ms=1_900_000_000_000)


def test_one_queue_is_split_into_many_tasks(broker: Broker, agents: Agents, spark: Spark) -> None:
    from duolog.spark.messages import messages

    topic = new_topic(broker, queues=1)
    write(broker, agents, topic, [f"{at:03}" for at in range(90)], queue=0)
    frame = messages(spark.session, topic, bootstrap=broker.kafka, min_partitions=6)
    assert frame.rdd.getNumPartitions() == 6
    assert texts_of(frame) == [f"{at:03}" for at in range(90)]


# -- Streams


class Collected:
    """A stream of messages into a list, batch by batch; `options` are those of `messages`."""

    def __init__(self, broker: Broker, spark: Spark, name: str, **options: Any) -> None:
        from duolog.spark.messages import messages

        self.batches: list[list[str]] = []
        self._frame = messages(spark.session, bootstrap=broker.kafka, streaming=True, **options)
        self._checkpoint = spark.checkpoint(name)

    @property
    def texts(self) -> list[str]:
        return sorted(text for batch in self.batches for text in batch)

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self._frame.writeStream.foreachBatch(lambda batch, _id: self.batches.append(texts_of(batch)))
        return writer.option("checkpointLocation", self._checkpoint).trigger(**trigger).start()

    def run(self) -> None:
        query = self.start(availableNow=True)
        assert query.awaitTermination(WITHIN_S), f"the query still ran after {WITHIN_S} s"


def test_stream_is_cut_into_batches_of_so_many_offsets(broker: Broker, agents: Agents, spark: Spark) -> None:
    topic = new_topic(broker, queues=1)
    write(broker, agents, topic, [f"{at:02}" for at in range(20)], queue=0)
    stream = Collected(broker, spark, topic, topics=topic, max_offsets_per_trigger=8)
    stream.run()
    assert [len(batch) for batch in stream.batches] == [8, 8, 4]
    assert stream.texts == [f"{at:02}" for at in range(20)]


def test_running_stream_sees_queues_and_topics_that_come_later(broker: Broker, agents: Agents, spark: Spark) -> None:
    prefix = f"later{next(_numbers)}"
    topic = new_topic(broker, prefix, queues=2)
    stream = Collected(broker, spark, prefix, pattern=f"{prefix}.*")
    query = stream.start(processingTime="100 milliseconds")
    try:

        def arrives(expected: list[str]) -> None:
            eventually("the stream", lambda: (stream.texts, query.exception()), lambda s: s[0] == expected, WITHIN_S)

        write(broker, agents, topic, ["a", "b"])
        arrives(["a", "b"])
        add_queues(broker.kafka, topic, 4)
        write(broker, agents, topic, ["c", "d"], queue=3)
        arrives(["a", "b", "c", "d"])
        write(broker, agents, new_topic(broker, prefix), ["e", "f"])
        arrives(["a", "b", "c", "d", "e", "f"])
    finally:
        query.stop()


def test_running_stream_waits_for_a_broker_that_is_down(broker: Broker, agents: Agents, spark: Spark) -> None:
    topic = new_topic(broker)
    write(broker, agents, topic, ["a", "b"])
    stream = Collected(broker, spark, topic, topics=topic)
    query = stream.start(processingTime="100 milliseconds")
    try:
        eventually("the stream", lambda: stream.texts, lambda texts: texts == ["a", "b"], WITHIN_S)
        broker.kill()
        time.sleep(0.5)  # So that the query meets the closed port; nothing is asserted about when.
        broker.start()
        write(broker, agents, topic, ["c", "d"])
        eventually("the stream", lambda: stream.texts, lambda texts: texts == ["a", "b", "c", "d"], WITHIN_S)
        assert query.exception() is None
    finally:
        query.stop()


# -- What cannot be read


def test_missing_topic_is_named(broker: Broker, spark: Spark) -> None:
    from duolog.spark.messages import messages

    with pytest.raises(Exception, match=r"(?i)UnknownTopicOrPartition|does not (host|exist)"):
        messages(spark.session, "nobody-made-this", bootstrap=broker.kafka).collect()


def test_range_that_is_gone_fails_the_stream(broker: Broker, agents: Agents, spark: Spark) -> None:
    """The stream has seen the beginning; what came next was deleted before it could. Without the check it goes on."""
    topic = new_topic(broker, queues=1)
    strict = Collected(broker, spark, topic, topics=topic)
    lenient = Collected(broker, spark, topic + "-lenient", topics=topic, fail_on_data_loss=False)
    write(broker, agents, topic, ["a", "b"], queue=0)
    strict.run()
    lenient.run()
    write(broker, agents, topic, ["c", "d", "e", "f"], queue=0)
    delete_until(broker.kafka, topic, 4)
    with pytest.raises(Exception, match=r"(?i)data.?loss|lost|aged out"):
        strict.run()
    lenient.run()
    assert strict.texts == ["a", "b"]
    assert lenient.texts == ["a", "b", "e", "f"]


def test_checkpoint_of_another_topic_is_refused(broker: Broker, agents: Agents, spark: Spark, tmp_path: Path) -> None:
    one, two = new_topic(broker), new_topic(broker)
    for topic in (one, two):
        write(broker, agents, topic, ["a", "b"])
    Collected(broker, spark, one, topics=one).run()
    moved = Collected(broker, spark, one, topics=two)
    with pytest.raises(Exception, match=r"(?i)are gone|data.?loss"):
        moved.run()
    assert moved.texts == []


def add_queues(bootstrap: str, topic: str, count: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([confluent_kafka.admin.NewPartitions(topic, count)])[topic].result(20)


def delete_until(bootstrap: str, topic: str, offset: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, offset)
    admin.delete_records([place])[place].result(20)
