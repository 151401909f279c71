"""The class Queue: the offsets and the index of one queue."""

from duolog.store.index.queue_index import QueueIndex

QUEUE_ID_BITS = 16


def queue_key(topic: int, queue_id: int) -> int:
    """Return the key of a queue: topic number << 16 | queue id."""
    assert 0 <= queue_id < 1 << QUEUE_ID_BITS, f"queue id {queue_id}"
    return topic << QUEUE_ID_BITS | queue_id


class Queue:
    """One queue: a Kafka partition or a RocketMQ message queue.

        start_offset <= visible_end <= end_offset

    The offsets from `start_offset` up to `visible_end` may be read; the offsets up to `end_offset` are assigned. Only
    the store changes these fields. `level` is set from the config of the topic.
    """

    __slots__ = (
        "bytes_below_start",
        "end_offset",
        "index",
        "is_touched",
        "key",
        "level",
        "start_offset",
        "visible_end",
    )

    def __init__(self, key: int, index: QueueIndex, *, level: int, start_offset: int = 0) -> None:
        self.key = key
        self.index = index
        self.level = level  # Entries become visible once the log is as safe as this: WRITTEN, SYNCED or SHARED.
        self.start_offset = start_offset  # The log start offset: the first offset that may be read.
        self.end_offset = start_offset  # The next offset to be assigned.
        self.visible_end = start_offset  # Readers see the offsets below it. It never decreases.
        self.bytes_below_start = 0  # Frame bytes of the index rows below the log start.
        self.is_touched = False  # Whether the queue was appended to since the last write.

    @staticmethod
    def split(key: int) -> tuple[int, int]:
        """Return (topic number, queue id)."""
        return key >> QUEUE_ID_BITS, key & (1 << QUEUE_ID_BITS) - 1

    @property
    def topic(self) -> int:
        """The number of the topic. It is never reused: a topic that is created again has another number."""
        return self.key >> QUEUE_ID_BITS

    @property
    def queue_id(self) -> int:
        return self.key & (1 << QUEUE_ID_BITS) - 1

    @property
    def size_bytes(self) -> int:
        """The number of bytes in frames above the log start."""
        return self.index.total_bytes - self.bytes_below_start

    def move_start(self, offset: int) -> None:
        """Raise the log start to `offset`, unless it is lower. The caller must then set `bytes_below_start`."""
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)
        self.visible_end = max(self.visible_end, offset)

    def bytes_below(self, offset: int, *, block: bool) -> int | None:
        """Return the number of frame bytes below an offset, among the rows of the index and rows that were dropped.

        Returns None if index rows must be read from the disk and `block` is false.
        """
        if not offset:
            return 0
        number = self.index.find_offset(offset, block=block)
        rows = None if number is None else self.index.rows(number, block=block)
        if rows is None:
            return None
        ends_below = not rows or rows[0][0] + rows[0][3] <= offset
        return self.index.total_bytes if ends_below else rows[0][8]

    def bytes_below_blocking(self, offset: int) -> int:
        """Return the same as `bytes_below`, waiting for the disk."""
        found = self.bytes_below(offset, block=True)
        assert found is not None, "bytes_below returned None although it may block"
        return found

    def __repr__(self) -> str:
        return f"{self.topic}/{self.queue_id}"
