"""The class Session: the principal of a connection, its groups and its address, and the decisions made for it."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from duolog.bridge.security.rules import GROUP_OF_PRINCIPALS, USER, Address, address_of

DECISIONS_MAX: Final = 1024  # The number of decisions that one session keeps. At the limit, all are dropped.


class Session:
    """A principal on one connection. `Authorizer` keeps its decisions here, until users or rules change.

    `login` identifies the user as it was at the login, so that a user who is removed, or gets another password, loses
    the session. It is 0 for a principal that a certificate or a token names: such a session does not depend on the
    password of a user with its name, but has all rights if that user is a super user.
    """

    __slots__ = (
        "address",
        "decisions",
        "generation",
        "host",
        "is_broker",
        "is_super",
        "is_valid",
        "login",
        "name",
        "over_names",
        "principals",
        "readable",
        "sends",
        "writable",
    )

    def __init__(
        self, name: str, host: str, *, login: int = 0, groups: Iterable[str] = (), is_broker: bool = False
    ) -> None:
        self.name = name  # Without `User:`.
        self.host = host
        self.address: Address | None = address_of(host)
        self.login = login
        # The principal is another broker of the stream, which forwards requests of its clients.
        self.is_broker = is_broker
        self.principals: frozenset[str] = frozenset()
        self.take_groups(groups)
        self.generation = -1  # The generation of the authorizer for which the following fields are valid.
        self.is_valid = False  # The user exists, with the password of the login.
        self.is_super = False
        self.decisions: dict[tuple[int, str, int], bool] = {}
        # Decisions about all names of a resource type, by the quantifier `any` or `all`.
        self.over_names: dict[tuple[Callable[[Iterable[bool]], bool], int, int], bool] = {}
        # Topics that the session may read or write, valid for the generation; for Produce and Fetch.
        self.readable: set[str] = set()
        self.writable: set[str] = set()
        # Allowed sends of RocketMQ by code and topic number: the `Granted` of requests that wait.
        self.sends: dict[tuple[int, int], Any] = {}

    def take_groups(self, groups: Iterable[str]) -> None:
        """Set the groups of principals to which the principal belongs."""
        of_groups = (f"{GROUP_OF_PRINCIPALS}{each}" for each in groups)
        self.principals = frozenset({self.principal, f"{USER}*", *of_groups})

    def forget(self) -> None:
        """Drop all decisions."""
        for decisions in (self.decisions, self.over_names, self.readable, self.writable, self.sends):
            decisions.clear()

    @property
    def end(self) -> str:
        """The reason why the session is no longer valid."""
        return f"the user {self.name} was removed, or has another password now"

    @property
    def principal(self) -> str:
        return f"{USER}{self.name}"
