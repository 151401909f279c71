"""The class QuotaEntities: counts the pending messages of each quota entity.

A *quota entity* is the user, the client id, or both, that share a quota of pending messages. A message has one only if
its client had such a quota when it sent the message. The entry of the message and the row of its timer
(`delay/rows.py`) contain the number of the entity, so this class only needs the sums.

    entry or record in the log                         method that replays it
    a pending entry, with the number of an entity      add
    the entity of a new number, in the same unit       named
    messages were delivered, cancelled or replaced     credit
    a topic was deleted                                topic_deleted

A unit that removes pending messages also contains the result of `credits_of`. So the sums need no search in sorted
tables, live or at a start. Each topic is counted separately, because the messages of a deleted topic are subtracted at
once and removed from the log much later. A number without messages is free.

A client may choose a new client id for each message. Therefore entities with a client id have at most half of the
numbers, and those of one user at most CLIENT_IDS_OF_USER_MAX, so that quotas of users always have free numbers. These
two limits hold for sent messages. The commit of a half message has no client id, and gets a number while one is free.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import Final, NamedTuple

from duolog.delay.rows import ENTITIES_MAX, NAME_SIZE, TOPIC_SHIFT, Timer, entity_of

CLIENT_IDS_MAX: Final = ENTITIES_MAX // 2
CLIENT_IDS_OF_USER_MAX: Final = 1000


class QuotaEntity(NamedTuple):
    """The user and the client id that share a quota; None if the quota does not depend on it."""

    user: str | None
    client_id: str | None


class TimerCredit(NamedTuple):
    """The number of messages of a topic and quota entity that are no longer pending."""

    topic: int
    number: int  # The number of their quota entity.
    count: int  # type: ignore[assignment]  # This field hides tuple.count.


class QuotaEntities:
    """The quota entities that have pending messages, by their numbers from 1 to ENTITIES_MAX."""

    def __init__(self) -> None:
        self._names: dict[int, QuotaEntity] = {}
        self._numbers: dict[QuotaEntity, int] = {}
        self._counts: dict[int, int] = {}  # Pending messages by number. Invariant: no count is 0.
        self._by_topic: dict[int, dict[int, int]] = {}  # The same by topic and number. Invariant: no count is 0.
        self._client_ids = Counter[str | None]()  # Entities with a client id, by user.
        self._client_id_count = 0  # Invariant: the sum of `_client_ids`, which is slow to compute for many users.
        self._last = 0  # The last number that was assigned.

    # -- Reading

    def __len__(self) -> int:
        """Return the number of entities with pending messages."""
        return len(self._counts)

    def count_of(self, entity: QuotaEntity) -> int:
        """Return the number of a quota entity's pending messages, with those of open transactions."""
        number = self._numbers.get(entity)
        return 0 if number is None else self._counts.get(number, 0)

    def number_of(self, entity: QuotaEntity) -> int | None:
        """Return the number of a quota entity; None: it has no pending messages."""
        return self._numbers.get(entity)

    def free_number(self) -> int | None:
        """Return a free number; None if all are in use. `limit_reached` says whether an entity may get it."""
        if len(self._counts) >= ENTITIES_MAX:
            return None
        number = self._last % ENTITIES_MAX + 1
        while number in self._counts:
            number = number % ENTITIES_MAX + 1
        return number

    def limit_reached(self, entity: QuotaEntity) -> str:
        """Return a sentence about the limit that allows no number for an entity; empty if it may get one."""
        if len(self._counts) >= ENTITIES_MAX:
            return f"{len(self._counts)} users and client ids have pending messages, and the limit is {ENTITIES_MAX}"
        if entity.client_id is None:
            return ""
        of_user = 0 if entity.user is None else self._client_ids[entity.user]
        if of_user >= CLIENT_IDS_OF_USER_MAX:
            return f"{of_user} client ids of this user have pending messages, and the limit is {CLIENT_IDS_OF_USER_MAX}"
        if self._client_id_count >= CLIENT_IDS_MAX:
            return f"{self._client_id_count} client ids have pending messages, and the limit is {CLIENT_IDS_MAX}"
        return ""

    def largest(self, count: int) -> list[tuple[QuotaEntity, int]]:
        """Return the quota entities with the most pending messages, and the number of these messages."""
        numbers = nlargest(count, self._counts, key=self._counts.__getitem__)
        return [(self._names[number], self._counts[number]) for number in numbers if number in self._names]

    def credits_of(self, timers: Iterable[Timer]) -> list[TimerCredit]:
        """Return the credits that a unit must contain which removes these timers."""
        if not self._counts:
            return []
        counted = Counter((key >> TOPIC_SHIFT, marks) for _, _, key, _, marks, _ in timers if marks & ~NAME_SIZE)
        return [
            TimerCredit(topic, entity_of(marks), count)
            for (topic, marks), count in counted.items()
            if topic in self._by_topic
        ]

    # -- Following the log

    def named(self, number: int, entity: QuotaEntity) -> None:
        """Assign a number to an entity."""
        self._forget(number)
        self._names[number], self._numbers[entity], self._last = entity, number, number
        if entity.client_id is not None:
            self._client_ids[entity.user] += 1
            self._client_id_count += 1

    def add(self, topic: int, number: int, count: int = 1) -> None:
        """Count pending messages of a quota entity."""
        of_topic = self._by_topic.setdefault(topic, {})
        of_topic[number] = of_topic.get(number, 0) + count
        self._counts[number] = self._counts.get(number, 0) + count

    def credit(self, topic: int, number: int, count: int) -> None:
        """Subtract messages from the sums. Those of a deleted topic were already subtracted."""
        of_topic = self._by_topic.get(topic, {})
        count = min(count, of_topic.get(number, 0))
        if not count:
            return
        of_topic[number] -= count
        if not of_topic[number]:
            del of_topic[number]
        if not of_topic:
            del self._by_topic[topic]
        self._counts[number] -= count
        if not self._counts[number]:
            del self._counts[number]
            self._forget(number)

    def topic_deleted(self, topic: int) -> None:
        """Subtract all pending messages of a topic."""
        for number, count in [*self._by_topic.get(topic, {}).items()]:
            self.credit(topic, number, count)

    def _forget(self, number: int) -> None:
        """Remove the assignment of a number. The number may be unassigned if an entry was set aside."""
        entity = self._names.pop(number, None)
        if entity is None:
            return
        if self._numbers.get(entity) == number:
            del self._numbers[entity]
        if entity.client_id is not None:
            self._client_ids[entity.user] -= 1
            self._client_id_count -= 1
            if not self._client_ids[entity.user]:
                del self._client_ids[entity.user]

    def snapshot(self) -> Iterator[tuple[int, QuotaEntity, list[tuple[int, int]]]]:
        """Return (number, entity, counts by topic) for `named` and `add`; an entity may come several times."""
        names, by_topic = dict(self._names), {topic: dict(counts) for topic, counts in self._by_topic.items()}
        return (
            (number, names[number], [(topic, count)])
            for topic, counts in by_topic.items()
            for number, count in counts.items()
            if number in names
        )
