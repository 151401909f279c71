"""DescribeUserScramCredentials 0 and AlterUserScramCredentials 0, as `kafka-configs.sh --alter --entity-type users`.

The client computes the salted password, so the broker never sees the password. Therefore a change of one mechanism
leaves the other, and RocketMQ's secret key, as they are, and a new user has no secret key; `duolog user` sets all of
them. A user whose last mechanism is removed is removed, unless it has a secret key.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from duolog.bridge.kafka.context import KafkaContext
from duolog.bridge.kafka.requests.encoding import encode_in_steps, make_answer
from duolog.bridge.kafka.requests.ordered_connection import OrderedConnection
from duolog.bridge.kafka.requests.request import NO_THROTTLE, KafkaRequest, Steps
from duolog.bridge.records.security import ScramVerifier, UserSet
from duolog.bridge.security.passwords import verifier_of_salted
from duolog.bridge.security.scram import Mechanism
from duolog.bridge.security.user_changes import NotSuper, RightTakenAway, remove_user, set_user
from duolog.bridge.security.users import TooManyUsers, User, UserError
from duolog.protocol.kafka.api_messages import ErrorCode
from duolog.protocol.kafka.response import Elements
from duolog.store.entry import Promise
from duolog.store.errors import StoreError

MECHANISMS: Final = {1: Mechanism.SHA_256, 2: Mechanism.SHA_512}  # ScramMechanism.java
ITERATIONS: Final = range(4096, 16_384 + 1)
SALT_BYTES_MAX: Final = 1024
_ERRORS: Final[dict[type[Exception], ErrorCode]] = {
    NotSuper: ErrorCode.cluster_authorization_failed,
    RightTakenAway: ErrorCode.cluster_authorization_failed,
    TooManyUsers: ErrorCode.policy_violation,
}
_FIELDS: Final = {Mechanism.SHA_256: "scram_sha_256", Mechanism.SHA_512: "scram_sha_512"}


class _Refused(Exception):
    """One user's change is refused with this error."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


# -- Describing


def describe_user_scram_credentials(
    context: KafkaContext, connection: OrderedConnection, request: KafkaRequest
) -> Steps:
    """List mechanisms and iterations of the named users, or of all."""
    types = request.types
    results: Iterator[Any] = iter(())
    error, message = ErrorCode.security_disabled, "security.enabled is off"
    if context.security.is_enabled:
        error, message = ErrorCode.none, ""
        asked = request.body.users
        names = [user.name for user in asked] if asked else [user.name for user in context.security.users.all()]
        results = (_described(context, types, name) for name in dict.fromkeys(names))
    entity = types.DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE, error_code=error, error_message=message or None, results=Elements(results)
    )
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), context.barrier())


def _described(context: KafkaContext, types: Any, name: str) -> Any:
    user = context.security.users.get(name)
    infos = [] if user is None else list(_infos(types, user))
    error, message = ErrorCode.none, None
    if not infos:
        error, message = ErrorCode.resource_not_found, f"there are no SCRAM credentials of user {name[:255]}"
    return types.DescribeUserScramCredentialsResult(
        user=name, error_code=error, error_message=message, credential_infos=tuple(infos)
    )


def _infos(types: Any, user: User) -> Iterator[Any]:
    for number, mechanism in MECHANISMS.items():
        verifier = user.verifier(mechanism)
        if verifier is not None:
            yield types.CredentialInfo(mechanism=number, iterations=verifier.iterations)


# -- Altering


def alter_user_scram_credentials(context: KafkaContext, connection: OrderedConnection, request: KafkaRequest) -> Steps:
    """Set and remove credentials; all changes of one user are done, or none."""
    types = request.types
    deletions: dict[str, list[Any]] = {}
    upsertions: dict[str, list[Any]] = {}
    for changes, rows in ((deletions, request.body.deletions), (upsertions, request.body.upsertions)):
        for row in rows:
            changes.setdefault(row.name, []).append(row)
    results = []
    promise = context.barrier()
    for name in {**deletions, **upsertions}:
        error, message = ErrorCode.none, None
        try:
            promise = _alter(context, request, name, deletions.get(name, []), upsertions.get(name, []))
        except _Refused as refusal:
            error, message = refusal.error, str(refusal)
        except (UserError, StoreError) as refusal:
            error, message = _ERRORS.get(type(refusal), ErrorCode.invalid_request), str(refusal)
        results.append(types.AlterUserScramCredentialsResult(user=name, error_code=error, error_message=message))
        yield
    entity = types.AlterUserScramCredentialsResponse(throttle_time=NO_THROTTLE, results=Elements(results))
    return make_answer(request, (yield from encode_in_steps(context, request, entity)), promise)


def _alter(
    context: KafkaContext, request: KafkaRequest, name: str, deletions: list[Any], upsertions: list[Any]
) -> Promise:
    security, now_ms = context.security, context.clock.now_ms()
    if not security.is_enabled:
        raise _Refused(ErrorCode.security_disabled, "security.enabled is off")
    session = None if request.rights is None else request.rights.session
    mechanisms = [_mechanism_of(row) for row in (*deletions, *upsertions)]
    if len(set(mechanisms)) < len(mechanisms):
        raise _Refused(ErrorCode.duplicate_resource, f"a mechanism of user {name[:255]} is named twice")
    user = security.users.get(name)
    record = UserSet(name, False, (), None, None, b"", now_ms) if user is None else user.record
    changes: dict[str, ScramVerifier | None] = {}
    for row in deletions:
        mechanism = _mechanism_of(row)
        if user is None or user.verifier(mechanism) is None:
            raise _Refused(ErrorCode.resource_not_found, f"user {name[:255]} has no {mechanism.value} credential")
        changes[_FIELDS[mechanism]] = None
    for row in upsertions:
        changes[_FIELDS[_mechanism_of(row)]] = _verifier_of(row)
    record = msgspec.structs.replace(record, **changes, set_ms=now_ms)
    if record.scram_sha_256 is None and record.scram_sha_512 is None and not record.encrypted_secret:
        return remove_user(security, session, name, now_ms)
    return set_user(security, session, record, now_ms)


def _mechanism_of(row: Any) -> Mechanism:
    mechanism = MECHANISMS.get(int(row.mechanism))
    if mechanism is None:
        raise _Refused(ErrorCode.unsupported_sasl_mechanism, f"mechanism {row.mechanism} is not SCRAM")
    return mechanism


def _verifier_of(row: Any) -> ScramVerifier:
    mechanism = _mechanism_of(row)
    size = 32 if mechanism is Mechanism.SHA_256 else 64
    if row.iterations not in ITERATIONS:
        raise _Refused(
            ErrorCode.unacceptable_credential,
            f"{row.iterations} iterations; allowed are {ITERATIONS.start} to {ITERATIONS.stop - 1}",
        )
    if not 0 < len(row.salt) <= SALT_BYTES_MAX or len(row.salted_password) != size:
        raise _Refused(ErrorCode.unacceptable_credential, "the salt or the salted password has a wrong size")
    return verifier_of_salted(bytes(row.salted_password), mechanism, row.iterations, bytes(row.salt))
