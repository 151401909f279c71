"""Replies find the requester by its client id, whichever of its producers asked."""

from typing import Any

import pytest

from duolog.bridge.rocketmq.requests.client_calls import CALL_MS, CALLS_MAX
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.remoting import RemotingCommand
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker

TOPIC = "DefaultCluster_REPLY_TOPIC"
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def reply(client: Client, to: str, body: bytes = b"an answer", code: int = RequestCode.SEND_REPLY_MESSAGE) -> Any:
    raw = f"MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01{to}\x02CORRELATION_ID\x01c1\x02UNIQ_KEY\x01U1\x02"
    values = ("shop", TOPIC, "TBW102", 4, 0, 1, 17, 3, raw, 0)
    names = (
        "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
        "flag", "properties", "reconsumeTimes",
    )  # fmt: skip
    keys = names if code == RequestCode.SEND_REPLY_MESSAGE else "abcdefghij"
    return client.ask(code, body, **dict(zip(keys, values, strict=True)))


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
@pytest.mark.parametrize("body", [b"an answer", b""])
def test_reply_is_pushed_to_the_requester_and_kept(broker: RocketMQBroker, code: int, body: bytes) -> None:
    requester, other, replier = broker.connect(), broker.connect(), broker.connect()
    requester.beat(client_id="asker")
    other.beat(client_id="other")
    assert reply(replier, "asker", body, code).code == 0
    (pushed,) = requester.asked(PUSH)
    assert (bytes(pushed.body), pushed.is_oneway) == (body, True)
    pushed_properties = properties.parse(pushed.ext.pop("properties"))
    assert (pushed_properties["CORRELATION_ID"], pushed_properties["PUSH_REPLY_TIME"]) == (
        "c1",
        str(broker.clock.now_ms()),
    )
    assert pushed.ext == {
        "producerGroup": "shop", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "1", "bornTimestamp": "17", "flag": "3", "reconsumeTimes": "0", "unitMode": "false",
        "bornHost": "192.0.2.1:40000", "storeHost": "127.0.0.1:10911", "storeTimestamp": str(broker.clock.now_ms()),
    }  # fmt: skip
    assert other.asked(PUSH) == []
    topic = broker.topics.by_rocketmq_name(TOPIC)
    assert topic is not None
    (kept,) = broker.store.reader.read(topic.queues[0], 0, max_bytes=1 << 20, until=topic.queues[0].visible_end)
    assert bytes(message.decode(kept.frame).body) == body


def test_request_is_kept_with_the_cluster_that_its_replier_needs(broker: RocketMQBroker) -> None:
    topic = broker.topic()
    broker.connect().send(properties="REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c1\x02")
    (kept,) = broker.store.reader.read(topic.queues[0], 0, max_bytes=1 << 20, until=topic.queues[0].visible_end)
    assert properties.parse(message.decode(kept.frame).properties)["CLUSTER"] == "DefaultCluster"


def test_reply_to_nobody_is_refused_and_not_kept(broker: RocketMQBroker) -> None:
    requester, replier = broker.connect(), broker.connect()
    requester.beat(client_id="asker")
    requester.close()
    for to in ("asker", "", "never there"):
        answer = reply(replier, to)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{to}> not found."
        )  # fmt: skip
    topic = broker.topics.by_rocketmq_name(TOPIC)
    assert topic is not None
    assert topic.queues[0].end_offset == 0


def test_requester_that_came_back_is_found_over_its_new_connection(broker: RocketMQBroker) -> None:
    old, new, replier = broker.connect(), broker.connect(), broker.connect()
    old.beat(client_id="asker")
    new.beat(client_id="asker")
    old.close()
    assert reply(replier, "asker").code == 0
    assert len(new.asked(PUSH)) == 1


# -- Our own requests


def test_only_so_many_of_our_requests_wait_for_one_client(broker: RocketMQBroker) -> None:
    client = broker.connect()
    given: list[RemotingCommand | None] = []
    for _ in range(CALLS_MAX + 1):
        client.connection.calls.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {}, b"", given.append)
    assert given == [None]
    broker.server.flush()
    broker.loop.turn()
    asked = client.asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert len(asked) == CALLS_MAX
    client.say(remoting.response(asked[3]))
    client.say(remoting.response(asked[3]))  # The second answer has no waiting request.
    assert [each and each.opaque for each in given] == [None, asked[3].opaque]
    broker.pass_ms(CALL_MS)
    assert given[2:] == [None] * (CALLS_MAX - 1)
    assert len(broker.purgatory) == 0
