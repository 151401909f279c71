"""A backup in a directory, and its restore."""

import os
from collections.abc import Callable, Iterable, Iterator

from duolog.store.backup.manifest import (
    MANIFEST,
    BackupFailed,
    check_copy,
    decode_manifest,
    encode_manifest,
    unfinished,
)
from duolog.store.backup.new_directory import NewDataDirectory, make_directories, sync_directories, write_file
from duolog.store.backup.sources import Sources, blocks_of, verify_log
from duolog.store.files import ReadOnlyFiles

NoteBytes = Callable[[int], None]


def copy_to_directory(sources: Sources, target: str, note_bytes: NoteBytes) -> None:
    """Copy all files to a directory that is empty or does not exist, and verify the copy.

    `note_bytes` is called for each block of bytes. Raises BackupFailed and OSError.
    """
    new = make_directories(target)
    checksums = {
        each.path: write_file(new, each.path, noted(sources.blocks(each), note_bytes)).crc for each in sources.files
    }
    verify_log(ReadOnlyFiles(target), sources.position)
    write_file(new, MANIFEST, [encode_manifest(sources.manifest(checksums))])
    sync_directories(new)


def noted(blocks: Iterable[bytes], note_bytes: NoteBytes) -> Iterator[bytes]:
    """Yield the blocks, and call `note_bytes` after the use of each."""
    for block in blocks:
        yield block
        note_bytes(len(block))


class DirectoryBackup:
    """A finished backup in a directory, to be restored."""

    def __init__(self, directory: str) -> None:
        """Read the manifest, and check that all files are there. Raises BackupFailed and OSError."""
        self._directory = directory
        try:
            with open(f"{directory}/{MANIFEST}", "rb") as file:
                self.manifest = decode_manifest(file.read(), directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            if not os.path.isdir(directory):
                raise BackupFailed(
                    f"{directory} is no directory: name the directory that `duolog backup` has made, or the URL of a "
                    "backup in a bucket"
                ) from error
            raise unfinished(directory) from error
        for path, size in self.manifest.files:
            try:
                actual = os.path.getsize(f"{directory}/{path}")
            except FileNotFoundError as error:
                raise BackupFailed(f"{directory}/{path} is missing") from error
            if actual != size:
                raise BackupFailed(f"{directory}/{path} has {actual} bytes, and {size} were expected")

    def restore(self, data: str, note_bytes: NoteBytes) -> None:
        """Verify the backup, and copy it to a data directory that is empty or does not exist.

        Raises BackupFailed and OSError.
        """
        source = ReadOnlyFiles(self._directory)
        verify_log(source, self.manifest.position)
        with NewDataDirectory(data) as new:
            for each in self.manifest.files:
                written = write_file(new.files, each.path, noted(blocks_of(source, each), note_bytes))
                check_copy(self.manifest, self._directory, each, written.size, written.crc)
            new.finish_restore(self.manifest)
