"""The class Authorizer: decides whether the principal of a session may do an operation on a resource.

    the user was removed, or has another password now    no
    super user, or another broker of the stream          yes
    a rule that names the resource denies                no: deny overrides, however specific the rules are
    a rule that names the resource allows                yes; IMPLIED_BY says which operations allow others
    no rule names the resource                           `security.allow_if_no_rule`
    otherwise                                            no

So the order in which rules were added has no effect. A session keeps its decisions until any user or rule changes.
Source: StandardAuthorizerData.java of Apache Kafka.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

from duolog.bridge.config import SecurityOptions
from duolog.bridge.security.acls import Acls
from duolog.bridge.security.rules import (
    ANY,
    CLUSTER_NAME,
    IMPLIED_BY,
    Network,
    Operation,
    Permission,
    ResourceType,
    Rule,
    network_of,
)
from duolog.bridge.security.session import DECISIONS_MAX, Session
from duolog.bridge.security.users import Users

NETWORKS_MAX: Final = 10_000  # The number of parsed hosts of rules that are kept.


class Authorizer:
    """Decides for all ports. `generation` increases whenever a user or a rule changes."""

    def __init__(self, users: Users, acls: Acls, options: SecurityOptions) -> None:
        self._users, self._acls = users, acls
        self._allow_if_no_rule = options.allow_if_no_rule
        self.generation = 0
        self._networks: dict[str, Network] = {}
        users.on_changed = acls.on_changed = self._changed

    def _changed(self) -> None:
        self.generation += 1
        if len(self._networks) > NETWORKS_MAX:
            self._networks.clear()

    def allows(self, session: Session, resource_type: ResourceType, name: str, operation: Operation) -> bool:
        """Whether the session may do the operation on a resource, whose name is in Kafka's spelling."""
        if session.generation != self.generation:
            self._renew(session)
        if session.is_super:
            return True
        key = (resource_type, name, operation)
        decision = session.decisions.get(key)
        if decision is None:
            decision = self._decide(session, resource_type, name, operation)
            if len(session.decisions) >= DECISIONS_MAX:
                session.decisions.clear()
            session.decisions[key] = decision
        return decision

    def allows_cluster(self, session: Session, operation: Operation) -> bool:
        """Whether the session may do the operation on the broker as a whole."""
        return self.allows(session, ResourceType.CLUSTER, CLUSTER_NAME, operation)

    def allows_some(self, session: Session, resource_type: ResourceType, operation: Operation) -> bool:
        """Whether there is a name for which the session may do the operation on such a resource."""
        return self._over_names(any, session, resource_type, operation)

    def allows_every(self, session: Session, resource_type: ResourceType, operation: Operation) -> bool:
        """Whether the session may do the operation on all such resources: no rule takes the right on any of them."""
        return self._over_names(all, session, resource_type, operation)

    def _over_names(
        self,
        quantifier: Callable[[Iterable[bool]], bool],
        session: Session,
        resource_type: ResourceType,
        operation: Operation,
    ) -> bool:
        """Ask for `*`, and for each name in a rule that may decide otherwise. A session remembers the answers."""
        if session.generation != self.generation:
            self._renew(session)
        key = (quantifier, resource_type, operation)
        decision = session.over_names.get(key)
        if decision is None:
            deciding = Permission.ALLOW if quantifier is any else Permission.DENY
            every_rule = quantifier is all and self._allow_if_no_rule  # A rule for others takes the right, too.
            names = (
                rule.name
                for rule in self._acls.of_type(resource_type)
                if every_rule or (rule.permission is deciding and rule.principal in session.principals)
            )
            decision = quantifier(self.allows(session, resource_type, name, operation) for name in chain((ANY,), names))
            session.over_names[key] = decision
        return decision

    def is_valid(self, session: Session) -> bool:
        """Whether the session's user still exists, with the password of the login."""
        if session.generation != self.generation:
            self._renew(session)
        return session.is_valid

    def is_super(self, session: Session) -> bool:
        """Whether the session's user may do everything."""
        if session.generation != self.generation:
            self._renew(session)
        return session.is_super

    def _renew(self, session: Session) -> None:
        """Forget what was decided for the session before users or rules changed."""
        session.generation = self.generation
        session.forget()
        user = self._users.get(session.name)
        is_same = user is not None and session.login in (0, user.login)
        session.is_valid = is_same or not session.login
        session.is_super = session.is_broker or (user is not None and user.is_super and is_same)
        if user is not None:
            session.take_groups(user.record.groups)

    def denying(self, session: Session, resource_type: ResourceType, name: str, operation: Operation) -> Rule | None:
        """Return a rule that denies the operation to the session; None: there is none."""
        for rule in self._acls.matching(resource_type, name):
            if (
                rule.permission is Permission.DENY
                and rule.operation in (operation, Operation.ALL)
                and rule.principal in session.principals
                and self._is_from(session, rule)
            ):
                return rule
        return None

    def _decide(self, session: Session, resource_type: ResourceType, name: str, operation: Operation) -> bool:
        if not session.is_valid:
            return False
        is_named = is_allowed = False
        implied_by = IMPLIED_BY.get(operation, ())
        for rule in self._acls.matching(resource_type, name):
            is_named = True
            if rule.principal not in session.principals or not self._is_from(session, rule):
                continue
            if rule.operation in (operation, Operation.ALL):
                if rule.permission is Permission.DENY:
                    return False
                is_allowed = True
            elif rule.permission is Permission.ALLOW and rule.operation in implied_by:
                is_allowed = True
        return is_allowed if is_named else self._allow_if_no_rule

    def _is_from(self, session: Session, rule: Rule) -> bool:
        if rule.host == ANY:
            return True
        network = self._networks.get(rule.host)
        if network is None:
            network = self._networks[rule.host] = network_of(rule.host)
        return session.address is not None and session.address in network
