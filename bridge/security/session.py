"""Who a connection belongs to: the principal, its groups and its address, with the decisions that were made for it."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from duolog.bridge.security.rules import GROUP_OF_PRINCIPALS, USER, Address, address_of

DECISIONS_MAX: Final = 1024  # Decisions that one session remembers; beyond, all are forgotten.


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
        self.is_broker = is_broker  # Another broker of the stream, which sends on what a client of it may do.
        self.principals: frozenset[str] = frozenset()
        self.take_groups(groups)
        self.generation = -1  # That of the following fields.
        self.is_valid = False  # The user exists, with the password of the login.
        self.is_super = False
        self.decisions: dict[tuple[int, str, int], bool] = {}
        # By `any` or `all`: decisions about all names of a resource type.
        self.over_names: dict[tuple[Callable[[Iterable[bool]], bool], int, int], bool] = {}
        # Topics that the session may read or write, without any condition but the generation; for Produce and Fetch.
        self.readable: set[str] = set()
        self.writable: set[str] = set()
        # What RocketMQ's sends were allowed, by code and the topic's number: the object for requests that wait.
        self.sends: dict[tuple[int, int], Any] = {}

    def take_groups(self, groups: Iterable[str]) -> None:
        """Set the groups of principals to which the principal belongs."""
        of_groups = (f"{GROUP_OF_PRINCIPALS}{each}" for each in groups)
        self.principals = frozenset({self.principal, f"{USER}*", *of_groups})

    def forget(self) -> None:
        """Forget all decisions."""
        for decisions in (self.decisions, self.over_names, self.readable, self.writable, self.sends):
            decisions.clear()

    @property
    def end(self) -> str:
        """Why the session is no longer valid."""
        return f"the user {self.name} was removed, or has another password now"

    @property
    def principal(self) -> str:
        return f"{USER}{self.name}"
