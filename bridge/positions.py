"""How far each group has read each queue: one table for both protocols.

A group is known by its Kafka spelling (`protocol.names`), a queue by its key. A position is the next offset to be read.

    commit()        answered: durable first. Kafka's OffsetCommit.
    commit_later()  not answered, or not waited for (RocketMQ's one-way updates and the ones on pulls): collected, and
                    appended as one record per group and second. Lost by a crash within that second, as at home.

What was collected is not yet state; `settle` makes it state when somebody asks for the group's positions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from bridge.config import GroupsOptions
from bridge.ledger import Ledger
from bridge.records import (
    CommittedPosition,
    GroupDeleted,
    PositionsCommitted,
    PositionsDeleted,
    Record,
    TopicDeleted,
)
from store.entry import Promise, Slot

POSITIONS_MAX = 1_000_000  # of all groups, some 200 bytes of memory each
METADATA_CHARACTERS_MAX = 64 << 20  # attached to all of them
POSITIONS_IN_RECORD = 1000
COLLECT_MS = 1000
ALIVE_MS = 24 * 3600 * 1000  # A group that lives without committing is noted so often, so that it does not expire.


class TooManyPositions(Exception):
    """`groups.count_max` groups, POSITIONS_MAX positions or METADATA_CHARACTERS_MAX; expiry makes room."""


class MetadataTooLarge(Exception):
    """The text that a client attached to a position is longer than `groups.metadata_bytes_max`."""


class Position(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1


class _Group:
    __slots__ = ("commit_ms", "positions")

    def __init__(self) -> None:
        self.positions: dict[int, Position] = {}
        self.commit_ms = -1


class Positions:
    """The table. `knows_topic(number)` says whether a topic is still there."""

    def __init__(self, ledger: Ledger, knows_topic: Callable[[int], bool], options: GroupsOptions) -> None:
        self._ledger, self._knows_topic, self._options = ledger, knows_topic, options
        self._groups: dict[str, _Group] = {}
        self._count = 0
        self._metadata_size = 0  # Invariant: the sum of the lengths over all positions.
        self._collected: dict[str, dict[int, CommittedPosition]] = {}
        self._due_mono_ms: int | None = None
        ledger.own(PositionsCommitted, self._replay_committed)
        ledger.own(PositionsDeleted, self._replay_deleted)
        ledger.own(GroupDeleted, self._replay_group_deleted)
        ledger.own(TopicDeleted, self._replay_topic_deleted)
        ledger.on_snapshot(self._snapshot)

    # -- Reading

    def fetch(self, group: str, key: int) -> Position | None:
        found = self._groups.get(group)
        return found.positions.get(key) if found else None

    def all_of(self, group: str) -> Mapping[int, Position]:
        """All positions of a group, by queue key."""
        found = self._groups.get(group)
        return found.positions if found else {}

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    # -- Committing

    def commit(self, group: str, positions: Sequence[CommittedPosition], now_ms: int) -> Promise:
        """Commit positions that an answer will confirm; raises TooManyPositions, MetadataTooLarge, StoreError."""
        return self._ledger.commit(self.records(group, positions, now_ms), now_ms).promise

    def records(self, group: str, positions: Sequence[CommittedPosition], now_ms: int) -> Sequence[Record]:
        """Give what `commit` would append, for who appends it in a unit of his own at once. Raises as it does."""
        self.check(group, positions)
        return self.checked_records(group, positions, now_ms)

    def checked_records(
        self, group: str, positions: Sequence[CommittedPosition], now_ms: int
    ) -> Sequence[PositionsCommitted]:
        """The same of positions that were checked when they were promised: this refuses nothing."""
        collected = self._collected.get(group)
        if collected:
            for position in positions:
                collected.pop(position.key, None)  # This commit is the later one.
        parts = range(0, len(positions) or 1, POSITIONS_IN_RECORD)
        return [PositionsCommitted(group, positions[at : at + POSITIONS_IN_RECORD], now_ms) for at in parts]

    def commit_later(self, group: str, positions: Sequence[CommittedPosition], mono_ms: int, now_ms: int) -> None:
        """Collect positions that nobody waits for; they become state within a second, a new group's at once."""
        if group not in self._groups:
            self.commit(group, positions, now_ms)
            return
        self.check(group, positions)
        collected = self._collected.setdefault(group, {})
        for position in positions:
            collected[position.key] = position
        if self._due_mono_ms is None:
            self._due_mono_ms = mono_ms + COLLECT_MS

    def settle(self, group: str, now_ms: int) -> None:
        """Make state of what was collected for one group, before its positions are reported."""
        collected = self._collected.pop(group, None)
        if collected:
            self.commit(group, [*collected.values()], now_ms)

    def next_deadline_mono_ms(self) -> int | None:
        return self._due_mono_ms

    def advance(self, mono_ms: int, now_ms: int) -> None:
        """Append what was collected, if its time has come; all groups in one unit."""
        if self._due_mono_ms is not None and mono_ms >= self._due_mono_ms:
            self._due_mono_ms = mono_ms + COLLECT_MS  # When the log refuses, it is tried again then.
            self.settle_all(now_ms)

    def settle_all(self, now_ms: int) -> None:
        """Make state of all that was collected: in time, and when the broker stops."""
        records = [
            PositionsCommitted(group, [*collected.values()], now_ms)
            for group, collected in self._collected.items()
            if collected
        ]
        if records:
            self._ledger.commit(records, now_ms)
        self._due_mono_ms = None
        self._collected.clear()

    def check(self, group: str, positions: Sequence[CommittedPosition]) -> None:
        """Raise what `commit` would; StoreErrors aside."""
        if group not in self._groups and len(self._groups) >= self._options.count_max:
            raise TooManyPositions(f"{len(self._groups)} groups; groups.count_max is {self._options.count_max}")
        if self._count + len(self._collected.get(group, ())) + len(positions) > POSITIONS_MAX:
            raise TooManyPositions(f"{self._count} positions of groups; {POSITIONS_MAX} are allowed")
        metadata_size = self._metadata_size + sum(len(position.metadata) for position in positions)
        if metadata_size > METADATA_CHARACTERS_MAX:
            raise TooManyPositions(f"{metadata_size} characters of metadata; {METADATA_CHARACTERS_MAX} are allowed")
        longest = self._options.metadata_bytes_max
        for position in positions:
            if len(position.metadata) > longest:
                raise MetadataTooLarge(f"metadata of {len(position.metadata)} characters; {longest} are allowed")

    # -- Deleting

    def delete(self, group: str, keys: Sequence[int], now_ms: int) -> Promise:
        """Forget some positions of a group."""
        self.settle(group, now_ms)
        return self._ledger.commit([PositionsDeleted(group, keys)], now_ms).promise

    def kept(self, group: str) -> list[Record]:
        """Give records of all positions of a group, to follow its deletion where they are to outlive it."""
        found = self._groups.get(group)
        return list(_records_of(group, found)) if found is not None else []

    def delete_group(self, group: str, now_ms: int) -> Promise:
        self._collected.pop(group, None)
        return self._ledger.commit([GroupDeleted(group)], now_ms).promise

    def expire(self, now_ms: int, is_active: Callable[[str], bool]) -> None:
        """Delete groups that neither lived nor committed for `groups.positions_retention_ms`, and note those that live.

        Kafka: GroupMetadataManager, `offsets.retention.minutes`, counted from when the group was last seen alive.
        """
        retention_ms = self._options.positions_retention_ms
        records: list[Record] = []
        for name, group in self._groups.items():
            quiet_ms = now_ms - group.commit_ms
            if quiet_ms >= min(ALIVE_MS, retention_ms) and is_active(name):
                records.append(PositionsCommitted(name, (), now_ms))
            elif quiet_ms >= retention_ms and name not in self._collected:
                records.append(GroupDeleted(name))
        if records:
            self._ledger.commit(records, now_ms)

    # -- Replay

    def _replay_committed(self, record: PositionsCommitted, slot: Slot) -> None:
        group = self._groups.get(record.group)
        if group is None:
            group = self._groups[record.group] = _Group()
        before = len(group.positions)
        for key, offset, leader_epoch, metadata in record.positions:
            if self._knows_topic(key >> 16):
                self._metadata_size += len(metadata) - _metadata_size(group.positions.get(key))
                group.positions[key] = Position(offset, leader_epoch, metadata, record.commit_ms)
        group.commit_ms = max(group.commit_ms, record.commit_ms)
        self._count += len(group.positions) - before

    def _replay_deleted(self, record: PositionsDeleted, slot: Slot) -> None:
        group = self._groups.get(record.group)
        if group is not None:
            for key in record.keys:
                position = group.positions.pop(key, None)
                if position is not None:
                    self._count -= 1
                    self._metadata_size -= len(position.metadata)

    def _replay_group_deleted(self, record: GroupDeleted, slot: Slot) -> None:
        group = self._groups.pop(record.group, None)
        if group is not None:
            self._count -= len(group.positions)
            self._metadata_size -= sum(map(_metadata_size, group.positions.values()))

    def _replay_topic_deleted(self, record: TopicDeleted, slot: Slot) -> None:
        for group in self._groups.values():
            gone = [key for key in group.positions if key >> 16 == record.number]
            for key in gone:
                self._metadata_size -= len(group.positions.pop(key).metadata)
            self._count -= len(gone)

    def _snapshot(self) -> Iterable[Record]:
        for name, group in self._groups.items():
            yield from _records_of(name, group)


def _records_of(name: str, group: _Group) -> Iterable[Record]:
    """A record has one commit time, so there is one for each time, and one more for the group's own."""
    by_time: dict[int, list[CommittedPosition]] = {}
    for key, (offset, leader_epoch, metadata, commit_ms) in group.positions.items():
        by_time.setdefault(commit_ms, []).append(CommittedPosition(key, offset, leader_epoch, metadata))
    by_time.setdefault(group.commit_ms, [])
    for commit_ms, positions in sorted(by_time.items()):
        yield PositionsCommitted(name, positions, commit_ms)


def _metadata_size(position: Position | None) -> int:
    return len(position.metadata) if position is not None else 0
