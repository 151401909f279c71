"""Tools and dashboards get the broker's settings and figures."""

from duolog.protocol.rocketmq.codes import RequestCode
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, read


def test_what_dashboards_cannot_do_without(client: Client) -> None:
    table = read(client.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert all(len([float(part) for part in table[name].split(" ")]) == 3 for name in ("putTps", "getTotalTps"))
    assert float(table["commitLogDiskRatio"]) >= 0
    settings = bytes(client.ask(RequestCode.GET_BROKER_CONFIG).body).decode()
    assert "brokerName=duolog\n" in settings


def test_properties_that_are_unknown_are_accepted_and_reported(broker: RocketMQBroker, client: Client) -> None:
    """mqadmin prints a stack trace for every other code; what is known counts all the same."""
    both = b"noSuchThing=1\nautoCreateTopicEnable=false\n"
    answer = client.ask(RequestCode.UPDATE_BROKER_CONFIG, both)
    assert (answer.code, answer.remark) == (0, "unknown to this broker, and ignored: noSuchThing")
    assert broker.topics.auto_create is False
    answer = client.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"listenPort=1\n")
    assert (answer.code, answer.remark) == (0, "unknown to this broker, and ignored: listenPort")
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=x\nautoCreateTopicEnable=true").code != 0
    assert broker.topics.auto_create is False
