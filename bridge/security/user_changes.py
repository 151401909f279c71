"""Changes of users: what all client protocols, the HTTP API and the commands do to add, change or remove one.

    hashing        makes the record of a user from a password, in a thread
    set_user       adds or replaces the record of a user
    change_user    changes a user; what is not given stays as it is
    remove_user    removes a user

A session of None has every right: security is off, or a command changes a data directory that no broker uses.
"""

from collections.abc import Callable, Sequence

import msgspec

from duolog.bridge.records.security import UserSet
from duolog.bridge.security.logins import new_record
from duolog.bridge.security.rules import Operation
from duolog.bridge.security.security import Security
from duolog.bridge.security.session import Session
from duolog.bridge.security.users import UserError
from duolog.store.entry import Promise


class NotSuper(UserError):
    """ALTER on the cluster must not be a way to become a super user, or to take the place of one."""

    def __init__(self) -> None:
        super().__init__("only a super user may make, change or remove a super user")


class RightTakenAway(UserError):
    """A change of a user waits while a thread hashes a password; the right to make it may be taken away meanwhile."""

    def __init__(self) -> None:
        super().__init__("the right to change users was taken away while the password was hashed")


def hashing(
    security: Security, name: str, password: str, now_ms: int, *, is_super: bool = False, groups: Sequence[str] = ()
) -> Callable[[], UserSet | UserError]:
    """Return the function that makes the record of a user with this password, which takes milliseconds.

    The function returns a UserError, because a thread would report one that it raises as a fault.
    """
    box, options = security.box, security.options

    def make() -> UserSet | UserError:
        try:
            return new_record(name, password, box, options, now_ms, is_super=is_super, groups=tuple(groups))
        except UserError as error:
            return error

    return make


def hashed(outcome: UserSet | Exception) -> UserSet:
    """Return the record that `hashing` has made in a thread; raise its UserError, or the error of the thread."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def set_user(
    security: Security, session: Session | None, record: UserSet, now_ms: int, *, is_new: bool | None = None
) -> Promise:
    """Add or replace a user; `is_new` refuses the other case. Raises UserError and StoreError."""
    _check_right(security, session, record.name, makes_super=record.is_super)
    return security.users.set(record, now_ms, is_new=is_new)


def change_user(
    security: Security,
    session: Session | None,
    name: str,
    now_ms: int,
    *,
    made: UserSet | None = None,
    is_super: bool | None = None,
    groups: Sequence[str] | None = None,
) -> Promise:
    """Change a user; `made` has the verifiers of a new password. Raises UserError and StoreError."""
    known = security.users.known(name).record
    record = msgspec.structs.replace(
        made or known,
        is_super=known.is_super if is_super is None else is_super,
        groups=known.groups if groups is None else tuple(groups),
    )
    return set_user(security, session, record, now_ms, is_new=False)


def remove_user(security: Security, session: Session | None, name: str, now_ms: int) -> Promise:
    """Remove a user; rules that name the user stay. Raises UserError and StoreError."""
    _check_right(security, session, name)
    return security.users.remove(name, now_ms)


def _check_right(security: Security, session: Session | None, name: str, *, makes_super: bool = False) -> None:
    if session is None:
        return
    if not security.authorizer.allows_cluster(session, Operation.ALTER):
        raise RightTakenAway
    if security.authorizer.is_super(session):
        return
    user = security.users.get(name)
    if makes_super or (user is not None and user.is_super):
        raise NotSuper
