"""Bugs of what clients are promised beyond their messages: times, repetitions and positions; see `planted_bugs.py`."""

from collections.abc import Sequence
from typing import Any

from duolog.bridge.cluster.forwarding import _OwnerConnection
from duolog.bridge.data.delayed.deliveries import Deliveries
from duolog.bridge.records.groups import CommittedOffset
from duolog.bridge.state.group_offsets import GroupOffsets
from duolog.bridge.state.producers import Producers
from duolog.store.entry import WRITTEN, Promise
from tests.simulation.replacing import Replacement, always, by_name


def delayed_messages_delivered_late() -> list[Replacement]:
    right = Deliveries.next_deadline_ms

    def next_deadline_ms(self: Deliveries) -> int | None:
        deadline_ms = right(self)
        return deadline_ms and deadline_ms + 3_000

    return [(Deliveries, "next_deadline_ms", next_deadline_ms)]


def delayed_messages_delivered_early() -> list[Replacement]:
    run, deadline = Deliveries.run, Deliveries.next_deadline_ms

    def next_deadline_ms(self: Deliveries) -> int | None:
        deadline_ms = deadline(self)
        return deadline_ms and deadline_ms - 100

    return [
        (Deliveries, "next_deadline_ms", next_deadline_ms),
        (Deliveries, "run", lambda self, now_ms: run(self, now_ms + 100)),
    ]


def sequences_forgotten_at_a_takeover() -> list[Replacement]:
    return always(Producers, "replay_frame", value=None)


def offsets_answered_before_they_are_shared() -> list[Replacement]:
    right = GroupOffsets.commit

    def commit(self: GroupOffsets, group: str, positions: Sequence[CommittedOffset], now_ms: int) -> Promise:
        return right(self, group, positions, now_ms)._replace(level=WRITTEN)

    return [(GroupOffsets, "commit", commit)]


def sends_of_a_lost_connection_sent_on_again() -> list[Replacement]:
    def lose(self: Any, request: Any) -> None:
        self._end.__self__.forward("", request.command, request.size, request.done)

    return [(_OwnerConnection, "_lose", lose)]


CLIENT_BUGS = by_name(
    delayed_messages_delivered_late,
    delayed_messages_delivered_early,
    sequences_forgotten_at_a_takeover,
    offsets_answered_before_they_are_shared,
    sends_of_a_lost_connection_sent_on_again,
)
