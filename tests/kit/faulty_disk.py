"""A disk in memory on which the test makes any operation fail, with any error, any number of times.

    disk = FaultyDisk()
    disk.arm("open", 3, errno.EMFILE)                 # only the third open from now on fails
    disk.arm("write", 1, errno.ENOSPC, failures=None)  # all writes fail until `heal`

A failing write stores half of its bytes; a failing sync loses the bytes that it should have synced
(`tests/kit/disk.py`). `read_cached` never raises: it returns None, and the thread that then reads gets the error.
"""

import os
from collections.abc import Sequence

from duolog.store.entry import Buffer
from tests.kit.disk import CrashDisk

OPERATIONS = (
    "open", "create", "read", "write", "sync", "sync_directory", "size", "truncate", "reserve", "rename", "remove",
    "remove_directory", "make_directory", "list", "usage",
)  # fmt: skip


class FaultyDisk(CrashDisk):
    """A disk on which operations fail after `arm`."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = 0  # The number of failures since `arm`.
        self._kind, self._nth, self._error = "", 0, 0
        self._failures_left: int | None = 0

    def arm(self, kind: str, nth: int, error: int, *, failures: int | None = 1) -> None:
        assert kind in OPERATIONS
        self._kind, self._nth, self._error, self._failures_left = kind, nth, error, failures
        self.failed = 0

    def heal(self) -> None:
        self._failures_left = 0

    def _fail(self, kind: str, path: str = "") -> None:
        if kind != self._kind or self._failures_left == 0:
            return
        self._nth -= 1
        if self._nth <= 0:
            self.failed += 1
            if self._failures_left is not None:
                self._failures_left -= 1
            raise OSError(self._error, os.strerror(self._error), f"{kind} {path}")

    def open(self, path: str, *, create: bool = False) -> int:
        self._fail("create" if create else "open", path)
        return super().open(path, create=create)

    def read(self, file: int, size: int, at: int) -> bytes:
        self._fail("read")
        return super().read(file, size, at)

    def read_cached(self, file: int, size: int, at: int) -> bytes | None:
        found = super().read(file, size, at)
        return found if self.cached and len(found) == size else None

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        try:
            self._fail("write")
        except OSError:
            data = b"".join(buffers)
            self._file(file).write(at, data[: len(data) // 2])
            raise
        super().write(file, buffers, at)

    def sync(self, file: int) -> None:
        try:
            self._fail("sync")
        except OSError:
            self._file(file).forget_unsynced()
            raise
        super().sync(file)

    def sync_directory(self, path: str) -> None:
        self._fail("sync_directory", path)
        super().sync_directory(path)

    def size(self, file: int) -> int:
        self._fail("size")
        return super().size(file)

    def truncate(self, file: int, size: int) -> None:
        self._fail("truncate")
        super().truncate(file, size)

    def reserve(self, file: int, size: int) -> None:
        self._fail("reserve")
        super().reserve(file, size)

    def rename(self, old: str, new: str) -> None:
        self._fail("rename", old)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._fail("remove", path)
        super().remove(path)

    def remove_directory(self, path: str) -> None:
        self._fail("remove_directory", path)
        super().remove_directory(path)

    def make_directory(self, path: str) -> None:
        self._fail("make_directory", path)
        super().make_directory(path)

    def list(self, path: str) -> list[str]:
        self._fail("list", path)
        return super().list(path)

    def usage(self) -> tuple[int, int]:
        self._fail("usage")
        return super().usage()
