"""What most tests of RocketMQ's handlers begin with; a file that needs another office says so itself."""

import pytest

from tests.unit.bridge.rocketmq.office import Client, Office


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def client(office: Office) -> Client:
    return office.connect()
