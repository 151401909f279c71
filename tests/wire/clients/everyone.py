"""All writers and readers by name, so that a test can be written for each before any client runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from tests.kit.broker import Broker
from tests.kit.peers import Peers
from tests.wire.clients.faust_clients import VERSION as FAUST_VERSION
from tests.wire.clients.faust_clients import Faust
from tests.wire.clients.jvm import KAFKA_VERSIONS, ROCKETMQ_VERSIONS, Agents
from tests.wire.clients.kafka_clients import AioKafka, Confluent, KafkaJava, KafkaPython
from tests.wire.clients.rocketmq_clients import RocketmqJava, RocketmqReader
from tests.wire.clients.roles import Reader, Writer
from tests.wire.clients.spark import VERSION as SPARK_VERSION
from tests.wire.clients.spark import Spark, SparkBatch, SparkSink, SparkStream

T = TypeVar("T", covariant=True)
ClientProtocol = Literal["kafka", "rocketmq"]


@dataclass(frozen=True, slots=True)
class Reach:
    """What a client needs to be made: the broker, and the processes that it may live in."""

    broker: Broker | Peers
    agents: Agents
    spark: Spark


@dataclass(frozen=True, slots=True)
class Role(Generic[T]):
    """A client before it is made."""

    name: str
    protocol: ClientProtocol
    make: Callable[[Reach], T]


def _kafka_java(version: str) -> Callable[[Reach], KafkaJava]:
    return lambda reach: KafkaJava(reach.broker.kafka, reach.agents.kafka(version), version)


def _rocketmq_writer(version: str, header: str) -> Callable[[Reach], RocketmqJava]:
    return lambda reach: RocketmqJava(reach.broker.namesrv, reach.agents.rocketmq(version, header), version, header)


def _rocketmq_reader(version: str, header: str, kind: str) -> Callable[[Reach], RocketmqReader]:
    return lambda reach: RocketmqReader(
        reach.broker.namesrv, reach.agents.rocketmq(version, header), version, header, kind
    )


_PYTHON: dict[str, Callable[[Reach], KafkaPython | AioKafka | Confluent]] = {
    "kafka-python": lambda reach: KafkaPython(reach.broker.kafka),
    "aiokafka": lambda reach: AioKafka(reach.broker.kafka),
    "confluent-kafka": lambda reach: Confluent(reach.broker.kafka),
}

WRITERS: list[Role[Writer]] = [
    *(Role(name, "kafka", make) for name, make in _PYTHON.items()),
    *(Role(f"Java kafka-clients {KAFKA_VERSIONS[each]}", "kafka", _kafka_java(each)) for each in KAFKA_VERSIONS),
    Role(f"faust-streaming {FAUST_VERSION}", "kafka", lambda reach: Faust(reach.broker.kafka)),
    Role(f"Spark {SPARK_VERSION} sink", "kafka", lambda reach: SparkSink(reach.broker.kafka, reach.spark)),
    *(
        Role(f"RocketMQ {ROCKETMQ_VERSIONS[version]} {header}", "rocketmq", _rocketmq_writer(version, header))
        for version in reversed(ROCKETMQ_VERSIONS)
        for header in ("json", "binary")
    ),
]

READERS: list[Role[Reader]] = [
    *(Role(name, "kafka", make) for name, make in _PYTHON.items()),
    *(Role(f"Java kafka-clients {KAFKA_VERSIONS[each]}", "kafka", _kafka_java(each)) for each in KAFKA_VERSIONS),
    Role(f"faust-streaming {FAUST_VERSION}", "kafka", lambda reach: Faust(reach.broker.kafka)),
    Role(f"Spark {SPARK_VERSION} batch", "kafka", lambda reach: SparkBatch(reach.broker.kafka, reach.spark)),
    Role(f"Spark {SPARK_VERSION} stream", "kafka", lambda reach: SparkStream(reach.broker.kafka, reach.spark)),
    *(
        Role(
            f"RocketMQ {ROCKETMQ_VERSIONS[version]} {kind} {header}",
            "rocketmq",
            _rocketmq_reader(version, header, kind),
        )
        for version in reversed(ROCKETMQ_VERSIONS)
        for kind in ("push", "lite", "pull")
        for header in ("json", "binary")
    ),
]
