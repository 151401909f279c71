"""Messages are written and read over HTTP as by clients of both protocols; a refused request writes nothing."""

import base64
from typing import Any

import pytest

from duolog.protocol.kafka.compression import Codec
from tests.kit.core import ManualCore
from tests.kit.http import HttpBench
from tests.unit.bridge.batches import batch

PATH = "/api/topics/orders/messages"


@pytest.fixture
def bench() -> HttpBench:
    bench = HttpBench()
    bench.core.topic("orders", 2)
    return bench


def write(bench: HttpBench, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    status, answer = bench.ask("POST", PATH, {"messages": list(messages)})
    assert status == 201, answer
    found: list[dict[str, Any]] = answer["messages"]
    return found


def read(bench: HttpBench, query: str = "") -> dict[str, Any]:
    status, answer = bench.ask("GET", f"{PATH}?{query}")
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


def values(found: dict[str, Any]) -> list[Any]:
    return [message["value"] for message in found["messages"]]


def test_a_message_gets_the_traceparent_of_its_request_unless_it_has_one(bench: HttpBench) -> None:
    texts = [f"00-4bf92f3577b34da6a3ce929d0e0e473{number}-00f067aa0ba902b7-01" for number in range(3)]
    sent = {"messages": [{"queue": 0}, {"queue": 0, "headers": {"traceparent": texts[1]}}]}
    for text in (texts[0], "00-0-0-01"):
        assert bench.ask("POST", PATH, sent, {"traceparent": text})[0] == 201
    found = [message["headers"].get("traceparent") for message in read(bench, "queue=0")["messages"]]
    assert found == [texts[0], texts[1], None, texts[1]]
    timer = {"topic": "orders", "delay_ms": 60_000}
    status, added = bench.ask("POST", "/api/timers", timer, {"traceparent": texts[2]})
    assert status == 201
    assert bench.ask("GET", f"/api/timers/{added['id']}")[1]["headers"]["traceparent"] == texts[2]


def test_what_is_written_is_read_again(bench: HttpBench) -> None:
    raw = base64.b64encode(b"\xff\x00").decode()
    message = {"queue": 1, "key": "k", "value": "v", "headers": {"a": "b", "n": 5}, "tag": "paid"}
    assert bench.ask("POST", PATH, message) == (201, {"messages": [{"queue": 1, "offset": 0}]})
    assert write(bench, {"queue": 1, "key_base64": raw, "value_base64": raw}, {"queue": 1}) == [
        {"queue": 1, "offset": 1}, {"queue": 1, "offset": 2}
    ]  # fmt: skip
    found = read(bench, "queue=1")
    at = bench.core.clock.now_ms()
    headers = {"a": "b", "n": "5", "TAGS": "paid"}
    assert found["messages"] == [
        {"offset": 0, "timestamp_ms": at, "key": "k", "headers": headers, "tag": "paid", "value": "v"},
        {"offset": 1, "timestamp_ms": at, "key_base64": raw, "headers": {}, "tag": None, "value_base64": raw},
        {"offset": 2, "timestamp_ms": at, "key": None, "headers": {}, "tag": None, "value": None},
    ]
    assert (found["start"], found["end"], found["next"]) == (0, 3, 3)


def test_numbers_and_truth_are_taken_where_text_is_meant(bench: HttpBench) -> None:
    write(bench, {"queue": 0, "key": 17, "value": 2.5, "headers": {"yes": True}, "tag": 3})
    (message,) = read(bench)["messages"]
    assert (message["key"], message["value"], message["tag"]) == ("17", "2.5", "3")
    assert message["headers"] == {"yes": "true", "TAGS": "3"}
    made = {"name": "n", "configs": {"retention.ms": 5000, "delay.headers": False}}
    expected = {"retention.ms": "5000", "delay.headers": "false"}
    assert bench.ask("POST", "/api/topics", made)[1]["configs"] == expected
    status, changed = bench.ask("PATCH", "/api/topics/n", {"configs": {"retention.ms": 6000, "delay.headers": None}})
    assert (status, changed["configs"]) == (200, {"retention.ms": "6000"})


def test_messages_of_rocketmq_and_in_compressed_batches_are_read(bench: HttpBench) -> None:
    core = bench.core
    topic = core.topic()
    core.publish(topic, b"one", tag="paid")
    core.publisher.publish_batch(topic, 0, batch([b"two", b"three"], codec=Codec.ZSTD), core.clock.now_ms())
    core.settle()
    found = read(bench)
    assert (values(found), found["messages"][0]["tag"]) == (["one", "two", "three"], "paid")
    assert values(read(bench, "offset=2")) == ["three"]
    first = read(bench, "limit=2")
    assert (values(first), first["next"]) == (["one", "two"], 2)


def test_reading_begins_at_an_offset_or_a_time(bench: HttpBench) -> None:
    for number in range(5):
        write(bench, {"queue": 0, "value": number})
        bench.core.clock.pass_ms(1000)
    at = bench.core.clock.now_ms()
    assert values(read(bench, "offset=3")) == ["3", "4"]
    assert read(bench, "offset=5")["messages"] == []
    assert values(read(bench, f"time_ms={at - 2500}")) == ["3", "4"]
    assert read(bench, f"time_ms={at}")["messages"] == []
    bench.core.store.retention.trim(bench.core.topic().queues[0], 4, at)
    assert values(read(bench)) == ["4"]
    assert bench.ask("GET", f"{PATH}?offset=3")[0] == 410


def test_answer_is_bounded_and_goes_on_at_next(bench: HttpBench) -> None:
    for _ in range(4):
        write(bench, *[{"queue": 0, "value": "x" * 100_000}] * 8)
    seen, at, answers = 0, 0, 0
    while at < 32:
        found = read(bench, f"offset={at}&limit=1000")
        assert found["messages"]
        assert sum(map(len, values(found))) <= 1 << 20
        seen, at, answers = seen + len(found["messages"]), found["next"], answers + 1
    assert (seen, answers) == (32, 4)
    write(bench, {"queue": 1, "value": "x" * 300_000})
    (message,) = read(bench, "queue=1")["messages"]
    assert (message["value_bytes"], len(message["value"])) == (300_000, 256 << 10)


def test_value_that_is_cut_within_a_character_is_text_and_other_bytes_are_base64(bench: HttpBench) -> None:
    text, raw = "x" + "é" * 150_000, b"text\xff" * 60_000
    for message in ({"value": text}, {"value_base64": base64.b64encode(raw).decode()}):
        write(bench, {"queue": 0} | message)
        write(bench, {"queue": 0, "delay_ms": 5000} | message)
    pending = bench.ask("GET", "/api/timers?content=true")[1]["timers"]
    for (cut, binary), bytes_max in ((read(bench)["messages"], 256 << 10), (pending, 200)):
        assert (cut["value_bytes"], cut["value"]) == (300_001, text[: bytes_max // 2])
        assert (binary["value_bytes"], base64.b64decode(binary["value_base64"])) == (300_000, raw[:bytes_max])


def test_delayed_messages_wait_as_timers(bench: HttpBench) -> None:
    waiting, now = write(bench, {"queue": 0, "value": "later", "delay_ms": 5000}, {"queue": 0, "value": "now"})
    assert waiting["due_ms"] == bench.core.clock.now_ms() + 5000
    assert bench.ask("GET", f"/api/timers/{waiting['id']}")[1]["value"] == "later"
    assert now == {"queue": 0, "offset": 0}
    assert write(bench, {"queue": 0, "value": "past", "at_ms": 5})[0]["offset"] == 1


def test_key_decides_the_queue(bench: HttpBench) -> None:
    queues = {write(bench, {"key": f"k{number}", "value": ""})[0]["queue"] for number in range(20)}
    assert queues == {0, 1}
    assert len({write(bench, {"key": "same", "value": ""})[0]["queue"] for _ in range(5)}) == 1


@pytest.mark.parametrize(
    ("bad", "status", "says"),
    [
        ({"queue": 2}, 400, "queue: orders has 2, none is 2"),
        ({"value": "a", "value_base64": "YQ=="}, 400, "expected either value or value_base64"),
        ({"key_base64": "?"}, 400, "key_base64"),
        (
            {"headers": {"TIMER_DELAY_SEC": "5"}},
            400,
            "header TIMER_DELAY_SEC: not allowed over HTTP; use at_ms or delay_ms",
        ),
        ({"headers": {"TAGS": "a"}, "tag": "b"}, 400, "expected either tag or the header TAGS"),
        ({"delay_ms": -1}, 400, "delay_ms: expected 0 or more, got -1"),
        ({"delay_ms": 1, "at_ms": 1}, 400, "expected either at_ms or delay_ms"),
        ({"delay_ms": 1 << 61}, 400, "time asked for"),
        ({"valeu": "typo"}, 400, "valeu"),
        ({"value": ["list"]}, 400, "$.messages[1].value"),
    ],
)
def test_one_bad_message_refuses_all(bench: HttpBench, bad: dict[str, Any], status: int, says: str) -> None:
    before = bench.core.store.next_position
    found, answer = bench.ask("POST", PATH, {"messages": [{"value": "good"}, bad]})
    assert (found, bench.core.store.next_position) == (status, before)
    assert says in answer["error"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/api/timers/nonsense", "no pending message has the id nonsense"),
        (f"/api/messages/{'FD' * 28}", "an id that the producer made (getMsgId, UNIQ_KEY)"),
    ],
)
def test_id_that_names_nothing_is_404_and_named(bench: HttpBench, path: str, says: str) -> None:
    status, answer = bench.ask("GET", path)
    assert status == 404
    assert says in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/topics/none/messages", None, 404),
        ("POST", "/api/topics/none/messages", {"value": "x"}, 404),
        ("GET", f"{PATH}?queue=2", None, 400),
        ("GET", f"{PATH}?limit=1001", None, 400),
        ("GET", f"{PATH}?ofset=1", None, 400),
        ("GET", f"{PATH}?offset=1&time_ms=1", None, 400),
        ("GET", f"{PATH}?offset=1", None, 410),
        ("POST", PATH, {"messages": []}, 400),
        ("POST", PATH, {"messages": [{}] * 1001}, 400),
        ("POST", PATH, {"messages": [{"delay_ms": 5000}] * 101}, 400),
        ("POST", PATH, [], 400),
        ("POST", "/api/topics/SCHEDULE_TOPIC_XXXX/messages", {"value": "x"}, 400),
    ],
)
def test_bad_request_is_refused(bench: HttpBench, method: str, path: str, body: object, status: int) -> None:
    assert bench.ask(method, path, body)[0] == status


def test_topic_takes_many_small_messages_that_are_more_than_one_batch() -> None:
    bench = HttpBench(ManualCore())
    bench.core.topic("orders", 1, max_message_bytes="2000")
    written = write(bench, *[{"value": "x" * 500}] * 20)
    assert [each["offset"] for each in written] == [*range(20)]
    assert len(values(read(bench))) == 20
