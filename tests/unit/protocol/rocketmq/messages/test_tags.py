"""Tag hashes are Java's; subscriptions are read as RocketMQ's clients write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.rocketmq.messages import tags

# `String.hashCode()` of OpenJDK 17.
OF_JAVA = [
    ("", 0),
    ("a", 97),
    ("tagA", 3552231),
    ("TagB", 2598920),
    ("主题", 659901),
    ("😀x", 54959989),
    ("polygenelubricants", -2147483648),
    ("the quick brown fox jumps over the lazy dog", -2082818701),
]


@pytest.mark.parametrize(("text", "code"), OF_JAVA)
def test_hashes_are_those_of_java(text: str, code: int) -> None:
    assert tags.hash_code(text) == code
    assert tags.hash_code(text) == code  # the second time it is remembered


@given(st.text())
def test_hash_is_a_polynomial_over_utf16(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = code * 31 + (high << 8 | low)
    assert tags.hash_code(text) % (1 << 32) == code % (1 << 32)
    assert -(1 << 31) <= tags.hash_code(text) < 1 << 31


def test_what_is_remembered_is_bounded() -> None:
    for number in range(10_000):
        tags.hash_code(f"tag-{number}")
    assert len(tags._codes) <= tags._CACHED_TAGS_MAX
    assert not any(len(text) > tags._CACHED_TAG_CHARACTERS_MAX for text in tags._codes)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (None, set()),
        ("", set()),
        ("*", set()),
        ("   ", set()),
        ("a", {"a"}),
        ("a||b", {"a", "b"}),
        (" a || b ||", {"a", "b"}),
        ("||a||||a", {"a"}),
        ("a|b", {"a|b"}),
        ("a||*", {"a", "*"}),
    ],
)
def test_expressions(expression: str | None, expected: set[str]) -> None:
    assert tags.parse_expression(expression) == expected


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(tags.IllegalExpression):
        tags.parse_expression(expression)
