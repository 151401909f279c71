"""The quota of pending delayed messages: in which quota a message counts, and whether the quota allows it.

    a client sends delayed messages    they are refused if they exceed its quota; else their entries contain the number
                                       of its quota entity
    messages are delivered,            the unit that removes them credits the quota entity
      cancelled or replaced            (`delay_records.credits_of`)

The quota entity of a message is the user, client id, or both, that share the quota
(`bridge/security/quotas/entity.py`); `delay/quota_entities.py` has the sums. A message that was sent while its client
had no such quota has no quota entity and never counts. Messages of the broker itself do not count either: retries by
level, copies for dead letters, runs of schedules.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from duolog.bridge.records.codec import Record
from duolog.bridge.records.timers import QuotaEntityKnown, TimersCredited
from duolog.bridge.security.quotas.entity import DELAYED, QuotaClient
from duolog.bridge.security.quotas.quotas import Quotas
from duolog.bridge.security.rules import NAME_CHARACTERS_MAX
from duolog.delay import entry_extra
from duolog.delay.quota_entities import QuotaEntities, QuotaEntity
from duolog.store.unit import Frame, FrameRun

_NAME_MAX: Final = NAME_CHARACTERS_MAX  # Client ids that are equal up to there count together.


class PendingQuotaReached(Exception):
    """A client has as many pending delayed messages as it may have. There is room when some are due."""


class PendingQuota:
    """Asks the quotas for the senders of delayed messages."""

    def __init__(self, quotas: Quotas, entities: QuotaEntities) -> None:
        self._quotas, self._entities = quotas, entities

    def check_room(self, client: QuotaClient | None, count: int) -> None:
        """Raise PendingQuotaReached if a client may not have `count` more pending messages; None: no quota is set."""
        found = None if client is None or not count else self._find(client)
        if found is not None:
            assert client is not None, "it has a quota"
            self._check(client, *found, count)
            self._check_number(client, found[0])

    def charge(
        self,
        frames: Sequence[Frame | FrameRun],
        count: int,
        records: Sequence[Record],
        client: QuotaClient | None,
        *,
        refuses: bool,
    ) -> tuple[Sequence[Frame | FrameRun], Sequence[Record]]:
        """Return the frames and records of a unit with the entity of its pending messages, of which there are `count`.

        The unit must be appended before the loop turns. Raises PendingQuotaReached if there is no room for them after
        those that the records cancel. Without `refuses`, which is for commits of half messages, they count
        nevertheless; only if all numbers of entities are in use, they are refused, because they could not be counted.
        """
        found = None if client is None else self._find(client)
        if client is None or found is None:
            return frames, records
        entity, limit = found
        number = self._entities.number_of(entity)
        if refuses:
            self._check(client, entity, limit, count - _credited(records, number))
            self._check_number(client, entity)
        if number is None:
            number = self._entities.free_number()
            if number is None:
                raise self._refusal(client, self._entities.limit_reached(entity))
            records = [*records, QuotaEntityKnown(number, *entity)]
        return [_with_entity(frame, number) for frame in frames], records

    def _find(self, client: QuotaClient) -> tuple[QuotaEntity, float] | None:
        found = self._quotas.delayed_max(client)
        if found is None:
            return None
        user, client_id, limit = found
        return QuotaEntity(user and user[:_NAME_MAX], client_id and client_id[:_NAME_MAX]), limit

    def _check(self, client: QuotaClient, entity: QuotaEntity, limit: float, count: int) -> None:
        pending = self._entities.count_of(entity)
        if count > 0 and pending + count > limit:
            raise self._refusal(client, f"{pending} delayed messages are pending, and the quota is {limit:g}")

    def _check_number(self, client: QuotaClient, entity: QuotaEntity) -> None:
        """Refuse an entity without a number: its messages cannot be counted, which must be no advantage."""
        if self._entities.number_of(entity) is None and (reason := self._entities.limit_reached(entity)):
            raise self._refusal(client, reason)

    def _refusal(self, client: QuotaClient, reason: str) -> PendingQuotaReached:
        self._quotas.throttled[client.wire, DELAYED] += 1
        return PendingQuotaReached(f"quota {DELAYED} of {client.user}: {reason}")


def _with_entity(frame: Frame | FrameRun, number: int) -> Frame | FrameRun:
    """Return a frame with the number of its entity, if it is pending."""
    if not isinstance(frame, Frame) or not entry_extra.is_pending(frame.extra):
        return frame
    return replace(frame, extra=entry_extra.with_entity(frame.extra, number))


def _credited(records: Sequence[Record], number: int | None) -> int:
    """Return how many messages of a quota entity the records of the unit credit."""
    credits = (each for record in records if isinstance(record, TimersCredited) for each in record.credits)
    return sum(count for _, of, count in credits if of == number)
