"""What a group does with messages that have expired, when a pull or a pop would give them to it.

    read    3  4  5  6  7            4, 5 and 6 have expired; 7 has not
    given   3           7            the group goes on behind 7
    %DLQ%group  4  5  6              in one unit with: this group has [4, 7) behind it
    behind it   [4 .... 7)           so they are dead letters once, whoever of the group reads them again, also after
                                     a crash

A topic whose `message.expired` is `drop` has nothing of this but the gap in what is given; of a retried message its
first topic decides. A dead letter says `DEAD_LETTER_REASON` = `expired` and EXPIRED_AT_MS, and expires no more. Filters
come first: what a group does not want does not become its dead letter. Tools look at all, and change nothing.

If there can be no dead letters (no permission to write, no room for another topic) what has not expired is given up to
the first that has; from there the group is refused, and the refusal says why. Of the ranges that a group has behind it,
those below its position are one; RANGES_MAX are kept of a queue, the gap between the lowest two closing first. Where
all have RANGES_IN_ALL_MAX, a queue has one. What was given alive in a closed gap and is read again, expired, is passed.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from duolog.bridge.data import expiry
from duolog.bridge.data.publishing.refusals import IllegalMessage
from duolog.bridge.data.reading import Records
from duolog.bridge.rocketmq.requests.errors import ANSWERABLE
from duolog.bridge.rocketmq.retry.send_back import (
    dead_letters_of,
    drops_expired,
    expired_copy,
    group_config,
)
from duolog.bridge.state.deleted_topics import IsGone, in_slices
from duolog.bridge.state.positions import Positions
from duolog.bridge.state.records import GroupDeleted, MessagesExpired, Record
from duolog.bridge.state.topics import Topic
from duolog.protocol.names import group_of_rocketmq
from duolog.protocol.rocketmq.messages import message
from duolog.protocol.rocketmq.messages.message import (
    Message,
    properties_of,
    queue_offset_of,
    store_ms_of,
)
from duolog.protocol.rocketmq.names import DLQ_PREFIX, SYSTEM_GROUPS
from duolog.store.entry import Buffer, Promise, Slot
from duolog.store.index.queue import Queue
from duolog.store.state_log import StateLog
from duolog.store.unit import Frame

if TYPE_CHECKING:
    from duolog.bridge.broker import Broker

DEAD_AT_ONCE: Final = 64  # copied by one pull, two milliseconds; it ends before the next one
RANGES_MAX: Final = 1024  # of a queue: as many messages as Java's consumers have of one at a time
RANGES_IN_ALL_MAX: Final = 200_000  # some 100 bytes each
QUEUES_MAX: Final = 100_000  # of all groups; beyond, the one that was first heard of is forgotten

Range = tuple[int, int]  # from, up to and without

logger = logging.getLogger("bridge")


class Expired:
    """The expired messages that each group has behind it, by queue."""

    def __init__(
        self,
        state_log: StateLog,
        positions: Positions,
        queues_max: int = QUEUES_MAX,
        ranges_in_all_max: int = RANGES_IN_ALL_MAX,
    ) -> None:
        self._positions, self._queues_max, self._ranges_in_all_max = positions, queues_max, ranges_in_all_max
        self._ranges: dict[tuple[str, int], Sequence[Range]] = {}  # Replaced, never changed in place.
        self._of_group: dict[str, set[int]] = {}  # Invariant: the keys of `_ranges`, by group.
        self._count = 0  # Invariant: of the ranges of all.
        state_log.own(MessagesExpired, self._replay_expired)
        state_log.own(GroupDeleted, self._replay_group_deleted)
        state_log.on_sliced_snapshot(self._snapshot)

    def has(self, group: str, key: int, offset: int) -> bool:
        """Whether the group has that message behind it, expired."""
        ranges = self._ranges.get((group, key), ())
        at = bisect_right(ranges, offset, key=_start)
        return at > 0 and offset < ranges[at - 1][1]

    def ranges(self, group: str, key: int) -> Sequence[Range]:
        return self._ranges.get((group, key), ())

    # -- Replay

    def _replay_expired(self, record: MessagesExpired, slot: Slot) -> None:
        name = record.group, record.key
        position = None if record.is_restored else self._positions.fetch(*name)
        behind = [(0, position.offset)] if position is not None and position.offset > 0 else []
        ranges = merged([*self._ranges.get(name, ()), *behind, *((start, end) for start, end in record.ranges)])
        surplus = len(ranges) - RANGES_MAX
        if surplus > 0:
            ranges[: surplus + 1] = [(ranges[0][0], ranges[surplus][1])]
        others = self._count - len(self._ranges.get(name, ()))
        if others + len(ranges) > self._ranges_in_all_max:
            ranges = [(ranges[0][0], ranges[-1][1])]
        self._ranges[name] = ranges
        self._of_group.setdefault(record.group, set()).add(record.key)
        self._count = others + len(ranges)
        if len(self._ranges) > self._queues_max:
            self._forget(next(iter(self._ranges)))

    def _replay_group_deleted(self, record: GroupDeleted, slot: Slot) -> None:
        for key in [*self._of_group.get(record.group, ())]:
            self._forget((record.group, key))

    def sweep(self, is_gone: IsGone) -> Iterator[int]:
        """Forget the queues of deleted topics."""
        for names in in_slices(self._ranges):
            for name in names:
                if is_gone(name[1]) and name in self._ranges:
                    self._forget(name)
            yield len(names)

    def _forget(self, name: tuple[str, int]) -> None:
        group, key = name
        self._count -= len(self._ranges.pop(name))
        keys = self._of_group[group]
        keys.discard(key)
        if not keys:
            del self._of_group[group]

    def _snapshot(self) -> Iterable[Record]:
        table = zip([*self._ranges], [*self._ranges.values()], strict=True)
        return (MessagesExpired(*name, ranges, is_restored=True) for name, ranges in table)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Give the same offsets in as few ranges as can be, in order."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _start(each: Range) -> int:
    return each[0]


# -- Sifting what was read


class Sifted(NamedTuple):
    """What is left of what was read, and the unit by which the group has the rest behind it; mostly there is none.

    `reports`: whoever hears of it hears of an earlier such unit, which the log must keep before.
    """

    found: Records
    records: Sequence[Record] = ()
    frames: Sequence[Frame] = ()
    reports: bool = False


def may_expire(broker: "Broker", group: str, topic: Topic, queue: Queue) -> bool:
    """Whether what a group reads of a queue has to be sifted; for nearly all there is nothing else to do."""
    if topic.settings.ttl_ms < 0 and queue.key not in broker.expiring_queues:
        return False
    return topic.may_produce and not topic.rocketmq_name.startswith(DLQ_PREFIX) and group not in SYSTEM_GROUPS


def without_expired(
    broker: "Broker", group: str, topic: Topic, queue: Queue, offset: int, found: Records
) -> tuple[Records, Promise | None]:
    """Leave out what has expired; and say what the answer must wait for, if that became dead letters now or before.

    Raises ANSWERABLE if the first message has expired and cannot become one.
    """
    sifted = sift(broker, group, topic, queue, offset, found)
    if not sifted.records:
        return sifted.found, broker.state_log.barrier() if sifted.reports else None
    promise = broker.state_log.commit(sifted.records, broker.clock.now_ms(), sifted.frames).promise
    broker.metrics.dead_letters += len(sifted.frames)
    return sifted.found, promise


def sift(broker: "Broker", group: str, topic: Topic, queue: Queue, offset: int, found: Records) -> Sifted:
    """Part what was read from `offset` on; the group, by its RocketMQ name, gets what has not expired."""
    now_ms, behind, name = broker.clock.now_ms(), broker.rocketmq_expired, group_of_rocketmq(group)
    careful_ms = broker.wall_time.careful_ms(now_ms, broker.clock.mono_ms())
    if queue.key not in broker.expiring_queues and store_ms_of(found.buffers[0]) + topic.settings.ttl_ms > careful_ms:
        return Sifted(found)  # Only the topic says when, and the first was stored first.
    alive: list[Buffer] = []
    dead: list[Message] = []
    first_dead = next_offset = found.next_offset
    reports = False
    for buffer in found.buffers:
        raw = properties_of(buffer)
        expires_ms = _expiry_of(broker, topic, raw, buffer)
        if expires_ms is None or expires_ms > careful_ms:
            alive.append(buffer)
            continue
        if drops_expired(broker, topic, raw):
            continue
        at = queue_offset_of(buffer)
        if behind.has(name, queue.key, at):
            reports = True
            continue
        if len(dead) == DEAD_AT_ONCE:
            next_offset = at
            break
        letter = _letter_of(broker, topic, buffer, expires_ms)
        if letter is None:
            alive.append(buffer)
            continue
        if not dead:
            first_dead = at
        dead.append(letter)
    if len(alive) == len(found.buffers):
        return Sifted(found)
    if not dead:
        return Sifted(Records(alive, next_offset), reports=reports)
    records: list[Record] = []
    try:
        frames = _frames(broker, group, dead, now_ms, records)
    except ANSWERABLE as error:
        logger.warning("no dead letters of expired messages group=%s reason=%r", group, str(error))
        alive = [buffer for buffer in alive if queue_offset_of(buffer) < first_dead]
        if first_dead == queue_offset_of(found.buffers[0]):
            raise
        return Sifted(Records(alive, first_dead), reports=reports)
    records.append(MessagesExpired(name, queue.key, _gaps(offset, next_offset, map(queue_offset_of, alive))))
    return Sifted(Records(alive, next_offset), records, frames)


def _expiry_of(broker: "Broker", topic: Topic, raw: bytes, buffer: Buffer) -> int | None:
    try:
        return expiry.expiry_of(raw, store_ms_of(buffer), topic.settings)
    except Exception as error:  # noqa: BLE001 - set aside, or raised again
        _set_aside(broker, topic, buffer, error)
        return None


def _letter_of(broker: "Broker", topic: Topic, buffer: Buffer, expires_ms: int) -> Message | None:
    """Give the dead letter of a message; None if it has to be set aside."""
    try:
        return expired_copy(message.decode(buffer), expires_ms)
    except Exception as error:  # noqa: BLE001 - set aside, or raised again
        _set_aside(broker, topic, buffer, error)
        return None


def _set_aside(broker: "Broker", topic: Topic, buffer: Buffer, error: Exception) -> None:
    found = message.decode(buffer)
    place = f"{topic.name} queue {found.queue_id}, offset {found.queue_offset}"
    broker.poison.set_aside("expired message", place, error)


def _frames(broker: "Broker", group: str, dead: list[Message], now_ms: int, records: list[Record]) -> list[Frame]:
    """Give the dead letters; raises ANSWERABLE if the group can have none."""
    topic = dead_letters_of(broker, group_config(broker, group))
    frames: list[Frame] = []
    for each in dead:
        try:
            plan = broker.publisher.plan_messages(topic, 0, [each], now_ms)
        except IllegalMessage as error:
            # Only a message that Kafka wrote can be: its properties fill the format, and its copy has more of them.
            logger.warning("expired message let go group=%s reason=%r", group, str(error))
            continue
        frames += plan.frames
        records += plan.records
    return frames


def _gaps(start: int, end: int, offsets: Iterable[int]) -> list[Range]:
    """Give the ranges from `start` up to `end` without these offsets."""
    found: list[Range] = []
    for offset in (*offsets, end):
        if start < offset:
            found.append((start, offset))
        start = offset + 1
    return found
