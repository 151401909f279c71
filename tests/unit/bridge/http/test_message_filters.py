"""The filters of a topic's messages: by tag, key, header and SQL92, alone and together; an answer goes on at `next`."""

from urllib.parse import urlencode

import pytest

from tests.kit.http import HttpBench


@pytest.fixture(scope="module")
def bench() -> HttpBench:
    made = HttpBench()
    made.ask("POST", "/api/topics", {"name": "orders", "queues": 1})
    rows = [
        {"value": "a", "key": "k1", "tag": "paid", "headers": {"price": "5", "region": "eu"}},
        {"value": "b", "key": "k2", "tag": "open", "headers": {"price": "50"}},
        {"value": "c", "key": "k1", "headers": {"region": "us", "odd\u0001name": "x"}},
        {"value": "d"},
    ]
    made.ask("POST", "/api/topics/orders/messages", {"messages": rows})
    return made


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ({}, "abcd"),
        ({"tag": "*"}, "abcd"),
        ({"tag": "paid || open"}, "ab"),
        ({"tag": "none"}, ""),
        ({"key": "k1"}, "ac"),
        ({"header": "region"}, "ac"),
        ({"header": "region=us"}, "c"),
        ({"header": "region="}, ""),
        ({"sql": "price > 10"}, "b"),
        ({"sql": "region IS NOT NULL AND TAGS = 'paid'"}, "a"),
        ({"sql": "KEYS = 'k2' OR region = 'us'"}, "bc"),
        ({"key": "k1", "sql": "price < 10", "tag": "paid", "header": "region=eu"}, "a"),
        ({"key": "k1", "limit": "1"}, "a"),
    ],
)
def test_messages_that_match(bench: HttpBench, query: dict[str, str], values: str) -> None:
    status, found = bench.ask("GET", f"/api/topics/orders/messages?{urlencode(query)}")
    assert status == 200
    assert "".join(row["value"] for row in found["messages"]) == values
    assert found["next"] == (1 if "limit" in query else 4)


@pytest.mark.parametrize("query", [{"sql": "price >"}, {"tag": "||"}, {"sql": "x" * 100_000}])
def test_a_filter_that_cannot_be_parsed_is_refused(bench: HttpBench, query: dict[str, str]) -> None:
    assert bench.ask("GET", f"/api/topics/orders/messages?{urlencode(query)}")[0] == 400
