"""The class SpanQueue: spans that wait for their export. The loop adds them, and the thread of `otlp.py` takes them."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from duolog.bridge.tracing.trace_context import TraceContext


class Span(NamedTuple):
    """A span that has ended. Its parent is the producer's span."""

    operation: str  # "publish", "prepare", "delay", "deliver", "fetch"
    topic: str
    parent: TraceContext
    start_ms: int
    end_ms: int
    attributes: Mapping[str, str | int]
    error: str = ""


class SpanQueue:
    """At most `count_max` spans; further ones are dropped and counted."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._spans: deque[Span] = deque()
        self.added = self.dropped = self.exported = self.failed = 0

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: Span) -> None:
        if len(self._spans) >= self._count_max:
            self.dropped += 1
            return
        self._spans.append(span)
        self.added += 1

    def take(self, count_max: int) -> list[Span]:
        """Take the oldest spans, at most `count_max`."""
        taken: list[Span] = []
        try:
            while len(taken) < count_max:
                taken.append(self._spans.popleft())
        except IndexError:
            pass
        return taken
