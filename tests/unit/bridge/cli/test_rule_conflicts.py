"""Rules of an imported file beside those of the broker: pairs of which one denies what the other allows are named."""

import pytest

from duolog.bridge.cli.access.rule_conflicts import conflicts
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of

GROUPS = {"a": ("devs",), "b": ("ops",)}


def rule(text: str, host: str = "*") -> RuleText:
    """`deny User:a read topic pay.*`"""
    permission, principal, operation, resource, name = text.split()
    is_prefix = len(name) > 1 and name.endswith("*")
    pattern = "prefixed" if is_prefix else "literal"
    return RuleText(principal, resource, operation, permission, name.rstrip("*") if is_prefix else name, pattern, host)


@pytest.mark.parametrize(
    ("imported", "known", "is_named"),
    [
        ("allow User:a read topic pay", "deny User:* read topic pay", True),
        ("allow User:a read topic pay", "deny User:* all topic *", True),
        ("allow User:a read topic pay", "deny User:a read topic p*", True),
        ("allow User:a read topic p*", "deny User:a read topic pay", True),
        ("allow User:a read topic *", "deny User:a read topic pay", True),
        ("allow User:a read topic p*", "deny User:a read topic pay*", True),
        ("allow User:a all topic pay", "deny User:a write topic pay", True),
        ("allow User:a read topic pay", "deny Group:devs read topic pay", True),
        ("allow User:* read topic pay", "deny User:b read topic pay", True),
        ("deny User:a read topic pay", "allow User:* all topic *", True),
        ("deny User:a read topic pay", "allow Group:devs read topic pay", True),
        ("allow User:a read topic pay", "deny Group:ops read topic pay", False),
        ("allow User:a read topic pay", "deny User:b read topic pay", False),
        ("allow User:a read topic pay", "deny User:a write topic pay", False),
        ("allow User:a read topic pay", "deny User:a read topic payment", False),
        ("allow User:a read topic pay", "deny User:a read topic payments*", False),
        ("allow User:a read topic pay", "deny User:a read group pay", False),
        ("allow User:a read topic pay", "allow User:* read topic pay", False),
        ("deny User:a read topic pay", "deny User:* read topic pay", False),
    ],
)
def test_contradictions_are_named(imported: str, known: str, is_named: bool) -> None:
    one, other = rule_of(rule(imported)), rule_of(rule(known))
    said = [*conflicts([one], [other], GROUPS)]
    assert bool(said) is is_named
    assert not said or (str(one) in said[0] and f"`{other}`" in said[0])


@pytest.mark.parametrize(
    ("host", "other", "is_named"),
    [("10.0.0.7", "10.0.0.0/8", True), ("10.0.0.7", "*", True), ("10.0.0.7", "11.0.0.0/8", False),
     ("10.0.0.7", "::/0", False)],
)  # fmt: skip
def test_only_rules_about_the_same_addresses_contradict_each_other(host: str, other: str, is_named: bool) -> None:
    allowed, denied = rule("allow User:a read topic pay", host), rule("deny User:a read topic pay", other)
    assert bool([*conflicts([rule_of(allowed)], [rule_of(denied)], {})]) is is_named


def test_rule_of_the_file_that_the_broker_has_is_no_contradiction() -> None:
    """The entries of one file are compared by themselves, also when it is imported again."""
    file = [rule_of(rule(text)) for text in ("allow User:a read topic pay", "deny User:a read topic p*")]
    assert not [*conflicts(file, file, {})]
