"""URLs that the broker may call for check-backs of Kafka producers: those that begin with a prefix of `txn.check_urls`.

A URL is normalised by yarl, the library with which aiohttp sends it, before it is compared: unnecessary
percent-encoding is decoded, `.` and `..` are resolved, the host is in lower case. Then scheme, host, port and whole
path segments are compared. A URL that two programs may interpret in different ways is refused: with user information,
fragments, control characters, blanks, backslashes, encoded slashes, encoded bytes that are not UTF-8 (some servers read
`%c0%ae` as a dot), or segments that become `..` in a server that decodes twice or removes path parameters (`..;`).
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote

from yarl import URL

_SCHEMES: Final = ("http", "https")
_ENCODED_SEPARATOR: Final = re.compile(r"%(?:2f|5c|[01][0-9a-f]|7f)", re.IGNORECASE)

_USER_INFORMATION: Final = re.compile(r"[^:/]+://[^/?#]*@")


class BadUrl(ValueError):
    """The broker may not call this URL; the message says why."""


class Prefix(NamedTuple):
    """An allowed prefix. If its path ends with a slash, it allows only longer paths."""

    origin: tuple[str, str, int]
    path: str

    def covers(self, origin: tuple[str, str, int], path: str) -> bool:
        """Return whether a normalised URL begins with this prefix."""
        if origin != self.origin:
            return False
        return path.startswith(self.path) if self.path.endswith("/") else (path + "/").startswith(self.path + "/")


class CheckUrls:
    """The prefixes of `txn.check_urls`, separated by blanks. Raises BadUrl for an invalid one."""

    def __init__(self, setting: str) -> None:
        self._prefixes = [_prefix(text) for text in setting.split()]

    def allow(self, text: str) -> bool:
        """Return whether the broker may call this URL."""
        if not self._prefixes:
            return False
        try:
            url = parse(text)
        except BadUrl:
            return False
        origin = _origin(url)
        return any(prefix.covers(origin, url.raw_path) for prefix in self._prefixes)


@lru_cache(maxsize=1024)
def parse(text: str) -> URL:
    """Return a URL in normalised form. Raises BadUrl if the broker may not call it."""
    if not text.isprintable() or not text.isascii() or " " in text or "\\" in text:
        raise BadUrl(f"expected printable ASCII without blanks and backslashes, got {text[:200]!r}")
    try:
        url = URL(text)
        port = url.port
    except ValueError as error:
        raise BadUrl(f"{text[:200]!r}: {error}") from error
    if url.scheme not in _SCHEMES or not url.raw_host or not port:
        raise BadUrl(f"expected http://host/ or https://host/, with a path if need be, got {text[:200]!r}")
    if _USER_INFORMATION.match(text) or "#" in text:
        raise BadUrl(f"user information and fragments are not allowed, got {text[:200]!r}")
    if any(map(_is_ambiguous, url.raw_path.split("/"))):
        raise BadUrl(f"the path has a segment that servers read in different ways, got {text[:200]!r}")
    return url


def _is_ambiguous(segment: str) -> bool:
    try:
        decoded = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return True
    return (
        _ENCODED_SEPARATOR.search(segment) is not None
        or _ENCODED_SEPARATOR.search(decoded) is not None
        or unquote(decoded).partition(";")[0] in (".", "..")
    )


def _origin(url: URL) -> tuple[str, str, int]:
    return url.scheme, (url.raw_host or "").rstrip("."), url.port or 0


def _prefix(text: str) -> Prefix:
    url = parse(text)
    # Without a slash after the host, a reader could take the host for the beginning of a longer host name.
    if not re.fullmatch(r"https?://[^/]+/.*", text, re.IGNORECASE) or "?" in text:
        raise BadUrl(f"expected http://host/ or https://host/, with a path if need be and no query, got {text[:200]!r}")
    return Prefix(_origin(url), url.raw_path)
