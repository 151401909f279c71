"""Any request with any fields is answered, held, or refused with a code; its state records can be replayed."""

from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog.bridge.rocketmq.request_table import TABLE
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker

# Fields with which every request does something.
SOUND: Final = {
    "topic": "orders", "consumerGroup": "billing", "group": "billing", "groupName": "billing", "producerGroup": "shop",
    "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "offset": "0",
    "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4", "bornTimestamp": "1", "flag": "0", "invisibleTime": "1000", "pollTime": "0",
    "bornTime": "0", "initMode": "0", "extraInfo": "0 1 1000 0 0 duolog 0 0", "timestamp": "0", "isForce": "true",
    "key": "k", "value": "v", "namespace": "n", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": "99999999999",
    "delayLevel": "0", "clientId": "client", "clientID": "client", "index": "0", "count": "1", "order": "false",
    "statsName": "TOPIC_PUT_NUMS", "statsKey": "orders", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "cleanOffset": "false", "tranStateTableOffset": "0",
    "commitLogOffset": "0", "commitOrRollback": "8", "msgId": "7F00000100002A9F0000000000000000",
    "recallHandle": "x", "brokerName": "duolog",
}  # fmt: skip
OTHERS: Final = (
    "properties", "reconsumeTimes", "maxReconsumeTimes", "batch", "expressionType", "expType", "exp", "attemptId",
    "boundaryType", "clientAddr", "maxMsgBytes", "setZeroIfNotFound",
)  # fmt: skip
NUMBERS: Final = (
    "0", "1", "-1", "2", "33", "65536", "2147483647", "-2147483648", "4294967296", "9223372036854775807",
    "-9223372036854775808", "9" * 5000, "1e5", "1.5", " 1", "0x1", "١", "", "abc",
)  # fmt: skip
TEXTS: Final = (
    "", "a", "orders", "none", "a b", "*", "||", "a = ", "..", "\x00", "\x01\x02", "é€", "x" * 300, "x" * 40_000,
    "%RETRY%", "%RETRY%billing", "%DLQ%billing", "%RETRY%billing_orders", "SCHEDULE_TOPIC_XXXX", "TBW102",
    "RMQ_SYS_TRANS_HALF_TOPIC", "DELAY\x013\x02", "TIMER_DELAY_MS\x015\x02", "TRAN_MSG\x01true\x02", "KEYS\x01k\x02",
    f"DELAY\x01{'9' * 5000}\x02", "AMQ_SCHEDULED_CRON\x01* * * * *\x02", "REPLY_TO_CLIENT\x01client\x02", "POP",
    "SQL92",
)  # fmt: skip
BODIES: Final = (
    b"", b"{}", b"[]", b"null", b"\xff", b"{", b"x" * 100, b'{"clientID":"client","consumerDataSet":[null]}',
    b'{"groupName":"billing","retryMaxTimes":-1,"retryQueueNums":9223372036854775807}',
    b'{"groupName":"billing","groupRetryPolicy":{"type":"EXPONENTIAL","exponentialRetryPolicy":{"max":-1}}}',
    b'{"topic":"orders","consumerGroup":"billing","clientId":"client","mode":"POP","popShareQueueNum":-9}',
    b'{"acks":[{"c":"billing","t":"orders","r":"0","so":-1,"q":0,"rq":0,"pt":-1,"it":0,"b":"/////w=="}]}',
    b'{"consumerGroup":"billing","clientId":"client","mqSet":[{"topic":"orders","brokerName":"x","queueId":-1}]}',
    b"maxMessageSize=" + b"9" * 5000, b"autoCreateTopicEnable=true\nx",
)  # fmt: skip

Asked = tuple[int, Mapping[str, str | None], bytes]
CHANGES: Final = st.dictionaries(
    st.sampled_from([*SOUND, *OTHERS]), st.none() | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS), max_size=4
)
REQUESTS: Final = st.tuples(st.sampled_from([*TABLE]), CHANGES, st.sampled_from(BODIES))


def say(client: Client, number: int, asked: Asked) -> None:
    code, changes, body = asked
    fields = {name: text for name, text in {**SOUND, **changes}.items() if text is not None}
    client.say(remoting.request(code, number, fields, body))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.lists(REQUESTS, min_size=20, max_size=60))
def test_nothing_that_is_asked_ends_the_broker(requests: list[Asked]) -> None:
    broker = RocketMQBroker()
    broker.publish(broker.topic(), b"a", b"b", tag="t")
    client = broker.connect()
    client.beat("billing")
    for number, asked in enumerate(requests):
        say(client, number + 1000, asked)
        assert not client.connection.closed, asked
        client.connection.unanswered = 0  # Held ones are as many as there may be, soon.
        if number % 10 == 9:
            broker.pass_ms(1500)
    client.close()
    broker.settle()
    assert (
        sum(broker.rocketmq_context.requests.admission.in_work)
        == broker.rocketmq_context.requests.admission.waiting
        == 0
    )
    again = RocketMQBroker(broker.disk.after_power_cut(1))
    assert [topic.name for topic in again.topics.all()] == [topic.name for topic in broker.topics.all()]
    assert again.connect().ask(RequestCode.GET_BROKER_RUNTIME_INFO) is not None
