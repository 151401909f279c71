"""The class RuleFilter: which rules a tool asks for, as Kafka's AclBindingFilter. None stands for any."""

from typing import NamedTuple

from duolog.bridge.security.rules import ANY, Operation, Pattern, Permission, ResourceType, Rule


class RuleFilter(NamedTuple):
    """Rules of these fields. With `is_matching`, the rules that name a resource: also by a prefix, and by `*`."""

    resource_type: ResourceType | None = None
    name: str | None = None
    pattern: Pattern | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    permission: Permission | None = None
    is_matching: bool = False

    def takes(self, rule: Rule) -> bool:
        """Whether the rule is one of them."""
        return (
            self.resource_type in (None, rule.resource_type)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (None, rule.operation)
            and self.permission in (None, rule.permission)
            and self._takes_name(rule)
        )

    def _takes_name(self, rule: Rule) -> bool:
        if self.pattern not in (None, rule.pattern):
            return False
        if self.name is None or self.name == rule.name:
            return True
        if not self.is_matching:
            return False
        return rule.name == ANY if rule.pattern is Pattern.LITERAL else self.name.startswith(rule.name)
