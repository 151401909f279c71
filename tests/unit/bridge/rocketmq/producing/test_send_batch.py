"""A large SEND_BATCH_MESSAGE is read in slices and stored at once: turns and work are counted, not timed."""

import pytest

from duolog.bridge.data.delayed.delay_headers import REPLACING_MAX
from duolog.bridge.rocketmq.producing.batches_in_progress import STEPS_MAX
from duolog.bridge.rocketmq.producing.send_batch import BATCH_MESSAGES_MAX, MESSAGES_AT_ONCE, MIXED_MESSAGES_MAX
from duolog.protocol.rocketmq import remoting
from duolog.protocol.rocketmq.codes import RequestCode, ResponseCode
from duolog.protocol.rocketmq.messages import batch
from duolog.protocol.rocketmq.messages.message import Message
from tests.unit.adversary import budget
from tests.unit.bridge.rocketmq.broker import Client, RocketMQBroker, bodies

COUNT = 3 * MESSAGES_AT_ONCE * STEPS_MAX


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker()
    broker.topic("orders")
    return broker


def part(number: int, properties: str = "") -> batch.Part:
    return batch.Part(0, b"%d" % number, f"UNIQ_KEY\x01{number}\x02{properties}".encode())


def begin(client: Client, parts: list[batch.Part], *others: bytes) -> None:
    """Send a batch and other messages in one piece, and run no turn of the loop."""
    said: list[bytes] = []
    client.say = lambda command: said.append(b"".join(remoting.encode(command)))  # type: ignore[method-assign]
    for body in others:
        client.send(body=body)
    client.send(body=batch.encode(parts), batch=True)
    del client.say
    client.connection.data_received(said[-1] + b"".join(said[:-1]))


def run(client: Client) -> None:
    client.broker.loop.turn()
    client.broker.settle()
    client.broker.loop.turn()


def stored(client: Client) -> list[bytes]:
    found: list[bytes] = []
    while (answer := client.pull(len(found))).code == 0:
        found += bodies(answer)
    return found


def test_large_batch_has_its_slices_in_turns_of_their_own(broker: RocketMQBroker) -> None:
    client = broker.connect()
    begin(client, [part(number) for number in range(COUNT)])
    turns = 1
    while len(broker.rocketmq_context.requests.batches):
        broker.loop.turn_once()
        turns += 1
    assert turns >= 5, "three slices of messages, one of the append, one of the answer"
    run(client)
    answer = client.last_answer()
    assert answer is not None
    assert (answer.code, answer.ext["queueOffset"]) == (ResponseCode.SUCCESS, "0")
    assert len(set(answer.ext["msgId"].split(","))) == COUNT
    assert stored(client) == [b"%d" % number for number in range(COUNT)]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "TIMER_DELAY_SEC\x0160\x02"])
def test_large_batch_keeps_each_turn_within_the_budget(broker: RocketMQBroker, first: str) -> None:
    client = broker.connect()
    with budget.counted(calls=True) as work:
        begin(client, [part(-1, first), *[part(number) for number in range(12_000)]])
    most = work.units
    while len(broker.rocketmq_context.requests.batches):
        with budget.counted(calls=True) as work:
            broker.loop.turn_once()
        most = max(most, work.units)
    run(client)
    assert len(stored(client)) + len(broker.delays.timers) == 12_001
    assert most < budget.UNITS_MAX


def test_later_requests_of_the_connection_wait_for_the_batch(broker: RocketMQBroker) -> None:
    client = broker.connect()
    begin(client, [part(number) for number in range(COUNT)], b"last")
    run(client)
    assert stored(client)[-2:] == [b"%d" % (COUNT - 1), b"last"]
    assert not client.connection.is_busy
    assert (client.connection.unanswered, sum(broker.rocketmq_context.requests.admission.in_work)) == (0, 0)


REFUSED = {
    "properties": part(-1)._replace(properties=b"\xff\x01a\x02"),
    "transaction": part(-1, "TRAN_MSG\x01true\x02"),
    "delay": part(-1, "TIMER_DELAY_SEC\x01soon\x02"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_batch_with_a_wrong_last_message_stores_and_counts_nothing(broker: RocketMQBroker, case: str) -> None:
    client = broker.connect()
    before = dict(broker.metrics.records_in)
    begin(client, [*[part(number) for number in range(COUNT)], REFUSED[case]])
    run(client)
    answer = client.last_answer()
    assert answer is not None
    assert answer.code != ResponseCode.SUCCESS
    assert stored(client) == []
    assert dict(broker.metrics.records_in) == before


def test_batch_with_a_delayed_or_a_large_message_is_stored_as_well(broker: RocketMQBroker) -> None:
    client = broker.connect()
    large = batch.Part(0, bytes(5000), b"")
    begin(client, [*[part(number) for number in range(MESSAGES_AT_ONCE)], part(-1, "TIMER_DELAY_SEC\x0160\x02"), large])
    run(client)
    answer = client.last_answer()
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert len(set(answer.ext["msgId"].split(","))) == MESSAGES_AT_ONCE + 2
    assert stored(client) == [*[b"%d" % number for number in range(MESSAGES_AT_ONCE)], bytes(5000)]
    assert len(broker.delays.timers) == 1


@pytest.mark.parametrize("every", [1, 2, 3])
def test_delayed_messages_of_a_large_batch_are_appended_with_the_others(broker: RocketMQBroker, every: int) -> None:
    """Each id leads to its message, whatever the order in the log is."""
    client = broker.connect()
    delay = "TIMER_DELAY_SEC\x0160\x02"
    begin(client, [part(number, "" if number % every else delay) for number in range(3000)])
    run(client)
    answer = client.last_answer()
    assert answer is not None
    ids = answer.ext["msgId"].split(",")
    for number in (0, 1, 2, 1500, 2998, 2999):
        found = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=int(ids[number][-16:], 16))
        assert found is not None
        assert (found.code, bodies(found)) == (0, [b"%d" % number])
    assert stored(client) == [b"%d" % number for number in range(3000) if number % every]
    assert len(broker.delays.timers) == len(range(0, 3000, every))


def test_batch_of_too_many_messages_of_which_one_is_delayed_is_refused(broker: RocketMQBroker) -> None:
    client = broker.connect()
    begin(client, [part(0, "TIMER_DELAY_SEC\x0160\x02"), *[batch.Part(0, b"", b"")] * MIXED_MESSAGES_MAX])
    run(client)
    answer = client.last_answer()
    assert answer is not None
    assert (answer.code, "of which some are delayed" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert (stored(client), len(broker.delays.timers)) == ([], 0)


@pytest.mark.slow
def test_batch_with_too_many_delayed_messages_is_refused(broker: RocketMQBroker) -> None:
    limit = broker.options.delay.batch_delayed_max
    client = broker.connect()
    begin(client, [part(number, "TIMER_DELAY_SEC\x0160\x02") for number in range(limit + 1)])
    run(client)
    answer = client.last_answer()
    assert answer is not None
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "delay.batch_delayed_max" in (answer.remark or "")
    assert len(broker.delays.timers) == 0


@pytest.mark.parametrize("more", [0, 1])
def test_schedules_are_counted_over_all_slices_of_a_batch(broker: RocketMQBroker, more: int) -> None:
    limit = broker.options.delay.batch_schedules_max
    client = broker.connect()
    rule = "AMQ_SCHEDULED_CRON\x01* * * * *\x02"
    begin(client, [part(n, "" if n % 10 else rule) for n in range(10 * (limit + more))])
    run(client)
    answer = client.last_answer()
    assert answer is not None
    assert answer.code == (ResponseCode.MESSAGE_ILLEGAL if more else ResponseCode.SUCCESS)
    assert ("delay.batch_schedules_max" in (answer.remark or "")) == bool(more)
    assert len(broker.schedules.state) == (0 if more else limit)


def test_batch_of_a_closed_connection_or_deleted_topic_is_not_stored(broker: RocketMQBroker) -> None:
    client, other = broker.connect(), broker.connect()
    begin(client, [part(number) for number in range(COUNT)])
    client.close()
    run(other)
    assert stored(other) == []
    begin(other, [part(number) for number in range(COUNT)])
    broker.topics.delete(broker.topic("orders"), broker.clock.now_ms())
    run(other)
    answer = other.last_answer()
    assert answer is not None
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert len(broker.rocketmq_context.requests.batches) == sum(broker.rocketmq_context.requests.admission.in_work) == 0


def test_bodies_of_batches_that_wait_are_limited(broker: RocketMQBroker) -> None:
    broker.rocketmq_context.requests.batches._bytes_max = 1 << 18
    client, other = broker.connect(), broker.connect()
    begin(client, [part(number) for number in range(COUNT)])
    answer = other.send(body=batch.encode([batch.Part(0, bytes(1 << 18), b"")]), batch=True)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    run(client)
    assert len(stored(client)) == COUNT


@pytest.mark.slow
def test_more_messages_than_allowed_are_refused(broker: RocketMQBroker) -> None:
    client = broker.connect()
    begin(client, [batch.Part(0, b"", b"")] * (BATCH_MESSAGES_MAX + 1))
    run(client)
    answer = client.last_answer()
    assert answer is not None
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


# -- Messages that replace others

DELAYED = "KEYS\x01k\x02TIMER_DELAY_SEC\x0160\x02"
REPLACING = f"{DELAYED}TIMER_REPLACE\x01true\x02"


def pending(broker: RocketMQBroker, key: bytes = b"k") -> int:
    return len(broker.delays.timers.pending.named(broker.topic("orders").number, key))


def test_batch_replaces_what_is_pending_when_it_is_appended(broker: RocketMQBroker) -> None:
    client, other = broker.connect(), broker.connect()
    other.send(properties="KEYS\x01k\x02TIMER_DELAY_SEC\x0130\x02")
    begin(client, [part(0, REPLACING), *[part(number) for number in range(1, COUNT)]])
    broker.publisher.publish_messages(
        broker.topic("orders"), 0, [Message("", b"between", DELAYED.encode())], broker.clock.now_ms()
    )
    assert pending(broker) == 2
    run(client)
    assert client.last_answer().code == 0
    assert pending(broker) == 1
    assert broker.metrics.timers["cancelled"] == 2


@pytest.mark.parametrize("first", [DELAYED, REPLACING])
@pytest.mark.parametrize("between", [0, MESSAGES_AT_ONCE])
def test_batch_in_which_a_message_replaces_another_is_refused(broker: RocketMQBroker, first: str, between: int) -> None:
    client = broker.connect()
    begin(client, [part(0, first), *[part(number) for number in range(between)], part(1, REPLACING)])
    run(client)
    assert client.last_answer().code == ResponseCode.MESSAGE_ILLEGAL
    assert pending(broker) == 0


def test_batch_in_which_too_many_messages_replace_others_is_refused(broker: RocketMQBroker) -> None:
    client = broker.connect()
    replacing = "TIMER_DELAY_SEC\x0160\x02TIMER_REPLACE\x01true\x02"
    begin(client, [part(number, f"KEYS\x01{number}\x02{replacing}") for number in range(REPLACING_MAX + 1)])
    run(client)
    assert client.last_answer().code == ResponseCode.MESSAGE_ILLEGAL
    assert pending(broker, b"0") == 0
