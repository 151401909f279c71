"""What is changed of a user, and who may do it, is decided when the record is written: the hash has taken a while."""

from collections.abc import Sequence

import pytest

from duolog.bridge.config import Options, SecurityOptions
from duolog.bridge.monitoring.poison import PoisonRecords
from duolog.bridge.records import codec
from duolog.bridge.security.rules import CLUSTER_NAME
from duolog.bridge.security.secret_box import SecretBox
from duolog.bridge.security.security import Security
from duolog.bridge.security.session import Session
from duolog.bridge.security.tools.rule_texts import RuleText, rule_of
from duolog.bridge.security.user_changes import (
    NotSuper,
    RightTakenAway,
    change_user,
    hashed,
    hashing,
    remove_user,
    set_user,
)
from duolog.bridge.security.users import UnknownUser, UserError, UserExists
from duolog.store.state_log import StateLog
from tests.kit.clock import ManualClock
from tests.kit.memory_log import MemoryLog

NOW = 1_700_000_000_000


@pytest.fixture
def security() -> Security:
    state_log = StateLog(codec, PoisonRecords())
    security = Security(state_log, Options(security=SecurityOptions(enabled=True)), ManualClock())
    security.use(SecretBox(b"k" * 32))
    state_log.attach(MemoryLog())
    return security


def add(security: Security, name: str, *, is_super: bool = False, groups: Sequence[str] = ()) -> Session:
    made = hashed(hashing(security, name, "secret", NOW, is_super=is_super, groups=groups)())
    set_user(security, None, made, NOW, is_new=True)
    return Session(name, "10.0.0.7", login=security.users.known(name).login)


def add_administrator(security: Security, name: str) -> Session:
    """Add a user who may change users, and is no super user."""
    rule = rule_of(RuleText(f"User:{name}", "cluster", "alter", "allow", CLUSTER_NAME))
    security.acls.add([rule], NOW)
    return add(security, name)


def test_what_is_not_given_stays(security: Security) -> None:
    add(security, "alice", is_super=True, groups=["ops"])
    made = hashed(hashing(security, "alice", "other", NOW)())
    change_user(security, None, "alice", NOW, made=made)
    assert security.users.known("alice").record.groups == ("ops",)
    assert security.users.known("alice").is_super
    change_user(security, None, "alice", NOW, groups=[])
    assert security.users.known("alice").record.groups == ()
    assert security.users.known("alice").record.scram_sha_512 == made.scram_sha_512


def test_user_who_loses_super_while_a_password_is_hashed_does_not_get_it_back(security: Security) -> None:
    add(security, "alice", is_super=True)
    make = hashing(security, "alice", "other", NOW)
    change_user(security, None, "alice", NOW, is_super=False)
    change_user(security, None, "alice", NOW, made=hashed(make()))
    assert not security.users.known("alice").is_super


def test_only_super_users_make_change_and_remove_super_users(security: Security) -> None:
    root, clerk = add(security, "root", is_super=True), add_administrator(security, "clerk")
    with pytest.raises(NotSuper):
        change_user(security, clerk, "clerk", NOW, is_super=True)
    with pytest.raises(NotSuper):
        change_user(security, clerk, "root", NOW, groups=["ops"])
    with pytest.raises(NotSuper):
        remove_user(security, clerk, "root", NOW)
    change_user(security, root, "clerk", NOW, is_super=True)
    remove_user(security, clerk, "root", NOW)  # The clerk is a super user by now.
    assert security.users.get("root") is None


def test_administrator_who_is_removed_while_a_password_is_hashed_changes_nobody(security: Security) -> None:
    clerk = add_administrator(security, "clerk")
    add(security, "bob")
    new, other = hashing(security, "backdoor", "secret", NOW), hashing(security, "bob", "other", NOW)
    remove_user(security, None, "clerk", NOW)
    with pytest.raises(RightTakenAway):
        set_user(security, clerk, hashed(new()), NOW, is_new=True)
    with pytest.raises(RightTakenAway):
        change_user(security, clerk, "bob", NOW, made=hashed(other()))
    with pytest.raises(RightTakenAway):
        remove_user(security, clerk, "bob", NOW)
    assert security.users.get("backdoor") is None


def test_users_that_are_there_or_are_missing_are_refused(security: Security) -> None:
    add(security, "alice")
    with pytest.raises(UserExists):
        add(security, "alice")
    with pytest.raises(UnknownUser):
        change_user(security, None, "bob", NOW, is_super=False)
    with pytest.raises(UnknownUser):
        remove_user(security, None, "bob", NOW)


def test_error_of_the_thread_is_raised(security: Security) -> None:
    with pytest.raises(UserError, match="a password has 1 to"):
        hashed(hashing(security, "alice", "", NOW)())
