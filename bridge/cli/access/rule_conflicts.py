"""Which rules of an imported file and rules that a broker has contradict each other, for `duolog acl import`."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from duolog.bridge.security.rules import (
    ANY,
    GROUP_OF_PRINCIPALS,
    USER,
    Operation,
    Pattern,
    Permission,
    Rule,
    network_of,
)

ANY_USER = f"{USER}{ANY}"
Groups = Mapping[str, Collection[str]]  # The groups of each user of the broker, by name.


def conflicts(imported: Sequence[Rule], known: Sequence[Rule], groups: Groups) -> Iterator[str]:
    """Yield a remark for each pair of an imported rule and another rule of the broker, if one denies what one allows.

    `imported` has rules of users only. Hosts and names count: there must be a request that both rules are about.
    """
    others = sorted(set(known) - set(imported))
    of_permission = {each: [rule for rule in others if rule.permission is each] for each in Permission}
    for rule in imported:
        if rule.permission is Permission.ALLOW:
            for denied in of_permission[Permission.DENY]:
                if _meet(rule, denied, groups) and _covers(denied, rule):
                    yield f"{rule}: the broker's rule `{denied}` overrides it"
        else:
            for allowed in of_permission[Permission.ALLOW]:
                if _meet(rule, allowed, groups) and _covers(rule, allowed):
                    yield f"{rule}: it overrides the broker's rule `{allowed}`"


def _covers(denied: Rule, allowed: Rule) -> bool:
    """Whether the denied operation is one of those that are allowed."""
    return denied.operation in (allowed.operation, Operation.ALL) or allowed.operation is Operation.ALL


def _meet(rule: Rule, other: Rule, groups: Groups) -> bool:
    return (
        rule.resource_type is other.resource_type
        and _have_principal(rule.principal, other.principal, groups)
        and _have_name(rule, other)
        and _have_address(rule.host, other.host)
    )


def _have_principal(user: str, other: str, groups: Groups) -> bool:
    if other.startswith(GROUP_OF_PRINCIPALS):
        return user == ANY_USER or other.removeprefix(GROUP_OF_PRINCIPALS) in groups.get(user.removeprefix(USER), ())
    return user == other or ANY_USER in (user, other)


def _have_name(rule: Rule, other: Rule) -> bool:
    prefixes = [one.pattern is Pattern.PREFIXED or one.name == ANY for one in (rule, other)]
    one, two = ("" if each.name == ANY and each.pattern is Pattern.LITERAL else each.name for each in (rule, other))
    return (prefixes[0] and two.startswith(one)) or (prefixes[1] and one.startswith(two)) or one == two


def _have_address(host: str, other: str) -> bool:
    if ANY in (host, other):
        return True
    one, two = network_of(host), network_of(other)
    return one.version == two.version and one.overlaps(two)
