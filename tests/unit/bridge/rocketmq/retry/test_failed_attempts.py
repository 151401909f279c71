"""The trace of failed attempts in the properties of retries and dead letters: what is added, kept and believed."""

import pytest

from duolog.bridge.rocketmq.retry.failed_attempts import (
    ATTEMPTS_MAX,
    FAILED_ATTEMPTS,
    OTHER_BYTES_MAX,
    ConsumerFailure,
    changes,
    parse,
)
from duolog.protocol.rocketmq.messages.message import NO_HOST
from duolog.protocol.rocketmq.messages.message_id import pack_host

RETRY = "%RETRY%billing"
CONSUMER = pack_host("192.0.2.7", 41234)


def text_of(found: dict[str, str | None]) -> str:
    assert found.keys() == {FAILED_ATTEMPTS}
    return found[FAILED_ATTEMPTS] or ""


def test_an_attempt_is_added_to_those_before_it() -> None:
    first = text_of(changes("orders", b"K\x01v\x02", 1, 1_000, CONSUMER))
    assert first == "1:1000@192.0.2.7"
    raw = f"K\x01v\x02{FAILED_ATTEMPTS}\x01{first}\x02".encode()
    second = text_of(changes(RETRY, raw, 2, 2_000, pack_host("2001:db8::1", 9)))
    assert parse(second) == [ConsumerFailure(1, 1_000, "192.0.2.7"), ConsumerFailure(2, 2_000, "2001:db8::1")]


def test_a_broker_that_does_not_know_the_consumer_names_none() -> None:
    assert parse(text_of(changes("orders", b"", 1, 1_000, NO_HOST))) == [ConsumerFailure(1, 1_000, None)]


def test_the_last_attempts_are_kept() -> None:
    raw = b""
    for number in range(1, ATTEMPTS_MAX + 4):
        raw = f"{FAILED_ATTEMPTS}\x01{text_of(changes(RETRY, raw, number, number, NO_HOST))}\x02".encode()
    assert [each.number for each in parse(raw[len(FAILED_ATTEMPTS) + 1 : -1].decode())] == list(range(4, 20))


def test_a_producer_cannot_invent_attempts() -> None:
    raw = f"{FAILED_ATTEMPTS}\x011:5@192.0.2.1\x02".encode()
    assert text_of(changes("orders", raw, 1, 1_000, NO_HOST)) == "1:1000"


def test_a_message_with_large_properties_or_without_failures_has_no_trace() -> None:
    large = b"K\x01" + b"v" * OTHER_BYTES_MAX + b"\x02"
    assert changes(RETRY, large, 1, 1_000, NO_HOST) == {FAILED_ATTEMPTS: None}
    assert changes(RETRY, b"", 0, 1_000, NO_HOST) == {FAILED_ATTEMPTS: None}


@pytest.mark.parametrize(
    "text", ["", "x", "0:1", "1", "1:", "1:1@", "1:1@evil host", "1:99999999999999", "-1:1", "١:1", "1:1@<b>", "1:1\n"]
)
def test_other_text_is_no_attempt(text: str) -> None:
    assert parse(text) == []


def test_few_parts_of_a_long_text_are_looked_at() -> None:
    assert len(parse(" ".join(["1:1"] * 10_000))) == ATTEMPTS_MAX
