"""Stamps write into a frame what is known only when the store appends it: offset, leader epoch, and store time."""

from typing import Final

from duolog.protocol.kafka import record_batch
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.store.entry import EntrySlot
from duolog.store.unit import Stamp

ROCKETMQ_STAMP: Final[Stamp] = rocketmq_message.stamp


class KafkaStamps:
    """The stamps of Kafka batches, each made once. There are few, because only unclean starts raise leader epochs."""

    def __init__(self) -> None:
        self._stamps: dict[tuple[int, bool], Stamp] = {}

    def of(self, leader_epoch: int, log_append_time: bool) -> Stamp:
        """Return the stamp for a leader epoch and a timestamp type."""
        stamp = self._stamps.get((leader_epoch, log_append_time))
        if stamp is None:
            make = _log_append_time_stamp if log_append_time else _create_time_stamp
            stamp = self._stamps[leader_epoch, log_append_time] = make(leader_epoch)
        return stamp


def _create_time_stamp(leader_epoch: int) -> Stamp:
    def stamp(buffer: bytearray, at: int, slot: EntrySlot) -> None:
        record_batch.stamp(buffer, at, slot.base_offset, leader_epoch)

    return stamp


def _log_append_time_stamp(leader_epoch: int) -> Stamp:
    def stamp(buffer: bytearray, at: int, slot: EntrySlot) -> None:
        record_batch.stamp(buffer, at, slot.base_offset, leader_epoch)
        record_batch.stamp_log_append_time(buffer, at, slot.stored_ms)

    return stamp


# The stamp of single records that wait in the log, delayed or as half messages. They keep their own timestamps.
WAITING_STAMP: Final[Stamp] = _create_time_stamp(0)
