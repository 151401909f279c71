"""A broker core with a Kafka client, for the tests of handlers."""

import pytest

from tests.unit.bridge.kafka.bench import Client, KafkaBench


@pytest.fixture
def bench() -> KafkaBench:
    return KafkaBench()


@pytest.fixture
def client(bench: KafkaBench) -> Client:
    return bench.connect()


@pytest.fixture(scope="module")
def client_of_two_topics() -> Client:
    """A client of a broker with the topics a (5 partitions) and b (3)."""
    bench = KafkaBench()
    for name, count in (("b", 3), ("a", 5)):
        bench.topics.create(name, count, {}, bench.clock.now_ms())
    bench.settle()
    return bench.connect()
