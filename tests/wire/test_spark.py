"""Spark reads messages of both protocols, each message exactly once over restarts of query and broker, and writes back.

One small session serves the module; `failOnDataLoss` is always on, so an offset that is missing anywhere fails a query.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.kit.broker import Broker
from tests.kit.peers import Peers
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import KafkaJava
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.spark import Spark, SparkSink, source
from tests.wire.clients.topics import create_topic
from tests.wire.clients.transactional import LibrdkafkaClient

QUEUES = 3
QUERY_WITHIN_S = 60
_numbers = itertools.count(int(time.time()))


@pytest.fixture
def topic(broker: Broker | Peers) -> str:
    name = f"spark-{next(_numbers)}"
    create_topic(broker.kafka, name, QUEUES)
    return name


def write_from_kafka(broker: Broker | Peers, agents: Agents, topic: str, texts: Sequence[str]) -> None:
    messages = [Message(text.encode(), number % QUEUES, b"key") for number, text in enumerate(texts)]
    KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3").write(topic, messages, way="batch", codec="zstd")


def write_from_rocketmq(broker: Broker, agents: Agents, topic: str, texts: Sequence[str]) -> None:
    messages = [Message(text.encode(), number % QUEUES, b"key") for number, text in enumerate(texts)]
    RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json").write(topic, messages, way="sync", codec="none")


def write(broker: Broker | Peers, agents: Agents, topic: str, texts: Sequence[str]) -> None:
    """Send half of the messages with each protocol, if the broker has both."""
    middle = len(texts) // 2
    write_from_kafka(broker, agents, topic, texts[:middle])
    if isinstance(broker, Peers):
        write_from_kafka(broker, agents, topic, texts[middle:])
    else:
        write_from_rocketmq(broker, agents, topic, texts[middle:])


def test_batch_read_gives_every_message_once(broker: Broker | Peers, agents: Agents, spark: Spark, topic: str) -> None:
    texts = [f"m{n}" for n in range(300)]
    write(broker, agents, topic, texts)
    frame = spark.session.read.format("kafka").options(**source(broker.kafka, [topic])).load()
    rows = frame.selectExpr("cast(value as string) as text", "partition", "offset").collect()
    assert sorted(row.text for row in rows) == sorted(texts)
    assert Counter((row.partition, row.offset) for row in rows).most_common(1)[0][1] == 1


def test_batch_read_of_a_range_of_offsets_and_of_times(
    broker: Broker | Peers, agents: Agents, spark: Spark, topic: str
) -> None:
    write(broker, agents, topic, [f"m{n}" for n in range(30)])
    time.sleep(0.01)
    moment_ms = int(time.time() * 1000)
    write(broker, agents, topic, ["late0", "late1", "late2", "late3", "late4", "late5"])

    def read(**options: str) -> list[str]:
        asked = source(broker.kafka, [topic]) | options
        frame = spark.session.read.format("kafka").options(**asked).load()
        return sorted(row.text for row in frame.selectExpr("cast(value as string) as text").collect())

    starts, ends = f'{{"{topic}": {{"0": 1, "1": 2, "2": -2}}}}', f'{{"{topic}": {{"0": 2, "1": 2, "2": 1}}}}'
    assert len(read(startingOffsets=starts, endingOffsets=ends)) == 2
    late = read(startingTimestamp=str(moment_ms), startingOffsetsByTimestampStrategy="latest")
    assert late == ["late0", "late1", "late2", "late3", "late4", "late5"]


def test_stream_goes_on_from_its_checkpoint_with_each_message_once(
    broker: Broker | Peers, agents: Agents, spark: Spark, topic: str
) -> None:
    """Three runs of one query; before the last one the broker is restarted too."""
    seen: list[str] = []

    def run() -> None:
        frame = spark.session.readStream.format("kafka").options(**source(broker.kafka, [topic])).load()
        texts = frame.selectExpr("cast(value as string) as text")
        query = (
            texts.writeStream.foreachBatch(lambda batch, _id: seen.extend(row.text for row in batch.collect()))
            .option("checkpointLocation", spark.checkpoint(topic))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_WITHIN_S), f"the query still ran after {QUERY_WITHIN_S} s"

    expected: list[str] = []
    for round_ in range(3):
        texts = [f"{round_}-{n}" for n in range(60)]
        expected += texts
        write(broker, agents, topic, texts)
        if round_ == 2:
            broker.restart()
        run()
        assert Counter(seen) == Counter(expected)


@pytest.mark.parametrize("is_stream", [False, True], ids=["batch", "AvailableNow"])
def test_read_of_committed_records(broker: Broker | Peers, spark: Spark, topic: str, is_stream: bool) -> None:
    """Committed rows only, each once, and past all markers; those of an open transaction once it is committed."""
    client = LibrdkafkaClient(broker.kafka)
    producer, other = client.producer(f"{topic}-one"), client.producer(f"{topic}-other")
    expected: list[str] = []
    seen: list[str] = []

    def transactions(round_: int) -> None:
        for number in range(12):
            texts = [f"{round_}-{number}-{n}" for n in range(5)]
            producer.begin()
            for queue in range(QUEUES - 1):  # The last queue ends with an open transaction, the others with markers.
                producer.send(topic, queue, *(f"{text}@{queue}" for text in texts))
            if number % 3 == 1:
                producer.abort()
            else:
                producer.commit()
                expected.extend(f"{text}@{queue}" for text in texts for queue in range(QUEUES - 1))

    def look() -> None:
        options = source(broker.kafka, [topic]) | {"kafka.isolation.level": "read_committed"}
        if not is_stream:
            frame = spark.session.read.format("kafka").options(**options).load()
            seen[:] = [row.text for row in frame.selectExpr("cast(value as string) as text").collect()]
            return
        frame = spark.session.readStream.format("kafka").options(**options).load()
        query = (
            frame.selectExpr("cast(value as string) as text")
            .writeStream.foreachBatch(lambda batch, _id: seen.extend(row.text for row in batch.collect()))
            .option("checkpointLocation", spark.checkpoint(topic))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_WITHIN_S), f"the query still ran after {QUERY_WITHIN_S} s"

    transactions(0)
    other.begin()
    other.send(topic, QUEUES - 1, "open")
    look()
    assert Counter(seen) == Counter(expected)
    transactions(1)
    other.commit()
    expected.append("open")
    look()
    assert Counter(seen) == Counter(expected)
    producer.close()
    other.close()


def test_running_stream_sees_what_arrives(broker: Broker | Peers, agents: Agents, spark: Spark, topic: str) -> None:
    seen: list[str] = []
    frame = spark.session.readStream.format("kafka").options(**source(broker.kafka, [topic])).load()
    query = (
        frame.selectExpr("cast(value as string) as text")
        .writeStream.foreachBatch(lambda batch, _id: seen.extend(row.text for row in batch.collect()))
        .option("checkpointLocation", spark.checkpoint(topic))
        .start()
    )
    try:
        for round_ in range(3):
            write(broker, agents, topic, [f"{round_}-{n}" for n in range(10)])
            until = time.monotonic() + QUERY_WITHIN_S
            while len(seen) < 10 * (round_ + 1) and query.isActive:
                assert time.monotonic() < until, f"the stream saw {len(seen)} messages in {QUERY_WITHIN_S} s"
                time.sleep(0.05)
        assert query.exception() is None
        assert Counter(seen) == Counter(f"{round_}-{n}" for round_ in range(3) for n in range(10))
    finally:
        query.stop()


def test_sink_writes_what_others_read(broker: Broker | Peers, agents: Agents, spark: Spark, topic: str) -> None:
    messages = [Message(b"row %d" % n, n % QUEUES, b"k%d" % n, (("n", b"%d" % n),)) for n in range(200)]
    SparkSink(broker.kafka, spark).write(topic, messages, way="oneway", codec="lz4")
    seen = KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3").read({topic: 200}, 20)
    expected = sorted((each.queue, each.body, each.key, each.headers) for each in messages)
    assert sorted((each.queue, each.head, each.key, each.headers) for each in seen) == expected


def test_stream_into_sink_copies_a_topic(broker: Broker | Peers, agents: Agents, spark: Spark, topic: str) -> None:
    texts = [f"m{n}" for n in range(100)]
    write(broker, agents, topic, texts)
    copy = f"{topic}-copy"  # Made by the sink, with the broker's own number of queues.
    frame = spark.session.readStream.format("kafka").options(**source(broker.kafka, [topic])).load()
    query = (
        frame.select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.kafka)
        .option("topic", copy)
        .option("checkpointLocation", spark.checkpoint(copy))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_WITHIN_S), f"the query still ran after {QUERY_WITHIN_S} s"
    seen = KafkaJava(broker.kafka, agents.kafka("4.3"), "4.3").read({copy: 100}, 20)
    assert sorted(each.text for each in seen) == sorted(texts)
