"""The legal and the illegal names of topics and groups."""

from collections.abc import Callable

import pytest

from duolog.protocol.rocketmq import names
from duolog.protocol.rocketmq.names import IllegalName, check_group, check_topic

LEGAL = [
    (check_topic, "orders"),
    (check_topic, "A-z_0%|9"),
    (check_topic, "t" * 127),
    (check_topic, "%RETRY%" + "g" * 248),
    (check_topic, "%DLQ%" + "g" * 120),
    (check_group, "g" * 120),
]
ILLEGAL = [
    (check_topic, ""),
    (check_topic, "  "),
    (check_topic, "a.b"),
    (check_topic, "a b"),
    (check_topic, "orders\n"),
    (check_topic, "é"),
    (check_topic, "t" * 128),
    (check_topic, "%RETRY%" + "g" * 249),
    (check_group, ""),
    (check_group, "g" * 121),
    (check_group, "a/b"),
]


@pytest.mark.parametrize(("check", "name"), LEGAL)
def test_legal_names(check: Callable[[str], None], name: str) -> None:
    check(name)


@pytest.mark.parametrize(("check", "name"), ILLEGAL)
def test_illegal_names(check: Callable[[str], None], name: str) -> None:
    with pytest.raises(IllegalName):
        check(name)


def test_reserved_topics() -> None:
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_wheel_timer")
    assert not names.is_system_topic(names.retry_topic("g"))
    assert names.SCHEDULE_TOPIC in names.NOT_ALLOWED_TO_SEND
    assert names.TRACE_TOPIC not in names.NOT_ALLOWED_TO_SEND
    assert (names.retry_topic("g"), names.dead_letter_topic("g")) == ("%RETRY%g", "%DLQ%g")
