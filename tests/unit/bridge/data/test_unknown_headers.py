"""Misspelled headers of both client protocols: the broker warns of each once, or refuses the message."""

from collections.abc import Callable

import pytest

from duolog.bridge.data.publishing import produced_batches
from duolog.bridge.data.unknown_headers import (
    KNOWN,
    PREFIXES,
    WARNED_MAX,
    UnknownHeaders,
    unknown,
)
from duolog.protocol.kafka.api_messages import ApiKey
from tests.unit.bridge.batches import batch
from tests.unit.bridge.kafka.bench import KafkaBench
from tests.unit.bridge.rocketmq.broker import RocketMQBroker

Send = Callable[[str], bool]
LINE = "unknown header, which asks for nothing"


def kafka(action: str) -> tuple[Send, Send]:
    """Two producers of a topic with that action; each says whether its message was taken."""
    bench = KafkaBench()
    bench.topic("orders", 2, delay_unknown_headers=action)
    return tuple(sender_of_kafka(bench) for _ in range(2))  # type: ignore[return-value]


def sender_of_kafka(bench: KafkaBench) -> Send:
    client = bench.connect()
    client.connection.peer = ("192.0.2.1", 40_000 + id(client) % 10_000)

    def send(name: str) -> bool:
        part = {"index": 0, "records": batch([b"a"], headers=[(name, b"5")])}
        answer = client.ask(ApiKey.PRODUCE, 9, acks=1, topic_data=[{"name": "orders", "partition_data": [part]}])
        found = answer.responses[0].partition_responses[0]
        assert found.error_code == 0 or name in found.record_errors[0].batch_index_error_message
        return bool(found.error_code == 0)

    return send


def rocketmq(action: str) -> tuple[Send, Send]:
    broker = RocketMQBroker()
    broker.topic("orders", 2, delay_unknown_headers=action)
    return tuple(sender_of_rocketmq(broker) for _ in range(2))  # type: ignore[return-value]


def sender_of_rocketmq(broker: RocketMQBroker) -> Send:
    client = broker.connect()
    client.connection.peer = ("192.0.2.1", 40_000 + id(client) % 10_000)

    def send(name: str) -> bool:
        answer = client.send(properties=f"{name}\x015\x02")
        assert answer.code == 0 or name in answer.remark
        return bool(answer.code == 0)

    return send


@pytest.mark.parametrize("senders_of", [kafka, rocketmq])
@pytest.mark.parametrize(
    "name", ["TIMER_DELAY_SECS", "TIMER_DLEAY_SEC", "AMQ_SCHEDULED_DELAYS", "EXPIRE_IN", "TRAN_MSG_IDS"]
)
@pytest.mark.parametrize(
    ("action", "is_taken", "lines"), [("warn", True, 2), ("refuse", False, 0), ("ignore", True, 0)]
)
def test_topic_says_what_is_done_about_a_misspelled_name(
    senders_of: Callable[[str], tuple[Send, Send]],
    name: str,
    action: str,
    is_taken: bool,
    lines: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = senders_of(action)
    assert [first(name), first(name), second(name)] == [is_taken] * 3
    warned = [record.getMessage() for record in caplog.records if LINE in record.getMessage()]
    assert len(warned) == lines, "one for each producer"
    assert all(f"name={name!r} topic=orders" in text for text in warned)


@pytest.mark.parametrize("senders_of", [kafka, rocketmq])
def test_known_and_foreign_names_are_sent_as_ever(
    senders_of: Callable[[str], tuple[Send, Send]], caplog: pytest.LogCaptureFixture
) -> None:
    send, _ = senders_of("refuse")
    for name in (
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DELAY_MS",
        "MY_TIMER_X",
        "TIMERS",
        "EXPIRED_AT_MS",
        "colour",
    ):
        assert send(name), name
    assert LINE not in caplog.text


@pytest.mark.slow
def test_memory_of_warnings_is_bounded() -> None:
    bench, names = KafkaBench(), UnknownHeaders()
    topic, sender = bench.topic("orders"), bench.connect().connection
    names.check(topic, [f"TIMER_{number}" for number in range(WARNED_MAX + 5)], sender)
    assert len(names._warned) == 5


def test_every_prefix_is_looked_for_in_batches() -> None:
    for prefix in PREFIXES:
        assert unknown([prefix + "X"]) == [prefix + "X"]
        assert prefix.encode() in produced_batches.NAMES
    assert all(name.startswith(PREFIXES) for name in (*KNOWN, *produced_batches.REQUEST_NAMES))
