"""Makes frames of pending messages: those of their queue when they are delivered, and those of another due time."""

from collections.abc import Sequence
from itertools import compress

from duolog.bridge.data import expiry
from duolog.bridge.data.delayed import pending_frames
from duolog.bridge.data.expiry import ExpiringQueues
from duolog.bridge.data.stamps import ROCKETMQ_STAMP, WAITING_STAMP, KafkaStamps
from duolog.bridge.records import frame_formats
from duolog.bridge.state.topic_table import Topic
from duolog.bridge.state.topics import Topics
from duolog.bridge.state.wall_time import WallTime
from duolog.protocol.rocketmq.messages import message as rocketmq_message
from duolog.protocol.rocketmq.messages import tags
from duolog.store.entry import Buffer
from duolog.store.unit import Frame, FrameRun


class DeliveryFrames:
    """The frames of pending messages. `store_host` is the packed address of the RocketMQ port."""

    def __init__(self, topics: Topics, expiring_queues: ExpiringQueues, wall_time: WallTime, store_host: bytes) -> None:
        self._topics, self._expiring_queues, self._stamps = topics, expiring_queues, KafkaStamps()
        self._wall_time, self._store_host = wall_time, store_host

    def stored_again(self, form: int, frame: memoryview, due_ms: int, extra: bytes) -> Frame:
        """Make the pending entry of a message that was read from a sorted table, with another due time."""
        stamp = WAITING_STAMP if form == frame_formats.KAFKA else ROCKETMQ_STAMP
        queue = pending_frames.pending_queue(self._topics)
        return Frame(queue, form, frame, 1, due_ms, tags.NO_TAG, stamp, extra)

    def deliveries(
        self, topic: Topic, queue_id: int, form: int, frames: Sequence[Buffer], dues_ms: Sequence[int], now_ms: int
    ) -> FrameRun:
        """Make the frames of a queue from pending entries of one frame format; `dues_ms` has the due time of each.

        Expired messages are left out if their topic drops them.
        """
        queue = topic.queues[queue_id]
        if topic.settings.drops_expired and queue.key in self._expiring_queues:
            alive = [not self._is_expired(form, frame, now_ms) for frame in frames]
            frames, dues_ms = [*compress(frames, alive)], [*compress(dues_ms, alive)]
        if form == frame_formats.KAFKA:
            batches = list(map(pending_frames.delivered_batch, frames, dues_ms))
            log_append_time = topic.settings.log_append_time
            stamp = self._stamps.of(topic.leader_epoch(queue_id), log_append_time)
            times_ms = [now_ms] * len(batches) if log_append_time else dues_ms
            return FrameRun(queue, form, batches, times_ms, [tags.NO_TAG] * len(batches), stamp)
        records, births_ms, raws = pending_frames.delivered_messages(
            frames, topic.rocketmq_name, queue_id, self._store_host, now_ms
        )
        times_ms = [topic.settings.index_ms(born_ms, now_ms) for born_ms in births_ms]
        codes = [tags.code_of_properties(raw, raw.decode("latin-1")) for raw in raws]
        return FrameRun(queue, form, records, times_ms, codes, ROCKETMQ_STAMP)

    def _is_expired(self, form: int, pending_frame: Buffer, now_ms: int) -> bool:
        """Tell whether a message that is about to be delivered has expired, by its own properties."""
        if form == frame_formats.KAFKA:
            raw = pending_frames.properties_of_batch(pending_frame)
        else:
            raw = rocketmq_message.properties_of(pending_frame)
        expires_ms = expiry.own_expiry_of(raw, now_ms)
        return expires_ms is not None and expires_ms <= now_ms - self._wall_time.ahead_ms
