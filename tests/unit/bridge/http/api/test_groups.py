"""The HTTP port describes, resets and deletes groups, on a whole core beside RocketMQ clients."""

from typing import Any

import pytest

from duolog.bridge.http.api import groups
from duolog.bridge.records.groups import CommittedOffset
from duolog.protocol.kafka.compression import Codec
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.protocol.rocketmq.messages import message
from duolog.protocol.rocketmq.messages.message_id import message_id
from tests.kit.http import HttpBench
from tests.kit.sockets import HOST
from tests.unit.bridge.batches import batch
from tests.unit.bridge.rocketmq.broker import RocketMQBroker


@pytest.fixture
def broker() -> RocketMQBroker:
    broker = RocketMQBroker()
    broker.topic("orders", 2)
    return broker


@pytest.fixture
def bench(broker: RocketMQBroker) -> HttpBench:
    return HttpBench(broker)


def fail(broker: RocketMQBroker, body: bytes, raw: str = "", **fields: object) -> str:
    """Send a message that the group billing gives up at once; its id."""
    client = broker.connect()
    sent_id = str(client.send(body=body, properties=raw).ext["msgId"])
    asked = {"offset": int(sent_id[16:], 16), "group": "billing", "delayLevel": 0, "maxReconsumeTimes": 0, **fields}
    assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **asked).code == 0
    broker.settle()
    return sent_id


def commit(broker: RocketMQBroker, *offsets: int) -> None:
    """Let the group billing have these positions in the queues of orders."""
    topic = broker.topic()
    positions = [CommittedOffset(topic.key(queue), offset) for queue, offset in enumerate(offsets)]
    broker.group_offsets.commit("billing", positions, broker.clock.now_ms())
    broker.settle()


def test_dead_letters_say_why_and_where_they_came_from(broker: RocketMQBroker, bench: HttpBench) -> None:
    first = fail(broker, b"a", "KEYS\x01k\x02TAGS\x01paid\x02")
    fail(broker, b"\xff", delayLevel=-1)
    fail(broker, b"c" * 5000)
    status, found = bench.ask("GET", "/api/groups/billing/dead-letters?limit=2")
    assert (status, found["topic"], found["next"]) == (200, "%DLQ%billing", 2)
    one, two = found["dead_letters"]
    origin = {"topic": "orders", "queue": 0, "offset": 0, "message_id": first}
    assert (one["reason"], one["attempts"], one["origin"], one["key"], one["tag"], one["value"]) == (
        "attempts", 1, origin, "k", "paid", "a",
    )  # fmt: skip
    assert (two["reason"], two["value_base64"], two["is_redriven"]) == ("given-up", "/w==", False)
    _, found = bench.ask("GET", "/api/groups/billing/dead-letters?offset=2")
    assert [(len(each["value"]), each["value_bytes"]) for each in found["dead_letters"]] == [(1000, 5000)]
    _, shown = bench.ask("GET", f"/api/messages/{first}")
    assert (shown["topic"], shown["queue"], shown["offset"], shown["value"]) == ("orders", 0, 0, "a")


def test_a_dead_letter_says_when_it_was_sent_and_whether_its_original_is_stored(
    broker: RocketMQBroker, bench: HttpBench
) -> None:
    fail(broker, b"a")
    (found,) = bench.ask("GET", "/api/groups/billing/dead-letters")[1]["dead_letters"]
    (original,) = bench.ask("GET", "/api/topics/orders/messages?queue=0")[1]["messages"]
    assert (found["sent_ms"], found["is_original_stored"]) == (original["timestamp_ms"], True)
    queue = broker.topic().queues[0]
    broker.store.retention.trim(queue, queue.end_offset, broker.clock.now_ms())
    broker.settle()
    (found,) = bench.ask("GET", "/api/groups/billing/dead-letters")[1]["dead_letters"]
    assert found["is_original_stored"] is False


def test_a_dead_letter_says_when_each_attempt_failed(broker: RocketMQBroker, bench: HttpBench) -> None:
    fail(broker, b"a")
    client = broker.connect()
    client.send("%DLQ%billing", properties="FAILED_ATTEMPTS\x014:7 x <b>\x02", reconsumeTimes=5)
    broker.settle()
    failed, sent = bench.ask("GET", "/api/groups/billing/dead-letters")[1]["dead_letters"]
    now_ms = broker.clock.now_ms()
    assert failed["failed_attempts"] == [{"attempt": 1, "failed_ms": now_ms, "consumer": HOST}]
    assert (sent["attempts"], sent["failed_attempts"]) == (5, [{"attempt": 4, "failed_ms": 7, "consumer": None}])


def test_redriven_letters_are_marked(broker: RocketMQBroker, bench: HttpBench) -> None:
    fail(broker, b"a")
    status, refused = bench.ask("POST", "/api/groups/billing/redrive")
    assert (status, "--to retry" in refused["error"]) == (409, True)
    assert bench.ask("POST", "/api/groups/billing/redrive", {"to": "elsewhere"})[0] == 400
    assert bench.ask("POST", "/api/groups/billing/redrive", {"to": "topic"}) == (
        200,
        {"group": "billing", "redriven": 1},
    )
    _, found = bench.ask("GET", "/api/groups/billing/dead-letters")
    assert [each["is_redriven"] for each in found["dead_letters"]] == [True]


def test_some_letters_are_redriven_and_the_position_moves_over_those_without_a_gap(
    broker: RocketMQBroker, bench: HttpBench
) -> None:
    for body in (b"a", b"b", b"c", b"d"):
        fail(broker, body)
    path = "/api/groups/billing/redrive"
    assert bench.ask("POST", path, {"to": "topic", "offsets": [2, 0, 2]}) == (200, {"group": "billing", "redriven": 2})
    _, found = bench.ask("GET", "/api/groups/billing/dead-letters")
    assert [each["is_redriven"] for each in found["dead_letters"]] == [True, False, True, False]
    values = [bench.ask("GET", f"/api/topics/orders/messages?queue={queue}")[1]["messages"] for queue in (0, 1)]
    assert [row["value"] for rows in values for row in rows][-2:] == ["a", "c"]
    for offsets in ([4], [0, 9], [-1]):
        status, refused = bench.ask("POST", path, {"to": "topic", "offsets": offsets})
        assert (status, "no dead letters at all of the offsets" in refused["error"]) == (409, True)
    assert bench.ask("POST", path, {"to": "topic", "offsets": []})[0] == 400
    assert bench.ask("GET", "/api/groups/billing")[1]["dead_letters"] == 2
    assert bench.ask("POST", path, {"to": "topic"}) == (200, {"group": "billing", "redriven": 2})
    values = [bench.ask("GET", f"/api/topics/orders/messages?queue={queue}")[1]["messages"] for queue in (0, 1)]
    assert [row["value"] for rows in values for row in rows][-4:] == ["a", "c", "b", "d"], "c only once"
    assert bench.ask("POST", path, {"to": "topic"}) == (200, {"group": "billing", "redriven": 0})
    assert bench.ask("POST", path, {"to": "topic", "offsets": [2]}) == (200, {"group": "billing", "redriven": 1})


def test_letters_that_match_are_redriven(broker: RocketMQBroker, bench: HttpBench) -> None:
    for body, raw in ((b"a", "TAGS\x01paid\x02"), (b"b", "TAGS\x01open\x02"), (b"c", "TAGS\x01paid\x02KEYS\x01k\x02")):
        fail(broker, body, raw)
    path = "/api/groups/billing/redrive"
    assert bench.ask("POST", path, {"to": "topic", "tag": "none"}) == (200, {"group": "billing", "redriven": 0})
    assert bench.ask("POST", path, {"to": "topic", "tag": "paid"}) == (200, {"group": "billing", "redriven": 2})
    _, found = bench.ask("GET", "/api/groups/billing/dead-letters")
    assert [each["is_redriven"] for each in found["dead_letters"]] == [True, False, True]
    attempts = {"to": "topic", "reason": "attempts", "topic": "orders"}
    assert bench.ask("POST", path, attempts | {"key": "k"})[1] == {"group": "billing", "redriven": 0}
    assert bench.ask("POST", path, attempts)[1] == {"group": "billing", "redriven": 1}
    values = [bench.ask("GET", f"/api/topics/orders/messages?queue={queue}")[1]["messages"] for queue in (0, 1)]
    assert [row["value"] for rows in values for row in rows][-3:] == ["a", "c", "b"]
    status, refused = bench.ask("POST", path, {"to": "topic", "offsets": [0], "tag": "paid"})
    assert (status, refused["error"]) == (400, "expected either offsets or tag")


def test_more_letters_than_one_answer_has_are_redriven(
    broker: RocketMQBroker, bench: HttpBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "LETTERS_MAX", 2)
    for _ in range(5):
        fail(broker, b"a")
    found = bench.ask("POST", "/api/groups/billing/redrive", {"to": "topic", "reason": "attempts"})
    assert found == (200, {"group": "billing", "redriven": 5})


def test_letters_are_filtered(broker: RocketMQBroker, bench: HttpBench) -> None:
    fail(broker, b"a")
    path = "/api/groups/billing/dead-letters"
    assert len(bench.ask("GET", f"{path}?reason=attempts&topic=orders")[1]["dead_letters"]) == 1
    for query in ("reason=expired", "topic=audit", "key=none", "tag=none"):
        assert bench.ask("GET", f"{path}?{query}")[1]["dead_letters"] == [], query


@pytest.mark.parametrize("number", ["0", "1", "-1", "7" * 30, "f" * 32, "0" * 32, "g" * 32])
def test_unknown_ids_are_not_found(bench: HttpBench, number: str) -> None:
    status, answer = bench.ask("GET", f"/api/messages/{number}")
    assert status in (400, 404)
    assert number[:32] in answer["error"]


def test_message_of_a_compressed_batch_is_found_by_its_id(broker: RocketMQBroker, bench: HttpBench) -> None:
    broker.publisher.publish_batch(broker.topic(), 1, batch([b"x", b"y"], codec=Codec.GZIP), broker.clock.now_ms())
    broker.settle()
    seen = message.decode_all(bytes(broker.connect().pull(0, queueId=1).body))
    _, found = bench.ask("GET", f"/api/messages/{message_id(seen[1].store_host, seen[1].physical_offset)}")
    assert (found["queue"], found["offset"], found["value"]) == (1, 1, "y")


@pytest.mark.parametrize(
    ("wanted", "to"),
    [
        ({"to": "earliest"}, [0, 0]),
        ({"to": "latest"}, [3, 0]),
        ({"offset": 2}, [2, 0]),
        ({"offset": 99}, [3, 0]),
        ({"time_ms": 0}, [0, 0]),
        ({"time_ms": 1 << 60}, [3, 0]),
        ({"to": "latest", "topics": ["orders"]}, [3, 0]),
    ],
)
def test_reset_shows_what_it_would_do_and_then_does_it(
    broker: RocketMQBroker, bench: HttpBench, wanted: dict[str, Any], to: list[int]
) -> None:
    broker.publish(broker.topic(), b"a", b"b", b"c")
    commit(broker, 1, 0)
    rows = [{"topic": "orders", "queue": queue, "from": (1, 0)[queue], "to": to[queue]} for queue in (0, 1)]
    path = "/api/groups/billing/reset"
    assert bench.ask("POST", path, wanted) == (200, {"group": "billing", "executed": False, "positions": rows})
    assert [broker.group_offsets.fetch("billing", broker.topic().key(0)).offset] == [1], "a dry run changes nothing"
    assert bench.ask("POST", path, {**wanted, "execute": True})[1]["executed"]
    assert [broker.group_offsets.fetch("billing", broker.topic().key(queue)).offset for queue in (0, 1)] == to


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({}, 400),
        ({"to": "middle"}, 400),
        ({"to": "latest", "offset": 3}, 400),
        ({"offset": -1}, 400),
        ({"to": "latest", "topics": ["none"]}, 404),
    ],
)
def test_refused_resets_name_what_was_expected(
    broker: RocketMQBroker, bench: HttpBench, wanted: dict[str, Any], status: int
) -> None:
    commit(broker, 1, 0)
    assert bench.ask("POST", "/api/groups/billing/reset", wanted)[0] == status
    assert bench.ask("POST", "/api/groups/none/reset", {"to": "latest"})[0] == 404


def test_group_with_members_is_neither_reset_nor_deleted(broker: RocketMQBroker, bench: HttpBench) -> None:
    commit(broker, 1, 0)
    broker.connect().beat("billing")
    for method, path, body in (
        ("POST", "/api/groups/billing/reset", {"to": "latest"}),
        ("DELETE", "/api/groups/billing?execute=true", None),
    ):
        status, answer = bench.ask(method, path, body)
        assert (status, "has members in rocketmq: stop them" in answer["error"]) == (409, True)


def test_delete_shows_what_it_would_do_and_then_does_it(broker: RocketMQBroker, bench: HttpBench) -> None:
    commit(broker, 1, 0)
    shown = {"group": "billing", "executed": False, "positions": 2}
    assert bench.ask("DELETE", "/api/groups/billing") == (200, shown)
    assert "billing" in broker.group_offsets
    assert bench.ask("DELETE", "/api/groups/billing?execute=true") == (200, shown | {"executed": True})
    assert "billing" not in broker.group_offsets
    assert bench.ask("DELETE", "/api/groups/billing")[0] == 404
