"""State records of messages that RocketMQ's POP consumers have taken."""

from collections.abc import Sequence

from duolog.bridge.records.layout import StateRecordBody


class PopTaken(StateRecordBody, frozen=True, tag=60):
    """Messages that a group popped; they return to it at `due_ms` unless they are acknowledged before."""

    group: str  # The Kafka name of the group.
    key: int
    start_offset: int
    pop_ms: int
    deltas: Sequence[int]  # The offsets of the messages as differences from the first one.
    due_ms: int
    next_offset: int
    is_ordered: bool = False
    # For each message, how often its invisible time ended before; empty if that never happened.
    failures: Sequence[int] = ()
    attempt_id: str = ""


class PopSettled(StateRecordBody, frozen=True, tag=61):
    """Some of these messages were acknowledged, or sent to the group's retry topic in the same unit."""

    group: str
    key: int
    start_offset: int
    pop_ms: int
    deltas: Sequence[int]


class PopDelayed(StateRecordBody, frozen=True, tag=62):
    """The invisible time of a popped message was changed; the message belongs to another pop then, except in order."""

    group: str
    key: int
    start_offset: int
    pop_ms: int
    offset: int
    new_pop_ms: int
    due_ms: int
