"""Revives popped messages whose invisible time is over: they go to the group's retry topic, or become dead letters.

    a message of a due checkpoint                       what becomes of it
    acknowledged, also while the disk is read           nothing
    removed by retention                                nothing
    expired, and its topic drops expired messages       nothing
    failed less often than the group allows             a copy in %RETRY%group_topic
    any other                                           a copy in %DLQ%group

`revived_copies.py` makes the copies. They and the end of the checkpoint are one unit of the log, so a message is
revived once, also over a crash.
Source: PopReviveService.java.
"""

import logging
from functools import partial
from typing import Final

from duolog.bridge.clock import Clock
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.reading.queue_reader import QueueReader
from duolog.bridge.data.reading.rocketmq_reader import Records
from duolog.bridge.net.connection import TURN_MS
from duolog.bridge.net.purgatory import Purgatory
from duolog.bridge.rocketmq.pop.pop_checkpoints import PopCheckpoint, PopCheckpoints
from duolog.bridge.rocketmq.pop.revived_copies import RevivedCopies
from duolog.bridge.rocketmq.requests.errors import ANSWERABLE
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.store.errors import StoreError
from duolog.store.index.queue import Queue

CHECKPOINTS_AT_ONCE: Final = 16  # Checkpoints in one turn of the loop.
BYTES_AT_ONCE: Final = 1 << 20
AGAIN_MS: Final = 1000  # The time until a checkpoint that failed is tried again.

logger = logging.getLogger("rocketmq")


class Reviver:
    """Revives the messages of due checkpoints. `next_deadline_ms` of the checkpoints says when to run it."""

    def __init__(
        self,
        checkpoints: PopCheckpoints,
        topics: Topics,
        reader: QueueReader,
        copies: RevivedCopies,
        purgatory: Purgatory,
        clock: Clock,
    ) -> None:
        self._checkpoints, self._topics, self._reader, self._copies = checkpoints, topics, reader, copies
        self._purgatory, self._clock = purgatory, clock

    def run(self, now_ms: int) -> None:
        """Revive the messages of some due checkpoints; the others stay due."""
        until_mono_ms = self._clock.mono_ms() + TURN_MS
        for _ in range(CHECKPOINTS_AT_ONCE):
            for checkpoint in self._checkpoints.take_due(now_ms, 1):
                if checkpoint.is_ordered:
                    self._purgatory.check([checkpoint.name.key])  # Pops in order get the same messages again.
                else:
                    self._revive(checkpoint)
            due_ms = self._checkpoints.next_deadline_ms()
            if due_ms is None or due_ms > now_ms or self._clock.mono_ms() > until_mono_ms:
                return  # A checkpoint may have a megabyte of messages, or a large batch to decompress.

    def _revive(self, checkpoint: PopCheckpoint) -> None:
        number, queue_id = Queue.split(checkpoint.name.key)
        topic = self._topics.by_number(number)
        if topic is None:
            return  # The topic was deleted, and `PopCheckpoints.sweep` will remove the checkpoint.
        queue = topic.queues[queue_id]
        pending = checkpoint.pending
        first, last = pending[0], pending[-1]
        offset = max(first, queue.start_offset)
        if offset > last:
            self._give_back(checkpoint, topic, Records([], last + 1))
            return
        try:
            found = self._reader.read_for_rocketmq(queue, topic, offset, last - offset + 1, BYTES_AT_ONCE, last + 1)
        except StoreError as error:
            self._on_read(checkpoint, topic, error)
            return
        if isinstance(found, Later):
            found.start(partial(self._on_read, checkpoint, topic))
        else:
            self._give_back(checkpoint, topic, found)

    def _on_read(self, checkpoint: PopCheckpoint, topic: Topic, cold: Records | StoreError) -> None:
        if isinstance(cold, StoreError):
            logger.warning("popped messages not read group=%s reason=%r", checkpoint.name.group, str(cold))
            self._checkpoints.retry_at(checkpoint, self._clock.now_ms() + AGAIN_MS)
        elif self._checkpoints.find(checkpoint.name) is checkpoint and topic.number in self._topics:
            self._give_back(checkpoint, topic, cold)

    def _give_back(self, checkpoint: PopCheckpoint, topic: Topic, found: Records) -> None:
        """Append the copies and settle the messages that were read. A checkpoint with further messages stays due."""
        now_ms = self._clock.now_ms()
        try:
            self._copies.append(checkpoint, topic, found, now_ms)
        except ANSWERABLE as error:
            logger.warning("popped messages not given back group=%s reason=%r", checkpoint.name.group, str(error))
            self._checkpoints.retry_at(checkpoint, now_ms + AGAIN_MS)
            return
        if checkpoint.pending_count:
            self._checkpoints.retry_at(checkpoint, now_ms)
