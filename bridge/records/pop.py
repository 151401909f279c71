"""Messages that RocketMQ's POP consumers have taken."""

from collections.abc import Sequence

from duolog.bridge.records.layout import StateRecordBody


class PopTaken(StateRecordBody, frozen=True, tag=60):
    """A group popped messages of a queue; they come back at `due_ms` unless they are settled before."""

    group: str  # by its Kafka spelling
    key: int
    start_offset: int
    pop_ms: int
    deltas: Sequence[int]  # of the messages' offsets, from the first
    due_ms: int
    next_offset: int
    is_ordered: bool = False
    failures: Sequence[int] = ()  # In order: how often each message came due before; empty if none did.
    attempt_id: str = ""


class PopSettled(StateRecordBody, frozen=True, tag=61):
    """Some of these messages were acked, or given back to the group's retry topic in the same unit."""

    group: str
    key: int
    start_offset: int
    pop_ms: int
    deltas: Sequence[int]


class PopDelayed(StateRecordBody, frozen=True, tag=62):
    """The consumer of one of these messages asked for more time; it is another pop then, but in order."""

    group: str
    key: int
    start_offset: int
    pop_ms: int
    offset: int
    new_pop_ms: int
    due_ms: int
