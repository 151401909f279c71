"""What the rules of `http.masks` hide of messages, in each form in which a page gets them."""

import base64
import json
from typing import Any

import pytest

from duolog.bridge.config import ConfigError, HttpOptions, Options
from duolog.bridge.config.checks import mask_rules
from duolog.bridge.console.masking import HIDDEN, Masking
from tests.kit.core import ManualCore
from tests.kit.http import HttpBench
from tests.unit.bridge.rocketmq.broker import RocketMQBroker
from tests.unit.bridge.rocketmq.retry.test_send_back import give_back

RULES = "payments:card,CVV,keys hr.*:*"
MESSAGE = {
    "offset": 1,
    "key": "4711",
    "tag": "paid",
    "headers": {"Card": "1234", "trace": "t"},
    "value": json.dumps({"card": "1234", "list": [{"cvv": {"a": 1}, "sum": 5}]}),
}


def masked(topic: str, **changed: Any) -> dict[str, Any]:
    return Masking(mask_rules(RULES)).masked(topic, MESSAGE | changed)


def test_named_fields_are_hidden_at_any_depth() -> None:
    found = masked("payments")
    assert json.loads(found["value"]) == {"card": HIDDEN, "list": [{"cvv": HIDDEN, "sum": 5}]}
    assert found["headers"] == {"Card": HIDDEN, "trace": "t"}
    assert (found["key"], found["tag"], found["offset"]) == (HIDDEN, "paid", 1)


def test_everything_is_hidden_by_a_star() -> None:
    found = masked("hr.pay")
    assert (found["value"], found["key"], found["tag"]) == (HIDDEN, HIDDEN, HIDDEN)
    assert set(found["headers"].values()) == {HIDDEN}


def test_a_topic_without_a_rule_is_shown() -> None:
    assert masked("orders") == MESSAGE


@pytest.mark.parametrize("value", ["card=1234", '{"card": "1234"', "[" * 100_000])
def test_a_body_that_is_not_json_is_hidden_as_a_whole(value: str) -> None:
    assert masked("payments", value=value)["value"] == HIDDEN


def test_bytes_in_base64_are_masked() -> None:
    found = masked("payments", value=None, value_base64=base64.b64encode(b'{"card": 1}').decode())
    assert (json.loads(found["value"]), "value_base64" in found) == ({"card": HIDDEN}, False)
    found = masked("payments", value=None, value_base64="/w==", key=None, key_base64="/w==")
    assert (found["value"], found["key"], "key_base64" in found) == (HIDDEN, HIDDEN, False)
    assert masked("payments", value=None)["value"] is None


@pytest.mark.parametrize("rules", ["payments", ":card", "payments:", "payments:,"])
def test_a_rule_without_topic_or_fields_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.masks"):
        mask_rules(rules)


def test_no_page_shows_what_is_masked() -> None:
    bench = HttpBench(ManualCore(Options(http=HttpOptions(masks="payments:card,keys"))))
    bench.ask("POST", "/api/topics", {"name": "payments", "queues": 1})
    message = {"value": '{"card": "SECRET"}', "key": "SECRET", "headers": {"card": "SECRET"}}
    bench.ask("POST", "/api/topics/payments/messages", message)
    timer = bench.ask("POST", "/api/timers", {"topic": "payments", **message, "delay_ms": 60_000})[1]
    for path in ("messages?topic=payments", "messages?topic=payments&as=hex", "delayed", f"timer?id={timer['id']}"):
        status, text = bench.ask("GET", f"/console/{path}")
        assert status == 200
        assert HIDDEN.encode() in text or b"2a 2a 2a" in text
        assert b"SECRET" not in text, path


@pytest.mark.parametrize("rules", ["payments:card,keys,tags", "%DLQ%*:card,keys,tags"])
def test_a_dead_letter_is_masked_by_the_rules_for_its_origin_and_for_its_own_topic(rules: str) -> None:
    broker = RocketMQBroker(options=Options(http=HttpOptions(masks=rules)))
    broker.topic("payments", 1)
    client, bench = broker.connect(), HttpBench(broker)
    secret = "KEYS\x01SECRET-KEY\x02TAGS\x01SECRET-TAG\x02"
    for topic in ("payments", "orders"):
        broker.topic(topic, 1)
        sent = client.send(topic=topic, body=b'{"card": "SECRET", "sum": 5}', properties=secret)
        assert give_back(client, int(sent.ext["msgId"][16:], 16), maxReconsumeTimes=0).code == 0
    status, text = bench.ask("GET", "/console/dead-letters?group=billing")
    assert status == 200
    rows = text.decode().partition("<tbody>")[2].partition("</tbody>")[0].split("</tr>")
    of_payments, of_orders = (next(row for row in rows if f">{topic}</a>" in row) for topic in ("payments", "orders"))
    assert "SECRET" not in of_payments
    assert HIDDEN in of_payments
    assert ("SECRET" in of_orders) == rules.startswith("payments"), "orders has no rule of its own"
