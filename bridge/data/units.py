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
    keyed = next((plan for plan in plans if plan.keys), NOTHING)
    assert all(plan is keyed or not plan.keys for plan in plans), "keys of several plans"
    return UnitPlan(
        [frame for plan in plans for frame in plan.frames],
        [*(record for plan in plans for record in plan.records), *records],
        wire=next((plan.wire for plan in plans if plan.wire), ""),
        message_count=sum([plan.message_count for plan in plans]),
        message_bytes=sum([plan.message_bytes for plan in plans]),
        topic=keyed.topic,
        keys=keyed.keys,
        changes_state=any(plan.changes_state for plan in plans),
    )
