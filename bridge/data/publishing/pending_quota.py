"""The quota of pending delayed messages: whom a message counts for, and whether there is room for it.

    a client sends    its quota is looked up; the messages are refused, or their entries get the number of the owner
    they go           the unit that delivers, cancels or replaces them credits the owner (`delay_records.credits_of`)

The owner of a message is the user, client id, or both, that share the quota (`bridge/security/quotas/entity.py`); the
sums are in `delay/owners.py`. Messages that were sent while no such quota held for their client have no owner and never
count, and the broker's own messages do not count: retries by level, copies for dead letters, runs of schedules.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from duolog.bridge.records.codec import Record
from duolog.bridge.records.timers import TimerOwnerKnown, TimersCredited
from duolog.bridge.security.quotas.entity import DELAYED, QuotaClient
from duolog.bridge.security.quotas.quotas import Quotas
from duolog.bridge.security.rules import NAME_CHARACTERS_MAX
from duolog.delay import entry_extra
from duolog.delay.owners import TimerOwner, TimerOwners
from duolog.store.unit import Frame

_NAME_MAX: Final = NAME_CHARACTERS_MAX  # Client ids that are equal up to there count together.


class PendingQuotaReached(Exception):
    """A client has as many pending delayed messages as it may have. There is room when some are due."""


class PendingQuota:
    """Asks the quotas for the senders of delayed messages."""

    def __init__(self, quotas: Quotas, owners: TimerOwners) -> None:
        self._quotas, self._owners = quotas, owners

    def check_room(self, client: QuotaClient | None, count: int) -> None:
        """Raise PendingQuotaReached if a client may not have `count` more pending messages; None: no quota is set."""
        found = None if client is None or not count else self._find(client)
        if found is not None:
            assert client is not None, "it has a quota"
            self._check(client, *found, count)

    def charge(
        self, frames: Sequence[Frame], records: Sequence[Record], client: QuotaClient | None, *, refuses: bool = True
    ) -> tuple[Sequence[Frame], Sequence[Record]]:
        """Return the frames and records of a unit with the owner of its pending messages.

        The unit must be appended before the loop turns. Raises PendingQuotaReached if there is no room for them after
        those that the records cancel; without `refuses` they count nevertheless.
        """
        found = None if client is None else self._find(client)
        if client is None or found is None:
            return frames, records
        count = sum(entry_extra.is_pending(frame.extra) for frame in frames)
        if not count:
            return frames, records
        owner, limit = found
        number = self._owners.number_of(owner)
        if refuses:
            self._check(client, owner, limit, count - _credited(records, number))
        if number is None:
            number = self._owners.free_number()
            if number is None and refuses:  # Nothing can be counted for this client, which must be no advantage.
                raise self._refusal(client, f"{len(self._owners)} other clients have pending messages")
            if number is None:
                return frames, records
            records = [*records, TimerOwnerKnown(number, *owner)]
        return [_owned(frame, number) for frame in frames], records

    def _find(self, client: QuotaClient) -> tuple[TimerOwner, float] | None:
        found = self._quotas.delayed_max(client)
        if found is None:
            return None
        user, client_id, limit = found
        return TimerOwner(user and user[:_NAME_MAX], client_id and client_id[:_NAME_MAX]), limit

    def _check(self, client: QuotaClient, owner: TimerOwner, limit: float, count: int) -> None:
        pending = self._owners.count_of(owner)
        if count > 0 and pending + count > limit:
            raise self._refusal(client, f"{pending} delayed messages are pending, and the quota is {limit:g}")

    def _refusal(self, client: QuotaClient, reason: str) -> PendingQuotaReached:
        self._quotas.throttled[client.wire, DELAYED] += 1
        return PendingQuotaReached(f"quota {DELAYED} of {client.user}: {reason}")


def _owned(frame: Frame, number: int) -> Frame:
    """Return a frame with the number of its owner, if it is pending."""
    if not entry_extra.is_pending(frame.extra):
        return frame
    return replace(frame, extra=entry_extra.with_owner(frame.extra, number))


def _credited(records: Sequence[Record], number: int | None) -> int:
    """Return how many messages of an owner the records of the unit credit."""
    credits = (each for record in records if isinstance(record, TimersCredited) for each in record.credits)
    return sum(count for _, of, count in credits if of == number)
