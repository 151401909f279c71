"""Both sides of SCRAM (RFC 5802, RFC 7677), without channel binding, for one login.

    client-first   n,,n=alice,r=<client nonce>           "y,," is the same: the client would support channel binding
    server-first   r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final   c=biws,r=<both nonces>,p=<proof>
    server-final   v=<signature of the server>

The broker is the server, and a client only where it logs in to another broker. An unknown user gets a salt that depends
on the name, as a known one does, and fails at the end like a wrong password.
"""

import base64
import binascii
import hmac
from collections.abc import Callable
from enum import Enum
from hashlib import new as new_hash
from typing import Final

from duolog.bridge.records.security import ScramVerifier
from duolog.protocol.errors import ProtocolError

NONCE_BYTES: Final = 24
MESSAGE_BYTES_MAX: Final = 4096
WRONG: Final = "the user name or password is wrong"  # Also for an unknown user.
_GS2_HEADERS: Final = ("n,", "y,")


class Mechanism(Enum):
    """The hash of a SCRAM mechanism, by its name in SASL."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        return "sha256" if self is Mechanism.SHA_256 else "sha512"


class LoginFailed(Exception):
    """The login is refused. The message is the same for a wrong password and for an unknown user."""


class ScramLogin:
    """One login. `find` returns the verifier of a user, or one that nothing fits."""

    def __init__(self, mechanism: Mechanism, find: Callable[[str], ScramVerifier], server_nonce: bytes) -> None:
        self.mechanism, self._find = mechanism, find
        self._server_nonce = base64.b64encode(server_nonce).decode()
        self.verifier: ScramVerifier | None = None
        self._auth_message = ""
        self._nonce = ""
        self._header = ""
        self.user_name = ""

    def first(self, message: bytes) -> bytes:
        """Answer client-first. Raises ProtocolError for a malformed message."""
        text = _text(message)
        header, slash, bare = text.partition(",")
        authorization_id, comma, bare = bare.partition(",")
        if f"{header}," not in _GS2_HEADERS or not slash or not comma:
            raise ProtocolError("SCRAM: expected a client-first message without channel binding")
        fields = _fields(bare)
        if "m" in fields or "n" not in fields or "r" not in fields or not fields["r"]:
            raise ProtocolError("SCRAM: expected n= and r= in the client-first message")
        self.user_name = fields["n"].replace("=2C", ",").replace("=3D", "=")
        if authorization_id and authorization_id.removeprefix("a=") != fields["n"]:
            raise LoginFailed("another authorization id than the user's name is not supported")
        self._header = f"{header},{authorization_id},"
        self._nonce = fields["r"] + self._server_nonce
        self.verifier = found = self._find(self.user_name)
        answer = f"r={self._nonce},s={base64.b64encode(found.salt).decode()},i={found.iterations}"
        self._auth_message = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """Check client-final, and answer it. Raises ProtocolError and LoginFailed."""
        assert self.verifier is not None, "client-final follows client-first"
        text = _text(message)
        without_proof, comma, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        if not comma or "r" not in fields or "c" not in fields:
            raise ProtocolError("SCRAM: expected c=, r= and p= in the client-final message")
        proof = _decoded(proof_text)
        is_same = _decoded(fields["c"]) == self._header.encode() and hmac.compare_digest(
            fields["r"].encode(), self._nonce.encode()
        )
        hash_name, verifier = self.mechanism.hash_name, self.verifier
        auth_message = f"{self._auth_message},{without_proof}".encode()
        signature = hmac.digest(verifier.stored_key, auth_message, hash_name)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        stored_key = new_hash(hash_name, client_key).digest()
        if not hmac.compare_digest(stored_key, verifier.stored_key) or len(proof) != len(signature) or not is_same:
            raise LoginFailed(WRONG)
        return b"v=" + base64.b64encode(hmac.digest(verifier.server_key, auth_message, hash_name))


class ScramClient:
    """The client's side of one login, with a salted password, so that the server's salt has no meaning."""

    def __init__(self, mechanism: Mechanism, name: str, salted: bytes, nonce: str) -> None:
        self._hash_name, self._salted, self._nonce = mechanism.hash_name, salted, nonce
        self._first = f"n={name},r={nonce}"
        self._server_final = b""

    def first(self) -> bytes:
        """Return client-first."""
        return f"n,,{self._first}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return client-final. Raises ProtocolError, and LoginFailed if the server has answered another login."""
        text, name = _text(server_first), self._hash_name
        nonce = _fields(text).get("r", "")
        if not nonce.startswith(self._nonce):
            raise LoginFailed("the server has answered another login")
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first},{text},{without_proof}".encode()
        client_key = hmac.digest(self._salted, b"Client Key", name)
        signature = hmac.digest(new_hash(name, client_key).digest(), signed, name)
        server_key = hmac.digest(self._salted, b"Server Key", name)
        self._server_final = b"v=" + base64.b64encode(hmac.digest(server_key, signed, name))
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise LoginFailed unless server-final proves that the server knows the password's verifier."""
        if not self._server_final or not hmac.compare_digest(server_final, self._server_final):
            raise LoginFailed("the server does not know the password")


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"SCRAM: message of {len(message)} bytes; at most {MESSAGE_BYTES_MAX} are allowed")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ProtocolError("SCRAM: the message is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    """Return the attributes of a message by their letters; the first one counts."""
    found: dict[str, str] = {}
    for part in text.split(","):
        letter, equals, value = part.partition("=")
        if equals and len(letter) == 1:
            found.setdefault(letter, value)
    return found


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("SCRAM: a field is not base64") from None
