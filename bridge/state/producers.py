"""Idempotent producers: their ids, and the recognition of repeated batches.

For each producer id and queue a window holds the last five batches, because Kafka's clients have up to five requests in
flight and repeat all of them after a lost connection (ProducerStateEntry.java#NUM_BATCHES_TO_RETAIN). The windows
follow from the frames of the log: only `remember` and `take_marker` change them, live and at recovery.

    epoch of the batch                 result
    any, and the queue has no window   the batch is accepted, with any first sequence
      of the producer id
    that of the window                 the batch is accepted if its sequence is the next one; it gets its first answer
                                       again if it is one of the five; else OutOfOrderSequence
    higher                             the batch is accepted if its first sequence is 0 (KIP-360); else
                                       OutOfOrderSequence
    lower                              the producer is fenced: InvalidProducerEpoch

When a transaction ends, its batches leave the window, and the sequence continues. librdkafka (2.16) makes this
necessary: after an abort it reuses the sequences of records that it removed from its queue for the next records,
although records with these sequences may have been stored before a connection broke. Apache Kafka keeps the batches of
the aborted transaction in the window (ProducerStateEntry.java), so it would answer that the next records are stored,
and store none of them. Duolog answers OutOfOrderSequence, after which the client aborts and continues in a new epoch.

Sequences count records, and wrap from 2^31 - 1 to 0. At `kafka.producers_max` the window that was unused for longest is
removed. A repetition of one of its batches would then be appended a second time, as after its expiry.
"""

import struct
from collections import OrderedDict, defaultdict
from collections.abc import Container, Generator, Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

from duolog.bridge.config import KafkaOptions
from duolog.bridge.records.codec import Record
from duolog.bridge.records.frame_formats import KAFKA
from duolog.bridge.records.producers import ProducerBatch, ProducerIdsReserved, ProducerWindow, ProducerWindows
from duolog.bridge.records.timers import DelayedBatch
from duolog.bridge.state.deleted_topics import IsDeleted, in_slices
from duolog.protocol.kafka.record_batch import ATTRIBUTES_AT, CONTROL_BIT, BatchHeader
from duolog.store.copy_on_write import CopyOnWrite
from duolog.store.entry import EntrySlot, Promise
from duolog.store.log.format import NO_OFFSET
from duolog.store.state_log import StateLog

BATCHES_REMEMBERED: Final = 5
NO_SEQUENCE: Final = -1  # Nothing was written in this epoch.
IDS_RESERVED: Final = 1000  # ProducerIdsBlock.java
WINDOWS_IN_RECORD: Final = 200
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_PRODUCER = struct.Struct(">qhi")  # Producer id, epoch and base sequence in the header of a batch.
_PRODUCER_AT: Final = 43


class ProducerError(Exception):
    """A batch does not follow the previous batches of its producer."""


class OutOfOrderSequence(ProducerError):
    """The sequence of a batch is neither the next one nor that of a batch in the window."""


class InvalidProducerEpoch(ProducerError):
    """A newer instance of this producer was initialized, so this one is fenced."""


class ProducerStatus(NamedTuple):
    """The state of a producer in one queue, for DescribeProducers and tools."""

    epoch: int
    last_sequence: int  # NO_SEQUENCE if nothing was written in this epoch.
    stored_ms: int


class _Window:
    __slots__ = ("batches", "epoch", "last_sequence", "stored_ms")

    def __init__(self, epoch: int, stored_ms: int = 0, last_sequence: int = NO_SEQUENCE) -> None:
        self.epoch = epoch
        self.batches: list[ProducerBatch] = []  # The batches that the producer may repeat.
        self.last_sequence = last_sequence
        self.stored_ms = stored_ms  # The store time of the latest batch, or of the marker that began the epoch.

    @property
    def next_sequence(self) -> int:
        return self.last_sequence + 1 & _SEQUENCE_MASK

    def add(self, batch: ProducerBatch) -> None:
        self.batches.append(batch)
        if len(self.batches) > BATCHES_REMEMBERED:
            del self.batches[0]
        self.last_sequence = batch.last_sequence
        self.stored_ms = batch.stored_ms


class Producers:
    """The windows of all producers, in the order of their last use."""

    def __init__(self, state_log: StateLog, options: KafkaOptions) -> None:
        self._state_log = state_log
        self._windows_max, self._expiration_ms = options.producers_max, options.producer_id_expiration_ms
        self._windows: OrderedDict[tuple[int, int], _Window] = OrderedDict()  # By producer id and queue key.
        self._reserved = 0  # Lower ids may have been assigned, in this run or an earlier one.
        self._next_id = self._granted = 0  # The free ids of this run's block: from `_next_id` to `_granted`.
        state_log.own(ProducerIdsReserved, self._replay_reserved)
        state_log.own(ProducerWindows, self._replay_windows)
        state_log.own(DelayedBatch, self._replay_delayed)
        state_log.on_frame(self.replay_frame)
        self._snapshot: CopyOnWrite[tuple[int, int], ProducerWindow] = CopyOnWrite(self._copy_of)
        state_log.on_sliced_snapshot(self._begin_snapshot, self._snapshot.end)

    # -- Ids

    def allocate(self, now_ms: int) -> tuple[int, Promise]:
        """Return a new producer id, and the promise that the reservation of its block is durable.

        Raises StoreError.
        """
        if self._next_id == self._granted:
            first = self._reserved
            self._state_log.commit([ProducerIdsReserved(first + IDS_RESERVED)], now_ms)
            self._next_id, self._granted = first, first + IDS_RESERVED
        self._next_id += 1
        return self._next_id - 1, self._state_log.barrier()

    # -- Windows

    def check(self, key: int, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
        """Compare a batch with its producer's window: return None if it is to be appended, or the batch it repeats.

        Raises ProducerError.
        """
        window = self._windows.get((header.producer_id, key))
        if window is None or window.stored_ms + self._expiration_ms <= now_ms:
            return None
        first = header.base_sequence
        epoch = header.producer_epoch
        if epoch == window.epoch:
            if first == window.next_sequence:
                return None
            last = header.last_sequence
            for batch in window.batches:
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch
            expected = window.next_sequence
        elif epoch < window.epoch:
            raise InvalidProducerEpoch(f"producer {header.producer_id} has epoch {window.epoch}; the batch has {epoch}")
        elif first == 0:
            return None
        else:
            expected = 0
        raise OutOfOrderSequence(
            f"producer {header.producer_id} in epoch {epoch} sent sequence {first}; {expected} was expected"
        )

    def remember_header(self, key: int, slot: EntrySlot, header: BatchHeader) -> None:
        """Add a batch to its producer's window right after it was appended."""
        batch = ProducerBatch(
            header.base_sequence, header.last_sequence, slot.base_offset, slot.position, slot.stored_ms
        )
        self.remember(key, header.producer_id, header.producer_epoch, batch)

    def remember(self, key: int, producer_id: int, epoch: int, batch: ProducerBatch) -> None:
        """Add an appended batch to its producer's window, both live and at recovery."""
        name = (producer_id, key)
        if self._snapshot.is_active:
            self._snapshot.before_change(name)
        window = self._windows.get(name)
        if window is None or window.epoch != epoch:
            window = self._windows[name] = _Window(epoch)
        window.add(batch)
        self._windows.move_to_end(name)
        self._forget(batch.stored_ms)

    def replay_frame(self, key: int, slot: EntrySlot, form: int, count: int, frame: memoryview, extra: bytes) -> None:
        """Add a frame of the log to its producer's window, if it is a batch of an idempotent producer."""
        if form != KAFKA:
            return
        producer_id, epoch, first = _PRODUCER.unpack_from(frame, _PRODUCER_AT)
        if frame[ATTRIBUTES_AT] & CONTROL_BIT:
            self.take_marker(key, producer_id, epoch, slot.stored_ms)
        if producer_id < 0 or first < 0:
            return
        position, base_offset, stored_ms = slot
        last = first + count - 1 & _SEQUENCE_MASK
        self.remember(key, producer_id, epoch, ProducerBatch(first, last, base_offset, position, stored_ms))

    def take_marker(self, key: int, producer_id: int, epoch: int, stored_ms: int) -> None:
        """Process the marker of a transaction: its batches leave the window, and older epochs are fenced."""
        window = self._windows.get((producer_id, key))
        if window is None:
            return
        if self._snapshot.is_active:
            self._snapshot.before_change((producer_id, key))
        if window.epoch == epoch:
            window.batches.clear()
        else:
            self._windows[producer_id, key] = _Window(epoch, stored_ms)
            self._windows.move_to_end((producer_id, key))

    def in_queues(self, keys: Container[int]) -> Generator[None, None, dict[int, list[tuple[int, ProducerStatus]]]]:
        """Return the producers of each of these queues. The generator checks all windows and yields after each one."""
        found: dict[int, list[tuple[int, ProducerStatus]]] = defaultdict(list)
        for (producer_id, key), window in [*self._windows.items()]:
            if key in keys:
                found[key].append((producer_id, ProducerStatus(window.epoch, window.last_sequence, window.stored_ms)))
            yield
        return found

    def _forget(self, now_ms: int) -> None:
        """Remove expired windows. The times are those of the log, so that recovery has the same result."""
        windows = self._windows
        oldest_ms = now_ms - self._expiration_ms
        while len(windows) > self._windows_max or windows[next(iter(windows))].stored_ms <= oldest_ms:
            if self._snapshot.is_active:
                self._snapshot.before_change(next(iter(windows)))
            windows.popitem(last=False)

    # -- Replay

    def _replay_reserved(self, record: ProducerIdsReserved, slot: EntrySlot) -> None:
        self._reserved = max(self._reserved, record.next_id)

    def _replay_windows(self, record: ProducerWindows, slot: EntrySlot) -> None:
        for key, producer_id, epoch, batches, stored_ms, last_sequence in record.windows:
            window = self._windows[producer_id, key] = _Window(epoch, stored_ms, last_sequence)
            window.batches += batches
            self._windows.move_to_end((producer_id, key))

    def _replay_delayed(self, record: DelayedBatch, slot: EntrySlot) -> None:
        key, producer_id, epoch, first, last = (
            record.key, record.producer_id, record.epoch, record.first_sequence, record.last_sequence,
        )  # fmt: skip
        batch = ProducerBatch(first, last, NO_OFFSET, slot.position, slot.stored_ms)
        self.remember(key, producer_id, epoch, batch)

    def sweep(self, is_deleted: IsDeleted) -> Iterator[int]:
        """Remove the windows of queues of deleted topics; yields the number of windows checked."""
        for names in in_slices(self._windows):
            for name in names:
                if is_deleted(name[1]):
                    if self._snapshot.is_active:
                        self._snapshot.before_change(name)
                    self._windows.pop(name, None)
            yield len(names)

    def _begin_snapshot(self) -> Iterator[Record]:
        self._snapshot.begin(self._windows)
        windows = (window for _, window in self._snapshot.entries())
        records = iter(lambda: [*islice(windows, WINDOWS_IN_RECORD)], [])
        return chain([ProducerIdsReserved(self._reserved)], map(ProducerWindows, records))

    def _copy_of(self, name: tuple[int, int]) -> ProducerWindow | None:
        (producer_id, key), window = name, self._windows.get(name)
        if window is None:
            return None
        return ProducerWindow(key, producer_id, window.epoch, [*window.batches], window.stored_ms, window.last_sequence)
