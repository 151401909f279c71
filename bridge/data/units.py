"""The class UnitPlan: what one unit of the log gets, before its limits are checked.

planner, handler ──(UnitPlan)──> Publisher.append ──(Appended)──> one slot for each item of `UnitPlan.frames`
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from duolog.bridge.records.codec import Record
from duolog.bridge.state.idempotency_keys import IdempotencyKey
from duolog.store.entry import Appended, new_tuple
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


def joined(
    plans: Sequence[UnitPlan],
    records: Sequence[Record] = (),
    frames: Sequence[Frame] = (),
    *,
    changes_state: bool = False,
) -> UnitPlan:
    """Join plans, then further records and frames, each in order. At most one of the plans may have keys."""
    keyed = NOTHING
    all_frames: list[Frame | FrameRun] = []
    all_records: list[Record] = []
    wire, count, size = "", 0, 0
    for plan in plans:
        planned, own, plan_wire, plan_count, plan_size, _, _, keys, _, changes = plan
        all_frames += planned
        all_records += own
        wire = wire or plan_wire
        count += plan_count
        size += plan_size
        changes_state = changes_state or changes
        if keys:
            assert keyed is NOTHING, "keys of several plans"
            keyed = plan
    all_frames += frames
    all_records += records
    joined_plan = (all_frames, all_records, wire, count, size, None, keyed.topic, keyed.keys, None, changes_state)
    return new_tuple(UnitPlan, joined_plan)
