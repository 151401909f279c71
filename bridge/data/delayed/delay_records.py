"""The state records of delayed messages: `Timers` follows them, live and at recovery, and a snapshot writes them.

`delay/timers.py` has the state and no records; this module has the records and no state.
"""

from collections.abc import Iterable
from itertools import chain, starmap
from struct import Struct
from typing import Final

from msgspec.structs import astuple

from duolog.bridge.records.codec import Record
from duolog.bridge.records.timers import (
    DelayPaused,
    QuotaEntityKnown,
    TableTimersDeleted,
    TableTombstones,
    TimerMoved,
    TimerNames,
    TimersCancelled,
    TimersCancelledBefore,
    TimersCredited,
    TimersDelivered,
    TimersPending,
    TimerTablesChanged,
)
from duolog.bridge.records.topics import TopicDeleted
from duolog.bridge.records.transactions import TimersHeld
from duolog.delay import entry_extra
from duolog.delay.quota_entities import QuotaEntity
from duolog.delay.rows import Timer, TimerId, pack_keys
from duolog.delay.timers import Timers
from duolog.delay.tree.jobs import ManifestChange
from duolog.store.entry import EntrySlot, Promise
from duolog.store.state_log import StateLog


def commit_manifest(state_log: StateLog, change: ManifestChange, now_ms: int) -> Promise:
    """Append a manifest to the log and replay it. Raises StoreError, and then nothing has changed."""
    return state_log.free([TimerTablesChanged(*change)], now_ms).promise


def credits_of(timers: Timers, gone: Iterable[Timer]) -> list[Record]:
    """Make the record that credits messages to their quota entities, in the unit that removes them."""
    found = timers.quota_entities.credits_of(gone)
    return [TimersCredited(found)] if found else []


def cancellation_of(timers: Timers, timer_ids: Iterable[TimerId], now_ms: int) -> list[Record]:
    """Make the records that cancel these messages, which are in memory."""
    ids = [*timer_ids]
    gone = (timer for timer in map(timers.pending.find, ids) if timer is not None)
    return [TimersCancelled(pack_keys(ids), now_ms), *credits_of(timers, gone)]


def cancellations_by_key(timers: Timers, topic: int, keys: Iterable[bytes], now_ms: int) -> list[Record]:
    """Make the records that cancel the pending messages of a topic with these sender's keys, if there are any.

    The unit with the records must be appended before the loop turns (`Timers.replaced`). Raises StoreError.
    """
    timer_ids: dict[TimerId, None] = {}
    for key in keys:
        timer_ids |= dict.fromkeys(timers.replaced(topic, key))
    return cancellation_of(timers, timer_ids, now_ms) if timer_ids else []


_TOMBSTONE: Final = Struct(">QIQ")


class DelayRecords:
    """Registers the replay of each record and entry, and the snapshot, with the state log."""

    def __init__(self, state_log: StateLog, timers: Timers) -> None:
        self._timers = timers
        own, pending = state_log.own, timers.pending
        own(TimersDelivered, lambda record, slot: timers.delivered(record.topic, record.ids, slot.position))
        own(TimersCancelled, lambda record, slot: timers.cancelled(record.ids, record.at_ms, slot.position))
        own(TimersCredited, self._replay_credited)
        own(QuotaEntityKnown, self._replay_entity)
        own(TimerMoved, self._replay_moved)
        own(DelayPaused, self._replay_paused)
        own(TopicDeleted, lambda record, slot: timers.topic_deleted(record.number))
        own(TimerTablesChanged, self._replay_manifest)
        own(TableTimersDeleted, lambda record, slot: timers.tree.deletions.renew(record.keys, slot.position))
        own(TableTombstones, self._replay_tombstones)
        own(TimersPending, lambda record, slot: pending.memtable.restore(record.rows))
        own(TimersCancelledBefore, lambda record, slot: timers.cancelled_ids.restore(record.rows))
        own(TimerNames, lambda record, slot: pending.names.restore(record.rows))
        own(TimersHeld, lambda record, slot: timers.held.restore(record.producer_id, record.rows))
        state_log.on_extra(entry_extra.PENDING_KIND, self._replay_stored)
        state_log.on_extra(entry_extra.STORED_AGAIN_KIND, self._replay_stored_again)
        state_log.on_sliced_snapshot(self._snapshot)

    # -- Messages

    def _replay_stored(self, slot: EntrySlot, form: int, size: int, extra: bytes) -> None:
        queue_key, due_ms, hashed, entity = entry_extra.decode_pending(extra)
        self._timers.stored(slot.position, queue_key, due_ms, size, form, hashed, entity)

    def _replay_stored_again(self, slot: EntrySlot, form: int, size: int, extra: bytes) -> None:
        self._timers.stored_again(slot.position, size, form, entry_extra.decode_stored_again(extra))

    def _replay_moved(self, record: TimerMoved, slot: EntrySlot) -> None:
        timer_id = (record.given_ms, record.address)
        if record.is_restored:
            self._timers.pending.ids.set(timer_id, (record.due_ms, record.now_address or record.address))
        else:
            self._timers.pending.move(timer_id, record.due_ms)

    # -- Quota entities

    def _replay_credited(self, record: TimersCredited, slot: EntrySlot) -> None:
        for topic, number, count in record.credits:
            self._timers.quota_entities.credit(topic, number, count)

    def _replay_entity(self, record: QuotaEntityKnown, slot: EntrySlot) -> None:
        entities = self._timers.quota_entities
        entities.named(record.number, QuotaEntity(record.user, record.client_id))
        for topic, count in record.pending:
            entities.add(topic, record.number, count)

    # -- Topics and tables

    def _replay_paused(self, record: DelayPaused, slot: EntrySlot) -> None:
        if record.is_paused:
            self._timers.tree.pause(record.topic)
        else:
            self._timers.tree.resume(record.topic)

    def _replay_manifest(self, record: TimerTablesChanged, slot: EntrySlot) -> None:
        self._timers.tree.replay_manifest(ManifestChange(*astuple(record)), slot.position)

    def _replay_tombstones(self, record: TableTombstones, slot: EntrySlot) -> None:
        rows = _TOMBSTONE.iter_unpack(record.rows)
        self._timers.tree.context.tables.add_tombstones((number, topic, (ordinal,)) for number, ordinal, topic in rows)

    # -- Snapshots

    def _snapshot(self) -> Iterable[Record]:
        """Return the state of this moment; rows of timers and names are copied as they are read."""
        timers, tree = self._timers, self._timers.tree
        moved, paused = timers.pending.ids.moved(), sorted(timers.pending.turns.paused)
        manifest, tombstones = tree.context.tables.manifest, tree.context.tables.all_tombstones()
        return chain(
            (TimerTablesChanged(manifest, tombstones=rows) for rows in chain([()], tombstones) if manifest),
            (TimerTablesChanged(manifest, deleted=keys) for keys in tree.deletions.snapshot()),
            (
                QuotaEntityKnown(number, *entity, pending)
                for number, entity, pending in timers.quota_entities.snapshot()
            ),
            starmap(TimersHeld, timers.held.snapshot()),
            map(TimersPending, timers.pending.memtable.snapshot()),
            map(TimerNames, timers.pending.names.snapshot()),
            (TimerMoved(*id, due_ms, is_restored=True, now_address=address) for id, (due_ms, address) in moved),
            (DelayPaused(topic, is_paused=True) for topic in paused),
            map(TimersCancelledBefore, timers.cancelled_ids.snapshot()),
        )
