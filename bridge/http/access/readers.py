"""The readers file: which tokens may read which topics from the log's files, for /api/leases and /api/backups.

    http.readers_file        a TOML file of tokens, each with patterns of topics; * and ? as in a shell
    "4f1c..." = ["orders", "payments.*"]
    "90ab..." = ["*"]

A client sends `Authorization: Bearer 4f1c...`. Without the setting any client may read any topic, as over the other
ports. Tokens are compared by their digests, so that the time of a comparison does not reveal anything about them.
"""

import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Final

from duolog.bridge.config import ConfigError
from duolog.bridge.state.topic_table import Topic

_SCHEME: Final = "bearer"


class UnknownReader(Exception):
    """The request has no token, or an unknown one."""


class MayNotRead(Exception):
    """The token may not read one of the topics."""


class Readers:
    """The table of one broker: patterns by token. None: there is no readers file."""

    def __init__(self, patterns: Mapping[str, Sequence[str]] | None) -> None:
        self._patterns = None if patterns is None else {_digest(token): each for token, each in patterns.items()}

    @classmethod
    def load(cls, path: str) -> "Readers":
        """Load the readers file; an empty path means that there is none. Raises ConfigError."""
        if not path:
            return cls(None)
        try:
            with open(path, "rb") as file:
                found = tomllib.load(file)
        except OSError as error:
            raise ConfigError(f"http.readers_file: {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise ConfigError(f"http.readers_file: {path}: {error}") from error
        for patterns in found.values():
            if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
                raise ConfigError(f'http.readers_file: {path}: expected "token" = ["pattern", ...], got {patterns!r}')
        return cls(found)

    @property
    def token_count(self) -> int:
        return len(self._patterns or ())

    def knows(self, authorization: str) -> bool:
        """Whether the token in this header is in the readers file."""
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == _SCHEME and _digest(token.strip()) in (self._patterns or {})

    def check(self, authorization: str, topics: Sequence[Topic]) -> None:
        """Raise UnknownReader or MayNotRead unless the token in this header may read the topics."""
        if self._patterns is None:
            return
        patterns = self._patterns_of(authorization)
        for topic in topics:
            if not any(fnmatchcase(topic.kafka_name, each) or fnmatchcase(topic.name, each) for each in patterns):
                raise MayNotRead(f"this token may not read topic {topic.name}")

    def check_all(self, authorization: str) -> None:
        """Raise UnknownReader or MayNotRead unless the token in this header may read all topics: pattern "*"."""
        if self._patterns is not None and "*" not in self._patterns_of(authorization):
            raise MayNotRead("this token may not read all topics, because it does not have the pattern *")

    def _patterns_of(self, authorization: str) -> Sequence[str]:
        scheme, _, token = authorization.partition(" ")
        patterns = (self._patterns or {}).get(_digest(token.strip())) if scheme.lower() == _SCHEME else None
        if patterns is None:
            raise UnknownReader("expected Authorization: Bearer and a token of http.readers_file")
        return patterns


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
