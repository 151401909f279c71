"""Proves that a name has one spelling in each protocol, the conversion is reversible, and no two names share one."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol import names

COMMON = string.ascii_letters + string.digits + "_-"

PAIRS = [
    ("orders", "orders"),
    ("orders.eu", "orders|eu"),
    ("..RETRY..billing", "%RETRY%billing"),
    ("..DLQ..billing.eu", "%DLQ%billing|eu"),
    ("MQ_INST_7..orders", "MQ_INST_7%orders"),
    ("a...b", "a||b"),
    ("a....b", "a|%b"),
    ("a.....b", "a%|b"),
    ("a......b", "a%%b"),
    ("...", "||"),
]


@pytest.mark.parametrize(("kafka", "rocketmq"), PAIRS)
def test_either_spelling_leads_to_both(kafka: str, rocketmq: str) -> None:
    for name in (kafka, rocketmq):
        assert names.kafka_name(name) == kafka
        assert names.rocketmq_name(name) == rocketmq
    assert names.group_of_rocketmq(rocketmq) == kafka
    assert names.rocketmq_group(kafka) == rocketmq


@given(st.text(COMMON + ".", min_size=1, max_size=100).filter(names.is_kafka_topic))
def test_kafka_name_survives_the_way_through_rocketmq(name: str) -> None:
    assert names.is_rocketmq_topic(names.rocketmq_name(name))
    assert names.kafka_name(names.rocketmq_name(name)) == name


@given(st.text(COMMON + "%|", min_size=1, max_size=127))
def test_rocketmq_name_survives_the_way_through_kafka_unless_it_is_hashed(name: str) -> None:
    spelled = names.kafka_name(name)
    assert names.is_kafka_topic(spelled)
    assert names.rocketmq_name(spelled) == name or spelled[-22:-16] == "......"


@pytest.mark.parametrize(
    "name",
    ["x" * 128, "a." * 124, ".".join(["part"] * 40), "|", "%", "a" + "%" * 12, "%" * 127, "%RETRY%" + "g" * 248],
)
def test_what_does_not_fit_gets_a_legal_hashed_form(name: str) -> None:
    assert names.is_kafka_topic(names.kafka_name(name))
    assert names.is_rocketmq_topic(names.rocketmq_name(name))


@pytest.mark.parametrize("group", ["", "my group", "группа", "a%b", "a/b:c", "g" * 200, "\ud800"])
def test_group_of_any_text_has_a_rocketmq_spelling(group: str) -> None:
    assert names.is_rocketmq_group(names.rocketmq_group(group))
    assert names.rocketmq_group(group) != names.rocketmq_group(group + "x")


def test_hashed_forms_of_names_that_differ_at_the_end_differ() -> None:
    assert names.rocketmq_name("x" * 200 + "1") != names.rocketmq_name("x" * 200 + "2")


@pytest.mark.parametrize("name", ["", ".", "..", "a%b", "a b", "ä", "x" * 250, "a\n"])
def test_illegal_kafka_topic(name: str) -> None:
    assert not names.is_kafka_topic(name)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ä", "x" * 128, "%RETRY%" + "x" * 249, "a\n"])
def test_illegal_rocketmq_topic(name: str) -> None:
    assert not names.is_rocketmq_topic(name)
