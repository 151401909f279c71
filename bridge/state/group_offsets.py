"""Committed offsets: how far each group has read each queue, in one table for both client protocols.

A group is identified by its Kafka name (`protocol.names`), a queue by its queue key. In this module a *position* is a
committed offset, the offset of the next record to be read, with its metadata.

    commit()        the answer waits until the position is durable: Kafka's OffsetCommit
    commit_later()  no answer waits (RocketMQ's one-way updates, and the offsets that pulls carry): the position is
                    collected, and one record for each group is appended every second. A crash loses at most the
                    positions of that second, as with a RocketMQ broker.

A collected position becomes state when `commit_collected` commits it, at the latest before the group's positions are
reported. It is dropped if the log receives a later decision about its queue, such as a commit or a deletion. While the
store refuses appends, for example because the disk is full, positions stay collected. A collected position counts
towards the limits, so that the later commit cannot fail because of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from duolog.bridge.config import GroupsOptions
from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import CommittedOffset, GroupDeleted, GroupOffsetsCommitted, GroupOffsetsDeleted
from duolog.bridge.state.deleted_topics import IsDeleted, in_slices
from duolog.store.copy_on_write import CopyOnWrite
from duolog.store.entry import EntrySlot, Promise
from duolog.store.errors import StoreError
from duolog.store.index.queue import QUEUE_ID_BITS
from duolog.store.state_log import StateLog

POSITIONS_IN_RECORD = 1000
COMMITTED_AT_ONCE = 4000  # The number of collected positions that one turn commits, at about 3 us each.
FREED_AT_ONCE = 10_000  # The number of positions of deleted groups that one turn frees, at 0.1 us each.
EXPIRED_AT_ONCE = 500  # The number of groups that one slice of `expire` checks.
COLLECT_MS = 1000
# How often the log notes that a group has members, so that it does not expire although it commits nothing.
ALIVE_MS = 24 * 3600 * 1000


class TooManyGroupOffsets(Exception):
    """`groups.count_max`, `groups.positions_max` or `groups.positions_text_bytes_max` is reached.

    The expiry of unused groups, or their deletion, makes room.
    """


class MetadataTooLarge(Exception):
    """The metadata that a client attached to a position is longer than `groups.metadata_bytes_max`."""


class GroupOffset(NamedTuple):
    """A committed offset with its leader epoch, its metadata, and the wall time of its commit."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1


class _Collected(NamedTuple):
    """A position that no answer waits for, and that is not in the log yet."""

    position: CommittedOffset
    is_new: bool  # The group has no committed position for this queue yet, so this one will add an entry to the table.


class _Group:
    __slots__ = ("commit_ms", "positions", "text_bytes")

    def __init__(self) -> None:
        self.positions: dict[int, GroupOffset] = {}
        self.text_bytes = 0  # Invariant: the sum of `_text_bytes_of` over its positions.
        self.commit_ms = -1


class GroupOffsets:
    """The committed offsets of all groups. `knows_topic(number)` says whether a topic exists.

    The class has more than 20 methods because committed and collected positions share the limits.
    """

    def __init__(self, state_log: StateLog, knows_topic: Callable[[int], bool], options: GroupsOptions) -> None:
        self._state_log, self._knows_topic, self._options = state_log, knows_topic, options
        self._groups: dict[str, _Group] = {}
        self._count = 0
        self._text_bytes = 0  # Invariant: the sum of `text_bytes` over all groups.
        # The positions of deleted groups; `advance` frees their memory in slices.
        self._dead: list[dict[int, GroupOffset]] = []
        self._collected: dict[str, dict[int, _Collected]] = {}  # Invariant: no group's dict is empty.
        self._collected_new = 0  # Invariant: how many of all collected positions are new.
        self._due_mono_ms: int | None = None
        state_log.own(GroupOffsetsCommitted, self._replay_committed)
        state_log.own(GroupOffsetsDeleted, self._replay_deleted)
        state_log.own(GroupDeleted, self._replay_group_deleted)
        self._snapshot: CopyOnWrite[str, tuple[Mapping[int, GroupOffset], int]] = CopyOnWrite(self._copy_of)
        state_log.on_sliced_snapshot(self._begin_snapshot, self._snapshot.end)

    # -- Reading

    def fetch(self, group: str, key: int) -> GroupOffset | None:
        """Return the committed offset of a group in a queue, or None."""
        found = self._groups.get(group)
        return found.positions.get(key) if found else None

    def all_of(self, group: str) -> Mapping[int, GroupOffset]:
        """Return all positions of a group by queue key; positions of recently deleted topics may be among them."""
        found = self._groups.get(group)
        return found.positions if found else {}

    def groups(self) -> Iterable[str]:
        """Return the groups that have committed offsets or were noted as alive."""
        return self._groups.keys()

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def reported(self, group: str, now_ms: int) -> Mapping[int, GroupOffset]:
        """Return all positions of a group, collected ones included.

        If the store refuses to commit the collected ones, they are reported nevertheless, because collected positions
        are never promised to be durable.
        """
        try:
            self.commit_collected(group, now_ms)
        except StoreError:
            collected = {
                key: GroupOffset(position.offset, position.leader_epoch, position.metadata, now_ms)
                for key, (position, _) in self._collected[group].items()
            }
            return {**self.all_of(group), **collected}
        return self.all_of(group)

    # -- Committing

    def commit(self, group: str, positions: Sequence[CommittedOffset], now_ms: int) -> Promise:
        """Commit positions that an answer confirms; raises TooManyGroupOffsets, MetadataTooLarge, StoreError."""
        return self._state_log.commit(self.records(group, positions, now_ms), now_ms).promise

    def records(self, group: str, positions: Sequence[CommittedOffset], now_ms: int) -> Sequence[Record]:
        """Return the records that `commit` would append, for a caller that appends them in its own unit at once.

        Raises TooManyGroupOffsets and MetadataTooLarge.
        """
        self.check(group, positions)
        return self.checked_records(group, positions, now_ms)

    def checked_records(
        self, group: str, positions: Sequence[CommittedOffset], now_ms: int
    ) -> Sequence[GroupOffsetsCommitted]:
        """Return the same records as `records`, without checks, for positions whose commit was promised before."""
        parts = range(0, len(positions) or 1, POSITIONS_IN_RECORD)
        return [GroupOffsetsCommitted(group, positions[at : at + POSITIONS_IN_RECORD], now_ms) for at in parts]

    def commit_later(self, group: str, positions: Sequence[CommittedOffset], mono_ms: int, now_ms: int) -> None:
        """Collect positions that no answer waits for. They are committed within a second; those of a new group, now."""
        if group not in self._groups:
            self.commit(group, positions, now_ms)
            return
        self.check(group, positions)
        known, collected = self.all_of(group), self._collected.setdefault(group, {})
        for position in positions:
            before = collected.get(position.key)
            is_new = position.key not in known
            self._collected_new += is_new and before is None
            collected[position.key] = _Collected(position, is_new)
        if self._due_mono_ms is None:
            self._due_mono_ms = mono_ms + COLLECT_MS

    def commit_collected(self, group: str, now_ms: int) -> None:
        """Commit the collected positions of one group; raises StoreError, after which they stay collected."""
        collected = self._collected.get(group)
        if collected:
            self._state_log.commit(self._collected_records(group, now_ms), now_ms)

    def _collected_records(self, group: str, now_ms: int) -> Sequence[Record]:
        positions = [position for position, _ in self._collected[group].values()]
        return self.checked_records(group, positions, now_ms)

    def next_deadline_mono_ms(self) -> int | None:
        """Return when collected positions are to be committed; None if there are none."""
        return 0 if self._dead else self._due_mono_ms

    def advance(self, mono_ms: int, now_ms: int) -> None:
        """Commit collected positions when they are due: those of some groups now, the others in the next turns.

        Also frees some memory of deleted groups.
        """
        self._free_some()
        if self._due_mono_ms is not None and mono_ms >= self._due_mono_ms:
            self._due_mono_ms = mono_ms + COLLECT_MS  # The next attempt if the store refuses now.
            self._commit_some(now_ms)
            self._due_mono_ms = mono_ms if self._collected else None

    def _free_some(self) -> None:
        if self._dead:
            positions = self._dead[-1]
            for _ in range(min(len(positions), FREED_AT_ONCE)):
                positions.popitem()
            if not positions:
                self._dead.pop()

    def commit_all_collected(self, now_ms: int) -> None:
        """Commit all collected positions; called when the broker stops. Raises StoreError."""
        while self._collected:
            self._commit_some(now_ms)
        self._due_mono_ms = None

    def _commit_some(self, now_ms: int) -> None:
        records: list[Record] = []
        count = 0
        for group, collected in self._collected.items():
            records += self._collected_records(group, now_ms)
            count += len(collected)
            if count >= COMMITTED_AT_ONCE:
                break
        if records:
            # The replay of these records removes the positions from `_collected`.
            self._state_log.commit(records, now_ms)

    def _drop_collected(self, group: str, keys: Iterable[int]) -> None:
        """Drop collected positions in these queues, because the log has a later decision about them."""
        collected = self._collected.get(group)
        if collected is None:
            return
        for key in keys:
            dropped = collected.pop(key, None)
            if dropped is not None:
                self._collected_new -= dropped.is_new
        if not collected:
            del self._collected[group]

    def check(self, group: str, positions: Sequence[CommittedOffset]) -> None:
        """Raise what `commit` would raise, except StoreError."""
        options = self._options
        if group not in self._groups and len(self._groups) >= options.count_max:
            raise TooManyGroupOffsets(f"{len(self._groups)} groups; groups.count_max is {options.count_max}")
        longest, has_text = options.metadata_bytes_max, False
        for position in positions:
            has_text = has_text or position.metadata != ""
            if len(position.metadata) > longest:
                raise MetadataTooLarge(f"metadata of {len(position.metadata)} characters; {longest} are allowed")
        known, collected = self.all_of(group), self._collected.get(group, {})
        latest = {position.key: position for position in positions}
        count = self._count + self._collected_new
        if count + len(latest) > options.positions_max:
            new_count = sum(key not in known and key not in collected for key in latest)
            if new_count and count + new_count > options.positions_max:
                raise TooManyGroupOffsets(
                    f"{count + new_count} committed offsets; groups.positions_max is {options.positions_max}"
                )
        if not has_text:
            return
        more_bytes = sum(
            _text_bytes_of(position.metadata) - _text_bytes(known.get(key)) for key, position in latest.items()
        )
        if more_bytes > 0 and self._text_bytes + more_bytes > options.positions_text_bytes_max:
            raise TooManyGroupOffsets(
                f"{self._text_bytes + more_bytes} bytes of metadata at committed offsets; "
                f"groups.positions_text_bytes_max is {options.positions_text_bytes_max}"
            )

    # -- Deleting

    def delete(self, group: str, keys: Sequence[int], now_ms: int) -> Promise:
        """Delete the group's positions in these queues."""
        return self._state_log.commit([GroupOffsetsDeleted(group, keys)], now_ms).promise

    def kept(self, group: str) -> list[Record]:
        """Return records of all positions of a group, for a unit that deletes the group and then restores them."""
        found = self._groups.get(group)
        return list(_records_of(group, found.positions, found.commit_ms)) if found is not None else []

    def delete_group(self, group: str, now_ms: int) -> Promise:
        """Delete all positions of a group. Raises StoreError."""
        return self._state_log.free([GroupDeleted(group)], now_ms).promise

    def expire(self, now_ms: int, is_active: Callable[[str], bool]) -> Iterator[None]:
        """Delete groups that had no member and no commit for `groups.positions_retention_ms`.

        Also notes in the log which groups have members. Yields between slices, so that the loop can run. As in Kafka
        (GroupMetadataManager, `offsets.retention.minutes`), the time counts from when the group last had a member.
        """
        names = [*self._groups]
        for at in range(0, len(names), EXPIRED_AT_ONCE):
            records = [
                record
                for name in names[at : at + EXPIRED_AT_ONCE]
                if (record := self._expiry(name, now_ms, is_active)) is not None
            ]
            if records:
                self._state_log.commit(records, now_ms)
            yield

    def _expiry(self, name: str, now_ms: int, is_active: Callable[[str], bool]) -> Record | None:
        group, retention_ms = self._groups.get(name), self._options.positions_retention_ms
        if group is None:
            return None
        quiet_ms = now_ms - group.commit_ms
        if quiet_ms >= min(ALIVE_MS, retention_ms) and is_active(name):
            return GroupOffsetsCommitted(name, (), now_ms)
        is_over = quiet_ms >= retention_ms and name not in self._collected
        return GroupDeleted(name) if is_over else None

    # -- Replay

    def _replay_committed(self, record: GroupOffsetsCommitted, slot: EntrySlot) -> None:
        if self._snapshot.is_active:
            self._snapshot.before_change(record.group)
        group = self._groups.get(record.group)
        if group is None:
            group = self._groups[record.group] = _Group()
        before, text_bytes = len(group.positions), 0
        for key, offset, leader_epoch, metadata in record.positions:
            if self._knows_topic(key >> QUEUE_ID_BITS):
                if metadata or group.text_bytes:
                    text_bytes += _text_bytes_of(metadata) - _text_bytes(group.positions.get(key))
                group.positions[key] = GroupOffset(offset, leader_epoch, metadata, record.commit_ms)
        group.commit_ms = max(group.commit_ms, record.commit_ms)
        group.text_bytes += text_bytes
        self._text_bytes += text_bytes
        self._count += len(group.positions) - before
        if self._collected:
            self._drop_collected(record.group, [position.key for position in record.positions])

    def _replay_deleted(self, record: GroupOffsetsDeleted, slot: EntrySlot) -> None:
        group = self._groups.get(record.group)
        if group is not None:
            self._forget(record.group, group, record.keys)
        self._drop_collected(record.group, record.keys)

    def _replay_group_deleted(self, record: GroupDeleted, slot: EntrySlot) -> None:
        if self._snapshot.is_active:
            self._snapshot.before_change(record.group)
        group = self._groups.pop(record.group, None)
        if group is not None:
            self._count -= len(group.positions)
            self._text_bytes -= group.text_bytes
            if len(group.positions) > FREED_AT_ONCE:
                self._dead.append(group.positions)
        self._drop_collected(record.group, [*self._collected.get(record.group, ())])

    # -- Deleted topics

    def sweep(self, is_deleted: IsDeleted) -> Iterator[int]:
        """Remove the positions in queues of deleted topics; yields the number of positions checked."""
        for name in [*self._groups]:
            group = self._groups.get(name)
            if group is None:
                continue
            for keys in in_slices(group.positions):
                if self._groups.get(name) is group:
                    self._forget(name, group, [key for key in keys if is_deleted(key)])
                yield len(keys)

    def _forget(self, name: str, group: _Group, keys: Iterable[int]) -> None:
        if self._snapshot.is_active:
            self._snapshot.before_change(name)
        for key in keys:
            position = group.positions.pop(key, None)
            if position is not None:
                self._count -= 1
                group.text_bytes -= _text_bytes(position)
                self._text_bytes -= _text_bytes(position)

    # -- Snapshots

    def _begin_snapshot(self) -> Iterable[Record]:
        self._snapshot.begin(self._groups)
        return chain.from_iterable(
            _records_of(name, positions, commit_ms) for name, (positions, commit_ms) in self._snapshot.entries()
        )

    def _copy_of(self, name: str) -> tuple[Mapping[int, GroupOffset], int] | None:
        group = self._groups.get(name)
        return None if group is None else (group.positions.copy(), group.commit_ms)


def _records_of(name: str, positions: Mapping[int, GroupOffset], commit_ms: int) -> Iterator[Record]:
    """Yield records of limited size that restore a group's positions and its last commit time.

    A record has one commit time, so there is a record for each time, and one for the time of the group itself.
    """
    left = iter(positions.items())
    while some := [*islice(left, POSITIONS_IN_RECORD)]:
        by_time: dict[int, list[CommittedOffset]] = {}
        for key, (offset, leader_epoch, metadata, at_ms) in some:
            by_time.setdefault(at_ms, []).append(CommittedOffset(key, offset, leader_epoch, metadata))
        for at_ms, committed in sorted(by_time.items()):
            yield GroupOffsetsCommitted(name, committed, at_ms)
    yield GroupOffsetsCommitted(name, [], commit_ms)


def _text_bytes(position: GroupOffset | None) -> int:
    return _text_bytes_of(position.metadata) if position is not None else 0


def _text_bytes_of(text: str) -> int:
    """Return the most bytes of memory that a text takes."""
    return len(text) if text.isascii() else 4 * len(text)
