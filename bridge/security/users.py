"""Users: their names, verifiers and groups, kept in the log as state records. Only replay changes the table.

The broker stores no password: for SCRAM it has verifiers, with which it also checks PLAIN and HTTP's basic
authentication, and RocketMQ's secret key is encrypted (`secret_box.py`). `Users` is not asked for the time and does no
work of milliseconds; `logins.py` compares passwords, in threads.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from duolog.bridge.config import SecurityOptions
from duolog.bridge.records.security import ScramVerifier, UserRemoved, UserSet
from duolog.bridge.security.passwords import Shapes
from duolog.bridge.security.rules import NAME_CHARACTERS_MAX
from duolog.bridge.security.scram import Mechanism
from duolog.store.entry import EntrySlot, Promise
from duolog.store.state_log import StateLog

GROUPS_MAX: Final = 64  # Groups of one user.


class UserError(Exception):
    """A user cannot be added, changed or removed; the message says why."""


class UnknownUser(UserError):
    """There is no user of this name."""


class UserExists(UserError):
    """There is a user of this name already."""


class TooManyUsers(UserError):
    """`security.users_max` is reached."""


class User(NamedTuple):
    """One user."""

    record: UserSet
    login: int  # Differs after each change of a verifier; `Session.login`.

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def is_super(self) -> bool:
        return self.record.is_super

    def verifier(self, mechanism: Mechanism) -> ScramVerifier | None:
        """Return the verifier for a mechanism; None: the user cannot log in with it."""
        record = self.record
        return record.scram_sha_256 if mechanism is Mechanism.SHA_256 else record.scram_sha_512

    @property
    def view(self) -> dict[str, Any]:
        """What may be shown of the user, over HTTP and by `duolog user list`."""
        return {
            "name": self.name,
            "is_super": self.is_super,
            "groups": list(self.record.groups),
            "mechanisms": [each.value for each in Mechanism if self.verifier(each) is not None],
            "has_secret_key": bool(self.record.encrypted_secret),
        }


class Users:
    """The table of users. `on_changed` is called after each change."""

    def __init__(self, state_log: StateLog, options: SecurityOptions) -> None:
        self._state_log, self._count_max = state_log, options.users_max
        self._users: dict[str, User] = {}
        self._logins = 0
        self.shapes = Shapes()
        self.on_changed: Callable[[], None] = lambda: None
        self.get = self._users.get
        state_log.own(UserSet, self._replay_set)
        state_log.own(UserRemoved, self._replay_removed)
        state_log.on_snapshot(self._snapshot)

    def __len__(self) -> int:
        return len(self._users)

    def all(self) -> Collection[User]:
        """Return all users."""
        return self._users.values()

    def known(self, name: str) -> User:
        """Return the user of this name. Raises UnknownUser."""
        user = self._users.get(name)
        if user is None:
            raise UnknownUser(f"there is no user {name[:NAME_CHARACTERS_MAX]}")
        return user

    # -- Changing

    def set(self, record: UserSet, now_ms: int, *, is_new: bool | None = None) -> Promise:
        """Add or replace a user; `is_new` refuses the other case. Raises UserError, StoreError."""
        name = record.name
        is_there = name in self._users
        if is_new is True and is_there:
            raise UserExists(f"there is a user {name} already")
        if is_new is False:
            self.known(name)
        if not is_there and len(self._users) >= self._count_max:
            raise TooManyUsers(f"{len(self._users)} users; security.users_max is {self._count_max}")
        check_name(name)
        if len(record.groups) > GROUPS_MAX or not all(0 < len(each) <= NAME_CHARACTERS_MAX for each in record.groups):
            raise UserError(f"a user has at most {GROUPS_MAX} groups of 1 to {NAME_CHARACTERS_MAX} characters")
        return self._state_log.commit([record], now_ms).promise

    def remove(self, name: str, now_ms: int) -> Promise:
        """Remove a user. Raises UnknownUser, StoreError."""
        self.known(name)
        return self._state_log.commit([UserRemoved(name)], now_ms).promise

    # -- Replay

    def _replay_set(self, record: UserSet, slot: EntrySlot) -> None:
        known = self._users.get(record.name)
        self.shapes.count(record.scram_sha_256, record.scram_sha_512, 1)
        self._forget_shapes(known)
        if known is None or _verifiers(known.record) != _verifiers(record):
            self._logins += 1
            login = self._logins
        else:
            login = known.login
        self._users[record.name] = User(record, login)
        self.on_changed()

    def _replay_removed(self, record: UserRemoved, slot: EntrySlot) -> None:
        known = self._users.pop(record.name, None)
        self._forget_shapes(known)
        if known is not None:
            self.on_changed()

    def _forget_shapes(self, known: User | None) -> None:
        if known is not None:
            self.shapes.count(known.record.scram_sha_256, known.record.scram_sha_512, -1)

    def _snapshot(self) -> Iterable[UserSet]:
        return [user.record for user in self._users.values()]


def _verifiers(record: UserSet) -> tuple[object, ...]:
    return record.scram_sha_256, record.scram_sha_512, record.encrypted_secret


def check_name(name: str) -> None:
    """Raise UserError unless a user may have this name: visible characters, without those that lists use."""
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise UserError(f"the name of a user has 1 to {NAME_CHARACTERS_MAX} characters, got {len(name)}")
    if not name.isprintable() or name == "*" or any(sign in name for sign in " ,:;="):
        raise UserError(f"the name of a user has no spaces and none of , : ; =, and is not *; got {name!r}")
