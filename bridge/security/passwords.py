"""Verifiers of a password, and the comparison of a password with them. Both take milliseconds, so threads call them."""

import hmac
import secrets
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac
from typing import Final

from duolog.bridge.records.security import ScramVerifier
from duolog.bridge.security.scram import Mechanism

SALT_BYTES: Final = 16


def verifier_of(password: str, mechanism: Mechanism, iterations: int, salt: bytes | None = None) -> ScramVerifier:
    """Return what the broker stores of a password (RFC 5802, section 3)."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    salted = pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
    return verifier_of_salted(salted, mechanism, iterations, salt)


def verifier_of_salted(salted: bytes, mechanism: Mechanism, iterations: int, salt: bytes) -> ScramVerifier:
    """Return the verifier of a salted password, which AlterUserScramCredentials has."""
    name = mechanism.hash_name
    stored_key = new_hash(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramVerifier(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", name))


def fits(password: str, mechanism: Mechanism, verifier: ScramVerifier) -> bool:
    """Whether the password is that of the verifier, in a time that does not depend on the password's content."""
    found = verifier_of(password, mechanism, verifier.iterations, verifier.salt)
    return hmac.compare_digest(found.stored_key, verifier.stored_key)
