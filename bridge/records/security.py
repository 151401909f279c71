"""State records of security: users with their verifiers, access rules, and quotas."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from duolog.bridge.records.layout import StateRecordBody


class ScramVerifier(NamedTuple):
    """What the broker stores of a password for one SCRAM mechanism (RFC 5802, section 3); it is not the password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class UserSet(StateRecordBody, frozen=True, tag=90):
    """A user was added, or all that is stored about the user was replaced."""

    name: str
    is_super: bool
    groups: Sequence[str]  # Groups of principals, which rules may name.
    scram_sha_256: ScramVerifier | None
    scram_sha_512: ScramVerifier | None
    # The password as RocketMQ's secret key, encrypted with the key of `security.secret_key_file`; empty: unknown.
    encrypted_secret: bytes
    set_ms: int


class UserRemoved(StateRecordBody, frozen=True, tag=91):
    """A user was removed."""

    name: str


class StoredRule(NamedTuple):
    """One access rule; `bridge/security/rules.py` explains the fields and their numbers."""

    principal: str
    resource_type: int
    name: str
    pattern: int
    operation: int
    host: str
    permission: int


class RulesAdded(StateRecordBody, frozen=True, tag=92):
    """Access rules were added."""

    rules: Sequence[StoredRule]


class RulesRemoved(StateRecordBody, frozen=True, tag=93):
    """Access rules were removed."""

    rules: Sequence[StoredRule]


class QuotasSet(StateRecordBody, frozen=True, tag=94):
    """All quotas of one entity were replaced; no limits: they were removed.

    A name that is None is no part of the entity; an empty one stands for all users, or client ids, without their own.
    """

    user: str | None
    client_id: str | None
    limits: Mapping[str, float]  # By key, `bridge/security/quotas/entity.py`.
