"""Subscriptions match the right messages; the SQL92 cases agree with RocketMQ's `ComparisonExpression.java`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog.protocol.rocketmq.filters import sql92, subscription_filter
from duolog.protocol.rocketmq.filters.sql92 import compile_condition
from duolog.protocol.rocketmq.filters.sql92_parts import DEPTH_MAX
from duolog.protocol.rocketmq.filters.subscription_filter import COMPILED_CHARACTERS_MAX, UnknownFilter, filter_of
from duolog.protocol.rocketmq.messages import properties, tags
from duolog.protocol.rocketmq.messages.tags import IllegalExpression

MESSAGE = properties.encode(
    {"a": "1", "b": "10", "f": "2.5", "name": "o'neil", "yes": "True", "big": "3000000000", "TAGS": "T", "word": "axb"}
).encode()

TRUE = """
a = 1
1 = a
a = 1L
a = '1'
a <> 2
a <> '2'
a < b
a < 2
b > 9
b >= 10 AND b <= 10
b > 9.5
f = 2.5
f > 2.4E0
f < 250.E-1
f > .5
+b > -1
b BETWEEN 10 AND 11
b NOT BETWEEN 11 AND 12
b BETWEEN a AND 20
a IN ('1', '2')
a NOT IN ('2')
name = 'o''neil'
name CONTAINS ''''
word STARTSWITH 'ax' AND word ENDSWITH 'xb' AND word CONTAINS 'x'
word NOT CONTAINS 'y'
yes = TRUE
yes <> FALSE
a IS NOT NULL
none IS NULL
none IS NULL AND NOT (none IS NOT NULL)
none = nowhere
a <> none
NOT (a = 2)
NOT (a = 2 OR b = 11)
none = 1 OR a = 1
TRUE
TRUE AND NOT FALSE
big > 2999999999
big = 3000000000
TAGS = 'T'
(((a = 1)))
a = 1 AND b = 10 OR none = 1
none = 1 AND a = 2 OR b = 10
a/* one */=1 -- the end
A = 1 or a = 1 And b Between 9 aNd 11
""".strip().splitlines()

NOT_TRUE = """
a = 2
none = 1
none <> 1
NOT (none = 1)
none > 1
none IN ('1')
none NOT IN ('1')
a = none
NULL
a
NOT a = 1
name > 5
name = 5
name = 5 OR a = 1
name < word
big > 5
f > 2
f = 2
TRUE = yes
-a < 0
word CONTAINS ''
word NOT CONTAINS ''
none CONTAINS 'x'
none NOT CONTAINS 'x'
(a = 1) = 1
5 = (a = 1)
a BETWEEN 2 AND 3
a IN ('10')
""".strip().splitlines()


@pytest.mark.parametrize("expression", TRUE)
def test_conditions_that_are_true(expression: str) -> None:
    assert compile_condition(expression)(MESSAGE)


@pytest.mark.parametrize("expression", NOT_TRUE)
def test_conditions_that_are_false_or_unknown(expression: str) -> None:
    assert not compile_condition(expression)(MESSAGE)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "character 1: the expression ends too early"),
        ("a >", "character 4: the expression ends too early"),
        ("(a = 1", "character 7: the expression ends too early"),
        ("a > > 1", "character 5: unexpected '>'"),
        ("a = 1 b", "character 7: unexpected 'b'"),
        ("a = 007", "character 6: unexpected '0'"),
        ("a = 'x", 'character 5: unexpected "\'"'),
        ("a = \u00e9", "character 5: unexpected '\u00e9'"),
        ("between = 1", "character 1: unexpected 'between'"),
        ("a IN (1)", "character 7: unexpected '1'"),
        ("a IN ()", "character 7: unexpected ')'"),
        ("'a' IN ('a')", "character 1: IN needs a property before it"),
        ("a CONTAINS b", "character 12: unexpected 'b'"),
        ("5", "character 1: a constant is neither true nor false"),
        ("a = 1 AND 'x'", "character 11: a constant is neither true nor false"),
        ("-a", "character 2: a negated value is neither true nor false"),
        ("a > 'x'", "character 5: only numbers and properties can be compared by >"),
        ("a <= TRUE", "character 6: only numbers and properties can be compared by <="),
        ("(a = 1) > 1", "character 2: only numbers and properties can be compared by >"),
        ("a = NULL", "character 5: NULL cannot be compared; write IS NULL"),
        ("a BETWEEN 3 AND 2", "character 11: BETWEEN 3 AND 2: the greater comes first"),
        ("a BETWEEN NULL AND 2", "character 11: NULL cannot be compared"),
        ("a = 9223372036854775808", "character 5: 9223372036854775808 exceeds 9223372036854775807"),
        ("a = 1E999", "character 5: the number is too large"),
        ("NOT " * (DEPTH_MAX + 1) + "(a = 1)", f"more than {DEPTH_MAX} conditions within each other"),
    ],
)
def test_errors_name_their_place(expression: str, problem: str) -> None:
    with pytest.raises(IllegalExpression) as raised:
        compile_condition(expression)
    assert problem in str(raised.value)


def test_long_expressions_are_read_or_refused_by_their_length() -> None:
    most = " OR ".join(["a=2"] * 580 + ["a=1"])
    assert len(most) < tags.EXPRESSION_CHARACTERS_MAX
    assert compile_condition(most)(MESSAGE)
    with pytest.raises(IllegalExpression):
        compile_condition(most * 2)


WORDS = ["a", "=", "1", "(", ")", "AND", "OR", "NOT", "'x'", "IS", "NULL", "IN", ",", "<", "2.5", "-", "BETWEEN"]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_anything_is_a_condition_or_an_illegal_expression(expression: str) -> None:
    try:
        condition = compile_condition(expression)
    except IllegalExpression:
        return
    assert condition(MESSAGE) in (True, False)


@given(
    st.lists(
        st.sampled_from(["", "a\x011\x02", "a\x012\x02b\x01x\x02", "b\x01y\x02", "b\x01" + "y" * 200]), max_size=12
    )
)
def test_what_is_remembered_is_what_would_be_found_again(sent: list[str]) -> None:
    """Of the values alone: two conditions over the same properties, asked in turn, know nothing of each other."""
    conditions = [compile_condition(each) for each in ("a = 1 OR b = 'x'", "b = 'y' OR a IS NULL")]
    for raw in sent:
        found = properties.parse(raw)
        a, b = found.get("a"), found.get("b")
        assert [each(raw.encode()) for each in conditions] == [a == "1" or b == "x", b == "y" or a is None]


def test_results_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql92, "RESULTS_MAX", 3)
    condition = compile_condition("a > 5")
    assert [condition(f"a\x01{n}\x02".encode()) for n in [*range(10), *range(10)]] == 2 * [n > 5 for n in range(10)]
    assert len(sql92._results) <= 3


def test_value_that_is_not_compared_may_be_anything() -> None:
    assert compile_condition("a = 1 OR b = 'x'")(b"a\x011\x02b\x01\xff\x02")


def test_properties_that_are_not_text_match_nothing() -> None:
    assert not compile_condition("a = 'x'")(b"a\x01\xff\x02")
    assert not filter_of("TAG", "x").wants(b"TAGS\x01\xff\x02")


# -- Both kinds


@pytest.mark.parametrize("kind", ["TAG", "", None])
@pytest.mark.parametrize("expression", ["*", "", None, "  "])
def test_star_wants_all(kind: str | None, expression: str | None) -> None:
    assert filter_of(kind, expression) is None


def test_tags_are_wanted_by_hash_and_by_word() -> None:
    found = filter_of("TAG", "Aa || x")
    assert found.codes == {tags.hash_code("Aa"), tags.hash_code("x")}
    assert found.wants(b"TAGS\x01Aa\x02")
    assert not found.wants(b"TAGS\x01BB\x02"), "another tag with the same hash"
    assert not found.wants(b"")


def test_other_kinds_are_refused() -> None:
    with pytest.raises(UnknownFilter):
        filter_of("GROOVY", "x")
    with pytest.raises(IllegalExpression):
        filter_of("SQL92", None)


def test_expressions_are_compiled_once_and_few_are_kept() -> None:
    assert filter_of("SQL92", "a = 1") is filter_of("SQL92", "a = 1")
    for number in range(COMPILED_CHARACTERS_MAX // 4000 + 10):
        filter_of("TAG", f"{number:4000d}")
    assert (
        subscription_filter._compiled.characters
        == sum(len(text) for _, text in subscription_filter._compiled)
        <= COMPILED_CHARACTERS_MAX
    )
