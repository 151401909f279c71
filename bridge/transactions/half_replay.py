"""Replays the frames and state records of half messages into `txn`, and makes the records of a snapshot."""

import zlib
from collections.abc import Iterable
from itertools import chain, starmap
from typing import Final

from duolog.bridge.data.half_frames import HalfRequest, read_half
from duolog.bridge.records import frame_formats
from duolog.bridge.records.codec import Record
from duolog.bridge.records.half_messages import HalfIdsKnown, HalfVerdicts, HalvesChecked, HalvesOpen
from duolog.bridge.records.topics import TopicCreated
from duolog.bridge.transactions.half_properties import check_back_of
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.names import HALF_TOPIC, OP_HALF_TOPIC
from duolog.store.entry import EntrySlot
from duolog.store.index.queue import queue_key
from duolog.store.state_log import StateLog
from duolog.txn.half import HalfMessages
from duolog.txn.half_ids import HalfIds
from duolog.txn.half_pages import OpenPage
from duolog.txn.half_verdicts import HalfVerdict

IDS_IN_RECORD: Final = 1000


class HalfMessageReplay:
    """Keeps the open half messages, their verdicts and their ids in step with the log.

    `immunity_max_ms` is the immunity of a half message without a check URL: it waits for its verdict until the broker
    gives it up.
    """

    def __init__(self, state_log: StateLog, state: HalfMessages, ids: HalfIds, immunity_max_ms: int) -> None:
        self._state, self._ids, self._immunity_max_ms = state, ids, immunity_max_ms
        self.half_key = self._op_key = -1  # The keys of the queues of half messages and of op messages.
        state_log.own(HalfIdsKnown, self._replay_ids)
        state_log.own(TopicCreated, self._replay_topic)
        state_log.own(HalvesChecked, self._replay_checked)
        state_log.own(HalvesOpen, self._replay_open)
        state_log.own(HalfVerdicts, self._replay_verdicts)
        state_log.on_frame(self._replay_frame)
        state_log.on_sliced_snapshot(self._snapshot, state.end_snapshot)

    # -- Live and at recovery

    def follow_kafka(self, topic: str, request: HalfRequest, slot: EntrySlot) -> None:
        """Follow an appended half message of a Kafka producer."""
        immunity_ms = request.immunity_ms if request.check_url else self._immunity_max_ms
        self._state.prepared(slot.base_offset, request.check_url, slot.stored_ms, immunity_ms)
        self._ids.prepared(slot.base_offset, topic, request.id)

    def follow_verdict(self, offset: int, verdict: HalfVerdict) -> None:
        """Follow an appended verdict."""
        self._state.decided(offset, verdict)
        self._ids.decided(offset)

    # -- Recovery

    def _replay_frame(self, key: int, slot: EntrySlot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        if key == self.half_key and form == frame_formats.KAFKA:
            half = read_half(frame)
            self.follow_kafka(half.topic, half.request, slot)
        elif key == self.half_key:
            target, immunity_ms = check_back_of(rocketmq_message.properties_of(frame))
            self._state.prepared(slot.base_offset, target, slot.stored_ms, immunity_ms)
        elif key == self._op_key:
            offsets = bytes(rocketmq_message.body_of(frame))[:-1].split(b",")
            for offset, number in zip(offsets, extra, strict=True):
                self.follow_verdict(int(offset), HalfVerdict(number))

    def _replay_topic(self, record: TopicCreated, slot: EntrySlot) -> None:
        if record.name == HALF_TOPIC:
            self.half_key = queue_key(record.number, 0)
        elif record.name == OP_HALF_TOPIC:
            self._op_key = queue_key(record.number, 0)

    def _replay_checked(self, record: HalvesChecked, slot: EntrySlot) -> None:
        self._state.checked(record.offsets, record.at_ms)
        self._state.checked(record.postponed, record.at_ms, counts=False)

    def _replay_open(self, record: HalvesOpen, slot: EntrySlot) -> None:
        self._state.restore(
            OpenPage(
                record.offsets,
                record.stored_ms,
                record.dues_ms,
                record.checks,
                record.targets,
                dict(record.target_names),
            )
        )

    def _replay_verdicts(self, record: HalfVerdicts, slot: EntrySlot) -> None:
        self._state.restore_verdicts(record.end_offset, zlib.decompress(record.verdicts))

    def _replay_ids(self, record: HalfIdsKnown, slot: EntrySlot) -> None:
        self._ids.restore(record.ids)

    def _snapshot(self) -> Iterable[Record]:
        end_offset, verdicts = self._state.verdicts()
        decided = HalfVerdicts(end_offset, zlib.compress(verdicts, 1))
        pages = starmap(HalvesOpen, self._state.snapshot())
        return chain([decided], pages, map(HalfIdsKnown, self._ids.snapshot(IDS_IN_RECORD)))
