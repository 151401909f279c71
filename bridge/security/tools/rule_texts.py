"""Access rules as words, for the HTTP API and the commands: `allow`, `topic`, `prefixed`, `alter_configs`."""

from enum import IntEnum
from typing import TypeVar

import msgspec

from duolog.bridge.security.rules import (
    ANY,
    CLUSTER_NAME,
    USER,
    BadRule,
    Operation,
    Pattern,
    Permission,
    ResourceType,
    Rule,
    canonical,
    checked,
)

NumberT = TypeVar("NumberT", bound=IntEnum)


class RuleText(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One access rule. Names of topics and groups may have either spelling."""

    principal: str
    resource: str
    operation: str
    permission: str = "allow"
    name: str = CLUSTER_NAME
    pattern: str = "literal"
    host: str = ANY


def rule_of(text: RuleText) -> Rule:
    """Return the rule. Raises BadRule."""
    resource_type = _number("resource", ResourceType, text.resource)
    name = CLUSTER_NAME if resource_type is ResourceType.CLUSTER else canonical(resource_type, text.name)
    return checked(
        Rule(
            text.principal if ":" in text.principal else f"{USER}{text.principal}",
            resource_type,
            name,
            _number("pattern", Pattern, text.pattern),
            _number("operation", Operation, text.operation),
            text.host,
            _number("permission", Permission, text.permission),
        )
    )


def text_of(rule: Rule) -> RuleText:
    """Return the words of a rule."""
    return RuleText(
        rule.principal,
        rule.resource_type.name.lower(),
        rule.operation.name.lower(),
        rule.permission.name.lower(),
        rule.name,
        rule.pattern.name.lower(),
        rule.host,
    )


def _number(field: str, numbers: type[NumberT], word: str) -> NumberT:
    try:
        return numbers[word.upper()]
    except KeyError:
        known = ", ".join(each.name.lower() for each in numbers)
        raise BadRule(f"{field}: expected one of {known}, got {word[:60]!r}") from None
