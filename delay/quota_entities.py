"""The class QuotaEntities: how many pending messages each has, where a quota needs to know it.

A *quota entity* is a user, a client id, or both: whoever shares a quota of pending messages. A message has one only if
such a quota held for its client when it was sent. The number of the entity is in the entry of the message and in the
row of its timer (`delay/rows.py`), so it needs no memory of its own; here are only the sums.

    entry or record in the log                         method that replays it
    a pending entry, with the number of an entity      add
    the first of them in the same unit: whose it is    named
    messages were delivered, cancelled or replaced     credit
    a topic was deleted                                topic_deleted

Whoever appends a unit that removes pending messages adds what `credits_of` returns to it. So the sums need no search in
sorted tables, live or at a start. Topics are counted apart, because the messages of a deleted topic are subtracted at
once, and removed from the log much later. A number without messages is free.

A client chooses its client id, and each time another one if it wants. So entities with a client id have at most half of
the numbers, and those of one user CLIENT_IDS_OF_USER_MAX: quotas of users always have numbers left. These two limits
hold for what is sent; whoever commits a half message has no client id to choose, and gets a number as long as one is
free.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import Final, NamedTuple

from duolog.delay.rows import ENTITIES_MAX, NAME_SIZE, TOPIC_SHIFT, Timer, entity_of

CLIENT_IDS_MAX: Final = ENTITIES_MAX // 2
CLIENT_IDS_OF_USER_MAX: Final = 1000


class QuotaEntity(NamedTuple):
    """Whom a message counts for. None: the user, or the client id, does not matter."""

    user: str | None
    client_id: str | None


class TimerCredit(NamedTuple):
    """Messages of a topic that are not pending any more."""

    topic: int
    number: int  # That of their entity.
    count: int  # type: ignore[assignment]  # This field hides tuple.count.


class QuotaEntities:
    """The quota entities that have pending messages, by their numbers from 1 to ENTITIES_MAX."""

    def __init__(self) -> None:
        self._names: dict[int, QuotaEntity] = {}
        self._numbers: dict[QuotaEntity, int] = {}
        self._counts: dict[int, int] = {}  # By number; none is 0.
        self._by_topic: dict[int, dict[int, int]] = {}  # By topic and number; none is 0.
        self._client_ids = Counter[str | None]()  # By user, the entities that have a client id.
        self._client_id_count = 0  # Invariant: the sum of _client_ids, which would take long for many users.
        self._last = 0  # The number that was given last.

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
        """Return a number for another entity; None: all are in use. `limit_reached` says who may have one."""
        if len(self._counts) >= ENTITIES_MAX:
            return None
        number = self._last % ENTITIES_MAX + 1
        while number in self._counts:
            number = number % ENTITIES_MAX + 1
        return number

    def limit_reached(self, entity: QuotaEntity) -> str:
        """Return which limit leaves no number for another entity, as a sentence; "": none does."""
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
        """Return the entities with the most pending messages, and these numbers."""
        numbers = nlargest(count, self._counts, key=self._counts.__getitem__)
        return [(self._names[number], self._counts[number]) for number in numbers if number in self._names]

    def credits_of(self, timers: Iterable[Timer]) -> list[TimerCredit]:
        """Return what the removal of these timers credits to their quota entities."""
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
        """Note whose number this is."""
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
        """Take messages out of the count; those of a deleted topic are not in it."""
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
        """Credit all pending messages of a topic."""
        for number, count in [*self._by_topic.get(topic, {}).items()]:
            self.credit(topic, number, count)

    def _forget(self, number: int) -> None:
        """Forget whose number this is. It may be unknown, or have had no messages, if an entry was set aside."""
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
        """Return (number, entity, a part of its messages by topic), for `named` and `add`; made as it is read."""
        names, by_topic = dict(self._names), {topic: dict(counts) for topic, counts in self._by_topic.items()}
        return (
            (number, names[number], [(topic, count)])
            for topic, counts in by_topic.items()
            for number, count in counts.items()
            if number in names
        )
