"""The exceptions of the store. None of them is caused by the content of a request.

Each client protocol maps them to its error codes in one table (`bridge/kafka/requests/errors.py`,
`bridge/rocketmq/requests/errors.py`).
"""

import errno

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # The disk or the quota is full; space may be freed later.
# The process or the system has no file handle left. The disk has not failed, because no operation reached it.
NO_HANDLES = (errno.EMFILE, errno.ENFILE)


class StoreError(Exception):
    """Base class of the errors that the store raises for a state of affairs. The message contains the values."""


class OffsetOutOfRange(StoreError):
    """The requested offset is below the log start offset or above the end of its queue."""

    def __init__(self, queue: str, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} of {queue} is outside {start}..{end}")
        self.offset, self.start, self.end = offset, start, end


class EntryTooLarge(StoreError):
    """The unit is larger than a segment (`store.segment_bytes`), or a header field cannot hold one of its values."""


class DiskFull(StoreError):
    """Appends are refused: the disk is used above `store.disk_full_ratio`, or a write failed with one of the errnos in
    NO_SPACE and NO_HANDLES.

    The store accepts appends again without a restart when there is space.
    """


class StoreBehind(DiskFull):
    """Appends are refused: the object store lacks more of the log than `shared.behind_bytes_max`.

    To clients it is the same as a full disk: it ends without a restart.
    """


class WritingEnded(StoreError):
    """A write or fsync has failed, and the content of the disk is unknown: appends are refused until a restart."""


class Corruption(StoreError):
    """Data that was durable reads back damaged. The message contains the file, the position and the expected value."""


class DataDirectoryInUse(StoreError):
    """Another process holds the lock of the data directory."""


class Fault(StoreError):
    """A task failed because of a bug. The bug itself is reported elsewhere; a Fault is given to the task's callers."""


# -- Errors that end the process


class Fatal(Exception):
    """The state in memory or the log may be wrong, so the process must end. The next start recovers from the log.

    A Fatal is not a StoreError, so no client protocol answers a request with it. `bridge/monitoring/faults.py` ends the
    process, and docs/internals/errors.md lists every place that raises a Fatal.
    """


class HalfApplied(Fatal):
    """A unit was appended, but the state in memory was not updated: later decisions could contradict the log."""


class _UpdatingState:
    """The context manager of `updating_state`. It is a class because a generator takes one microsecond more."""

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


def updating_state(what: str) -> _UpdatingState:
    """Return a context manager for code that updates the state in memory after an append.

    An Exception in its block is raised as HalfApplied; `what` names the appended records in the message.
    """
    return _UpdatingState(what)


class HalfWritten(Fatal):
    """A write of the log was interrupted by an exception that is no OSError: how much was written is unknown."""
