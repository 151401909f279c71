"""The position of a group is one for all protocols, and so is the right on it: what is forbidden over one of them
cannot be done over another."""

from collections.abc import Callable
from typing import Any

import pytest

from duolog.bridge.kafka.requests.connection import KafkaConnection
from duolog.bridge.security.session import Session
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of
from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.unit.bridge.kafka.bench import Client as KafkaClient
from tests.unit.bridge.rocketmq.broker import Client
from tests.unit.bridge.security import test_http_paths
from tests.unit.bridge.security.test_http_paths import as_user
from tests.unit.bridge.security.test_kafka_login import login
from tests.unit.bridge.security.test_rocketmq_paths import Names

POSITION, ELSEWHERE = 3, 1
COMMIT = 1 | 4  # The flags of a pull that commits the offset which it names: COMMIT_OFFSET, SUBSCRIPTION.
PLACE = {"topic": "orders", "queueId": 0}


class Ports(test_http_paths.Bench):
    """All ports of one broker, where the group `billing` of root has a position in `orders`."""

    def __init__(self) -> None:
        super().__init__()
        gate = self.core.rocketmq_connections.gate
        assert gate is not None
        gate.authenticator = self.names = Names()
        self.core.publish(self.core.topic("orders"), *(b"x" for _ in range(5)))
        root = self.rocketmq("root")
        move = {"consumerGroup": "billing", "commitOffset": POSITION, **PLACE}
        assert answered(root.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **move)) == ResponseCode.SUCCESS

    def rule(self, permission: str, resource: str, name: str, operation: str) -> None:
        self.core.security.acls.add([rule_of(RuleText("alice", resource, operation, permission, name))], 1)
        self.core.settle()

    def rocketmq(self, name: str) -> Client:
        client = self.core.connect()
        self.names.sessions[id(client.connection)] = Session(name, "10.0.0.1")
        return client

    def kafka(self, name: str) -> KafkaClient:
        core: Any = self.core
        client = KafkaClient(core, KafkaConnection(core.server, core.kafka_context))
        assert login(client, name, "secret")[-1].error_code is ErrorCode.none
        return client

    def position(self) -> int:
        """Return the position as root sees it over Kafka."""
        topics = [{"name": "orders", "partition_indexes": [0]}]
        answer = self.kafka("root").ask(ApiKey.OFFSET_FETCH, 7, group_id="billing", topics=topics)
        return int(answer.topics[0].partitions[0].committed_offset)


def answered(answer: Any) -> int:
    assert answer is not None
    return int(answer.code)


# -- What moves, reads or removes a position. Each returns whether it was refused.

NOT_ALLOWED = (ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed)


def kafka_fetch(ports: Ports) -> bool:
    topics = [{"name": "orders", "partition_indexes": [0]}]
    answer = ports.kafka("alice").ask(ApiKey.OFFSET_FETCH, 7, group_id="billing", topics=topics)
    errors = {answer.error_code, *(each.error_code for topic in answer.topics for each in topic.partitions)}
    return any(error in NOT_ALLOWED for error in errors)


def kafka_commit(ports: Ports) -> bool:
    partitions = [{"partition_index": 0, "committed_offset": ELSEWHERE}]
    asked = {"group_id": "billing", "generation_id_or_member_epoch": -1}
    topics = [{"name": "orders", "partitions": partitions}]
    answer = ports.kafka("alice").ask(ApiKey.OFFSET_COMMIT, 7, **asked, topics=topics)
    return answer.topics[0].partitions[0].error_code in NOT_ALLOWED


def kafka_offset_delete(ports: Ports) -> bool:
    topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
    answer = ports.kafka("alice").ask(ApiKey.OFFSET_DELETE, 0, group_id="billing", topics=topics)
    errors = {answer.error_code, *(each.error_code for topic in answer.topics for each in topic.partitions)}
    return any(error in NOT_ALLOWED for error in errors)


def kafka_delete_groups(ports: Ports) -> bool:
    answer = ports.kafka("alice").ask(ApiKey.DELETE_GROUPS, 2, groups_names=("billing",))
    return answer.results[0].error_code in NOT_ALLOWED


def over_rocketmq(code: RequestCode, **fields: Any) -> Callable[[Ports], bool]:
    def ask(ports: Ports) -> bool:
        return answered(ports.rocketmq("alice").ask(code, **fields)) == ResponseCode.NO_PERMISSION

    return ask


def rocketmq_one_way(ports: Ports) -> bool:
    move = {"consumerGroup": "billing", "commitOffset": ELSEWHERE, **PLACE}
    assert ports.rocketmq("alice").ask(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=True, **move) is None
    return ports.position() == POSITION


def rocketmq_pull(ports: Ports) -> bool:
    asked = {"consumerGroup": "billing", "sysFlag": COMMIT, "commitOffset": ELSEWHERE}
    return answered(ports.rocketmq("alice").pull(0, "orders", **asked)) == ResponseCode.NO_PERMISSION


def over_http(method: str, path: str, body: Any = None) -> Callable[[Ports], bool]:
    return lambda ports: ports.status(method, path, as_user("alice"), body) == 403


READS: dict[str, Callable[[Ports], bool]] = {
    "Kafka OffsetFetch": kafka_fetch,
    "RocketMQ QUERY_CONSUMER_OFFSET": over_rocketmq(
        RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="billing", **PLACE
    ),
}
MOVES: dict[str, Callable[[Ports], bool]] = {
    "Kafka OffsetCommit": kafka_commit,
    "RocketMQ UPDATE_CONSUMER_OFFSET": over_rocketmq(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="billing", commitOffset=ELSEWHERE, **PLACE
    ),
    "RocketMQ UPDATE_CONSUMER_OFFSET, one-way": rocketmq_one_way,
    "RocketMQ PULL_MESSAGE that commits": rocketmq_pull,
    "RocketMQ INVOKE_BROKER_TO_RESET_OFFSET": over_rocketmq(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="orders", group="billing", timestamp=0, isForce="true"
    ),
    "HTTP reset": over_http(
        "POST", "/api/groups/billing/reset", {"to": "earliest", "topics": ["orders"], "execute": True}
    ),
}
REMOVALS: dict[str, Callable[[Ports], bool]] = {
    "Kafka OffsetDelete": kafka_offset_delete,
    "Kafka DeleteGroups": kafka_delete_groups,
    "RocketMQ DELETE_SUBSCRIPTIONGROUP": over_rocketmq(
        RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="billing", cleanOffset="true"
    ),
    "HTTP DELETE of a group": over_http("DELETE", "/api/groups/billing?execute=true"),
    "HTTP GET of a group": over_http("GET", "/api/groups/billing"),
}
ALL = READS | MOVES | REMOVALS


@pytest.fixture(scope="module")
def ports() -> Ports:
    """Ports where alice may do everything with the topic, and nothing with the group."""
    ports = Ports()
    ports.rule("allow", "topic", "orders", "all")
    return ports


@pytest.mark.parametrize("way", ALL)
def test_right_on_the_topic_alone_is_not_enough(ports: Ports, way: str) -> None:
    assert ALL[way](ports)
    assert ports.position() == POSITION


@pytest.fixture(scope="module")
def without_topic() -> Ports:
    """Ports where alice may do everything with the group, and nothing with the topic."""
    ports = Ports()
    ports.rule("allow", "group", "billing", "all")
    return ports


@pytest.mark.parametrize("way", [*READS, *MOVES])
def test_right_on_the_group_alone_is_not_enough(without_topic: Ports, way: str) -> None:
    assert ALL[way](without_topic)
    assert without_topic.position() == POSITION


@pytest.mark.parametrize("way", ALL)
def test_both_rights_are_enough_over_each_protocol(way: str) -> None:
    """This is what shows that the requests of the other tests were refused because of rights."""
    ports = Ports()
    ports.rule("allow", "topic", "orders", "all")
    ports.rule("allow", "group", "billing", "all")
    assert not ALL[way](ports)
    assert (ports.position() == POSITION) == (way in READS or way == "HTTP GET of a group")
