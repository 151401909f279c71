"""JSON bodies of the official Java implementation are read and written; bad ones raise ProtocolError only."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.errors import ProtocolError
from duolog.protocol.rocketmq import bodies
from duolog.protocol.rocketmq.json import fastjson
from duolog.protocol.rocketmq.json.fastjson import LENIENT_BYTES_MAX, MessageQueue, QueueTable

# What `RemotingSerializable.encode` of org.apache.rocketmq:rocketmq-remoting:5.5.0 (fastjson2) wrote.
OF_JAVA: list[tuple[type[bodies.Body], str]] = [
    (
        bodies.TopicRouteData,
        '{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"duolog","cluster":"DefaultCluster'
        '","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"duolog","perm":6,'
        '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        bodies.ClusterInfo,
        '{"brokerAddrTable":{"duolog":{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"duolog","cluster":"D'
        'efaultCluster","enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["duolog"]}}',
    ),
    (
        bodies.ResetOffsetBody,
        '{"offsetTable":{{"brokerName":"duolog","queueId":1,"topic":"T"}:5,{"brokerName":"duolog","queueId":0'
        ',"topic":"T"}:-1}}',
    ),
    (
        bodies.ConsumeStats,
        '{"consumeTps":1.5,"offsetTable":{{"brokerName":"duolog","queueId":1,"topic":"T"}:{"brokerOffset":10,'
        '"consumerOffset":5,"lastTimestamp":1700000000000,"pullOffset":0},{"brokerName":"duolog","queueId":0,'
        '"topic":"T"}:{"brokerOffset":10,"consumerOffset":5,"lastTimestamp":1700000000000,"pullOffset":0}}}',
    ),
    (
        bodies.TopicStatsTable,
        '{"offsetTable":{{"brokerName":"duolog","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":1700000000000'
        ',"maxOffset":9,"minOffset":1}},"topicPutTps":0.0}',
    ),
    (
        bodies.ConsumerStatus,
        '{"consumerTable":{},"messageQueueTable":{{"brokerName":"duolog","queueId":1,"topic":"T"}:7}}',
    ),
    (
        bodies.HeartbeatData,
        '{"clientID":"127.0.0.1@1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consum'
        'eType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING","subscriptionDataSet":[{"cla'
        'ssFilterMode":false,"codeSet":[97],"expressionType":"TAG","subString":"a||b","subVersion":1700000000'
        '000,"tagsSet":["a"],"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"g'
        'roupName":"pg"}],"withoutSub":false}',
    ),
    (
        bodies.LockRequest,
        '{"clientId":"c","consumerGroup":"cg","mqSet":[{"brokerName":"duolog","queueId":1,"topic":"T"}],"only'
        'ThisBroker":false}',
    ),
    (
        bodies.LockAnswer,
        '{"lockOKMQSet":[{"brokerName":"duolog","queueId":1,"topic":"T"}]}',
    ),
    (
        bodies.TopicConfig,
        '{"attributes":{},"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName'
        '":"T","topicSysFlag":0,"writeQueueNums":16}',
    ),
    (
        bodies.SubscriptionGroupConfig,
        '{"groupName":"g","attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"co'
        'nsumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupRetryPolicy":'
        '{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"ret'
        'ryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}',
    ),
    (
        bodies.TopicConfigTable,
        '{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795210489676},"topicConfigTable":{"T":{"at'
        'tributes":{},"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"T'
        '","topicSysFlag":0,"writeQueueNums":16}}}',
    ),
    (
        bodies.ConsumerConnection,
        '{"connectionSet":[{"clientAddr":"127.0.0.1:5","clientId":"c","language":"JAVA","version":479}],"cons'
        'umeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERI'
        'NG","subscriptionTable":{"T":{"classFilterMode":false,"codeSet":[97],"expressionType":"TAG","subStri'
        'ng":"a||b","subVersion":1700000000000,"tagsSet":["a"],"topic":"T"}}}',
    ),
    (
        bodies.ConsumerList,
        '{"consumerIdList":["c"]}',
    ),
    (
        bodies.TopicList,
        '{"topicList":["T"]}',
    ),
    (
        bodies.SubscriptionGroupTable,
        '{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795210489739},"forbiddenTable":{},"subscri'
        'ptionGroupTable":{}}',
    ),
    (
        bodies.KVTable,
        '{"table":{"a":"b"}}',
    ),
]


@pytest.mark.parametrize(("form", "text"), OF_JAVA)
def test_bodies_of_java_are_read(form: type[bodies.Body], text: str) -> None:
    body = fastjson.read(text.encode(), form)
    assert fastjson.read(fastjson.write(body), form) == body
    # Nothing of Java's text was lost on the way, and nothing was added but what is null or absent there.
    theirs, ours = plain(text), plain(fastjson.write(body).decode())
    assert ours.items() >= theirs.items()
    assert all(ours[name] is None for name in ours.keys() - theirs.keys())


def test_map_keyed_by_queues_is_written_as_java_reads_it() -> None:
    table = QueueTable({MessageQueue("t", "b", 0): 5, MessageQueue("t", "b", 1): -1})
    assert fastjson.write(bodies.ResetOffsetBody(offset_table=table)) == (
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:5,{"topic":"t","brokerName":"b","queueId":1}:-1}}'
    )
    assert fastjson.write(bodies.ResetOffsetBody(offset_table=QueueTable({}))) == b'{"offsetTable":{}}'


def test_addresses_are_written_as_go_reads_them() -> None:
    # The Go client takes the text of brokerAddrs apart at commas and colons, after removing quotes.
    data = bodies.BrokerData(cluster="c", broker_name="b", broker_addrs={0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"}' in fastjson.write(data)


def test_heartbeat_of_go_is_read() -> None:
    text = """{"clientID":"10.0.0.1@7","producerDataSet":null,"consumerDataSet":[{"groupName":"g",
        "consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","where":"CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet":[{"classFilterMode":false,"topic":"t","subString":"a","tagsSet":["a"],"codeSet":["97"],
        "subVersion":1,"expressionType":"TAG"},{"topic":"u","subString":"*","tagsSet":null,"codeSet":null}],
        "unitMode":false}]}"""
    data = fastjson.read(text.encode(), bodies.HeartbeatData)
    first, second = data.consumer_data_set[0].subscription_data_set
    assert (data.producer_data_set, first.code_set, second.tags_set, second.code_set) == ([], [97], [], [])


# The form of the heartbeat of librocketmq (PyPI rocketmq 0.4.4); tests/wire/test_cpp_client.py runs the client itself.
OF_CPP = (
    b'{"clientID":"10.0.0.1@7","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"g","messageModel":1,'
    b'"subscriptionDataSet":[{"subString":"*","subVersion":"1795354881516","topic":"t"}]}]}\n'
)


def test_heartbeat_of_cpp_is_read() -> None:
    (data,) = fastjson.read(OF_CPP, bodies.HeartbeatData).consumer_data_set
    assert (data.consume_type, data.message_model, data.consume_from_where, data.unit_mode) == (
        "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", False,
    )  # fmt: skip
    assert data.subscription_data_set == [bodies.SubscriptionData(topic="t", sub_version=1795354881516)]


# What fastjson2 2.0.59 makes of these texts, as members of a topic's config.
LIBERTIES: list[tuple[str, dict[str, Any]]] = [
    ('{"topicName":"t","order":"true","perm":"4"}', {"order": True, "perm": 4}),
    ('{"topicName":"t","order":1,"perm":4.0,"topicSysFlag":true}', {"order": True, "perm": 4, "topic_sys_flag": 1}),
    ('{"topicName":"t","perm":null,"readQueueNums":"","attributes":null}', {}),
    ('{"topicName":"t","topicFilterType":1}', {"topic_filter_type": "MULTI_TAG"}),
    ('{"topicName":"t","topicFilterType":"1"}', {"topic_filter_type": "MULTI_TAG"}),
    ('{"topicName":"t","topicFilterType":"OTHER"}', {"topic_filter_type": "OTHER"}),
    ('{"topicName":"t","attributes":{"a":1,"b":true,"c":null,"d":[1.5]}}',
     {"attributes": {"a": "1", "b": "true", "d": "[1.5]"}}),
    ("{topicName:'t',perm:4,}", {"perm": 4}),
    ("/* c */ {'topicName':\"t\" , // c\n perm : 4 ,, 'x':[1,{y:'\\''}]}", {"perm": 4}),
    ("{'topicName':'t','attributes':{'a\"\\'':'\\u00e9\\n'}}", {"attributes": {"a\"'": "é\n"}}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "fields"), LIBERTIES)
def test_liberties_of_fastjson_are_taken(text: str, fields: dict[str, Any]) -> None:
    assert fastjson.read(text.encode(), bodies.TopicConfig) == bodies.TopicConfig(topic_name="t", **fields)


def test_refusal_says_what_is_wrong_and_where() -> None:
    with pytest.raises(fastjson.IllegalJson, match=r"no TopicConfig: Expected `int`, got `array` - at `\$\.perm`"):
        fastjson.read(b'{"topicName":"t","perm":[]}', bodies.TopicConfig)
    with pytest.raises(fastjson.IllegalJson, match=r"character 14: .* a text without end"):
        fastjson.read(b'{"topicName":"t', bodies.TopicConfig)


@pytest.mark.parametrize("unit", ['\\"', "'", "[", "{", ":", "a,", "{},", "''", "1:1,", "/*", "//", "{{", "/**/", "\\"])
def test_time_to_refuse_grows_with_the_length_and_no_faster(unit: str) -> None:
    """Four times the bytes take four times as long; quadratic is sixteen. The best of three counts."""

    def seconds(size: int) -> float:
        body = f'{{"clientID":"{unit * (size // len(unit))}'.encode()
        takes = []
        for _ in range(3):
            begun = time.process_time()
            with pytest.raises(ProtocolError):
                fastjson.read(body, bodies.HeartbeatData)
            takes.append(time.process_time() - begun)
        return min(takes)

    assert seconds(LENIENT_BYTES_MAX - 64) < 8 * seconds(LENIENT_BYTES_MAX // 4) + 0.01


@pytest.mark.parametrize(
    ("what", "form", "text"),
    [
        ("nothing", bodies.KVTable, b""),
        ("no object", bodies.KVTable, b"[]"),
        ("no JSON", bodies.KVTable, b'{"table"'),
        ("text without end", bodies.KVTable, b'{"table":{"a":"b'),
        ("no UTF-8", bodies.KVTable, b'{"table":{"a":"\xff"}}'),
        ("another thing", bodies.KVTable, b'{"topicList":[]}'),
        ("member of another type", bodies.HeartbeatData, b'{"clientID":"c","consumerDataSet":[1]}'),
        ("key that is no queue", bodies.ResetOffsetBody, b'{"offsetTable":{{"queueId":0}:5}}'),
        ("key that is text", bodies.ResetOffsetBody, b'{"offsetTable":{"t":5}}'),
        (
            "row that is no offset",
            bodies.ResetOffsetBody,
            b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:{}}}',
        ),
        ("table that is a list", bodies.ResetOffsetBody, b'{"offsetTable":[]}'),
        ("keys within keys", bodies.KVTable, b"{" * 60 + b"1:1" + b"}:1" * 59 + b"}"),
        ("nested without end", bodies.KVTable, b'{"x":' + b"[" * 50_000),
        ("closed too often", bodies.KVTable, b"}}}}:1"),
        ("longer than allowed", bodies.KVTable, b'{"table":{}}' + b" " * fastjson.BYTES_MAX),
        ("longer than allowed, and not plain", bodies.KVTable, b"{'table':{}}" + b" " * LENIENT_BYTES_MAX),
    ],
)
def test_bodies_that_are_something_else_are_refused(what: str, form: type[Any], text: bytes) -> None:
    with pytest.raises(ProtocolError):
        fastjson.read(text, form)


@given(
    st.lists(
        st.sampled_from(
            ["{", "}", "[", "]", ",", ":", '"a"', "0", "null", " ", '"', "\\", "{{", "}:1", '"offsetTable":{']
        )
    ),
    st.binary(max_size=5),
)
def test_any_bytes_raise_nothing_else(tokens: list[str], garbage: bytes) -> None:
    for text in ("".join(tokens).encode(), b'{"offsetTable":{' + "".join(tokens).encode() + b"}}", garbage):
        for form in (bodies.ResetOffsetBody, bodies.ClusterInfo, bodies.HeartbeatData):
            try:
                fastjson.read(text, form)
            except ProtocolError:
                pass


names = st.text(max_size=8)


@given(
    st.dictionaries(st.builds(MessageQueue, names, names, st.integers(-1, 9)), st.integers(-(1 << 63), (1 << 63) - 1))
)
def test_queue_table_round_trip(rows: dict[MessageQueue, int]) -> None:
    body = bodies.ResetOffsetBody(offset_table=QueueTable(rows))
    assert fastjson.read(fastjson.write(body), bodies.ResetOffsetBody) == body


def plain(text: str) -> dict[str, Any]:
    """The members of a body, as far as plain JSON goes; keys that are queues in one spelling."""
    value = fastjson.read(b'{"value":' + text.encode() + b"}", dict[str, Any])["value"]
    return {name: spelled(member) for name, member in value.items()}


def spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(fastjson.read(key.encode(), MessageQueue)) if key.startswith("{") else key: spelled(member)
            for key, member in value.items()
            if member is not None
        }
    return [spelled(member) for member in value] if isinstance(value, list) else value
