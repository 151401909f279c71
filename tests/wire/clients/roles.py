"""The roles of clients in the matrix: writers of messages to queues, and readers of whole topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tests.wire.clients.message import Message, Position, Seen


class Writer(Protocol):
    """A client that sends. `write` returns the position of each message, or None where the client does not get it."""

    name: str
    ways: Sequence[str]  # how it can send, e.g. single, batch, oneway
    codecs: Sequence[str]  # what it can compress with; the first one is none

    def write(self, topic: str, messages: Sequence[Message], *, way: str, codec: str) -> list[Position | None]: ...


class Reader(Protocol):
    """A client that receives. `read` starts at the first offset and ends with the last message asked for."""

    name: str

    def read(self, topics: Mapping[str, int], within_s: float) -> list[Seen]: ...


class TooFew(AssertionError):
    """A reader ran out of time; names what is missing."""


class Missing:
    """How many messages of each topic are still to come."""

    def __init__(self, reader: str, topics: Mapping[str, int], within_s: float) -> None:
        self._reader = reader
        self._counts = {topic: count for topic, count in topics.items() if count}
        self._within_s = within_s
        self.seen: list[Seen] = []

    def __bool__(self) -> bool:
        return bool(self._counts)

    def take(self, seen: Seen) -> None:
        self.seen.append(seen)
        left = self._counts.get(seen.topic, 0) - 1
        if left > 0:
            self._counts[seen.topic] = left
        else:
            self._counts.pop(seen.topic, None)

    def fail(self) -> TooFew:
        return TooFew(f"{self._reader} read {len(self.seen)} in {self._within_s} s; still missing {self._counts}")
