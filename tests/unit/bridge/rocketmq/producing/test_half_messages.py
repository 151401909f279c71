"""Transactions of RocketMQ's producers: the stored frames, the answers, and which producers get check-backs.

The broker's producers heartbeat as members of the group `broker`.
"""

from typing import Any

import pytest

from duolog.bridge.config import Options, StoreSection, TxnOptions
from duolog.bridge.monitoring.metrics import CheckCounts
from duolog.bridge.rocketmq.producing.check_backs import READS_AT_ONCE
from duolog.bridge.transactions.half_message_log import GATHERED_BYTES_MAX, GATHERED_MAX
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.message import Message
from duolog.protocol.rocketmq.messages.message_id import parse_message_id
from duolog.store.errors import DiskFull
from duolog.store.log.format import UNIT_HEADER_SIZE
from duolog.store.options import StoreOptions
from tests.unit.bridge.batches import batch
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker

HALF, OP, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
IMMUNITY, INTERVAL, CHECK_MAX = 6_000, 30_000, 2


class CheckBackBroker(RocketMQBroker):
    def __init__(self, *arguments: Any, segment_bytes: int = 256 << 20, **txn: int) -> None:
        given = {"immunity_ms": IMMUNITY, "check_interval_ms": INTERVAL, "check_max": CHECK_MAX} | txn
        options = Options(txn=TxnOptions(**given), store=StoreSection(segment_bytes=segment_bytes))
        super().__init__(*arguments, options=options, store=StoreOptions(segment_bytes=segment_bytes))
        self.checks = self.duties.check_backs
        self.topic()

    def wait(self, ms: int) -> None:
        """Advance the clock, and run the check-backs that are due, in all their slices."""
        self.pass_ms(ms)
        now_ms = self.clock.now_ms()
        while (deadline_ms := self.checks.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            self.checks.run(now_ms, self.clock.mono_ms())
        self.settle()

    def messages(self, topic: str, queue_id: int = 0) -> list[Message]:
        found = self.topics.by_rocketmq_name(topic)
        queue = found.queues[queue_id]
        stored = self.store.reader.read(queue, queue.start_offset, max_bytes=1 << 24, until=queue.visible_end)
        return [message.decode(each.frame) for each in stored]

    def counts(self) -> tuple[int, ...]:
        """Messages in the half topic, the op topic, the real one, and among those that were given up."""
        return tuple(len(self.messages(topic)) for topic in (HALF, OP, "orders", GIVEN_UP))


def send_half(client: Client, body: bytes = b"body", queue_id: int = 0, **own: object) -> Any:
    fields = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "K1", "TAGS": "blue", **own}
    raw = "".join(f"{name}\x01{value}\x02" for name, value in fields.items() if value)
    answer = client.send(properties=raw, body=body, queueId=queue_id, sysFlag=4)
    assert answer.code == 0, answer.remark
    return answer


def end(client: Client, sent: Any, verdict: int, **fields: object) -> Any:
    return client.ask(RequestCode.END_TRANSACTION, **{**end_fields(sent, verdict), **fields})


def end_fields(sent: Any, verdict: int) -> dict[str, object]:
    return {
        "producerGroup": "shop",
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": parse_message_id(sent.ext["msgId"])[1],
        "commitOrRollback": verdict,
        "msgId": "K1",
    }


def checked(client: Client) -> list[Any]:
    client.answer_to(-1)
    found = [command for command in client.heard if command.code == RequestCode.CHECK_TRANSACTION_STATE]
    client.heard.clear()
    return found


@pytest.mark.parametrize(
    ("configs", "wait_ms", "offsets"),
    [({}, 50, 1), ({"message_expired": "drop"}, 49, 1), ({"message_expired": "drop"}, 50, 0)],
)
def test_expiry_counts_from_the_half_message(configs: dict[str, str], wait_ms: int, offsets: int) -> None:
    broker = CheckBackBroker()
    broker.topic("codes", **configs)
    client = broker.connect()
    raw = "TRAN_MSG\x01true\x02PGROUP\x01shop\x02EXPIRE_AFTER_MS\x0150\x02"
    sent = client.send("codes", properties=raw, sysFlag=4)
    expires_ms = broker.clock.now_ms() + 50
    broker.pass_ms(wait_ms)
    assert end(client, sent, COMMIT).code == 0
    found = broker.messages("codes")
    assert [properties.get(each.properties, "EXPIRE_AT_MS") for each in found] == [str(expires_ms)] * offsets


# -- Sending and deciding


def test_half_message_waits_in_the_half_topic() -> None:
    broker = CheckBackBroker()
    sent = send_half(broker.connect(), b"one", queue_id=1)
    assert sent.ext["transactionId"] == "K1"
    assert broker.counts() == (1, 0, 0, 0)
    (half,) = broker.messages(HALF)
    found = properties.parse(half.properties)
    assert (half.body, half.sys_flag, half.queue_id, half.queue_offset) == (b"one", 0, 0, int(sent.ext["queueOffset"]))
    assert half.physical_offset == parse_message_id(sent.ext["msgId"])[1]
    assert (found["REAL_TOPIC"], found["REAL_QID"], found["PGROUP"]) == ("orders", "1", "shop")
    assert found["__transactionId__"] == "K1"


def test_commit_moves_it_to_its_queue_in_one_unit() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client, b"one", queue_id=1)
    half = broker.messages(HALF)[0]
    before = broker.store.next_position
    assert end(client, sent, COMMIT).code == 0
    assert [each.body for each in broker.messages("orders", 1)] == [b"one"]
    final, op = broker.messages("orders", 1)[0], broker.messages(OP)[0]
    assert before < final.physical_offset < op.physical_offset < broker.store.next_position
    assert final.sys_flag == 8
    assert final.prepared_transaction_offset == half.physical_offset
    assert not {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"} & properties.parse(final.properties).keys()
    assert properties.parse(final.properties)["TAGS"] == "blue"
    assert (op.body, properties.parse(op.properties)["TAGS"]) == (b"0,", "d")
    pulled = client.pull(0, queueId=1, subscription="blue", subVersion=1)
    assert pulled.code == 0
    assert broker.counts()[:2] == (1, 1)


def test_roll_back_leaves_an_op_message_only() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    assert end(client, send_half(client), ROLL_BACK).code == 0
    assert broker.counts() == (1, 1, 0, 0)


@pytest.mark.parametrize("verdict", [UNKNOWN, 4, 99])
def test_no_verdict_is_not_even_answered(verdict: int) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    assert end(client, send_half(client), verdict) is None
    assert broker.counts() == (1, 0, 0, 0)


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"producerGroup": "other"}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
        ({"producerGroup": ""}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
        ({"tranStateTableOffset": 1}, ResponseCode.SYSTEM_ERROR, "no half message 1"),
        ({"tranStateTableOffset": -1}, ResponseCode.SYSTEM_ERROR, "no half message -1"),
        ({"commitLogOffset": 0}, ResponseCode.SYSTEM_ERROR, "The commit log offset wrong"),
        ({"tranStateTableOffset": None}, ResponseCode.SYSTEM_ERROR, "<tranStateTableOffset> is null"),
        ({"tranStateTableOffset": 1 << 62}, ResponseCode.SYSTEM_ERROR, "no half message"),
        ({"tranStateTableOffset": 1 << 64}, ResponseCode.SYSTEM_ERROR, "<tranStateTableOffset> is illegal"),
        ({"tranStateTableOffset": "first"}, ResponseCode.SYSTEM_ERROR, "<tranStateTableOffset> is illegal"),
        ({"commitLogOffset": -1}, ResponseCode.SYSTEM_ERROR, "The commit log offset wrong"),
        ({"commitLogOffset": None}, ResponseCode.SYSTEM_ERROR, "<commitLogOffset> is null"),
        ({"producerGroup": None}, ResponseCode.SYSTEM_ERROR, "<producerGroup> is null"),
        ({"commitOrRollback": None}, ResponseCode.SYSTEM_ERROR, "<commitOrRollback> is null"),
        ({"commitOrRollback": "8 "}, ResponseCode.SYSTEM_ERROR, "<commitOrRollback> is illegal"),
        ({"msgId": None}, ResponseCode.SYSTEM_ERROR, "<msgId> is null"),
    ],
)
@pytest.mark.parametrize("verdict", [COMMIT, ROLL_BACK])
def test_what_does_not_fit_changes_nothing(verdict: int, fields: dict, code: ResponseCode, remark: str) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent, end_position = send_half(client), broker.store.next_position
    answer = end(client, sent, verdict, **fields)
    assert (answer.code, remark in answer.remark) == (code, True), answer.remark
    assert client.ask(RequestCode.END_TRANSACTION, oneway=True, **{**end_fields(sent, verdict), **fields}) is None
    assert (broker.counts(), len(broker.halves.state)) == ((1, 0, 0, 0), 1)
    assert broker.store.next_position == end_position
    assert end(client, sent, verdict).code == 0


@pytest.mark.parametrize("verdict", [COMMIT, ROLL_BACK])
@pytest.mark.parametrize("is_open", [True, False])
def test_verdict_after_the_limit_changes_nothing(verdict: int, is_open: bool) -> None:
    """After the last check-back, or when the half message is too old for check-backs."""
    broker = CheckBackBroker(half_ms=1_000) if is_open else CheckBackBroker(check_max=1)
    client = broker.connect()
    sent = send_half(client)
    for _ in range(3):
        broker.wait(INTERVAL)
    assert broker.counts() == (1, 1, 0, 1)
    assert end(client, sent, verdict).code == ResponseCode.TRANSACTION_FAILED
    assert broker.counts() == (1, 1, 0, 1)


@pytest.mark.parametrize("verdict", [COMMIT, ROLL_BACK])
def test_verdict_on_one_of_long_ago_that_retention_took_changes_nothing(verdict: int) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client)
    end(client, sent, COMMIT)
    broker.store.retention.trim(broker.halves.half_queue, 1, broker.clock.now_ms())
    assert end(client, sent, verdict).code == ResponseCode.SYSTEM_ERROR
    assert broker.counts() == (0, 1, 1, 0)


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (COMMIT, COMMIT, ResponseCode.SUCCESS),
        (ROLL_BACK, ROLL_BACK, ResponseCode.SUCCESS),
        (COMMIT, ROLL_BACK, ResponseCode.TRANSACTION_FAILED),
        (ROLL_BACK, COMMIT, ResponseCode.TRANSACTION_FAILED),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_second_verdict_changes_nothing(first: int, second: int, code: ResponseCode, restarted: bool) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client)
    assert end(client, sent, first).code == 0
    if restarted:
        broker = CheckBackBroker(broker.disk.after_kill())
        client = broker.connect()
    before = broker.counts()
    assert end(client, sent, second).code == code
    assert broker.counts() == before


def test_verdict_after_its_own_immunity_comes_too_late_unless_it_was_asked_for() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS=2)
    broker.pass_ms(2_001)
    assert end(client, sent, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
    assert broker.counts() == (1, 0, 0, 0)
    assert end(client, sent, COMMIT, fromTransactionCheck=True).code == 0
    assert broker.counts() == (1, 1, 1, 0)


def test_half_message_of_a_deleted_topic_stays_open() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client)
    broker.topics.delete(broker.topic(), broker.clock.now_ms())
    assert end(client, sent, COMMIT).code == ResponseCode.TOPIC_NOT_EXIST
    assert len(broker.halves.state) == 1
    broker.topic(queues=1)
    assert end(client, sent, COMMIT).code == 0


def test_group_of_the_request_counts_where_the_message_names_none() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client, PGROUP="")
    assert properties.parse(broker.messages(HALF)[0].properties)["PGROUP"] == "shop", "the request names it"
    assert end(client, sent, COMMIT).code == 0


@pytest.mark.parametrize("verdict", [COMMIT, ROLL_BACK])
def test_half_message_of_a_kafka_producer_is_none_here(verdict: int) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client)
    own = batch([b"one"], headers=[("TRAN_MSG_ID", b"a")])
    broker.publisher.publish_batch(broker.topic(), 0, own, broker.clock.now_ms())
    broker.settle()
    answer = end(client, sent, verdict, tranStateTableOffset=1)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    assert len(broker.halves.state) == 2


def test_as_many_as_are_allowed_are_open() -> None:
    broker = CheckBackBroker(half_max=2)
    client = broker.connect()
    first = send_half(client)
    send_half(client)
    refused = client.send(properties="TRAN_MSG\x01true\x02")
    assert (refused.code, "txn.half_max=2" in refused.remark) == (ResponseCode.SYSTEM_BUSY, True)
    end(client, first, COMMIT)
    send_half(client)


def test_name_of_a_producer_group_has_a_bound() -> None:
    refused = CheckBackBroker().connect().send(properties=f"TRAN_MSG\x01true\x02PGROUP\x01{'x' * 1000}\x02")
    assert (refused.code, "producer group of 1000" in refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


def test_retry_that_still_carries_the_mark_is_no_half_message() -> None:
    broker = CheckBackBroker()
    answer = broker.connect().send(properties="TRAN_MSG\x01true\x02DELAY\x011\x02", reconsumeTimes=1)
    assert broker.counts()[0] == 0
    assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SUCCESS)


# -- Verdicts that come together


def ended(sent: Any, verdict: int, **fields: object) -> bytes:
    """The frame of a verdict whose sender does not listen, as clients send them."""
    asked = end_fields(sent, verdict) | fields
    command = remoting.request(
        RequestCode.END_TRANSACTION, 1, {name: str(value) for name, value in asked.items()}, oneway=True
    )
    return b"".join(remoting.encode(command))


def sent_frame(body: bytes, raw: str = "") -> bytes:
    fields = {
        "producerGroup": "shop", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "properties": raw,
    }  # fmt: skip
    return b"".join(remoting.encode(remoting.request(RequestCode.SEND_MESSAGE, 1, fields, body)))


def say(broker: CheckBackBroker, client: Client, *frames: bytes) -> None:
    client.connection.data_received(b"".join(frames))
    broker.loop.turn()


@pytest.mark.parametrize("restarted", [False, True])
def test_verdicts_of_one_read_are_one_unit_with_one_op_message(restarted: bool) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = [send_half(client, b"%d" % number) for number in range(4)]
    before = broker.store.next_position
    say(
        broker,
        client,
        ended(sent[2], COMMIT),
        ended(sent[0], ROLL_BACK),
        ended(sent[3], UNKNOWN),
        ended(sent[1], COMMIT),
    )
    assert [each.body for each in broker.messages("orders")] == [b"2", b"1"]
    (op,) = broker.messages(OP)
    assert (op.body, properties.parse(op.properties)["TAGS"]) == (b"2,0,1,", "d")
    assert broker.messages("orders")[0].physical_offset == before + UNIT_HEADER_SIZE, "nothing is between"
    if restarted:
        broker = CheckBackBroker(broker.disk.after_kill())
        client = broker.connect()
    assert [half.offset for half in broker.halves.state.open()] == [3]
    assert [end(client, each, COMMIT).code for each in sent[:3]] == [
        ResponseCode.TRANSACTION_FAILED, ResponseCode.SUCCESS, ResponseCode.SUCCESS
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "seen"), [(COMMIT, ROLL_BACK, 1), (ROLL_BACK, COMMIT, 0), (COMMIT, COMMIT, 1)]
)
def test_first_verdict_counts_if_two_come_together(first: int, second: int, seen: int) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client)
    say(broker, client, ended(sent, first), ended(sent, second))
    assert broker.counts() == (1, 1, seen, 0)


def test_what_is_asked_behind_a_verdict_finds_it_done() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = [send_half(client, b"%d" % number) for number in range(4)]
    say(
        broker,
        client,
        ended(sent[0], COMMIT),
        sent_frame(b"plain"),
        ended(sent[1], COMMIT),
        sent_frame(b"half", "TRAN_MSG\x01true\x02"),
    )
    assert [each.body for each in broker.messages("orders")] == [b"0", b"plain", b"1"]
    assert len(broker.messages(HALF)) == 5
    delete = remoting.request(RequestCode.DELETE_TOPIC_IN_BROKER, 78, {"topic": "orders"})
    last = send_half(client, b"last")
    say(broker, client, ended(last, COMMIT), b"".join(remoting.encode(delete)))
    assert client.answer_to(78).code == 0
    assert broker.messages(OP)[-1].body == b"5,"


def test_verdicts_that_the_disk_has_no_room_for_are_as_if_nobody_had_given_them() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = [send_half(client) for _ in range(3)]
    broker.store.write_state.refusal = DiskFull("no room")
    say(broker, client, *(ended(each, COMMIT) for each in sent))
    assert (len(broker.halves.state), broker.counts()) == (3, (3, 0, 0, 0))
    assert broker.metrics.errors["rocketmq", "SERVICE_NOT_AVAILABLE"] == 1
    broker.store.write_state.refusal = None
    say(broker, client, *(ended(each, COMMIT) for each in sent))
    assert (len(broker.halves.state), broker.counts()) == (0, (3, 1, 3, 0))


@pytest.mark.parametrize(
    ("body_bytes", "count", "units"),
    [(10, GATHERED_MAX, 1), (10, GATHERED_MAX + 1, 2), (GATHERED_BYTES_MAX // 4, 8, 2)],
)
def test_unit_of_verdicts_has_a_bound(body_bytes: int, count: int, units: int) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = [send_half(client, bytes(body_bytes)) for _ in range(count)]
    say(broker, client, *(ended(each, COMMIT) for each in sent))
    while client.connection.is_holding:
        broker.loop.turn()
    assert len(broker.halves.state) == 0
    assert len(broker.messages(OP)) == units


def test_unit_of_verdicts_fits_into_a_small_segment() -> None:
    segment_bytes = 64 << 10
    broker = CheckBackBroker(segment_bytes=segment_bytes)
    client = broker.connect()
    sizes = (20_000, 10, 20_000, 60_000, 100, 40_000, *[10] * 100, 60_000)
    sent = [send_half(client, bytes(size)) for size in sizes]
    say(broker, client, *(ended(each, COMMIT) for each in sent))
    while client.connection.is_holding:
        broker.loop.turn()
    assert (len(broker.halves.state), len(broker.messages("orders"))) == (0, len(sizes))
    assert not broker.metrics.errors


# -- With a delay


@pytest.mark.parametrize(
    ("committed_ms", "visible_ms"),
    [(1_000, 5_000), (5_000, 5_000), (5_001, 5_001), (9_000, 9_000)],
)
@pytest.mark.parametrize("header", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_delayed_it_is_seen_at_the_later_of_commit_and_due_time(
    header: str, committed_ms: int, visible_ms: int
) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    start_ms = broker.clock.now_ms()
    value = {"TIMER_DELIVER_MS": start_ms + 5_000, "TIMER_DELAY_MS": 5_000, "TIMER_DELAY_SEC": 5}[header]
    sent = send_half(client, b"one", **{header: value})
    broker.wait(committed_ms)
    checked(client)
    assert broker.counts()[:3] == (1, 0, 0), "not seen while it is open"
    assert end(client, sent, COMMIT).code == 0
    broker.wait(max(0, visible_ms - committed_ms - 1))
    assert broker.counts()[2] == (committed_ms >= visible_ms)
    broker.wait(1)
    (seen,) = broker.messages("orders")
    assert seen.body == b"one"
    assert "TRAN_MSG" not in properties.parse(seen.properties)
    assert broker.counts() == (1, 1, 1, 0)


def test_delayed_by_a_level_it_waits_in_the_schedule_topic_from_its_commit_on() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client, b"one", queue_id=1, DELAY=3)
    assert broker.messages("SCHEDULE_TOPIC_XXXX", 2) == []
    end(client, sent, COMMIT)
    assert [each.body for each in broker.messages("SCHEDULE_TOPIC_XXXX", 2)] == [b"one"]
    broker.wait(10_000)
    assert [each.body for each in broker.messages("orders", 1)] == [b"one"]
    assert (broker.metrics.timers["accepted"], broker.metrics.timers["delivered"]) == (1, 1)


def test_rolled_back_it_is_never_seen_whatever_its_delay() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    end(client, send_half(client, TIMER_DELAY_MS=5_000), ROLL_BACK)
    broker.wait(100_000)
    assert broker.counts() == (1, 1, 0, 0)
    assert len(broker.delays.timers) == 0


def test_delay_that_nobody_may_have_is_refused_with_the_half_message() -> None:
    broker = CheckBackBroker()
    refused = broker.connect().send(
        properties="TRAN_MSG\x01true\x02PGROUP\x01shop\x02TIMER_DELAY_SEC\x019999999999\x02"
    )
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.counts()[0] == 0


# -- Checking


def test_producer_is_asked_with_the_message_as_it_was_sent() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client, b"one", queue_id=1)
    broker.wait(IMMUNITY - 1)
    assert checked(client) == []
    broker.wait(1)
    (check,) = checked(client)
    asked = message.decode(check.body)
    assert check.is_oneway
    assert check.ext == {
        "topic": "orders", "tranStateTableOffset": sent.ext["queueOffset"], "msgId": "K1", "transactionId": "K1",
        "commitLogOffset": str(parse_message_id(sent.ext["msgId"])[1]), "offsetMsgId": sent.ext["msgId"],
        "bname": broker.options.rocketmq.broker,
    }  # fmt: skip
    assert (asked.topic, asked.queue_id, asked.body, asked.size) == ("orders", 1, b"one", len(check.body))
    assert properties.parse(asked.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    assert end(client, sent, COMMIT, fromTransactionCheck=True).code == 0
    broker.wait(10 * INTERVAL)
    assert checked(client) == []
    assert broker.counts() == (1, 1, 0, 0)


def test_producers_of_the_group_are_asked_in_turn_and_those_that_left_are_not() -> None:
    broker = CheckBackBroker(check_max=20)
    first, second, third = (broker.connect() for _ in range(3))
    for number, client in enumerate((first, second, third)):
        client.beat(client_id=f"client-{number}")
    send_half(first)
    first.close()
    broker.wait(IMMUNITY)
    for _ in range(3):
        broker.wait(INTERVAL)
    assert (len(checked(second)), len(checked(third))) == (2, 2)


def test_who_does_not_take_what_it_is_sent_is_not_asked() -> None:
    broker = CheckBackBroker(check_max=20)
    slow, other = broker.connect(), broker.connect()
    slow.beat()
    other.beat(client_id="other")
    send_half(slow)
    slow.connection.answers._unsent_bytes = broker.options.limits.unsent_bytes_max + 1
    broker.wait(IMMUNITY)
    for _ in range(3):
        broker.wait(INTERVAL)
    slow.connection.answers._unsent_bytes = 0
    assert (len(checked(slow)), len(checked(other))) == (0, 4)


@pytest.mark.parametrize("is_there", [True, False])
def test_asked_in_vain_it_is_put_aside(is_there: bool) -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = send_half(client, b"lost")
    if not is_there:
        client.close()
    broker.wait(IMMUNITY)
    for _ in range(CHECK_MAX):
        assert broker.counts() == (1, 0, 0, 0)
        broker.wait(INTERVAL)
    assert broker.counts() == (1, 1, 0, 1)
    (given_up,) = broker.messages(GIVEN_UP)
    found = properties.parse(given_up.properties)
    assert given_up.body == b"lost"
    assert (found["REAL_TOPIC"], found["TRANSACTION_CHECK_TIMES"], found["UNIQ_KEY"]) == ("orders", "2", "K1")
    assert len(checked(client)) == (CHECK_MAX if is_there else 0)
    expected = CheckCounts(CHECK_MAX, 0, 1) if is_there else CheckCounts(0, CHECK_MAX, 1)
    assert broker.metrics.check_backs == expected
    if is_there:
        assert end(client, sent, COMMIT).code == ResponseCode.TRANSACTION_FAILED
        assert broker.counts() == (1, 1, 0, 1)


def test_many_are_checked_in_slices() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    for _ in range(READS_AT_ONCE + 5):
        send_half(client)
    broker.pass_ms(IMMUNITY)
    now_ms = broker.clock.now_ms()
    assert len(checked(client)) == READS_AT_ONCE
    assert now_ms < broker.checks.next_deadline_ms() <= now_ms + 100
    broker.wait(100)
    assert len(checked(client)) == 5


def test_checks_and_open_messages_are_what_they_were_after_a_restart() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    first, second = send_half(client, b"one"), send_half(client, b"two")
    broker.wait(IMMUNITY)
    end(client, first, ROLL_BACK)
    before = list(broker.halves.state.open())
    again = CheckBackBroker(broker.disk.after_kill())
    assert list(again.halves.state.open()) == before
    assert [half.checks for half in before] == [1]
    again.clock.pass_ms(broker.clock.now_ms() - again.clock.now_ms())
    client = again.connect()
    client.beat()
    again.wait(INTERVAL)
    (check,) = checked(client)
    assert properties.parse(message.decode(check.body).properties)["TRANSACTION_CHECK_TIMES"] == "2"
    assert end(client, second, COMMIT).code == 0


def test_retention_leaves_what_is_open() -> None:
    broker = CheckBackBroker()
    client = broker.connect()
    sent = [send_half(client) for _ in range(5)]
    queue = broker.halves.half_queue
    assert broker.halves.first_kept(queue) == 0
    for each in sent[:3]:
        end(client, each, COMMIT)
    assert broker.halves.first_kept(queue) == 3
    assert broker.halves.first_kept(broker.topic().queues[0]) is None
    for each in sent[3:]:
        end(client, each, COMMIT)
    assert broker.halves.first_kept(queue) is None
