"""Proves what a standby tells RocketMQ clients: routes that name the owner and standbys, for producers only; answers of
the owner to what it sends on; and no answer of its own to anything else."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from duolog.bridge.cluster.standby_probe import FAILURES, StandbyProbe
from duolog.bridge.cluster.standby_rocketmq import FORWARDED, StandbyRocketMQConnection
from duolog.bridge.config import Options
from duolog.bridge.config.ports import RocketmqOptions
from duolog.bridge.config.storage import SharedSection
from duolog.bridge.net.connection import FRAMES_AT_ONCE
from duolog.bridge.net.nodes import Endpoints, Node, Nodes
from duolog.bridge.rocketmq.request_table import TABLE
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from tests.unit.bridge.cluster.test_standby_security import OWN, OWNER, Asked, Forwarded, context_of
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, read

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def node(number: int) -> Node:
    return Node(number, Endpoints(*((f"broker-{number}", port) for port in (1, 2, 3, 4))))


def nodes_of(owner: Node, own: Node, *others: Node, reached: set[int]) -> Nodes:
    nodes = Nodes(own, None)
    nodes.set({each.id: each.endpoints for each in (owner, *others) if each != own}, owner.endpoints)
    nodes.reached = frozenset(reached)
    return nodes


class Standby(RocketMQBroker):
    """A standby without security, and a client of it."""

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options=options)
        self.topic("orders", queues=3)
        self.settle()
        self.forwarded = Forwarded()
        self.standby_context = context_of(self, Asked(), self.forwarded)
        self.connection = StandbyRocketMQConnection(
            self.standby_context, None, lambda: RocketMQConnection(self.rocketmq_connections)
        )
        self.client = Client(self, cast(Any, self.connection))

    def route(self, topic: str) -> tuple[dict[str, tuple[int, int, int]], dict[str, str]]:
        """Return read queues, write queues and permission of each broker name, and the address of each."""
        return parts(self.client.ask(ROUTE, topic=topic))


def parts(answer: Any) -> tuple[dict[str, tuple[int, int, int]], dict[str, str]]:
    found = read(answer)
    queues = {
        each["brokerName"]: (each["readQueueNums"], each["writeQueueNums"], each["perm"])
        for each in found["queueDatas"]
    }
    return queues, {each["brokerName"]: each["brokerAddrs"]["0"] for each in found["brokerDatas"]}


# -- Routes


def test_a_route_names_the_owner_for_all_and_the_standby_for_producers() -> None:
    queues, addresses = Standby().route("orders")
    assert queues == {"duolog": (3, 3, 6), "duolog-standby-1": (0, 3, 2)}
    assert addresses == {"duolog": "owner:2", "duolog-standby-1": "standby:2"}


def test_an_owner_names_the_standbys_that_it_reaches_and_no_more_than_two() -> None:
    broker = RocketMQBroker()
    broker.topic("orders", queues=3)
    broker.settle()
    client = broker.connect()
    owner, others = broker.nodes.own, [node(number) for number in (1, 2, 3, 4)]
    broker.nodes.set({each.id: each.endpoints for each in others}, owner.endpoints)
    assert list(parts(client.ask(ROUTE, topic="orders"))[0]) == ["duolog"]
    broker.nodes.reached = frozenset({2, 3, 4})
    queues, addresses = parts(client.ask(ROUTE, topic="orders"))
    assert list(queues) == ["duolog", "duolog-standby-2", "duolog-standby-3"]
    assert addresses["duolog-standby-3"] == "broker-3:2"
    assert list(read(client.ask(RequestCode.GET_BROKER_CLUSTER_INFO))["brokerAddrTable"]) == ["duolog"]


@pytest.mark.parametrize(
    ("topic", "brokers"),
    [("orders", 2), ("TBW102", 2), ("%RETRY%crew", 1), ("DefaultCluster", 1), ("duolog", 1)],
)
def test_only_topics_to_which_applications_send_have_standbys(topic: str, brokers: int) -> None:
    """Tools find the brokers of a group by its retry topic, and add up what these answer."""
    standby = Standby()
    standby.topic("%RETRY%crew")
    standby.settle()
    assert len(standby.route(topic)[0]) == brokers


def test_a_topic_with_one_queue_has_two_at_its_only_standby_which_are_the_same_one() -> None:
    """With three queues in all, the send after one that has timed out at the owner goes to the standby."""
    standby = Standby()
    standby.topic("single", queues=1)
    standby.settle()
    assert standby.route("single")[0] == {"duolog": (1, 1, 6), "duolog-standby-1": (0, 2, 2)}

    owner = RocketMQBroker(options=Options(shared=SharedSection(url="memory://")))
    owner.topic("single", queues=1)
    client = owner.connect()
    sent = [client.send("single", queueId=number) for number in (0, 1, 2)]
    assert [each.code for each in sent] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.INVALID_PARAMETER]
    assert [(each.ext["queueId"], each.ext["queueOffset"]) for each in sent[:2]] == [("0", "0"), ("0", "1")]


def test_producers_of_new_topics_get_the_queues_of_a_standby_too() -> None:
    """Java's client takes the read queues of the template."""
    queues, _ = Standby().route("TBW102")
    assert queues["duolog-standby-1"] == (*queues["duolog"][:2], 2)


def test_a_topic_that_cannot_be_written_to_and_a_setting_leave_the_standbys_out() -> None:
    standby = Standby()
    topic = standby.topics.by_rocketmq_name("orders")
    assert topic is not None
    topic.perm = 4
    assert list(standby.route("orders")[0]) == ["duolog"]
    switched_off = Standby(Options(rocketmq=RocketmqOptions(standby_routes=False)))
    assert list(switched_off.route("orders")[0]) == ["duolog"]


@pytest.mark.parametrize(
    ("history", "is_named"),
    [("", False), ("-", False), ("+", True), ("+-", True), ("+--", False), ("+-+-", True), ("+--+", True)],
)
def test_a_broker_is_named_after_it_answered_and_not_after_it_failed_twice(history: str, is_named: bool) -> None:
    assert FAILURES == 2
    nodes = nodes_of(node(0), node(0), node(1), reached=set())
    probe = StandbyProbe(lambda: nodes)
    for outcome in history:
        probe.note(nodes, {node(1): outcome == "+"})
    assert nodes.standbys == ([node(1)] if is_named else [])


def test_a_standby_names_itself_first_and_never_the_owner_twice() -> None:
    nodes = nodes_of(node(0), node(3), node(1), node(2), reached={0, 1, 2})
    assert nodes.standbys == [node(3), node(1), node(2)]
    assert nodes_of(node(0), node(0), reached=set()).standbys == []


# -- Requests that are sent on


def test_each_request_is_answered_by_the_owner_with_the_number_of_the_client() -> None:
    standby = Standby()
    assert standby.client.send() is None
    standby.forwarded.answer()
    standby.loop.turn()
    answer = standby.client.last_answer()
    assert answer is not None
    assert (answer.code, answer.ext["queueOffset"]) == (0, "7")
    assert standby.client.connection.unanswered == 0


def test_members_of_groups_are_those_of_the_owner() -> None:
    standby = Standby()
    assert standby.client.beat("crew").code == ResponseCode.SUCCESS
    assert standby.client.ask(RequestCode.UNREGISTER_CLIENT, clientID="client").code == ResponseCode.SUCCESS  # type: ignore[union-attr]
    assert standby.forwarded.got == []
    assert standby.client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="crew") is None
    assert len(standby.forwarded.got) == 1


def test_what_is_neither_sent_on_nor_answered_is_refused() -> None:
    standby = Standby()
    answered = {ROUTE, RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER}
    answered |= {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT}
    for code in TABLE.keys() - FORWARDED - answered:
        refused = standby.client.ask(code)
        assert refused is not None
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE, code


def test_a_request_is_sent_on_once_so_that_two_standbys_do_not_send_it_to_and_fro() -> None:
    standby = Standby()
    standby.client.send()
    _, command = standby.forwarded.got.pop()
    standby.forwarded.waiting.clear()
    forwarded = msgspec.structs.replace(command, flag=command.flag | 4, opaque=100)
    standby.client.say(forwarded)
    refused = standby.client.answer_to(100)
    assert refused is not None
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    standby.standby_context.nodes.set({0: OWNER}, OWN)  # It becomes the owner, and sends it to itself once it serves.
    standby.client.say(msgspec.structs.replace(forwarded, opaque=101))
    assert len(standby.forwarded.got) == 1


def test_a_one_way_request_gets_no_answer() -> None:
    standby = Standby()
    standby.client.ask(RequestCode.END_TRANSACTION, oneway=True)
    standby.forwarded.answer()
    standby.loop.turn()
    assert standby.client.transport.taken == b""
    assert standby.client.connection.unanswered == 0


def test_requests_of_one_connection_beyond_the_limit_are_refused() -> None:
    standby = Standby()
    standby.client.connection.bounds = standby.client.connection.bounds._replace(unanswered_max=2)
    assert [standby.client.send() for _ in range(2)] == [None, None]
    assert standby.client.send().code == ResponseCode.SYSTEM_BUSY


def test_after_a_takeover_the_same_connection_serves_the_client_and_no_request_of_it_is_lost() -> None:
    standby = Standby()
    client, connections = standby.client, standby.server.connections
    client.connection.bounds = client.connection.bounds._replace(unanswered_max=FRAMES_AT_ONCE)
    sends = [client.new(RequestCode.SEND_MESSAGE, **client.send_fields()) for _ in range(FRAMES_AT_ONCE + 3)]
    requests = b"".join(piece for send in sends for piece in remoting.encode(send))
    client.transport.receive(requests[:-10])  # As many as are received in a turn, two more, and a part of one.
    assert len(standby.forwarded.waiting) == FRAMES_AT_ONCE
    standby.connection.serve_when_answered()
    standby.loop.turn()
    assert client.transport.is_paused, "nothing more is read while the owner has not answered"
    for _ in range(FRAMES_AT_ONCE):
        standby.forwarded.answer()
    standby.loop.turn()
    client.transport.receive(requests[-10:])
    standby.settle()
    answers = [client.answer_to(send.opaque) for send in sends]
    assert [answer is not None and answer.code for answer in answers] == [ResponseCode.SUCCESS] * len(answers)
    assert [answer.ext["queueOffset"] for answer in answers[-3:] if answer is not None] == ["0", "1", "2"]
    assert (len(connections), connections.accepted_count, connections.request_bytes) == (1, 1, 0)
    assert client.connection.closed, "the object of the standby is no longer in use"


def test_a_client_that_does_not_take_its_answers_is_disconnected_at_a_takeover() -> None:
    standby = Standby()
    standby.client.transport.room = 10
    standby.client.ask(ROUTE, topic="orders")
    standby.connection.serve_when_answered()
    assert standby.client.transport.closing


def test_an_answer_for_a_client_that_has_left_is_dropped() -> None:
    standby = Standby()
    standby.client.send()
    standby.client.close()
    standby.forwarded.answer()
    assert standby.client.transport.taken == b""
