"""Policies of RocketMQ's ACL 2.0 as access rules, and back.

    Topic:orders      a literal name          Topic:orders*    a prefix          Topic:*    any name
    *                 any topic, any group and the cluster

    Pub     WRITE                   Create   CREATE                       Get     DESCRIBE, DESCRIBE_CONFIGS
    Sub     READ                    Update   ALTER, ALTER_CONFIGS         List    DESCRIBE
    All     ALL                     Delete   DELETE                       Any     ALL

A rule that no action stands for, such as one for a transactional id, is in no policy. Apache RocketMQ lets the most
specific policy win; here each deny wins (`bridge/security/authorizer.py`). Source: `Resource.java`, `Action.java`.
"""

from collections.abc import Iterable, Iterator
from typing import Final

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
from duolog.protocol.rocketmq.auth import AclInfo, Policy, PolicyEntry

CUSTOM: Final = "Custom"
RULES_OF_REQUEST_MAX: Final = 2_000  # The access rules that one request may stand for.

_OPERATIONS: Final[dict[str, tuple[Operation, ...]]] = {
    "all": (Operation.ALL,),
    "any": (Operation.ALL,),
    "pub": (Operation.WRITE,),
    "sub": (Operation.READ,),
    "create": (Operation.CREATE,),
    "update": (Operation.ALTER, Operation.ALTER_CONFIGS),
    "delete": (Operation.DELETE,),
    "get": (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
    "list": (Operation.DESCRIBE,),
}
# In the order in which rules become actions: Get before List, which is a part of it.
_ACTIONS: Final = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
_TYPES: Final = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "cluster": ResourceType.CLUSTER}

Resource = tuple[ResourceType, str, Pattern]


# -- From policies


def rules_of(acl: AclInfo, subject: str, cluster_name: str) -> dict[Resource, list[Rule]]:
    """Return the rules that a request wants for each resource that it names. Raises BadRule."""
    check_subject(subject)
    entries = [entry for policy in acl.policies for entry in _entries(policy)]
    wanted: dict[Resource, list[Rule]] = {}
    left = RULES_OF_REQUEST_MAX
    for entry in entries:
        for resource in resources_of(entry.resource, cluster_name):
            left -= 2 * len(entry.actions) * max(1, len(entry.source_ips or ()))
            if left < 0:
                raise BadRule(f"policies: one request may stand for {RULES_OF_REQUEST_MAX} rules, got more")
            wanted.setdefault(resource, []).extend(_rules(subject, resource, entry))
    return wanted


def _entries(policy: Policy) -> list[PolicyEntry]:
    if policy.policy_type not in (None, "", CUSTOM):
        raise BadRule(f"policyType: only {CUSTOM} is supported, got {policy.policy_type!r:.60}")
    return policy.entries


def check_subject(subject: str) -> None:
    """Raise BadRule unless the subject is that of one user."""
    if not subject.startswith(USER) or len(subject) == len(USER):
        raise BadRule(f"subject: expected User:NAME, got {subject!r:.300}")


def resources_of(text: str, cluster_name: str) -> list[Resource]:
    """Return the resources that a text such as `Topic:orders*` names. Raises BadRule."""
    if text == ANY:
        return [(each, ANY, Pattern.LITERAL) for each in (ResourceType.TOPIC, ResourceType.GROUP)] + [_CLUSTER]
    kind, colon, name = text.partition(":")
    resource_type = _TYPES.get(kind.lower())
    if resource_type is None or not colon or not name:
        raise BadRule(f"resource: expected Topic:NAME, Group:NAME, Cluster:NAME or *, got {text!r:.300}")
    if resource_type is ResourceType.CLUSTER:
        if name not in (ANY, cluster_name, CLUSTER_NAME):
            raise BadRule(f"resource: the cluster is {cluster_name}, got {name!r:.300}")
        return [_CLUSTER]
    if name == ANY or not name.endswith(ANY):
        return [(resource_type, canonical(resource_type, name), Pattern.LITERAL)]
    return [(resource_type, canonical(resource_type, name[:-1]), Pattern.PREFIXED)]


_CLUSTER: Final[Resource] = (ResourceType.CLUSTER, CLUSTER_NAME, Pattern.LITERAL)


def _rules(subject: str, resource: Resource, entry: PolicyEntry) -> Iterator[Rule]:
    decisions = {"allow": Permission.ALLOW, "deny": Permission.DENY}
    permission = decisions.get((entry.decision or "").lower())
    if permission is None:
        raise BadRule(f"decision: expected Allow or Deny, got {entry.decision!r:.60}")
    hosts = [host or ANY for host in entry.source_ips or (ANY,)]
    if not entry.actions:
        raise BadRule(f"actions: expected one at least for the resource {entry.resource!r:.300}")
    resource_type, name, pattern = resource
    for action in entry.actions:
        operations = _OPERATIONS.get(action.lower())
        if operations is None:
            raise BadRule(f"actions: expected one of {', '.join(_ACTIONS)}, Any, got {action!r:.60}")
        for operation in operations:
            for host in hosts:
                yield checked(Rule(subject, resource_type, name, pattern, operation, host, permission))


# -- To policies


def acl_of(subject: str, rules: Iterable[Rule], cluster_name: str) -> AclInfo | None:
    """Return the policies of a subject from its rules; None if it has none that actions stand for."""
    by_entry: dict[tuple[Resource, Permission, str], set[Operation]] = {}
    for rule in rules:
        resource = (rule.resource_type, rule.name, rule.pattern)
        by_entry.setdefault((resource, rule.permission, rule.host), set()).add(rule.operation)
    hosts: dict[tuple[Resource, Permission, tuple[str, ...]], list[str]] = {}
    for (resource, permission, host), operations in by_entry.items():
        actions = tuple(_actions(operations))
        if actions and resource[0] is not ResourceType.TRANSACTIONAL_ID:
            hosts.setdefault((resource, permission, actions), []).append(host)
    entries = [
        PolicyEntry(
            resource=_text(resource, cluster_name),
            actions=list(actions),
            source_ips=None if ANY in of_entry else of_entry,
            decision=permission.name.capitalize(),
        )
        for (resource, permission, actions), of_entry in hosts.items()
    ]
    return AclInfo(subject=subject, policies=[Policy(policy_type=CUSTOM, entries=entries)]) if entries else None


def _actions(operations: set[Operation]) -> Iterator[str]:
    left = set(operations)
    for action in _ACTIONS:
        parts = set(_OPERATIONS[action.lower()])
        if parts <= left:
            yield action
            left -= parts


def _text(resource: Resource, cluster_name: str) -> str:
    resource_type, name, pattern = resource
    if resource_type is ResourceType.CLUSTER:
        name = cluster_name
    return f"{resource_type.name.capitalize()}:{name}{ANY if pattern is Pattern.PREFIXED else ''}"
