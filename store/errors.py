"""What can be wrong with the store: states of affairs, never the peer's fault.

Each front door maps these to its own wire codes in one table (`bridge/kafka/errors.py`, `bridge/rocketmq/errors.py`).
"""

import errno

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # Of an OSError: there may be room again later.


class StoreError(Exception):
    """Base of all that the store raises on purpose; the message carries the values."""


class OffsetOutOfRange(StoreError):
    """The offset asked for is below the start or above the end of its queue."""

    def __init__(self, queue: str, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} of {queue} is outside {start}..{end}")
        self.offset, self.start, self.end = offset, start, end


class EntryTooLarge(StoreError):
    """A unit does not fit into one segment (`store.segment_bytes`)."""


class DiskFull(StoreError):
    """The disk is above its mark, or a write met ENOSPC; writing resumes by itself when there is room again."""


class WritingEnded(StoreError):
    """A failed write or fsync ended writing for the life of this process: what is on disk is no longer known."""


class Corruption(StoreError):
    """A unit that was durable once no longer reads back; the message names segment, position and what was expected."""


class DataDirectoryInUse(StoreError):
    """Another process holds the lock of the data directory."""
