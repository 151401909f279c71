"""The keys of an identity provider: a JWKS document (RFC 7517) in a file or at a URL.

The document is read again after REFRESH_MS. For an unknown key id it is read again at most once in AGAIN_MS, because a
client can send tokens with any key id. If the document cannot be read, the keys of the last one remain in use. Threads
call this class.

Whoever can change the document can make tokens of super users. So `bridge/config/checks.py` refuses a URL without TLS,
unless it is one of this machine or a setting allows it, and no redirection leads from a URL with TLS to one without.
"""

import logging
import ssl
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

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


def reader_of(source: str, outgoing: Callable[[], ssl.SSLContext | None]) -> Callable[[], bytes]:
    """Return the function that reads the document of a file or a URL; it raises OSError.

    `outgoing` returns what verifies the server, which may change with a reload; None: the CAs of the system.
    """
    if not source.startswith(("https://", "http://")):
        return lambda: _bounded(Path(source).read_bytes())

    def fetch() -> bytes:
        opener = build_opener(HTTPSHandler(context=outgoing()), _Redirections())
        try:
            with opener.open(source, timeout=TIMEOUT_S) as answer:
                return _bounded(answer.read(DOCUMENT_BYTES_MAX + 1))
        except URLError as error:
            raise OSError(f"{source}: {error.reason}") from error
        except HTTPException as error:
            raise OSError(f"{source}: {type(error).__name__}") from error

    return fetch


class _Redirections(HTTPRedirectHandler):
    def redirect_request(self, asked: Request, fp: Any, code: int, msg: str, headers: Any, url: str) -> Request | None:
        """Return the next request. Raises URLError if it would leave TLS."""
        if asked.type == "https" and not url.startswith("https://"):
            raise URLError(f"it redirects to {url[:200]}, which has no TLS")
        return super().redirect_request(asked, fp, code, msg, headers, url)


def _bounded(document: bytes) -> bytes:
    if len(document) > DOCUMENT_BYTES_MAX:
        raise OSError(f"the document has more than {DOCUMENT_BYTES_MAX} bytes")
    return document
