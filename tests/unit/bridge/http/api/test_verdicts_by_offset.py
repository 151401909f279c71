"""An operator decides half messages of RocketMQ producers by their offsets, over HTTP; a verdict is given once."""

from tests.kit.http import HttpBench
from tests.unit.bridge.rocketmq.producing.test_half_messages import (
    COMMIT,
    HALF,
    CheckBackBroker,
    end,
    send_half,
)


def test_an_operator_commits_and_rolls_back() -> None:
    broker = CheckBackBroker()
    bench, client = HttpBench(broker), broker.connect()
    first, second = send_half(client, b"a"), send_half(client, b"b")
    broker.settle()
    rows = bench.ask("GET", "/api/transactions")[1]
    assert [row["half_offset"] for row in rows] == [0, 1]
    decided = bench.ask("POST", "/api/half-messages/0", {"verdict": "commit"})
    assert decided == (200, {"half_offset": 0, "state": "committed"})
    assert bench.ask("POST", "/api/half-messages/0", {"verdict": "commit"})[0] == 200, "it has this verdict already"
    assert bench.ask("POST", "/api/half-messages/0", {"verdict": "rollback"})[0] == 409
    assert bench.ask("POST", "/api/half-messages/1", {"verdict": "rollback"}) == (
        200,
        {"half_offset": 1, "state": "rolled back"},
    )
    assert [each.body for each in broker.messages("orders")] == [b"a"]
    assert bench.ask("GET", "/api/transactions") == (200, [])
    assert end(client, first, COMMIT).code == 0, "the producer says the same"
    assert end(client, second, COMMIT).code != 0
    assert len(broker.messages("orders")) == 1


def test_what_is_no_open_half_message_is_refused() -> None:
    broker = CheckBackBroker()
    bench = HttpBench(broker)
    assert bench.ask("POST", "/api/half-messages/7", {"verdict": "commit"})[0] == 404
    for offset in ("-1", "x", "9" * 30):
        assert bench.ask("POST", f"/api/half-messages/{offset}", {"verdict": "commit"})[0] == 400
    send_half(broker.connect())
    broker.settle()
    assert bench.ask("POST", "/api/half-messages/0", {"verdict": "unknown"})[0] == 400
    broker.topics.delete(broker.topic(), broker.clock.now_ms())
    broker.settle()
    assert bench.ask("POST", "/api/half-messages/0", {"verdict": "commit"})[0] == 409
    assert bench.ask("POST", "/api/half-messages/0", {"verdict": "rollback"})[0] == 200
    assert len(broker.messages(HALF)) == 1
