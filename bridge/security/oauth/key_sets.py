"""The keys of an identity provider: a JWKS document (RFC 7517) in a file or behind a URL.

A document is read again after REFRESH_MS, and for an unknown key id, at most once in AGAIN_MS, because whoever sends
tokens chooses their key ids. If it cannot be read, the keys of the last document stay in use. Threads call this class.
"""

import logging
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.error import URLError

import jwt

log = logging.getLogger("security")

REFRESH_MS: Final = 300_000
AGAIN_MS: Final = 10_000
DOCUMENT_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 5.0


class KeySet:
    """The keys by their ids. `read` returns the document; it raises OSError."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_mono_ms: int | None = None

    def find(self, key_id: str | None, mono_ms: int) -> jwt.PyJWK | None:
        """Return the key of a token, which may lack a key id if there is only one key."""
        found = self._known(key_id)
        since_ms = None if self._read_mono_ms is None else mono_ms - self._read_mono_ms
        if since_ms is None or since_ms > (REFRESH_MS if found is not None else AGAIN_MS):
            self._read_mono_ms = mono_ms
            self._refresh()
            found = self._known(key_id)
        return found

    def _known(self, key_id: str | None) -> jwt.PyJWK | None:
        keys = self._keys
        if key_id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        return keys.get(key_id)

    def _refresh(self) -> None:
        try:
            document = jwt.PyJWKSet.from_json(self._read().decode())
        except (OSError, ValueError, jwt.PyJWTError) as error:
            log.warning("keys of tokens not read reason=%r", str(error))
            return
        self._keys = {key.key_id or "": key for key in document.keys if key.public_key_use in (None, "sig")}


def reader_of(source: str, opener: urllib.request.OpenerDirector) -> Callable[[], bytes]:
    """Return the function that reads the document of a file or a URL; `opener` verifies certificates."""
    if not source.startswith(("https://", "http://")):
        return lambda: _bounded(Path(source).read_bytes())

    def fetch() -> bytes:
        try:
            with opener.open(source, timeout=TIMEOUT_S) as answer:
                return _bounded(answer.read(DOCUMENT_BYTES_MAX + 1))
        except URLError as error:
            raise OSError(f"{source}: {error.reason}") from error

    return fetch


def _bounded(document: bytes) -> bytes:
    if len(document) > DOCUMENT_BYTES_MAX:
        raise OSError(f"the document has more than {DOCUMENT_BYTES_MAX} bytes")
    return document
