"""What a request needs: rows of the dispatch tables declare it, and the decision asks the authorizer.

Need(TOPIC, "orders", READ)                    one operation on one resource
Need(TOPIC, None, WRITE)                       the operation on some resource of the type
Need(TOPIC, "*", READ)                         the operation on all resources of the type
(Need(CLUSTER, ..., CREATE), Need(TOPIC, ...)) alternatives: one of them is enough
"""

from collections.abc import Iterable
from typing import NamedTuple

from duolog.bridge.security.authorizer import Authorizer
from duolog.bridge.security.rules import ANY, CLUSTER_NAME, Operation, ResourceType, canonical
from duolog.bridge.security.session import Session


class Need(NamedTuple):
    """One operation on one resource, whose name is in Kafka's spelling; None: on some resource of the type.

    The name * stands for all resources of the type.
    """

    resource_type: ResourceType
    name: str | None
    operation: Operation

    def __str__(self) -> str:
        name = "" if self.resource_type is ResourceType.CLUSTER else f" {(self.name or 'of any name')[:255]}"
        return f"{self.operation.name} on {self.resource_type.name.lower()}{name}"


AnyOf = tuple[Need, ...]  # One of them is enough. The first one is named in refusals.


def cluster(operation: Operation) -> AnyOf:
    """Return the need of an operation on the broker as a whole."""
    return (Need(ResourceType.CLUSTER, CLUSTER_NAME, operation),)


def topic(name: str, operation: Operation) -> AnyOf:
    """Return the need of an operation on a topic; the name is in Kafka's spelling."""
    return (Need(ResourceType.TOPIC, name, operation),)


def group(name: str, operation: Operation) -> AnyOf:
    """Return the need of an operation on a group, in either spelling: groups of Kafka may be named as in RocketMQ."""
    return (Need(ResourceType.GROUP, canonical(ResourceType.GROUP, name), operation),)


def transactional_id(name: str, operation: Operation) -> AnyOf:
    """Return the need of an operation on a transactional id of Kafka."""
    return (Need(ResourceType.TRANSACTIONAL_ID, name, operation),)


def first_refused(authorizer: Authorizer, session: Session, needs: Iterable[AnyOf]) -> Need | None:
    """Return the first need that the session may not have; None: it may have all."""
    for alternatives in needs:
        if not has_one(authorizer, session, alternatives):
            return alternatives[0]
    return None


def has_one(authorizer: Authorizer, session: Session, alternatives: AnyOf) -> bool:
    """Whether the session may have one of these."""
    for resource_type, name, operation in alternatives:
        if name is None:
            if authorizer.allows_some(session, resource_type, operation):
                return True
        elif name == ANY:
            if authorizer.allows_every(session, resource_type, operation):
                return True
        elif authorizer.allows(session, resource_type, name, operation):
            return True
    return False
