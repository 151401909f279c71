"""Copies a data directory while a broker uses it, and restores the copy.

    backup.json      the position up to which the copy has the log, and the sizes of all files; it is written last
    log/             the segments up to that position, gap files, snapshots
    timers/          the sorted tables that were current at that position

The broker names a position that it has written, with the segments and tables of that moment, and keeps the segments
from removal while they are copied (`bridge/http/api/leases.py`). Sealed segments and tables never change. Of the newest
segment only the bytes below the position are copied. So the copy is what a crash at that moment would have left,
without a torn end. Neither checkpoint nor indexes are copied: the first start builds them again from the log.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from duolog.store.errors import StoreError
from duolog.store.files import ReadOnlyFiles, RealFiles
from duolog.store.log.segment import LOG_DIRECTORY
from duolog.store.recovery.checkpoint import snapshot_path, snapshot_positions
from duolog.store.recovery.damage import Verification
from duolog.store.recovery.format_version import (
    FORMAT_VERSION,
    UnknownFormat,
    check_format,
    format_of,
    write_format,
)

MANIFEST: Final = "backup.json"
FORMAT: Final = 1  # The version of the manifest.
COPY_BYTES: Final = 8 << 20  # Size of one read and write.
_DIRECTORIES: Final = (LOG_DIRECTORY, "timers")
_NEW_SUFFIX: Final = ".restoring"

NoteBytes = Callable[[int], None]


class BackupFailed(StoreError):
    """A backup or restore cannot be done; the message says why."""


class FilesChanged(StoreError):
    """A file was removed before it was opened: the broker must be asked again which files are current."""


class CopiedFile(NamedTuple):
    """A file of the data directory, and how many of its first bytes belong to the copy."""

    path: str
    size: int


class BackupPlan(NamedTuple):
    """What to copy."""

    directory: str  # The data directory.
    position: int
    segments: Sequence[CopiedFile]  # Gap files, too; their size is 0.
    tables: Sequence[CopiedFile]

    @property
    def total_bytes(self) -> int:
        return sum(each.size for each in (*self.segments, *self.tables))


# -- Backup


def check_is_new(directory: str) -> None:
    """Raise BackupFailed unless the directory is empty or does not exist."""
    try:
        if os.listdir(directory):
            raise BackupFailed(f"{directory} is not empty")
    except FileNotFoundError:
        pass
    except NotADirectoryError as error:
        raise BackupFailed(f"{directory} is not a directory") from error


class Sources:
    """The open files of a plan. They can be read even after the broker has removed their names."""

    def __init__(self, plan: BackupPlan) -> None:
        """Open the tables, which no lease keeps, and read the snapshots. Raises FilesChanged and OSError."""
        self._plan = plan
        self._files = ReadOnlyFiles(plan.directory)
        self._opened = ExitStack()
        self._tables: list[tuple[CopiedFile, int]] = []
        try:
            self._tables = [(each, self._open(each.path)) for each in plan.tables]
            positions = [each for each in snapshot_positions(self._files) if each <= plan.position]
            self._snapshots = [self._whole(snapshot_path(each)) for each in positions]
        except FileNotFoundError as error:
            self.close()
            raise FilesChanged(f"{error.filename} was removed") from error

    def _open(self, path: str) -> int:
        file = self._files.open(path)
        self._opened.callback(self._files.close, file)
        return file

    def _whole(self, path: str) -> tuple[CopiedFile, int]:
        file = self._open(path)
        return CopiedFile(path, self._files.size(file)), file

    def close(self) -> None:
        self._opened.close()

    def copy_to(self, target: str, note_bytes: NoteBytes) -> None:
        """Copy all files to a directory that is empty or does not exist, and verify the copy.

        `note_bytes` is called for each block of bytes. Raises BackupFailed and OSError.
        """
        new = _new_directory(target)
        copied = [*self._tables, *self._snapshots]
        for each, file in copied:
            _copy(self._files, file, each, new, note_bytes)
        for each in self._plan.segments:
            if each.path.endswith(".gap"):
                new.close(new.open(each.path, create=True))
            else:
                _copy_file(self._files, each, new, note_bytes)
        _verify_log(target, self._plan.position)
        files = [*(each for each, _ in copied), *self._plan.segments]
        _write_manifest(
            new,
            {
                "format": FORMAT,
                "data_format": format_of(self._files) or FORMAT_VERSION,
                "position": self._plan.position,
                "files": files,
            },
        )
        _sync_directories(new)


def _new_directory(path: str) -> RealFiles:
    """Create a directory with the directories of a backup, and return the files below it."""
    files = RealFiles(path)
    for directory in _DIRECTORIES:
        files.make_directory(directory)
    return files


def _copy_file(source: ReadOnlyFiles, copied: CopiedFile, target: RealFiles, note_bytes: NoteBytes) -> None:
    file = source.open(copied.path)
    try:
        _copy(source, file, copied, target, note_bytes)
    finally:
        source.close(file)


def _copy(source: ReadOnlyFiles, file: int, copied: CopiedFile, target: RealFiles, note_bytes: NoteBytes) -> None:
    """Copy the first bytes of an open file durably."""
    new = target.open(copied.path, create=True)
    try:
        at = 0
        while at < copied.size:
            block = source.read(file, min(COPY_BYTES, copied.size - at), at)
            if not block:
                raise BackupFailed(f"{copied.path} has {at} bytes, and {copied.size} were expected")
            target.write(new, [block], at)
            at += len(block)
            note_bytes(len(block))
        target.sync(new)
    finally:
        target.close(new)


def _verify_log(directory: str, position: int) -> None:
    """Verify every unit of a copied log. Raises BackupFailed."""
    report = Verification(ReadOnlyFiles(directory), is_served=False, expected_end=position).run()
    if not report.is_intact:
        what = report.missing_state or f"{report.damage[0].path} at position {report.damage[0].start}"
        raise BackupFailed(f"the log is damaged: {what}; `duolog log verify` lists all places")
    if report.end != position:
        raise BackupFailed(f"the copied log ends at position {report.end}, and {position} was expected")


def _write_manifest(files: RealFiles, content: dict[str, Any]) -> None:
    file = files.open(MANIFEST, create=True)
    try:
        files.write(file, [json.dumps(content).encode()], 0)
        files.sync(file)
    finally:
        files.close(file)


def _sync_directories(files: RealFiles) -> None:
    for directory in (*_DIRECTORIES, "."):
        files.sync_directory(directory)


# -- Restore


class Backup:
    """A finished backup, to be restored."""

    def __init__(self, directory: str) -> None:
        """Read the manifest, and check that all files are there. Raises BackupFailed and OSError."""
        self._directory = directory
        try:
            with open(f"{directory}/{MANIFEST}", encoding="utf-8") as file:
                content = json.load(file)
            if content["format"] != FORMAT:
                raise BackupFailed(
                    f"{directory}/{MANIFEST} has format {content['format']}; this version knows {FORMAT}"
                )
            self._data_format = check_format(b"%d" % int(content["data_format"]))
            self.position = int(content["position"])
            self.files = [CopiedFile(str(path), int(size)) for path, size in content["files"]]
        except FileNotFoundError as error:
            raise BackupFailed(f"{directory} has no {MANIFEST}: it is no finished backup") from error
        except UnknownFormat as error:
            raise BackupFailed(f"{directory}: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise BackupFailed(f"{directory}/{MANIFEST} is damaged: {error!r}") from error
        for found in self._wrong_files():
            raise BackupFailed(found)

    @property
    def total_bytes(self) -> int:
        return sum(each.size for each in self.files)

    def _wrong_files(self) -> Iterator[str]:
        for path, size in self.files:
            parts = path.split("/")
            if len(parts) != 2 or parts[0] not in _DIRECTORIES or parts[1] in ("", ".", ".."):
                yield f"{self._directory}/{MANIFEST} names {path!r}, which is no file of a backup"
                return
            try:
                actual = os.path.getsize(f"{self._directory}/{path}")
            except FileNotFoundError:
                yield f"{self._directory}/{path} is missing"
                return
            if actual != size:
                yield f"{self._directory}/{path} has {actual} bytes, and {size} were expected"
                return

    def restore(self, data: str, note_bytes: NoteBytes) -> None:
        """Verify the backup, and copy it to a data directory that is empty or does not exist.

        The directory gets its name when it is complete. Raises BackupFailed and OSError.
        """
        check_is_new(data)
        _verify_log(self._directory, self.position)
        new = f"{data.rstrip('/')}{_NEW_SUFFIX}"
        shutil.rmtree(new, ignore_errors=True)  # A restore that was interrupted has left it.
        source, target = ReadOnlyFiles(self._directory), _new_directory(new)
        for each in self.files:
            _copy_file(source, each, target, note_bytes)
        _verify_log(new, self.position)
        write_format(target, self._data_format)
        _sync_directories(target)
        os.replace(new, data)  # Linux replaces an empty directory.
        RealFiles(data).sync_directory("..")
