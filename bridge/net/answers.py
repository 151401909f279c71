"""Persist, then answer: an answer carries the promise that must hold before it may leave."""

from collections.abc import Sequence
from dataclasses import dataclass

from duolog.store.entry import Buffer, Promise


@dataclass(slots=True)
class Answer:
    """One response frame, length prefix included, in pieces that go to the transport as they are.

    It leaves when the log keeps `promise` (None: at once). If the log cannot keep it (failed write or fsync), the
    connection is closed instead: the client must not take silence for success, and retries.
    """

    buffers: Sequence[Buffer]
    promise: Promise | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.buffers))
