"""A directory that is being written: a backup, or a new data directory."""

import os
import shutil
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from crc32c import crc32c

from duolog.store.backup.manifest import DIRECTORIES, BackupFailed, BackupManifest
from duolog.store.backup.sources import verify_log
from duolog.store.files import ReadOnlyFiles, RealFiles
from duolog.store.recovery.format_version import write_format
from duolog.store.recovery.tail_writer import append_run

# A restore skips so many epochs, because the broker may have been started so often since the backup. Clients know these
# epochs, so a restored log must not give them to other records.
SKIPPED_EPOCHS: Final = 10_000

_NEW_SUFFIX: Final = ".restoring"


def check_is_new(directory: str) -> None:
    """Raise BackupFailed unless the directory is empty or does not exist."""
    try:
        if os.listdir(directory):
            raise BackupFailed(f"{directory} is not empty")
    except FileNotFoundError:
        pass
    except NotADirectoryError as error:
        raise BackupFailed(f"{directory} is not a directory") from error


class WrittenFile:
    """A file that is written from its beginning to its end."""

    def __init__(self, files: RealFiles, path: str) -> None:
        """Create the file. Raises OSError."""
        self.size = self.crc = 0  # The size and the CRC of the written bytes.
        self._files, self._file = files, files.open(path, create=True)

    def write(self, block: bytes) -> None:
        self._files.write(self._file, [block], self.size)
        self.size, self.crc = self.size + len(block), crc32c(block, self.crc)

    def sync(self) -> None:
        self._files.sync(self._file)

    def close(self) -> None:
        self._files.close(self._file)


def write_file(files: RealFiles, path: str, blocks: Iterable[bytes]) -> WrittenFile:
    """Write a file durably, and return it closed, with its size and checksum."""
    file = WrittenFile(files, path)
    try:
        for block in blocks:
            file.write(block)
        file.sync()
    finally:
        file.close()
    return file


def make_directories(directory: str) -> RealFiles:
    """Create a directory with the directories of a backup, and return the files below it. Raises BackupFailed."""
    try:
        files = RealFiles(directory)
        for each in DIRECTORIES:
            files.make_directory(each)
    except OSError as error:
        raise BackupFailed(
            f"{directory} cannot be created: {error.strerror or error}; name a directory that this user may create"
        ) from error
    return files


def sync_directories(files: RealFiles) -> None:
    for directory in (*DIRECTORIES, "."):
        files.sync_directory(directory)


class NewDataDirectory:
    """A data directory that is made of a backup or of a stream. It gets its name when it is complete.

    A context manager: what was written is removed if the block raises.
    """

    def __init__(self, data: str) -> None:
        """Raises BackupFailed unless the data directory is empty or does not exist, and OSError."""
        check_is_new(data)
        self._data = data
        self._new = f"{data.rstrip('/')}{_NEW_SUFFIX}"
        shutil.rmtree(self._new, ignore_errors=True)  # A command that was killed has left it.
        self.files = make_directories(self._new)  # Below which the files must be written.

    def finish(self, position: int, data_format: int) -> None:
        """Verify the log, which must end at this position, and give the directory its name.

        Raises BackupFailed and OSError.
        """
        verify_log(ReadOnlyFiles(self._new), position)
        self._finish(data_format)

    def finish_restore(self, manifest: BackupManifest) -> None:
        """Verify the log of a backup, append a run to it, and give the directory its name.

        Raises BackupFailed and OSError.
        """
        report = verify_log(ReadOnlyFiles(self._new), manifest.position)
        append_run(self.files, manifest.position, report.epoch + SKIPPED_EPOCHS, report.stored_ms)
        self._finish(manifest.data_format)

    def _finish(self, data_format: int) -> None:
        write_format(self.files, data_format)
        sync_directories(self.files)
        os.replace(self._new, self._data)  # Linux replaces an empty directory.
        RealFiles(self._data).sync_directory("..")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            shutil.rmtree(self._new, ignore_errors=True)
