"""The broker and the client of most tests of RocketMQ's handlers; a file may define others."""

import pytest

from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker


@pytest.fixture
def broker() -> RocketMQBroker:
    return RocketMQBroker()


@pytest.fixture
def client(broker: RocketMQBroker) -> Client:
    return broker.connect()
