"""Who has sent a RocketMQ request: the user whose secret key has signed it, or the user of the TLS certificate.

The password of a user is its secret key. A request of an unknown user takes the same work as one with a wrong
signature, and has the same answer.
"""

import secrets
from typing import Final

from duolog.bridge.rocketmq.access.gate import WrongSignature, no_permission
from duolog.bridge.rocketmq.requests.connection import RocketMQConnection
from duolog.bridge.security.logins import session_of
from duolog.bridge.security.secret_box import KEY_BYTES, CannotDecrypt
from duolog.bridge.security.security import Security
from duolog.bridge.security.session import Session
from duolog.bridge.security.users import User
from duolog.protocol.rocketmq.acl_signature import ACCESS_KEY, SecretKey, SignatureCheck
from duolog.protocol.rocketmq.remoting import RemotingCommand

UNSIGNED: Final = "security.enabled: the request is not signed with an access key"
WRONG: Final = "the access key is unknown, or the signature does not fit the request"
ACCESS_KEY_LOGIN: Final = "access-key"
_NO_KEY: Final = (0, None)


class SignedRequests:
    """An `Authenticator` by the signature of each request. Secret keys are decrypted once for each change of a user."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._signatures = SignatureCheck()
        # Checked for unknown users, and fits no request.
        self._no_secret_key = SecretKey(secrets.token_bytes(KEY_BYTES))
        self._secret_keys: dict[str, tuple[int, SecretKey | None]] = {}  # By user: `User.login` and the secret key.

    def session_of(self, connection: RocketMQConnection, command: RemotingCommand) -> Session:
        """Return the session of a request. Raises RequestRefused."""
        name = command.ext.get(ACCESS_KEY)
        if name is None:
            session, tls = connection.session, connection.tls
            if session is None or session.login or tls is None or session.name != tls.principal:
                session = connection.session = self._session_of_certificate(connection)
            return session
        user = self._security.users.get(name)
        known = self._secret_key(user)
        body = command.body
        assert isinstance(body, bytes | bytearray | memoryview), "the body of a received request is one buffer"
        is_fitting = self._signatures.fits(command.ext, body, known or self._no_secret_key)
        if user is None or known is None or not is_fitting:
            self._security.audit.login("rocketmq", ACCESS_KEY_LOGIN, name, connection.peer[0], WRONG)
            raise WrongSignature(WRONG)
        session = connection.session
        if session is None or session.name != name or session.login != user.login:
            session = connection.session = session_of(user, connection.peer[0])
            connection.logged_in()
            self._security.audit.login("rocketmq", ACCESS_KEY_LOGIN, name, connection.peer[0])
        return session

    def _session_of_certificate(self, connection: RocketMQConnection) -> Session:
        """Return a new session for a client that has shown a certificate, and does not sign."""
        host, audit = connection.peer[0], self._security.audit
        name = None if connection.tls is None else connection.tls.principal
        if name is None:
            audit.login("rocketmq", ACCESS_KEY_LOGIN, "", host, UNSIGNED)
            raise no_permission(UNSIGNED)
        audit.login("rocketmq", "certificate", name, host)
        return Session(name, host)

    def _secret_key(self, user: User | None) -> SecretKey | None:
        """Return the secret key of a user; None: there is no user, or its key is empty or cannot be decrypted."""
        if user is None:
            return None
        login, secret_key = self._secret_keys.get(user.name, _NO_KEY)
        if login != user.login:
            try:
                decrypted = self._security.box.decrypt(user.record.encrypted_secret, user.name).encode()
            except CannotDecrypt:
                decrypted = b""
            secret_key = SecretKey(decrypted) if decrypted else None
            if len(self._secret_keys) > len(self._security.users):
                self._secret_keys.clear()  # Some of them are those of removed users.
            self._secret_keys[user.name] = (user.login, secret_key)
        return secret_key
