"""What can be wrong with the store: states of affairs, never the peer's fault.

Each front door maps these to its own wire codes in one table (`bridge/kafka/requests/errors.py`,
`bridge/rocketmq/requests/errors.py`).
"""

import errno

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # Of an OSError: there may be room again later.
# No file can be opened at present: by no means a sign that the disk fails, for nothing was asked of it.
NO_HANDLES = (errno.EMFILE, errno.ENFILE)


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
    """The disk is above its mark, or a write met ENOSPC or EMFILE; it resumes by itself when there is room again."""


class WritingEnded(StoreError):
    """A failed write or fsync ended writing for the life of this process: what is on disk is no longer known."""


class Corruption(StoreError):
    """A unit that was durable once no longer reads back; the message names segment, position and what was expected."""


class DataDirectoryInUse(StoreError):
    """Another process holds the lock of the data directory."""


class Fault(StoreError):
    """A bug of ours ended the work that was asked for. It was reported where it happened; this tells those who wait."""


# -- What must end the process


class Fatal(Exception):
    """Going on could break the promise about stored data, so the process ends; the next start recovers from the log.

    These are no StoreErrors: no front door answers them. `bridge/monitoring/faults.py` ends the process, and
    docs/internals/errors.md names every place that raises one.
    """


class HalfApplied(Fatal):
    """A unit was appended, but the state in memory did not follow it: what it decided could be decided differently."""


class _Following:
    """A context as a class, for one made of a generator takes a microsecond more."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise HalfApplied(f"{self._what} was appended, and its state could not follow: {error!r}") from error


def following(what: str) -> _Following:
    """Bring state up to what was just appended; whatever that raises becomes HalfApplied."""
    return _Following(what)


class HalfWritten(Fatal):
    """The log's write step broke off by an error that is not the disk's: what is written is not known."""
