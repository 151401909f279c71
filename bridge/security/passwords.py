"""Verifiers of a password, and the comparison of a password with them. Both take milliseconds, so threads call them."""

import hmac
import math
import secrets
from collections import Counter
from collections.abc import Callable
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac
from itertools import islice
from typing import Final, NamedTuple

from duolog.bridge.records.security import ScramVerifier
from duolog.bridge.security.scram import Mechanism

SALT_BYTES: Final = 16
SHAPES_MAX: Final = 64  # Shapes of which an unknown name gets one; each costs a login microseconds.


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


class Shape(NamedTuple):
    """What SCRAM shows of a verifier before a login has succeeded, and on what the time of a hash depends."""

    mechanism: Mechanism
    iterations: int
    salt_bytes: int


class Shapes:
    """Counts the shapes of the verifiers of all users, so that unknown names can have the same ones."""

    def __init__(self) -> None:
        self._of_scram = {mechanism: Counter[Shape]() for mechanism in Mechanism}
        self._of_passwords = Counter[Shape]()

    def count(self, sha_256: ScramVerifier | None, sha_512: ScramVerifier | None, by: int) -> None:
        """Add (1) or take out (-1) the verifiers of a user."""
        verifiers = {Mechanism.SHA_256: sha_256, Mechanism.SHA_512: sha_512}
        for mechanism, verifier in verifiers.items():
            if verifier is not None:
                _count(self._of_scram[mechanism], _shape_of(mechanism, verifier), by)
        checked = password_verifier(sha_256, sha_512)
        if checked is not None:
            _count(self._of_passwords, _shape_of(*checked), by)

    def of_scram(self, mechanism: Mechanism, keyed: Callable[[bytes], bytes]) -> Shape | None:
        """Return the shape of an unknown name in a login with SCRAM; None: no user has a verifier for it."""
        return _pick(self._of_scram[mechanism], keyed)

    def of_password(self, keyed: Callable[[bytes], bytes]) -> Shape | None:
        """Return the shape with which the password of an unknown name is hashed; None: no user has any."""
        return _pick(self._of_passwords, keyed)


def password_verifier(
    sha_256: ScramVerifier | None, sha_512: ScramVerifier | None
) -> tuple[Mechanism, ScramVerifier] | None:
    """Return the verifier of a user with which a password is compared."""
    if sha_512 is not None:
        return Mechanism.SHA_512, sha_512
    return None if sha_256 is None else (Mechanism.SHA_256, sha_256)


def _shape_of(mechanism: Mechanism, verifier: ScramVerifier) -> Shape:
    return Shape(mechanism, verifier.iterations, len(verifier.salt))


def _count(counts: Counter[Shape], shape: Shape, by: int) -> None:
    counts[shape] += by
    if not counts[shape]:
        del counts[shape]


def _pick(counts: Counter[Shape], keyed: Callable[[bytes], bytes]) -> Shape | None:
    """Pick a shape as often as users have it, by weighted rendezvous hashing.

    `keyed` gives 32 bytes that depend on the name and on a secret key. A name keeps its shape, also if users are added
    and removed, except that a part of the names follows the new proportions.
    """

    def score(shape: Shape) -> float:
        digest = keyed(f"{shape.mechanism.value} {shape.iterations} {shape.salt_bytes} ".encode())
        return math.log((int.from_bytes(digest[:8], "big") + 1) / (1 << 64)) / counts[shape]

    return max(islice(counts, SHAPES_MAX), key=score, default=None)
