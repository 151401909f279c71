"""How far each group has read each queue: one table for both protocols.

A group is known by its Kafka spelling (`protocol.names`), a queue by its key. A position is the next offset to be read.

    commit()        answered: durable first. Kafka's OffsetCommit.
    commit_later()  not answered, or not waited for (RocketMQ's one-way updates and the ones on pulls): collected, and
                    appended as one record per group and second. Lost by a crash within that second, as at home.

What was collected is not yet state; `settle` makes it state when somebody asks for the group's positions. A collected
position is dropped when the log has a later decision about its queue: a commit, a deletion. While the log refuses
(the disk is full) it stays collected. It counts towards the limits from the moment at which it is collected, so that
whatever was collected can be committed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from duolog.bridge.config import GroupsOptions
from duolog.bridge.records.codec import Record
from duolog.bridge.records.groups import CommittedOffset, GroupDeleted, GroupOffsetsCommitted, GroupOffsetsDeleted
from duolog.bridge.state.deleted_topics import IsGone, in_slices
from duolog.store.copy_on_write import CopyOnWrite
from duolog.store.entry import Promise, Slot
from duolog.store.errors import StoreError
from duolog.store.state_log import StateLog

POSITIONS_IN_RECORD = 1000
SETTLED_AT_ONCE = 4000  # collected positions that one turn of the loop commits, at some 3 us each
FREED_AT_ONCE = 10_000  # positions of a deleted group, at 0.1 us each
EXPIRED_AT_ONCE = 500  # groups that are looked at in one slice of `expire`
COLLECT_MS = 1000
ALIVE_MS = 24 * 3600 * 1000  # A group that lives without committing is noted so often, so that it does not expire.


class TooManyGroupOffsets(Exception):
    """`groups.count_max`, `groups.positions_max` or `groups.positions_text_bytes_max`; expiry makes room."""


class MetadataTooLarge(Exception):
    """The text that a client attached to a position is longer than `groups.metadata_bytes_max`."""


class GroupOffset(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1


class _Collected(NamedTuple):
    """A position that nobody waits for."""

    position: CommittedOffset
    is_new: bool  # The group had no position for this queue: it takes a place in the table.


class _Group:
    __slots__ = ("commit_ms", "positions", "text_bytes")

    def __init__(self) -> None:
        self.positions: dict[int, GroupOffset] = {}
        self.text_bytes = 0  # Invariant: the sum of `_text_bytes_of` over its positions.
        self.commit_ms = -1


class GroupOffsets:
    """The table. `knows_topic(number)` says whether a topic still exists.

    The class has more than twenty methods, because committed and collected offsets share the limits: an offset counts
    from the moment at which it is collected.
    """

    def __init__(self, state_log: StateLog, knows_topic: Callable[[int], bool], options: GroupsOptions) -> None:
        self._state_log, self._knows_topic, self._options = state_log, knows_topic, options
        self._groups: dict[str, _Group] = {}
        self._count = 0
        self._text_bytes = 0  # Invariant: the sum of `text_bytes` over all groups.
        self._dead: list[dict[int, GroupOffset]] = []  # Of deleted groups: `advance` gives the memory back in slices.
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
        found = self._groups.get(group)
        return found.positions.get(key) if found else None

    def all_of(self, group: str) -> Mapping[int, GroupOffset]:
        """All positions of a group, by queue key; for a while some of deleted topics may be among them."""
        found = self._groups.get(group)
        return found.positions if found else {}

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def reported(self, group: str, now_ms: int) -> Mapping[int, GroupOffset]:
        """All positions of a group, collected ones included.

        Where the log refuses to take the collected ones, they are reported all the same: they were never more durable.
        """
        try:
            self.settle(group, now_ms)
        except StoreError:
            collected = {
                key: GroupOffset(position.offset, position.leader_epoch, position.metadata, now_ms)
                for key, (position, _) in self._collected[group].items()
            }
            return {**self.all_of(group), **collected}
        return self.all_of(group)

    # -- Committing

    def commit(self, group: str, positions: Sequence[CommittedOffset], now_ms: int) -> Promise:
        """Commit positions that an answer will confirm; raises TooManyGroupOffsets, MetadataTooLarge, StoreError."""
        return self._state_log.commit(self.records(group, positions, now_ms), now_ms).promise

    def records(self, group: str, positions: Sequence[CommittedOffset], now_ms: int) -> Sequence[Record]:
        """Give what `commit` would append, for who appends it in a unit of his own at once. Raises as it does."""
        self.check(group, positions)
        return self.checked_records(group, positions, now_ms)

    def checked_records(
        self, group: str, positions: Sequence[CommittedOffset], now_ms: int
    ) -> Sequence[GroupOffsetsCommitted]:
        """The same of positions that were checked when they were promised: this refuses nothing."""
        parts = range(0, len(positions) or 1, POSITIONS_IN_RECORD)
        return [GroupOffsetsCommitted(group, positions[at : at + POSITIONS_IN_RECORD], now_ms) for at in parts]

    def commit_later(self, group: str, positions: Sequence[CommittedOffset], mono_ms: int, now_ms: int) -> None:
        """Collect positions that nobody waits for; they become state within a second, a new group's at once."""
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

    def settle(self, group: str, now_ms: int) -> None:
        """Make state of what was collected for one group; raises StoreError, and then it stays collected."""
        collected = self._collected.get(group)
        if collected:
            self._state_log.commit(self._collected_records(group, now_ms), now_ms)

    def _collected_records(self, group: str, now_ms: int) -> Sequence[Record]:
        positions = [position for position, _ in self._collected[group].values()]
        return self.checked_records(group, positions, now_ms)

    def next_deadline_mono_ms(self) -> int | None:
        return 0 if self._dead else self._due_mono_ms

    def advance(self, mono_ms: int, now_ms: int) -> None:
        """Append what was collected, if its time has come: some groups in one unit, the others in the next turns.

        Gives back some memory of deleted groups besides.
        """
        self._free_some()
        if self._due_mono_ms is not None and mono_ms >= self._due_mono_ms:
            self._due_mono_ms = mono_ms + COLLECT_MS  # When the log refuses, it is tried again then.
            self._settle_some(now_ms)
            self._due_mono_ms = mono_ms if self._collected else None

    def _free_some(self) -> None:
        if self._dead:
            positions = self._dead[-1]
            for _ in range(min(len(positions), FREED_AT_ONCE)):
                positions.popitem()
            if not positions:
                self._dead.pop()

    def settle_all(self, now_ms: int) -> None:
        """Make state of all that was collected: when the broker stops."""
        while self._collected:
            self._settle_some(now_ms)
        self._due_mono_ms = None

    def _settle_some(self, now_ms: int) -> None:
        records: list[Record] = []
        count = 0
        for group, collected in self._collected.items():
            records += self._collected_records(group, now_ms)
            count += len(collected)
            if count >= SETTLED_AT_ONCE:
                break
        if records:
            self._state_log.commit(records, now_ms)  # Its replay takes them out of `_collected`.

    def _drop_collected(self, group: str, keys: Iterable[int]) -> None:
        """The log has a later decision about these queues."""
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
        """Raise what `commit` would; StoreErrors aside."""
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
                    f"{count + new_count} positions of groups; groups.positions_max is {options.positions_max}"
                )
        if not has_text:
            return
        more_bytes = sum(
            _text_bytes_of(position.metadata) - _text_bytes(known.get(key)) for key, position in latest.items()
        )
        if more_bytes > 0 and self._text_bytes + more_bytes > options.positions_text_bytes_max:
            raise TooManyGroupOffsets(
                f"{self._text_bytes + more_bytes} bytes of text at positions; "
                f"groups.positions_text_bytes_max is {options.positions_text_bytes_max}"
            )

    # -- Deleting

    def delete(self, group: str, keys: Sequence[int], now_ms: int) -> Promise:
        """Forget some positions of a group."""
        return self._state_log.commit([GroupOffsetsDeleted(group, keys)], now_ms).promise

    def kept(self, group: str) -> list[Record]:
        """Give records of all positions of a group, to follow its deletion where they are to outlive it."""
        found = self._groups.get(group)
        return list(_records_of(group, found.positions, found.commit_ms)) if found is not None else []

    def delete_group(self, group: str, now_ms: int) -> Promise:
        return self._state_log.free([GroupDeleted(group)], now_ms).promise

    def expire(self, now_ms: int, is_active: Callable[[str], bool]) -> Iterator[None]:
        """Delete groups that neither lived nor committed for `groups.positions_retention_ms`, and note those that live.

        Goes on from slice to slice, between which the loop turns. Kafka: GroupMetadataManager,
        `offsets.retention.minutes`, counted from when the group was last seen alive.
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

    def _replay_committed(self, record: GroupOffsetsCommitted, slot: Slot) -> None:
        if self._snapshot.is_active:
            self._snapshot.before_change(record.group)
        group = self._groups.get(record.group)
        if group is None:
            group = self._groups[record.group] = _Group()
        before, text_bytes = len(group.positions), 0
        for key, offset, leader_epoch, metadata in record.positions:
            if self._knows_topic(key >> 16):
                if metadata or group.text_bytes:
                    text_bytes += _text_bytes_of(metadata) - _text_bytes(group.positions.get(key))
                group.positions[key] = GroupOffset(offset, leader_epoch, metadata, record.commit_ms)
        group.commit_ms = max(group.commit_ms, record.commit_ms)
        group.text_bytes += text_bytes
        self._text_bytes += text_bytes
        self._count += len(group.positions) - before
        if self._collected:
            self._drop_collected(record.group, [position.key for position in record.positions])

    def _replay_deleted(self, record: GroupOffsetsDeleted, slot: Slot) -> None:
        group = self._groups.get(record.group)
        if group is not None:
            self._forget(record.group, group, record.keys)
        self._drop_collected(record.group, record.keys)

    def _replay_group_deleted(self, record: GroupDeleted, slot: Slot) -> None:
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

    def sweep(self, is_gone: IsGone) -> Iterator[int]:
        """Remove the positions in queues of deleted topics."""
        for name in [*self._groups]:
            group = self._groups.get(name)
            if group is None:
                continue
            for keys in in_slices(group.positions):
                if self._groups.get(name) is group:
                    self._forget(name, group, [key for key in keys if is_gone(key)])
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
    """Yield records of bounded size. A record has one commit time, so there is one for each time, and one more for the
    group's own."""
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
    """What a text takes in memory at most."""
    return len(text) if text.isascii() else 4 * len(text)
