"""Logins: from a user name and a proof to a session.

A login of an unknown user does the same work as one with a wrong password, and fails with the same message: the user
gets a verifier that depends on the name and on the key of `security.secret_key_file`, which no password fits. Users
that `kafka-configs.sh` has added have other iterations and longer salts than those of `duolog user add`, so an unknown
user gets the iterations and the length of the salt that users have, in the same proportions (`passwords.Shapes`).

The brokers of a stream log in to each other with a secret that this key gives. A standby sends some requests of its
clients on to the owner, after it has decided that they are allowed. The owner serves them as those of a super user: who
has the key file could read the secret key of every user anyway.
"""

import hmac
import secrets
from collections.abc import Callable
from typing import Final

from duolog.bridge.config import SecurityOptions
from duolog.bridge.records.security import ScramVerifier, UserSet
from duolog.bridge.security.passwords import SALT_BYTES, Shape, fits, password_verifier, verifier_of, verifier_of_salted
from duolog.bridge.security.scram import NONCE_BYTES, WRONG, LoginFailed, Mechanism, ScramClient, ScramLogin
from duolog.bridge.security.secret_box import SecretBox
from duolog.bridge.security.session import Session
from duolog.bridge.security.users import User, UserError, Users

PASSWORD_BYTES_MAX: Final = 1024
REMEMBERED_MAX: Final = 1000  # Passwords that were checked; further ones take the place of the oldest.
_NO_MEMORY: Final = bytes(32)  # An HMAC that no password has.
BROKER: Final = "broker of the stream"  # No user may have this name, because it has spaces.
BROKER_MECHANISM: Final = Mechanism.SHA_256
BROKER_ITERATIONS: Final = 4096  # The least of RFC 7677. Iterations protect passwords that can be guessed; this cannot.


class Logins:
    """Checks logins against the users."""

    def __init__(
        self, users: Users, options: SecurityOptions, box: SecretBox, *, accepts_brokers: bool = False
    ) -> None:
        """`accepts_brokers`: the broker shares its log, so others may log in to send requests on."""
        self._users, self._options, self._box = users, options, box
        self._of_brokers = _broker_verifier(box) if accepts_brokers else None
        self._memory_key = secrets.token_bytes(32)
        # HTTP sends the password with each request; a password that fitted is known again by its HMAC.
        self._remembered: dict[tuple[str, int], bytes] = {}

    # -- SCRAM

    def scram(self, mechanism: Mechanism) -> ScramLogin:
        """Begin a login."""
        return ScramLogin(mechanism, lambda name: self._verifier(name, mechanism), secrets.token_bytes(NONCE_BYTES))

    def _verifier(self, name: str, mechanism: Mechanism) -> ScramVerifier:
        if self._of_brokers is not None and (name, mechanism) == (BROKER, BROKER_MECHANISM):
            return self._of_brokers
        # It is computed for each name, because the time would tell which users exist.
        false = self._false_verifier(name, self._users.shapes.of_scram(mechanism, self._keyed(name)), mechanism)
        user = self._users.get(name)
        found = None if user is None else user.verifier(mechanism)
        return found or false

    def _keyed(self, name: str) -> Callable[[bytes], bytes]:
        return lambda purpose: self._box.derive(purpose + name.encode())

    def _false_verifier(self, name: str, shape: Shape | None, mechanism: Mechanism) -> ScramVerifier:
        """Return a verifier that no password fits; `shape` None: as new users have with this mechanism."""
        shape = shape or Shape(mechanism, self._options.scram_iterations, SALT_BYTES)
        salt, hash_name = b"", shape.mechanism.hash_name
        while len(salt) < shape.salt_bytes:
            salt += self._box.derive(f"salt {len(salt)} {hash_name}".encode() + name.encode())
        nobodys = hmac.digest(self._memory_key, name.encode(), hash_name)
        return ScramVerifier(salt[: shape.salt_bytes], shape.iterations, nobodys, nobodys)

    # -- Passwords

    def recall(self, name: str, password: str) -> bool:
        """Whether this password of the user was checked before; costs microseconds, the same for unknown users."""
        user = self._users.get(name)
        known = None if user is None else self._remembered.get((name, user.login))
        return hmac.compare_digest(known or _NO_MEMORY, self._memory_of(password))

    def check(self, user: User | None, name: str, password: str) -> Callable[[], bool]:
        """Return the function that compares a password with that of a user; a thread must call it: it takes long."""
        shape = self._users.shapes.of_password(self._keyed(name))
        verifier = self._false_verifier(name, shape, Mechanism.SHA_512)
        mechanism = Mechanism.SHA_512 if shape is None else shape.mechanism
        known = None if user is None else password_verifier(user.record.scram_sha_256, user.record.scram_sha_512)
        if known is not None:
            mechanism, verifier = known
        return lambda: fits(password, mechanism, verifier)

    def remember(self, user: User, password: str) -> None:
        """Remember a password that was checked."""
        while len(self._remembered) >= REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[user.name, user.login] = self._memory_of(password)

    def _memory_of(self, password: str) -> bytes:
        return hmac.digest(self._memory_key, password.encode(), "sha256")

    # -- The result

    def session_of_scram(self, login: ScramLogin, host: str) -> Session:
        """Return the session of a login that has succeeded. Raises LoginFailed if the user has changed meanwhile."""
        if self._of_brokers is not None and login.verifier is self._of_brokers:
            return Session(BROKER, host, is_broker=True)
        user = self._users.get(login.user_name)
        if user is None or user.verifier(login.mechanism) is not login.verifier:
            raise LoginFailed(WRONG)
        return session_of(user, host)

    def session_of_password(self, user: User, host: str) -> Session:
        """Return the session of a user whose password fitted. Raises LoginFailed if it has changed meanwhile."""
        now = self._users.get(user.name)
        if now is None or now.login != user.login:
            raise LoginFailed(WRONG)
        return session_of(now, host)


def session_of(user: User, host: str) -> Session:
    """Return a session of a user."""
    return Session(user.name, host, login=user.login, groups=user.record.groups)


def login_of_broker(box: SecretBox) -> ScramClient:
    """Return the client's side of a login to another broker of the stream."""
    return ScramClient(BROKER_MECHANISM, BROKER, _broker_secret(box), secrets.token_hex(NONCE_BYTES))


def _broker_verifier(box: SecretBox) -> ScramVerifier:
    return verifier_of_salted(_broker_secret(box), BROKER_MECHANISM, BROKER_ITERATIONS, bytes(SALT_BYTES))


def _broker_secret(box: SecretBox) -> bytes:
    return box.derive(b"login between brokers")


def new_record(
    name: str,
    password: str,
    box: SecretBox,
    options: SecurityOptions,
    now_ms: int,
    *,
    is_super: bool = False,
    groups: tuple[str, ...] = (),
) -> UserSet:
    """Return the record of a user with this password; takes milliseconds. Raises UserError."""
    if not password or len(password.encode()) > PASSWORD_BYTES_MAX or not password.isprintable():
        raise UserError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes, and only visible characters and spaces")
    iterations = options.scram_iterations
    return UserSet(
        name,
        is_super,
        groups,
        verifier_of(password, Mechanism.SHA_256, iterations),
        verifier_of(password, Mechanism.SHA_512, iterations),
        box.encrypt(password, name),
        now_ms,
    )
