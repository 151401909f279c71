"""What most tests of RocketMQ's handlers begin with; a file that needs another broker says so itself."""

import pytest

from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker


@pytest.fixture
def broker() -> RocketMQBroker:
    return RocketMQBroker()


@pytest.fixture
def client(broker: RocketMQBroker) -> Client:
    return broker.connect()
