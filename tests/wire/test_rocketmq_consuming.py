"""RocketMQ consumers beyond reading: failures, dead letters, redriving, broadcasting, pauses, replies, offset resets.

Stock Java clients of 5.5.0 and 4.9.8, whose listeners fail for messages that begin with `b`, as often as a test sets.
"""

from __future__ import annotations

import itertools
import json
import signal
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.broker import Broker
from tests.kit.command import duolog
from tests.kit.eventually import eventually
from tests.wire.clients import remoting
from tests.wire.clients.agent import Agent
from tests.wire.clients.jvm import Agents
from tests.wire.clients.kafka_clients import Confluent
from tests.wire.clients.members import PushMember
from tests.wire.clients.message import Message
from tests.wire.clients.rocketmq_clients import RocketmqJava

pytestmark = pytest.mark.usefixtures("both_protocols")

NEVER = 1 << 30  # Failures: more than any number of attempts.
WITHIN_S = 30.0
RESET_OFFSET = 222
SET_REQUEST_MODE = 401
UPDATE_GROUP = 200
_numbers = itertools.count(int(time.time()))


@pytest.fixture(params=["5.5", "4.9"])
def rocket(request: pytest.FixtureRequest, agents: Agents) -> Agent:
    return agents.rocketmq(request.param)


@pytest.fixture
def rocket55(agents: Agents) -> Agent:
    return agents.rocketmq("5.5")


@pytest.fixture
def topic(broker: Broker) -> str:
    name = fresh("consuming")
    remoting.create_topic(broker.rocketmq, name, 2)
    return name


def fresh(what: str) -> str:
    return f"{what}-{next(_numbers)}"


def push(agent: Agent, broker: Broker, topic: str, texts: Sequence[str], queues: int = 2) -> None:
    messages = [Message(text.encode(), number % queues) for number, text in enumerate(texts)]
    RocketmqJava(broker.namesrv, agent, "5.5", "json").write(topic, messages, way="sync", codec="none")


def described(broker: Broker, group: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{broker.http}/api/groups/{group}", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def await_dead_letters(broker: Broker, group: str, count: int) -> None:
    eventually("dead letters", lambda: described(broker, group)["dead_letters"], lambda n: n == count, WITHIN_S)


def asked_of(broker: Broker, *requests: str) -> int:
    """Count the RocketMQ requests of these names since the broker's start."""
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        families = [*text_string_to_metric_families(answer.read().decode())]
    samples = [sample for family in families for sample in family.samples if sample.name == "duolog_requests_total"]
    wanted = [{"wire": "rocketmq", "request": name} for name in requests]
    return sum(int(sample.value) for sample in samples if sample.labels in wanted)


def sends_of(broker: Broker) -> int:
    return asked_of(broker, "SEND_MESSAGE", "SEND_MESSAGE_V2")


def dead_letters(broker: Broker, group: str) -> list[dict[str, Any]]:
    command = ("group", "dead-letters", group, "--http", broker.http)
    found = json.loads(duolog(*command, "--json"))["dead_letters"]
    table = duolog(*command)
    assert table.count("attempts") == len(found) + 1, table
    return list(found)


def redrive(broker: Broker, group: str) -> str:
    return duolog("group", "redrive", group, "--to", "retry", "--http", broker.http)


# -- Retries and dead letters


def test_failed_message_comes_back_until_it_is_consumed(broker: Broker, rocket: Agent, topic: str) -> None:
    """Also one that Kafka wrote. The first level of delay is a second; the ladder begins with ten by itself."""
    group = fresh("group")
    with PushMember(rocket, broker.namesrv, group, [topic], failures=2, retry_level=1) as member:
        push(rocket, broker, topic, ["good", "bad"])
        Confluent(broker.kafka).write(topic, [Message(b"bad of kafka", 0)], way="single", codec="none")
        texts = member.await_texts(7, WITHIN_S)
        assert sorted(texts) == ["bad", "bad", "bad", "bad of kafka", "bad of kafka", "bad of kafka", "good"]
        assert [each.attempt for each in member.arrivals if each.text == "bad"] == [0, 1, 2]
        assert {each.seen.topic for each in member.arrivals} == {topic}
    assert described(broker, group)["dead_letters"] == 0


def test_group_with_a_retry_policy_gets_failed_messages_by_it(broker: Broker, rocket: Agent, topic: str) -> None:
    """The ladder of levels would take 40 seconds until the third attempt."""
    group = fresh("group")
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 200, "max": 2000, "multiplier": 2}}
    configure(broker, group, groupRetryPolicy=policy)
    with PushMember(rocket, broker.namesrv, group, [topic], failures=2) as member:
        push(rocket, broker, topic, ["bad"])
        assert member.await_texts(3, WITHIN_S) == ["bad", "bad", "bad"]
        times_ms = [each.at_ms for each in member.arrivals]
        assert 200 <= times_ms[1] - times_ms[0] < times_ms[2] - times_ms[0] < 40_000


def configure(broker: Broker, group: str, **config: object) -> None:
    body = json.dumps({"groupName": group, **config}).encode()
    reply = remoting.ask(broker.rocketmq, UPDATE_GROUP, body=body)
    assert reply.code == 0, reply.remark


def test_message_is_a_dead_letter_after_its_last_attempt(broker: Broker, rocket: Agent, topic: str) -> None:
    group = fresh("group")
    with PushMember(rocket, broker.namesrv, group, [topic], failures=NEVER, retry_level=1, attempts=1) as member:
        push(rocket, broker, topic, ["bad"])
        assert member.await_texts(2, WITHIN_S) == ["bad", "bad"]
        await_dead_letters(broker, group, 1)


def test_message_without_attempts_left_is_a_dead_letter_until_it_is_redriven(
    broker: Broker, rocket: Agent, topic: str
) -> None:
    group = fresh("group")
    backs_before, sends_before = asked_of(broker, "CONSUMER_SEND_MSG_BACK"), sends_of(broker)
    with PushMember(rocket, broker.namesrv, group, [topic], failures=NEVER, attempts=0) as member:
        push(rocket, broker, topic, ["good", "bad"])
        Confluent(broker.kafka).write(topic, [Message(b"bad of kafka", 0)], way="single", codec="none")
        member.await_texts(3)
        eventually("dead letters", lambda: described(broker, group)["dead_letters"], lambda n: n >= 2, WITHIN_S)
    # Requests may be repeated: a consumer without an answer for 5 s gives the message back by a send to the retry
    # topic, and a producer without an answer for 3 s sends the message again.
    given_back = asked_of(broker, "CONSUMER_SEND_MSG_BACK") - backs_before
    repeated = sends_of(broker) - sends_before - len(["good", "bad"])
    letters = dead_letters(broker, group)
    assert {row["value"] for row in letters} == {"bad", "bad of kafka"}
    assert {(row["reason"], row["origin"]["topic"], row["is_redriven"]) for row in letters} == {
        ("attempts", topic, False)
    }
    # The sends of a client have no place of the original.
    assert [row["origin"]["offset"] for row in letters].count(None) <= repeated
    redriven = redrive(broker, group)
    counts = [f"redrove {count} dead letters of {group}\n" for count in range(2, given_back + repeated + 1)]
    assert redriven in counts, f"given back {given_back}, repeated {repeated}"
    with PushMember(rocket, broker.namesrv, group, [topic]) as member:
        again = eventually("both", lambda: member.texts, lambda texts: {*texts} >= {"bad", "bad of kafka"}, WITHIN_S)
        assert {*again} == {"bad", "bad of kafka"}
        assert {each.seen.topic for each in member.arrivals} == {topic}
        assert {each.attempt for each in member.arrivals} == {0}
    assert redrive(broker, group) == f"redrove 0 dead letters of {group}\n"


def test_orderly_consumer_gives_up_and_goes_on(broker: Broker, rocket: Agent, topic: str) -> None:
    """It tries again by itself, in place; what it gives up goes to the dead letters, and the queue goes on."""
    group = fresh("group")
    push(rocket, broker, topic, ["a", "bad", "c", "d"], queues=1)
    with PushMember(rocket, broker.namesrv, group, [topic], orderly=True, failures=NEVER, attempts=2) as member:
        texts = eventually("the last", lambda: member.texts, lambda seen: "d" in seen, WITHIN_S)
        await_dead_letters(broker, group, 1)
    assert texts == ["a", "bad", "bad", "bad", "c", "d"]


@pytest.mark.soak  # The dead one's locks last for half a minute.
def test_queues_of_an_orderly_consumer_that_died_go_to_another(broker: Broker, agents: Agents, topic: str) -> None:
    group, texts = fresh("group"), [f"m{n}" for n in range(10)]
    dying = agents.rocketmq("5.5", name="-dying")
    dead = PushMember(dying, broker.namesrv, group, [topic], orderly=True, persist_ms=200)
    push(agents.rocketmq("5.5"), broker, topic, texts[:4])
    dead.await_texts(4, WITHIN_S)
    dying.signal(signal.SIGKILL)
    with PushMember(agents.rocketmq("5.5"), broker.namesrv, group, [topic], orderly=True) as heir:
        push(agents.rocketmq("5.5"), broker, topic, texts[4:])
        seen = eventually("the rest", lambda: heir.texts, lambda seen: set(seen) >= set(texts[4:]), 120)
        for queue in (0, 1):
            mine = [text for text in seen if text in texts[4:] and int(text[1:]) % 2 == queue]
            assert mine == [text for text in texts[4:] if int(text[1:]) % 2 == queue]


# -- Ways to consume


def test_broadcast_gives_everything_to_everybody(broker: Broker, rocket: Agent, topic: str) -> None:
    group = fresh("group")
    with (
        PushMember(rocket, broker.namesrv, group, [topic], broadcast=True) as first,
        PushMember(rocket, broker.namesrv, group, [topic], broadcast=True) as second,
    ):
        push(rocket, broker, topic, [f"m{n}" for n in range(6)])
        for member in (first, second):
            assert sorted(member.await_texts(6, WITHIN_S)) == [f"m{n}" for n in range(6)]


def test_paused_consumer_gets_nothing_until_it_goes_on(broker: Broker, rocket: Agent, topic: str) -> None:
    with PushMember(rocket, broker.namesrv, fresh("group"), [topic]) as member:
        push(rocket, broker, topic, ["a"])
        member.await_texts(1, WITHIN_S)
        member.suspend(on=True)
        # One pull of each queue may be on its way already; what comes by it is consumed.
        push(rocket, broker, topic, ["b", "c"])
        push(rocket, broker, topic, ["d", "e"])
        time.sleep(0.5)
        assert len(member.texts) < 5
        member.suspend(on=False)
        assert sorted(member.await_texts(5, WITHIN_S)) == ["a", "b", "c", "d", "e"]


# -- A tool moves a group


def reset(broker: Broker, topic: str, group: str, timestamp: int) -> None:
    fields = {"topic": topic, "group": group, "timestamp": timestamp, "isForce": "true"}
    reply = remoting.ask(broker.rocketmq, RESET_OFFSET, fields)
    assert reply.code == 0, reply.remark


@pytest.mark.parametrize("by_tool", [False, True], ids=["request", "mqadmin"])
def test_live_group_is_reset_by_time(
    broker: Broker, agents: Agents, rocket55: Agent, topic: str, by_tool: bool
) -> None:
    with PushMember(rocket55, broker.namesrv, fresh("group"), [topic], persist_ms=200) as member:
        push(rocket55, broker, topic, ["a", "b"])
        member.await_texts(2, WITHIN_S)
        time.sleep(0.01)  # Let the clock move on.
        middle_ms = int(time.time() * 1000)
        push(rocket55, broker, topic, ["c", "d"])
        member.await_texts(4, WITHIN_S)
        if by_tool:
            words = ["resetOffsetByTime", "-g", member.group, "-t", topic, "-s", str(middle_ms), "-n", broker.namesrv]
            assert "duolog" in agents.admin().call("run", words=words)
        else:
            reset(broker, topic, member.group, middle_ms)
        again = member.await_texts(6, WITHIN_S)[4:]
        assert sorted(again) == ["c", "d"]


@pytest.mark.soak
def test_live_group_of_an_old_client_is_reset_by_time(broker: Broker, agents: Agents, topic: str) -> None:
    """The client needs ten seconds, as with Apache RocketMQ."""
    rocket = agents.rocketmq("4.9")
    with PushMember(rocket, broker.namesrv, fresh("group"), [topic], persist_ms=200) as member:
        push(rocket, broker, topic, ["a", "b"])
        member.await_texts(2, WITHIN_S)
        reset(broker, topic, member.group, 0)
        assert sorted(member.await_texts(4, 60)[2:]) == ["a", "b"]


# -- Request and reply


@pytest.mark.parametrize("callback", [False, True], ids=["waits", "callback"])
def test_request_gets_its_reply(broker: Broker, rocket: Agent, topic: str, callback: bool) -> None:
    with PushMember(rocket, broker.namesrv, fresh("group"), [topic], replies=True) as member:
        member.await_queues(2)
        ask = {"namesrv": broker.namesrv, "topic": topic, "callback": callback}
        answers = [rocket.call("request", text=f"what is {n}?", **ask) for n in range(3)]
    assert answers == [f"re: what is {n}?" for n in range(3)]


# -- Members that come and go


@pytest.mark.parametrize(
    ("version", "for_s"),
    [
        ("5.5", 20.0),
        pytest.param("4.9", 180.0, marks=pytest.mark.soak),
        pytest.param("5.5", 300.0, marks=pytest.mark.soak),
    ],
)
def test_nothing_is_lost_while_members_come_and_go(
    broker: Broker, agents: Agents, topic: str, version: str, for_s: float
) -> None:
    """Of two groups, one in order, one joins and one leaves every second, while messages are sent.

    Some come twice, as with Apache RocketMQ. None is missed, and in order none comes before an earlier one.
    """
    rocket, load = agents.rocketmq(version), fresh("load")
    groups = [fresh("group"), fresh("in-order")]
    members: dict[str, list[PushMember]] = {group: [] for group in groups}
    rocket.call("load_start", name=load, namesrv=broker.namesrv, topic=topic, threads=1, pause_ms=5)
    until = time.monotonic() + for_s
    with ThreadPoolExecutor(8) as threads:  # For it takes a client a while to come, and to go.
        while time.monotonic() < until:
            next_s = time.monotonic() + 1
            list(threads.map(partial(turn_over, rocket, broker, topic, members), groups))
            time.sleep(max(0.0, next_s - time.monotonic()))
        sent = {text for text, *_ in rocket.call("load_stop", name=load)["acknowledged"]}
        assert len(sent) > 20 * for_s
        list(threads.map(PushMember.close, [member for group in groups for member in members[group][:-1]]))
    for group in groups:
        seen = partial(seen_by, members[group])
        eventually("all messages", lambda seen=seen: sent - seen(), lambda missing: not missing, 60)
        eventually("nothing left", lambda group=group: described(broker, group)["lag"], (0).__eq__, WITHIN_S)
        members[group][-1].close()
    assert_in_order(members[groups[1]])


def turn_over(rocket: Agent, broker: Broker, topic: str, members: dict[str, list[PushMember]], group: str) -> None:
    """Have one member more, and of the four one less."""
    mine = members[group]
    mine.append(
        PushMember(rocket, broker.namesrv, group, [topic], persist_ms=500, orderly=group.startswith("in-order"))
    )
    if len(mine) > 3:
        mine[-4].close()


def assert_in_order(members: Sequence[PushMember]) -> None:
    """All live in one process, so by one clock."""
    arrivals = [each for member in members for each in member.arrivals]
    for queue in {each.seen.queue for each in arrivals}:
        end = 0
        for at_ms, offset in sorted((each.at_ms, each.seen.offset) for each in arrivals if each.seen.queue == queue):
            assert offset <= end, f"queue {queue}: offset {offset} came at {at_ms}, before offset {end}"
            end = max(end, offset + 1)


def seen_by(members: Sequence[PushMember]) -> set[str]:
    return {text for member in members for text in member.texts}


def test_a_changed_subscription_during_a_rolling_release_takes_part_and_is_warned_of(
    broker: Broker, rocket: Agent, topic: str
) -> None:
    """As with Apache's broker: members of the old and the new release share the queues while both are there."""
    group = fresh("group")
    with PushMember(rocket, broker.namesrv, group, [topic]) as first:
        first.await_queues(2)
        with PushMember(rocket, broker.namesrv, group, [topic], expression="a || b") as second:
            eventually("shared queues", lambda: (len(first.queues), len(second.queues)), (1, 1).__eq__, WITHIN_S)
            assert f"group={group}" in broker.log_tail()
            first.close()
            second.await_queues(2, WITHIN_S)


# -- Queues that the broker assigns, and popping


def assign(broker: Broker, topic: str, group: str, mode: str) -> None:
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0}
    reply = remoting.ask(broker.rocketmq, SET_REQUEST_MODE, body=json.dumps(body).encode())
    assert reply.code == 0, reply.remark


def test_members_take_the_queues_that_the_broker_assigns(broker: Broker, rocket55: Agent, topic: str) -> None:
    group = fresh("group")
    texts = [f"m{n}" for n in range(20)]
    with (
        PushMember(rocket55, broker.namesrv, group, [topic], assigned=True) as first,
        PushMember(rocket55, broker.namesrv, group, [topic], assigned=True) as second,
    ):
        owned = eventually(
            "queues", lambda: first.queues + second.queues, lambda all_owned: sorted(all_owned) == [0, 1], WITHIN_S
        )
        assert len(owned) == 2
        push(rocket55, broker, topic, texts)
        seen = eventually("messages", lambda: first.texts + second.texts, lambda all_of: len(all_of) >= 20, WITHIN_S)
        assert sorted(set(seen)) == sorted(texts)


def test_popped_message_that_is_not_acked_comes_back(broker: Broker, rocket55: Agent, topic: str) -> None:
    """A failed message is wanted again after ten seconds, the first step of the client's own ladder."""
    group = fresh("group")
    assign(broker, topic, group, "POP")
    with PushMember(rocket55, broker.namesrv, group, [topic], assigned=True, failures=1) as member:
        push(rocket55, broker, topic, ["a", "bad", "c", "d"])
        assert sorted(member.await_texts(5, 45)) == ["a", "bad", "bad", "c", "d"]
        assert [each.attempt for each in member.arrivals if each.text == "bad"] == [0, 1]
        assert {each.seen.topic for each in member.arrivals} == {topic}
        eventually("nothing left", lambda: described(broker, group)["lag"], lambda lag: lag == 0, WITHIN_S)


def test_members_pop_the_same_queues_and_each_message_once(broker: Broker, rocket55: Agent, topic: str) -> None:
    group = fresh("group")
    assign(broker, topic, group, "POP")
    texts = [f"m{n}" for n in range(200)]
    with (
        PushMember(rocket55, broker.namesrv, group, [topic], assigned=True) as first,
        PushMember(rocket55, broker.namesrv, group, [topic], assigned=True) as second,
    ):
        push(rocket55, broker, topic, texts)
        seen = eventually("messages", lambda: first.texts + second.texts, lambda all_of: len(all_of) >= 200, WITHIN_S)
        assert sorted(seen) == sorted(texts)
