"""The errors of the store. None of them is caused by the content of a request.

Each front door maps these to its own wire codes in one table (`bridge/kafka/requests/errors.py`,
`bridge/rocketmq/requests/errors.py`).
"""

import errno

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # The disk is full; there may be space again later.
# No file can be opened at present. The disk has not failed, because no operation reached it.
NO_HANDLES = (errno.EMFILE, errno.ENFILE)


class StoreError(Exception):
    """Base of the errors that the store raises on purpose; the message has the values."""


class OffsetOutOfRange(StoreError):
    """The requested offset is below the log start or above the end of its queue."""

    def __init__(self, queue: str, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} of {queue} is outside {start}..{end}")
        self.offset, self.start, self.end = offset, start, end


class EntryTooLarge(StoreError):
    """A unit does not fit into one segment (`store.segment_bytes`)."""


class DiskFull(StoreError):
    """Appends are refused: the disk is used above `store.disk_full_ratio`, or a write met ENOSPC or EMFILE.

    The store accepts appends again by itself when there is space.
    """


class WritingEnded(StoreError):
    """A failed write or fsync ended writing until a restart, because the content of the disk is no longer known."""


class Corruption(StoreError):
    """A unit that was durable cannot be read back; the message has the segment, position and expected value."""


class DataDirectoryInUse(StoreError):
    """Another process holds the lock of the data directory."""


class Fault(StoreError):
    """A bug ended the requested work. The bug was reported where it happened; a Fault goes to the callers that wait."""


# -- What must end the process


class Fatal(Exception):
    """Continuing could break the promise about stored data, so the process ends; the next start recovers from the log.

    A Fatal is not a StoreError: no front door answers it. `bridge/monitoring/faults.py` ends the process, and
    docs/internals/errors.md names every place that raises one.
    """


class HalfApplied(Fatal):
    """A unit was appended, but the state in memory was not updated: later decisions could contradict the log."""


class _Following:
    """A context manager as a class, because one made of a generator takes a microsecond more."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise HalfApplied(
                f"{self._what} was appended, and the state in memory could not be updated: {error!r}"
            ) from error


def following(what: str) -> _Following:
    """Run the update of state that follows an append; any error in it becomes HalfApplied."""
    return _Following(what)


class HalfWritten(Fatal):
    """The write of the log was broken off by an error that is not the disk's: what was written is not known."""
