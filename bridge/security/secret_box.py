"""Encryption of RocketMQ's secret keys: AES-256-GCM, with the key of `security.secret_key_file`.

    key file    64 hexadecimal digits, mode 0600; created at the first use
    encrypted   nonce (12 bytes) | ciphertext with its tag; the user's name is authenticated with it

A RocketMQ client signs requests with its secret key, so the broker must know the key and cannot store only a hash of
it. The log together with the key file reveals the secret keys; the log alone reveals none of them.
"""

import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from duolog.bridge.config import ConfigError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
DEFAULT_NAME: Final = "security.key"


class CannotDecrypt(Exception):
    """A stored secret was encrypted with another key, or for another user."""


class SecretBox:
    """Encrypts and decrypts secrets with one key."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES, "a key of AES-256"
        self._key = key

    @classmethod
    def load(cls, path: Path) -> "SecretBox":
        """Load the key file, which is created if it does not exist. Raises ConfigError."""
        try:
            _make(path)
            text = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"security.secret_key_file: {path}: {reason}") from error
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise ConfigError(f"security.secret_key_file: {path}: expected {2 * KEY_BYTES} hexadecimal digits")
        return cls(key)

    def encrypt(self, secret: str, name: str) -> bytes:
        """Encrypt the secret of a user."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + AESGCM(self._key).encrypt(nonce, secret.encode(), name.encode())

    def decrypt(self, encrypted: bytes, name: str) -> str:
        """Decrypt the secret of a user. Raises CannotDecrypt."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce, ciphertext = encrypted[:NONCE_BYTES], encrypted[NONCE_BYTES:]
        try:
            return AESGCM(self._key).decrypt(nonce, ciphertext, name.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise CannotDecrypt(f"the secret key of {name} was stored with another security.secret_key_file") from error

    def derive(self, purpose: bytes) -> bytes:
        """Return 32 bytes that only the owner of the key can compute."""
        return hmac.digest(self._key, purpose, "sha256")


def _make(path: Path) -> None:
    """Create the key file, as a whole and readable only by its owner, unless it exists."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(KEY_BYTES).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(new, path)  # Does not replace a file that another process has made meanwhile.
    except FileExistsError:
        pass
    finally:
        new.unlink()
