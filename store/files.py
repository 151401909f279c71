"""All access to the file system: the protocol Files, and RealFiles, which calls the operating system.

Tests replace RealFiles by a simulated disk, which loses unsynced bytes at a power cut or fails the n-th operation
(`tests/kit/disk.py`). Every path is relative to the data directory.

Directories and files are accessible to their owner alone, whatever the umask is, because other users of the machine
must not read messages or take the lock.
"""

import fcntl
import logging
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from duolog.store.entry import Buffer
from duolog.store.errors import StoreError

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
LOCK_PATH = "lock"  # A broker holds the lock of this file while it uses the data directory.
_IOV_MAX = 1024  # Number of buffers that one pwritev accepts (Linux UIO_MAXIOV).
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)

log = logging.getLogger("store")


class RangeInStore(Protocol):
    """A range of the log that is in the object store only."""

    def fetch(self, done: Callable[[StoreError | OSError | None], None]) -> None:
        """Read the range back, and call `done` once it is on the disk, or with the error; in the loop's thread."""

    def release(self) -> None:
        """Allow that the range is removed from the disk again. To be called after `done` and the read."""


class NotOnDisk(StoreError):
    """A read needs bytes that are in the object store only: the caller fetches the range, and reads again."""

    def __init__(self, where: RangeInStore) -> None:
        super().__init__("the bytes are in the object store only")
        self.range = where


class ReadableFiles(Protocol):
    """The file operations of programs that only read a data directory. All raise OSError."""

    def open(self, path: str) -> int: ...

    def close(self, file: int) -> None: ...

    def read(self, file: int, size: int, at: int) -> bytes:
        """Read `size` bytes at byte `at`, fewer only at the end of the file. May block."""

    def size(self, file: int) -> int: ...

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; an empty list if it does not exist."""


class Files(ReadableFiles, Protocol):
    """The file operations that the store uses. All raise OSError; `file` is an open file descriptor."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file for reading and writing.

        With `create` the file must not exist; its directory entry is durable after `sync_directory`.
        """

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        """Write all buffers, one after another, at byte `at` (pwritev; a short write is continued)."""

    def read_cached(self, file: int, size: int, at: int) -> Buffer | None:
        """Read as `read` does, but return None if the page cache does not hold all bytes (preadv2 with RWF_NOWAIT).

        None is also returned instead of an OSError; the `read` that follows raises the error.
        """

    def read_on_disk(self, file: int, size: int, at: int) -> Buffer:
        """Read as `read` does, but raise NotOnDisk where `read` would wait for the object store."""

    def is_remote(self, path: str) -> bool:
        """Return whether the object store has the content of the file, which cannot be changed."""

    def sync(self, file: int) -> None:
        """Make the content and length of the file durable (fdatasync). May block."""

    def sync_directory(self, path: str) -> None:
        """Make the names that were created, renamed or removed in this directory durable. May block."""

    def truncate(self, file: int, size: int) -> None: ...

    def reserve(self, file: int, size: int) -> None:
        """Allocate blocks up to `size`, which read as zeros (fallocate). An implementation may do nothing."""

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents if they do not exist."""

    def lock(self, path: str) -> int:
        """Take an exclusive lock on this file and return its handle; closing the handle releases the lock.

        Raises BlockingIOError if another process holds the lock.
        """

    def usage(self) -> tuple[int, int]:
        """Return (used bytes, total bytes) of the file system."""


class RealFiles:
    """The files of the operating system below one directory.

    The class has more than 20 methods because it implements Files, which is the whole of what the store needs of an
    operating system, so that tests can replace the disk by one class.
    """

    def __init__(self, root: str) -> None:
        """Create the directory, or remove the access of other users to an existing one. Raises OSError."""
        self._root = root
        os.makedirs(root, mode=DIRECTORY_MODE, exist_ok=True)
        mode = stat.S_IMODE(os.stat(root).st_mode)
        if mode & ~DIRECTORY_MODE:
            try:
                os.chmod(root, DIRECTORY_MODE)
            except PermissionError:
                # Another user owns the directory, as with container volumes. The files in it are private all the same.
                log.warning(
                    "the data directory is accessible to others, and its mode cannot be changed: mode=%03o", mode
                )

    def open(self, path: str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return os.open(self._path(path), flags, FILE_MODE)

    def close(self, file: int) -> None:
        os.close(file)

    # -- Bytes

    def write(self, file: int, buffers: Sequence[Buffer], at: int) -> None:
        if len(buffers) == 1 and os.pwritev(file, buffers, at) == len(buffers[0]):
            return
        for first in range(0, len(buffers), _IOV_MAX):
            part = buffers[first : first + _IOV_MAX]
            size = sum(map(len, part))
            written = os.pwritev(file, part, at)
            if written < size:
                self._write_rest(file, b"".join(part)[written:], at + written)
            at += size

    def _write_rest(self, file: int, rest: bytes, at: int) -> None:
        """Continue after a short write until all is written or the operating system raises an error."""
        view = memoryview(rest)
        while view:
            written = os.pwrite(file, view, at)
            view = view[written:]
            at += written

    def read(self, file: int, size: int, at: int) -> bytes:
        return _read(file, size, at)

    def read_cached(self, file: int, size: int, at: int) -> Buffer | None:
        if not _NOWAIT:
            # RWF_NOWAIT is not available (macOS). A reader thread serves every read that the write buffer cannot.
            return None
        buffer = bytearray(size)
        try:
            return buffer if os.preadv(file, [buffer], at, _NOWAIT) == size else None
        except OSError:
            return None  # Mostly EAGAIN. If the disk has failed, the blocking read raises the error.

    def read_on_disk(self, file: int, size: int, at: int) -> bytes:
        return _read(file, size, at)

    def is_remote(self, path: str) -> bool:
        return False

    # -- Durability

    def sync(self, file: int) -> None:
        os.fdatasync(file) if hasattr(os, "fdatasync") else os.fsync(file)

    def sync_directory(self, path: str) -> None:
        file = os.open(self._path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    # -- Lengths and blocks

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def reserve(self, file: int, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)

    # -- Names

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def remove(self, path: str) -> None:
        os.remove(self._path(path))

    def remove_directory(self, path: str) -> None:
        os.rmdir(self._path(path))

    def make_directory(self, path: str) -> None:
        made = self._root
        for name in path.split("/"):
            made = f"{made}/{name}"
            with suppress(FileExistsError):
                os.mkdir(made, DIRECTORY_MODE)

    def list(self, path: str) -> list[str]:
        return _names(self._path(path))

    def lock(self, path: str) -> int:
        file = os.open(self._path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        return _locked(file, fcntl.LOCK_EX)

    def usage(self) -> tuple[int, int]:
        found = os.statvfs(self._root)
        return (found.f_blocks - found.f_bavail) * found.f_frsize, found.f_blocks * found.f_frsize

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"


class ReadOnlyFiles:
    """ReadableFiles of the operating system below one directory, which is neither created nor changed."""

    def __init__(self, root: str) -> None:
        self._root = root

    def open(self, path: str) -> int:
        return os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self, file: int) -> None:
        os.close(file)

    def read(self, file: int, size: int, at: int) -> bytes:
        return _read(file, size, at)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def list(self, path: str) -> list[str]:
        return _names(f"{self._root}/{path}")

    def lock_shared(self, path: str) -> int:
        """Take a shared lock on this file, which keeps a broker from starting, and return the file's handle.

        Raises BlockingIOError if another process holds the exclusive lock, and FileNotFoundError.
        """
        return _locked(self.open(path), fcntl.LOCK_SH)


# -- Small files


def read_whole(files: ReadableFiles, path: str) -> bytes:
    """Return the content of a file. Raises OSError."""
    file = files.open(path)
    try:
        return files.read(file, files.size(file), 0)
    finally:
        files.close(file)


def write_new(files: Files, path: str, content: Buffer) -> None:
    """Make a file with this content, which is durable after `sync_directory`. Raises OSError."""
    file = files.open(path, create=True)
    try:
        files.write(file, [content], 0)
        files.sync(file)
    finally:
        files.close(file)


def replace(files: Files, path: str, content: Buffer) -> None:
    """Replace a file of the data directory, or make it: after a crash it is the old or the new one. Raises OSError."""
    new = f"{path}.new"
    if new in files.list("."):
        files.remove(new)
    write_new(files, new, content)
    files.rename(new, path)
    files.sync_directory(".")


def _locked(file: int, kind: int) -> int:
    """Lock an open file without waiting, and return it. Closes it and raises OSError if another process holds it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def _read(file: int, size: int, at: int) -> bytes:
    """Read until `size` bytes or the end of the file."""
    found = os.pread(file, size, at)
    if len(found) == size or not found:
        return found
    parts = [found]
    while found and size > len(found):
        size, at = size - len(found), at + len(found)
        found = os.pread(file, size, at)
        parts.append(found)
    return b"".join(parts)


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []
