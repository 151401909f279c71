"""Access rules: which principal may, or may not, do an operation on a resource.

The numbers are those of Kafka's AclOperation, ResourceType, PatternType and AclPermissionType, so that the log, the
client protocols and the commands use the same ones. Names of topics and groups are in Kafka's spelling.

    User:alice   TOPIC  orders   LITERAL   READ    *           ALLOW
    Group:ops    TOPIC  pay.     PREFIXED  ALL     10.0.0.0/8  DENY
    User:*       GROUP  *        LITERAL   READ    *           ALLOW      the literal name * stands for any name

A host is `*`, an address, or a network.
"""

from collections.abc import Iterator
from enum import IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from duolog.bridge.records.security import StoredRule
from duolog.protocol import names

ANY: Final = "*"
_MAPPED_BITS: Final = 96  # The bits before the IPv4 address in ::ffff:0:0/96 (RFC 4291).
CLUSTER_NAME: Final = "kafka-cluster"  # Resource.CLUSTER_NAME
NAME_CHARACTERS_MAX: Final = 255
USER: Final = "User:"
GROUP_OF_PRINCIPALS: Final = "Group:"


class ResourceType(IntEnum):
    __hash__ = int.__hash__  # That of IntEnum is a function in Python; each decision calls it.

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Pattern(IntEnum):
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    __hash__ = int.__hash__

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3


# An allow of these operations is an allow of the key (StandardAuthorizerData.java). A deny is of its operation alone.
IMPLIED_BY: Final[dict[Operation, tuple[Operation, ...]]] = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class BadRule(ValueError):
    """A rule has a field with an invalid value; the message names it."""


class Rule(NamedTuple):
    """One access rule."""

    principal: str  # `User:NAME`, `User:*` or `Group:NAME`.
    resource_type: ResourceType
    name: str
    pattern: Pattern
    operation: Operation
    host: str
    permission: Permission

    @property
    def stored(self) -> StoredRule:
        return StoredRule(
            self.principal, int(self.resource_type), self.name, int(self.pattern), int(self.operation), self.host,
            int(self.permission),
        )  # fmt: skip

    @classmethod
    def of(cls, stored: StoredRule) -> "Rule":
        """Return the rule of a state record."""
        return cls(
            stored.principal, ResourceType(stored.resource_type), stored.name, Pattern(stored.pattern),
            Operation(stored.operation), stored.host, Permission(stored.permission),
        )  # fmt: skip

    @property
    def words(self) -> str:
        """Say what the rule is about, without the host."""
        name = f"{self.name}*" if self.pattern is Pattern.PREFIXED else self.name
        permission, operation = self.permission.name.lower(), self.operation.name.lower()
        resource = f"{self.resource_type.name.lower()} {name}"
        return f"{permission} {self.principal} {operation} on {resource}"

    def __str__(self) -> str:
        return self.words if self.host == ANY else f"{self.words} from {self.host}"


def checked(rule: Rule) -> Rule:
    """Return the rule. Raises BadRule if a field is invalid; the name must be in Kafka's spelling."""
    kind, colon, who = rule.principal.partition(":")
    if not colon or kind not in ("User", "Group") or not 0 < len(who) <= NAME_CHARACTERS_MAX:
        raise BadRule(f"principal: expected User:NAME, User:* or Group:NAME, got {rule.principal[:300]!r}")
    if not 0 < len(rule.name) <= NAME_CHARACTERS_MAX:
        raise BadRule(f"name: expected 1 to {NAME_CHARACTERS_MAX} characters, got {len(rule.name)}")
    if rule.resource_type is ResourceType.CLUSTER and rule.name not in (CLUSTER_NAME, ANY):
        raise BadRule(f"name: the only cluster is {CLUSTER_NAME}, got {rule.name!r}")
    if rule.host != ANY:
        network_of(rule.host)
    return rule


def canonical(resource_type: ResourceType, name: str) -> str:
    """Return the name of a resource, or of a pattern, in Kafka's spelling; it is given in either spelling."""
    if name == ANY or resource_type not in (ResourceType.TOPIC, ResourceType.GROUP):
        return name
    return names.kafka_name(name) if "%" in name or "|" in name else name


def network_of(host: str) -> Network:
    """Parse an address or a network. Raises BadRule. A network of IPv4 addresses in IPv6 ones is IPv4."""
    try:
        network = ip_network(host, strict=False)
    except ValueError:
        raise BadRule(f"host: expected *, an address or a network, got {host[:100]!r}") from None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


def address_of(host: str) -> Address | None:
    """Parse the address of a client; None for a socket without one. An IPv4 address in an IPv6 one is IPv4."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


class RuleIndex:
    """The rules of one resource type, found by the name of a resource."""

    def __init__(self) -> None:
        self._literal: dict[str, dict[Rule, None]] = {}
        self._prefixed: dict[str, dict[Rule, None]] = {}
        self._lengths: dict[int, int] = {}  # The number of different prefixes of each length.

    def add(self, rule: Rule) -> None:
        if rule.pattern is Pattern.LITERAL:
            self._literal.setdefault(rule.name, {})[rule] = None
            return
        if rule.name not in self._prefixed:
            self._prefixed[rule.name] = {}
            self._lengths[len(rule.name)] = self._lengths.get(len(rule.name), 0) + 1
        self._prefixed[rule.name][rule] = None

    def remove(self, rule: Rule) -> None:
        of_pattern = self._literal if rule.pattern is Pattern.LITERAL else self._prefixed
        rules = of_pattern[rule.name]
        del rules[rule]
        if not rules:
            del of_pattern[rule.name]
            if rule.pattern is Pattern.PREFIXED:
                self._lengths[len(rule.name)] -= 1
                if not self._lengths[len(rule.name)]:
                    del self._lengths[len(rule.name)]

    def matching(self, name: str) -> Iterator[Rule]:
        """Yield the rules whose pattern matches the name of a resource."""
        yield from self._literal.get(name, ())
        if name != ANY:
            yield from self._literal.get(ANY, ())
        for length in self._lengths:
            if length <= len(name):
                yield from self._prefixed.get(name[:length], ())

    def all(self) -> Iterator[Rule]:
        for of_pattern in (self._literal, self._prefixed):
            for rules in of_pattern.values():
                yield from rules
