"""The class UnitPlan: what one unit of the log gets, before its limits are checked.

planner, handler ──(UnitPlan)──> Publisher.append ──(Appended)──> one slot for each item of `UnitPlan.frames`
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from duolog.bridge.records.codec import Record
from duolog.bridge.state.idempotency_keys import IdempotencyKey
from duolog.store.entry import Appended
from duolog.store.unit import Frame, FrameRun


class SenderKey(NamedTuple):
    """The key that the sender gave a delayed message."""

    key: bytes
    replaces: bool  # The message replaces the pending messages of its topic that have the key.


class UnitPlan(NamedTuple):
    """The frames and state records of one unit, and what its append has to check, count and add.

    The records that cancel replaced messages, and those of quotas, are made at the append, because other requests may
    change what is pending until then.
    """

    frames: Sequence[Frame | FrameRun]
    records: Sequence[Record] = ()
    wire: str = ""  # The protocol of the client that sent the messages, for the metrics.
    message_count: int = 0
    message_bytes: int = 0
    level: int | None = None  # The level of the promise; None: the one that the frames and records have together.
    topic: int = 0  # The number of the topic that `keys` belong to.
    keys: Sequence[SenderKey] = ()  # The keys of the delayed messages that have one, in order.
    request: IdempotencyKey | None = None  # The request whose answer is the id of the first, delayed message.
    changes_state: bool = False  # The frames change state, so `StateLog.barrier` must cover the unit.


NOTHING = UnitPlan(())


# `Publisher.append`, for parts of the broker that the publisher itself uses. It is called with the plan and the time.
AppendUnit = Callable[[UnitPlan, int], Appended]


def joined(plans: Sequence[UnitPlan], records: Sequence[Record] = ()) -> UnitPlan:
    """Join plans and further records, whose frames keep their order. At most one of the plans may have keys."""
    keyed = NOTHING
    frames: list[Frame | FrameRun] = []
    own: list[Record] = []
    wire, count, size, changes_state = "", 0, 0, False
    for plan in plans:
        frames += plan.frames
        own += plan.records
        wire = wire or plan.wire
        count += plan.message_count
        size += plan.message_bytes
        changes_state = changes_state or plan.changes_state
        if plan.keys:
            assert keyed is NOTHING, "keys of several plans"
            keyed = plan
    own += records
    return UnitPlan(frames, own, wire, count, size, None, keyed.topic, keyed.keys, None, changes_state)
