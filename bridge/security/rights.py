"""The class Rights: what one session may do, for code that leaves out what the session may not see."""

from typing import NamedTuple

from duolog.bridge.security.needs import AnyOf, first_refused, has_one
from duolog.bridge.security.rules import Operation
from duolog.bridge.security.security import Security
from duolog.bridge.security.session import Session


class Rights(NamedTuple):
    """The rights of a session."""

    security: Security
    session: Session

    def has(self, alternatives: AnyOf) -> bool:
        """Whether the session has one of these."""
        return has_one(self.security.authorizer, self.session, alternatives)

    def has_topic(self, name: str, operation: Operation) -> bool:
        """Whether the session may do an operation on a topic, whose name is in Kafka's spelling."""
        return (
            first_refused(self.security.authorizer, self.session, self.security.resources.topic(name, operation))
            is None
        )

    def may_read(self, name: str) -> bool:
        """Whether the session may read a topic; that of a Fetch request was remembered if it can be."""
        session = self.session
        is_present = session.generation == self.security.authorizer.generation  # No user and no rule has changed.
        return (is_present and name in session.readable) or self.has_topic(name, Operation.READ)
