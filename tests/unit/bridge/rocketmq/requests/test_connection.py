"""The connection and its table: each code is answered once, in the client's encoding, whatever the request has."""

import errno
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.bridge.rocketmq.request_table import TABLE
from duolog.protocol.rocketmq import headers, remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.request_headers import REQUESTS
from tests.kit.disk import FailingDisk
from tests.unit.bridge.rocketmq.broker import RocketMQBroker

# Features that are not there: a client that asks for them must hear so.
ABSENT = (
    RequestCode.POP_ROLLBACK, RequestCode.REGISTER_BROKER,
)  # fmt: skip


def test_rows_are_codes_with_handlers() -> None:
    assert TABLE.keys() <= set(RequestCode)
    assert all(
        callable(row.handler) and row.counter == ("rocketmq", RequestCode(code).name) for code, row in TABLE.items()
    )
    assert TABLE.keys().isdisjoint(ABSENT)


@pytest.mark.parametrize(
    ("code", "json"),
    [(code, json) for code in (*ABSENT, 0, -1, 31_999) for json in (True, False) if json or code < 1 << 15],
)
def test_what_is_not_there_is_said_to_be_not_supported(code: int, json: bool) -> None:
    answer = broker().connect().ask(code, json=json)
    assert answer is not None
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")
    assert answer.json is json
    assert 413 <= answer.version <= 479


@pytest.mark.parametrize("code", sorted(TABLE.keys() & REQUESTS.keys()))
def test_missing_field_is_named(code: int) -> None:
    answer = broker().connect().ask(code)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(answer.remark).startswith("the custom field <")


@cache
def broker() -> RocketMQBroker:
    """One for all that leaves nothing behind that another test would mind."""
    return RocketMQBroker()


VALUES = st.one_of(
    st.sampled_from(["", "orders", "TBW102", "%RETRY%g", "g", "a.b", "true", "LOWER", "UPPER", "||", "\x01\x02", "{}"]),
    st.integers(-(1 << 64), 1 << 64).map(str),
    st.text(max_size=300),
)
BODIES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"", b"null", b"{}", b"[]", b'{"clientID":"c"}', b'{"groupName":"g"}', b'{"groupName":""}']),
)


def names_of(code: int) -> list[str]:
    header = REQUESTS.get(RequestCode(code))
    if header is None:
        return ["producerGroup", "namespace", "key"]
    names = list(header.__struct_encode_fields__)
    if header is headers.SendRequest:
        names += "abcdefghijklm"
    return names


@given(st.data(), st.sampled_from(sorted(TABLE)), BODIES, st.booleans(), st.booleans())
def test_no_request_breaks_the_broker(data: st.DataObject, code: int, body: bytes, oneway: bool, json: bool) -> None:
    broker().topic()
    client = broker().connect()
    chosen = data.draw(st.dictionaries(st.sampled_from(names_of(code)), VALUES))
    json = json or code >= 1 << 15  # The binary header has two bytes for it.
    answer = client.ask(code, body, oneway=oneway, json=json, **chosen)
    broker().pass_ms(61_000)
    answer = answer or client.last_answer()
    assert (answer is None) is oneway
    assert not client.connection.closed
    assert client.connection.unanswered == 0


@given(st.binary(max_size=200))
def test_garbage_closes_the_connection_and_nothing_else(payload: bytes) -> None:
    client, other = broker().connect(), broker().connect()
    client.connection.data_received(len(payload).to_bytes(4, "big") + payload)
    broker().loop.turn()
    assert other.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0


def test_answers_of_the_client_are_passed_over() -> None:
    client = broker().connect()
    client.say(remoting.response(remoting.request(40, 1)))
    assert client.last_answer() is None
    assert not client.connection.closed


def test_answers_leave_when_their_own_promise_is_kept() -> None:
    mine = RocketMQBroker()
    mine.topic()
    client = mine.connect()
    mine.settle()
    mine.is_stalled = True
    assert client.send() is None
    assert client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0).ext == {"offset": "0"}
    mine.settle()
    assert client.answer_to(1).code == 0


def test_all_answers_of_one_fsync_leave_and_those_of_a_failed_one_never() -> None:
    disk = FailingDisk("sync", 1, errno.EIO, failures=0)
    mine = RocketMQBroker(disk)
    mine.topic()
    mine.settle()
    for fails in (False, True):
        client = mine.connect()
        mine.is_stalled = True
        for _ in range(3):
            assert client.send() is None
        assert client.connection.unanswered == 3
        if fails:
            disk._failures_left = None
        mine.settle()
        answers = [client.answer_to(opaque) for opaque in (1, 2, 3)]
        assert [answer is None for answer in answers] == [fails] * 3
        assert client.connection.closed is fails


def test_refused_body_is_logged_with_what_was_wrong(broker: RocketMQBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.connect().ask(RequestCode.HEART_BEAT, b'{"clientID":"c","consumerDataSet":[{"groupName":[]},7]}')
    (line,) = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert line.startswith("request body refused code=34 peer=192.0.2.1:40000 reason=")
    assert "no HeartbeatData: Expected `object`, got `int` - at `$.consumerDataSet[1]`" in line
