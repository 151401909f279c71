"""`duolog-log` gives the rows of Spark's Kafka source for the same range, read from the log's files; leases hold those.

Segments and pieces are small, so that reading begins in the middle of segments, and ends there.
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from tests.kit.broker import Broker
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava
from tests.wire.clients.spark import Spark, source
from tests.wire.clients.topics import create_topic, end_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

BROKER_SETTINGS = {
    "store.segment_bytes": 1 << 16,
    "store.reserve_bytes": 0,
    "retention.check_interval_ms": 200,
}
pytestmark = pytest.mark.usefixtures("both_protocols")

QUEUES = 2
WITHIN_S = 30
PIECE_BYTES = 24_000
_numbers = itertools.count()


def new_topic(broker: Broker, **config: str) -> str:
    name = f"direct-{next(_numbers)}-{int(time.time())}"
    create_topic(broker.kafka, name, QUEUES, config)
    return name


def write(broker: Broker, topic: str, count: int, codec: str = "none", way: str = "batch") -> None:
    sent = [
        Message(b"%d " % at * (at % 50), at % QUEUES, b"k%d" % at if at % 3 else None, (("h", b"\xff"),) * (at % 4))
        for at in range(count)
    ]
    Confluent(broker.kafka).write(topic, [Message(None, 1, b"gone"), *sent], way=way, codec=codec)


def write_from_rocketmq(broker: Broker, agents: Agents, topic: str, count: int, codec: str = "none") -> None:
    sent = [Message(b"r%d " % at * 100, at % QUEUES, b"k1 k2", (("city", b"Bern"),), tags="t") for at in range(count)]
    rocketmq = RocketmqJava(broker.namesrv, agents.rocketmq("5.5"), "5.5", "json")
    rocketmq.write(topic, sent, way="sync", codec=codec)


def write_in_transaction(broker: Broker, topic: str, count: int, *, commits: bool) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "transactional.id": f"{topic}-{commits}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for at in range(count):
        producer.produce(topic, b"in transaction %s" % str(commits).encode(), partition=at % QUEUES)
    if commits:
        producer.commit_transaction(20)
    else:
        producer.flush(20)
        producer.abort_transaction(20)


def direct(broker: Broker, spark: Spark, topics: str, **options: str) -> DataFrame:
    from duolog.spark.log_source import DuologLog

    spark.session.dataSource.register(DuologLog)
    asked = {"http": broker.http, "topics": topics, "splitBytes": str(PIECE_BYTES)} | options
    return spark.session.read.format("duolog-log").options(**asked).load()


def over_kafka(broker: Broker, spark: Spark, topics: str, **options: str) -> DataFrame:
    asked = source(broker.kafka, topics.split(",")) | {"kafka.isolation.level": "read_committed"} | options
    return spark.session.read.format("kafka").options(**asked).load()


def rows(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def test_rows_are_those_of_the_kafka_source(broker: Broker, agents: Agents, spark: Spark) -> None:
    mixed, by_broker = new_topic(broker), new_topic(broker, **{"message.timestamp.type": "LogAppendTime"})
    for topic in (mixed, by_broker):
        write(broker, topic, 400)
        write_from_rocketmq(broker, agents, topic, 60)
        write(broker, topic, 400, codec="zstd")
        write_in_transaction(broker, topic, 6, commits=True)
        write(broker, topic, 30, way="single")
        write_in_transaction(broker, topic, 6, commits=False)
        write_from_rocketmq(broker, agents, topic, 20, codec="zlib")
    topics = f"{mixed},{by_broker}"
    found, expected = rows(direct(broker, spark, topics)), rows(over_kafka(broker, spark, topics))
    assert len(expected) == 2 * (400 + 60 + 400 + 6 + 30 + 20 + 3)
    assert found == expected
    pieces = direct(broker, spark, topics).rdd.getNumPartitions()
    assert pieces > 3, f"all was read in {pieces} pieces"


def test_range_is_that_of_the_kafka_source(broker: Broker, agents: Agents, spark: Spark) -> None:
    topic = new_topic(broker)
    write(broker, topic, 100, codec="lz4")
    write_from_rocketmq(broker, agents, topic, 20)
    write(broker, topic, 50)
    asked = {
        "startingOffsets": json.dumps({topic: {"0": 17, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": 55, "1": 23}}),
    }
    found = rows(direct(broker, spark, topic, **asked))
    assert found == rows(over_kafka(broker, spark, topic, **asked))
    assert len(found) == 55 - 17 + 23
    with pytest.raises(Exception, match="were asked for, and the log has 0 to"):
        direct(broker, spark, topic, endingOffsets=json.dumps({topic: {"0": 9999}})).collect()


def test_row_has_its_columns_of_messages(broker: Broker, agents: Agents, spark: Spark) -> None:
    from duolog.spark.messages import as_messages

    topic = new_topic(broker)
    write_from_rocketmq(broker, agents, topic, 2)
    row = as_messages(direct(broker, spark, topic)).where("queue = 1").collect()[0]
    assert (row["keys"], row.tags, row.properties["city"], row.producer) == (["k1", "k2"], "t", "Bern", "rocketmq")


def test_delayed_messages_of_either_family_have_their_due_time(broker: Broker, agents: Agents, spark: Spark) -> None:
    """From the Kafka source and from the log's files; of a delay level it is not kept."""
    from duolog.spark.messages import as_messages

    topic, by_broker = new_topic(broker), new_topic(broker, **{"message.timestamp.type": "LogAppendTime"})
    write_from_rocketmq(broker, agents, new_topic(broker), 1)  # The agent has started then.
    due_ms = int(time.time() * 1000) + 3000
    later = {"setDeliverTimeMs": due_ms}
    by_level = {"setDelayTimeLevel": 1}
    for name in (topic, by_broker):
        delayed = Message(b"kafka", 0, headers=(("TIMER_DELIVER_MS", b"%d" % due_ms),))
        Confluent(broker.kafka).write(name, [delayed, Message(b"at once")], way="batch", codec="none")
        sent = [Message(body).as_rocketmq_json() | asked for body, asked in ((b"at", later), (b"level", by_level))]
        agents.rocketmq("5.5").call("write_delayed", namesrv=broker.namesrv, topic=name, messages=sent)
    ends = lambda: [end_of(broker, name) for name in (topic, by_broker)]  # noqa: E731
    eventually("deliveries", ends, lambda ends: ends == [4, 4], WITHIN_S)
    for load in (over_kafka, direct):
        found = as_messages(load(broker, spark, f"{topic},{by_broker}")).selectExpr(
            "topic", "cast(body as string) as text", "unix_millis(deliver_time) as due_ms"
        )
        seen = {(row.topic, row.text): row.due_ms for row in found.collect()}
        assert seen == {
            **{(name, text): None for name in (topic, by_broker) for text in ("at once", "level")},
            (topic, "kafka"): due_ms,
            (by_broker, "kafka"): None,  # Its timestamp had that place.
            **{(name, "at"): due_ms for name in (topic, by_broker)},
        }


def end_of(broker: Broker, topic: str) -> int:
    return sum(end_offsets(broker.kafka, topic).values())


def test_wrong_option_is_refused_with_the_known_ones(broker: Broker, spark: Spark) -> None:
    with pytest.raises(Exception, match=r"unknown option startoffsets; the options are .*startingOffsets"):
        direct(broker, spark, "any", startOffsets="earliest").collect()


def test_lease_holds_the_files_that_retention_would_remove(broker: Broker, spark: Spark) -> None:
    from duolog.spark.broker_api import ApiError, BrokerApi

    broker.restart()  # Leases end with the broker: those of the other tests would hold the files too.
    topic = new_topic(broker, **{"retention.records": "10"})
    api = BrokerApi(broker.http)

    def segments() -> list[int]:
        return [each["start"] for each in api.get("/api/segments") if not each["is_gap"]]

    for _ in range(4):
        write(broker, topic, 380)
    taken: dict[str, Any] = api.post("/api/leases", body={"topics": [topic], "lease_ms": 600_000})
    held = [each["start"] for each in taken["segments"]]
    assert set(held) <= set(segments())
    for _ in range(8):  # What is held is dead then, but for the last ten records of each queue.
        write(broker, topic, 380)
    eventually("the log start", lambda: start_of(api, topic), lambda start: start > 2000, WITHIN_S)
    before = set(segments())
    assert set(held) <= before
    api.post("/api/leases", taken["lease"])
    assert release(broker, taken["lease"]) == 200
    # The first of them may hold messages of other tests too, and stay.
    eventually("segments", segments, lambda left: not set(held) <= set(left), WITHIN_S)
    with pytest.raises(ApiError, match="has ended"):
        api.post("/api/leases", taken["lease"])


def start_of(api: Any, topic: str) -> int:
    return int(api.get("/api/topics", topic)["queues"][0]["start"])


def release(broker: Broker, lease: str) -> int:
    from http.client import HTTPConnection

    connection = HTTPConnection(broker.http)
    connection.request("DELETE", f"/api/leases/{lease}")
    status = connection.getresponse().status
    connection.close()
    return status


def test_only_what_the_caller_may_read_is_planned(spark: Spark, tmp_path: Path) -> None:
    readers = tmp_path / "readers.toml"
    readers.write_text('"s3cret" = ["mine*"]\n')
    with Broker(tmp_path / "data", {"http.readers_file": str(readers)}) as guarded:
        for topic in ("mine.a", "other"):
            create_topic(guarded.kafka, topic, QUEUES)
            write(guarded, topic, 10)
        assert direct(guarded, spark, "mine.a", token="s3cret").count() == 11
        with pytest.raises(Exception, match="this token may not read topic other"):
            direct(guarded, spark, "mine.a,other", token="s3cret").collect()
        for nobody in ({}, {"token": "guessed"}):
            with pytest.raises(Exception, match=r"a token of http\.readers_file"):
                direct(guarded, spark, "mine.a", **nobody).collect()


def test_what_cannot_be_read_is_said(broker: Broker, spark: Spark) -> None:
    with pytest.raises(Exception, match="there is no topic nobody-made-this"):
        direct(broker, spark, "nobody-made-this").collect()
    with pytest.raises(Exception, match="no broker answers on"):
        direct(broker, spark, "any", http="127.0.0.1:1").collect()
    topic = new_topic(broker)
    write(broker, topic, 10)
    with pytest.raises(Exception, match="does not exist; retention may have removed it"):
        direct(broker, spark, topic, directory="/nowhere").collect()
    planned = direct(broker, spark, topic).persist()
    assert planned.count() == 11
