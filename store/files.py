"""The one door to the disk: a dozen operations, so that a test can put another disk behind it.

`RealFiles` is the operating system. Tests have a disk that keeps only what was synced when the power goes
(`tests/kit/disk.py`), and one whose n-th operation fails. Every path is relative to the data directory.
"""

from collections.abc import Sequence
from typing import Protocol

from store.entry import Buffer


class Files(Protocol):
    """What the store asks of a disk. All raise OSError as the operating system does; `File` is an open handle (a small int)."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing; with `create` the file must not exist. Its name is durable only after `sync_directory`."""

    def close(self, file: int) -> None: ...

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        """Write all buffers one behind the other at byte `at` (pwritev, short writes continued)."""

    def read(self, file: int, size: int, at: int) -> bytes:
        """Read up to `size` bytes; short only at the end of the file. May block."""

    def read_cached(self, file: int, size: int, at: int) -> bytes | None:
        """The same, but None instead of blocking when not all of it is in the page cache (preadv2 RWF_NOWAIT)."""

    def sync(self, file: int) -> None:
        """Make the file's bytes and length durable (fdatasync). May block."""

    def sync_directory(self, path: str) -> None:
        """Make names created, renamed and removed in this directory durable."""

    def size(self, file: int) -> int: ...

    def truncate(self, file: int, size: int) -> None: ...

    def reserve(self, file: int, size: int) -> None:
        """Allocate blocks up to `size` without changing what is read below the old length (fallocate); may do nothing."""

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def make_directory(self, path: str) -> None: ...

    def list(self, path: str) -> list[str]: ...

    def lock(self, path: str) -> int:
        """Take the exclusive lock file of the data directory, or raise BlockingIOError; returns the open handle that holds it."""

    def usage(self) -> tuple[int, int]:
        """(used bytes, total bytes) of the file system."""
